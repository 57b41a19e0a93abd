"""What a comparison would do and take, from a few timed steps of each system."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli
from electra_tf.cli import Log
from electra_tf.comparison import report
from electra_tf.comparison.plan import Plan, System
from electra_tf.comparison.statistics import CONFIDENCE, smallest_p_value
from electra_tf.pretraining.phases import learned_weights
from electra_tf.systems import build

# Steps that trace and warm up, then steps that are timed.
_WARM, _TIMED = 3, 10


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a system takes here: seconds of a mean step, parameters at its end."""

    seconds: float
    parameters: int


def measure(plan: Plan, system: System) -> Cost:
    """Builds a system, runs some steps of each phase, and times them."""
    config, words = system.config, plan.data.vocabulary
    batches = list(build.train_dataset(config, plan.data).take(_WARM + _TIMED))
    phases = build.compiled_phases(config, len(words), build.special_ids(words))
    seconds = 0.0
    for phase in phases:
        phase.set_trainable()
        step = tf.function(phase.model.train_step, jit_compile=config.run.jit_compile)
        for batch in batches[:_WARM]:
            step(batch)
        began = time.perf_counter()
        for batch in batches[_WARM:]:
            step(batch)
        took = (time.perf_counter() - began) / max(1, len(batches) - _WARM)
        # The mean over the phases by their steps.
        seconds += phase.steps / config.run.num_train_steps * took
    parameters = learned_weights(phases[-1].model)
    keras.backend.clear_session()
    return Cost(seconds, sum(int(np.prod(v.shape)) for v in parameters))


def plan_text(plan: Plan, costs: Mapping[str, Cost]) -> str:
    """Steps, FLOPs, time and disk of all, from what each named system takes."""
    config, lines, total, disk = plan.config, [], 0.0, 0
    for system in plan.systems:
        cost, steps = costs[system.name], system.config.run.num_train_steps
        flops = plan.flops(system)
        seconds = cost.seconds * steps
        total += seconds * config.seeds
        # Models as float32: all networks at the end, at most all of them at a point.
        disk += 4 * cost.parameters * (1 + len(config.points)) * config.seeds
        counts = (flops["matmul"] / steps, flops["matmul"], flops["original"])
        warmup = f"{system.config.optimizer.warmup_steps:,}"
        times = [f"{1000 * cost.seconds:.0f} ms", cli.duration(seconds)]
        parameters = f"{cost.parameters:,}"
        shown = [f"{count:.3g}" for count in counts]
        lines.append([system.name, f"{steps:,}", warmup, *shown, parameters, *times])
    head = ["system", "steps", "warm-up", "FLOPs/step", "FLOPs (matmul)"]
    head += ["FLOPs (original)", "parameters", "step", "run"]
    largest = max(cost.parameters for cost in costs.values())
    points = sum(len(plan.points(row.name)) for row in plan.rows)
    text = [
        report.table(head, lines),
        "",
        f"{len(plan.systems)} systems x {config.seeds} seeds: "
        f"{cli.duration(total / config.workers)} of training steps with "
        f"{config.workers} at a time (if they do not slow each other down), timed over "
        f"{_TIMED} steps each; starting, evaluating and the "
        f"{points * config.seeds * len(plan.probes)} probes ({config.probe_seeds} "
        "fine-tuning runs each) come on top.",
        f"Disk: about {disk / 2**20:,.0f} MiB of models, and "
        f"{12 * largest * config.workers / 2**20:,.0f} MiB of checkpoints at a time.",
    ]
    floor = smallest_p_value(config.seeds)
    if floor > 1 - CONFIDENCE:
        text.append(
            f"Note: with {config.seeds} seeds the exact permutation test cannot give a "
            f"p-value below {floor:.3g}; 6 seeds can give 0.031."
        )
    return "\n".join([*text, "dry run: nothing was trained."])


def run(plan: Plan, log: Log) -> None:
    """Times every system and logs the plan."""
    costs = {}
    for system in plan.systems:
        costs[system.name] = measure(plan, system)
        log(f"timed {system.name}: {1000 * costs[system.name].seconds:.0f} ms a step")
    log(plan_text(plan, costs))

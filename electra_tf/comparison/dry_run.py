"""What a comparison would do and take, from a few timed steps of each system."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from electra_tf import build
from electra_tf.comparison import report
from electra_tf.comparison.ladder import System
from electra_tf.comparison.plan import Plan
from electra_tf.comparison.runner import duration
from electra_tf.comparison.statistics import CONFIDENCE, smallest_p_value
from electra_tf.pretraining.phases import learned_weights

# Steps that trace and warm up, then steps that are timed.
_WARM, _TIMED = 3, 10


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a step of a system takes here and now, a mean over its phases."""

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
        share = phase.steps / config.run.num_train_steps
        seconds += share * _seconds(phase.model, batches, config.run.jit_compile)
    parameters = learned_weights(phases[-1].model)
    keras.backend.clear_session()
    return Cost(seconds, sum(int(np.prod(v.shape)) for v in parameters))


def _seconds(model, batches, jit_compile):
    """Mean time of a step."""
    step = tf.function(model.train_step, jit_compile=jit_compile)
    stream = iter(batches)
    for batch in itertools.islice(stream, _WARM):
        step(batch)
    began = time.perf_counter()
    count = 0
    for batch in stream:
        step(batch)
        count += 1
    return (time.perf_counter() - began) / max(1, count)


def plan_text(plan: Plan, costs: dict[str, Cost]) -> str:
    """Steps, FLOPs, time and disk of the whole comparison.

    Args:
        plan: the comparison.
        costs: of each system.
    """
    config, lines, total, disk = plan.config, [], 0.0, 0
    for system in plan.systems:
        cost, steps = costs[system.name], system.config.run.num_train_steps
        flops = plan.flops(system)
        seconds = cost.seconds * steps
        total += seconds * config.seeds
        # Models as float32: all networks at the end, at most all of them at a point.
        disk += 4 * cost.parameters * (1 + len(config.points)) * config.seeds
        lines.append(
            [
                system.name,
                f"{steps:,}",
                f"{system.config.optimizer.warmup_steps:,}",
                f"{flops['matmul'] / steps:.3g}",
                f"{flops['matmul']:.3g}",
                f"{flops['original']:.3g}",
                f"{cost.parameters:,}",
                f"{1000 * cost.seconds:.0f} ms",
                duration(seconds),
            ]
        )
    head = ["system", "steps", "warm-up", "FLOPs/step", "FLOPs (matmul)"]
    head += ["FLOPs (original)", "parameters", "step", "run"]
    largest = max(cost.parameters for cost in costs.values())
    probed = sum(len(plan.points(row.name)) for row in plan.rows) * config.seeds
    probes = probed * len(plan.probes)
    text = [
        report.table(head, lines),
        "",
        f"{len(plan.systems)} systems x {config.seeds} seeds: "
        f"{duration(total / config.workers)} of training steps with "
        f"{config.workers} at a time (if they do not slow each other down), timed over "
        f"{_TIMED} steps each; starting, evaluating and the {probes} probes "
        f"({config.probe_seeds} fine-tuning runs each) come on top.",
        f"Disk: about {disk / 2**20:,.0f} MiB of models, and "
        f"{12 * largest * config.workers / 2**20:,.0f} MiB of checkpoints at a time.",
    ]
    floor = smallest_p_value(config.seeds)
    if floor > 1 - CONFIDENCE:
        text.append(
            f"Note: with {config.seeds} seeds the exact permutation test cannot give a "
            f"p-value below {floor:.3g}; 6 seeds can give 0.031."
        )
    text.append("dry run: nothing was trained.")
    return "\n".join(text)


def run(plan: Plan, log: Callable[[str], None]) -> None:
    """Times every system and prints the plan."""
    costs = {}
    for system in plan.systems:
        costs[system.name] = measure(plan, system)
        log(f"timed {system.name}: {1000 * costs[system.name].seconds:.0f} ms a step")
    log(plan_text(plan, costs))

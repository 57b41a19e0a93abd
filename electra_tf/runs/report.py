"""Reports of a pretraining run: sizes, costs and held-out metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.prepared import PretrainingData
from electra_tf.data.records import Manifest
from electra_tf.folders.pretraining import TENSORBOARD, PretrainingFolder
from electra_tf.pretraining import PretrainingModel
from electra_tf.pretraining.baselines import COPYING
from electra_tf.pretraining.phases import learned_weights
from electra_tf.systems import costs
from electra_tf.tasks import metrics
from electra_tf.training.cards import metric_cards

# Minimum number of batches for the bootstrap.
_FEWEST_BATCHES = 8
# BERT's number of epochs (Devlin et al., 2019, appendix A.2).
MOST_PASSES = 40


def summary(
    config: PretrainConfig,
    model: PretrainingModel,
    vocab_size: int,
    manifest: Manifest | None,
) -> str:
    """Summarizes the objective, model and data of a run."""
    encoder = config.encoder
    # Shows settings that differ from these values.
    choices = {
        "generator": (config.generator.generator, "masked_lm"),
        "sharing": (config.generator.sharing, "tied"),
        "training": (config.training.training, "joint"),
        "freeze_generator": (config.training.freeze_generator, False),
        "sentence_weight": (config.objective.sentence_weight, 0.0),
    }
    other = [f"{n}={value}" for n, (value, usual) in choices.items() if value != usual]
    lines = [
        f"{', '.join([config.objective.objective, *other])}: "
        f"{parameters(model):,} parameters; encoder "
        f"{encoder.num_layers} layers x {encoder.hidden_size}, "
        f"{vocab_size:,} tokens in the vocabulary"
    ]
    if manifest:
        per_pass = manifest.num_records
        passes = config.run.num_train_steps * config.run.train_batch_size / per_pass
        lines.append(
            f"{per_pass:,} training records of {manifest.num_tokens:,} tokens; "
            f"{config.run.num_train_steps:,} steps of {config.run.train_batch_size} "
            f"are {passes:.1f} passes"
        )
        if passes > MOST_PASSES:
            steps = max(1, MOST_PASSES * per_pass // config.run.train_batch_size)
            lines.append(
                f"warning: {passes:.0f} passes memorize the text. Give more text, or "
                f"stop after {MOST_PASSES} passes with --num_train_steps={steps}."
            )
    return "\n".join(lines)


def evaluate(
    model: PretrainingModel, batches: tf.data.Dataset
) -> tuple[dict[str, float], metrics.Intervals]:
    """Returns the held-out metrics by name, and their 95 % confidence intervals.

    The bootstrap resamples batches, since metric counts add up over batches. Intervals
    are empty for fewer than 8 batches and on several devices.
    """
    states = _States()
    # Each device has its own counts.
    alone = model.distribute_strategy.num_replicas_in_sync == 1
    more = {"callbacks": [states]} if alone else {}
    logs = model.evaluate(batches, verbose=0, return_dict=True, **more)
    scores = {name: float(np.ravel(value)[0]) for name, value in logs.items()}
    if len(states.totals) < _FEWEST_BATCHES:
        return scores, {}
    variables = model.metrics_variables

    @tf.function(autograph=False)
    def results(*sums: tf.Tensor) -> dict[str, tf.Tensor]:
        for variable, value in zip(variables, sums, strict=True):
            variable.assign(value)
        return {metric.name: metric.result() for metric in model.metrics}

    of_batches = [np.diff(column, axis=0, prepend=0) for column in states.columns()]

    def draw(rows: np.ndarray) -> dict[str, float]:
        sums = (tf.constant(column[rows].sum(0)) for column in of_batches)
        return {name: float(x) for name, x in results(*sums).items()}

    intervals = metrics.ends([draw(rows) for rows in metrics.draws(len(states.totals))])
    model.reset_metrics()
    return scores, {n: intervals[n] for n in scores if n in intervals}


class _States(keras.callbacks.Callback):
    """Records the metric variables after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: list[list[np.ndarray]] = []

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        self.totals.append([v.numpy() for v in self.model.metrics_variables])

    def columns(self) -> list[np.ndarray]:
        """Returns the totals of each variable, stacked over batches."""
        return [np.stack(column) for column in zip(*self.totals, strict=True)]


def held_out_table(logs: Mapping[str, float], baselines: Mapping[str, float]) -> str:
    """Formats the held-out metrics beside the trivial baseline."""
    lines = [f"{'held-out text':<28}{'this model':>12}{'trivial':>12}  trivial means"]
    alone = []
    for card in metric_cards(logs):
        if not card.label or card.name not in logs:
            continue
        line = f"{card.label:<28}{card.format.format(logs[card.name]):>12}"
        if card.name not in baselines:
            alone.append(line)
            continue
        baseline = card.format.format(baselines[card.name])
        lines.append(f"{line}{baseline:>12}  {card.baseline}")
        if f"{card.name}{COPYING}" in baselines:
            copying = card.format.format(baselines[f"{card.name}{COPYING}"])
            lines.append(f"{copying:>52}  and copying what shows")
    return "\n".join([*lines, *alone])


def held_out_rows(
    logs: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    baselines: Mapping[str, float],
) -> list[tuple[str, str, str, str]]:
    """Returns label, value, interval and trivial baseline of each held-out metric."""
    rows = []
    for card in metric_cards(logs):
        if card.label and card.name in logs:
            ends = map(card.format.format, intervals.get(card.name, ()))
            trivial = ""
            if card.name in baselines:
                trivial = card.format.format(baselines[card.name])
            value = card.format.format(logs[card.name])
            rows.append((card.label, value, " to ".join(ends), trivial))
    return rows


def dry_run(
    config: PretrainConfig,
    model: PretrainingModel,
    vocab_size: int,
    data: PretrainingData | None,
) -> str:
    """Reports parameters, FLOPs and data of a run without training it.

    ``data`` is None if the records do not exist.
    """
    models = {**model.artifacts(), "all, shared once": model}
    counts = ", ".join(f"{name} {parameters(part):,}" for name, part in models.items())
    line = "FLOPs {}: {:.3g} (matrix products), {:.3g} (the original's rules)"
    rules, flops = ("matmul", "original"), []
    phases = costs.phases(config, vocab_size)
    for phase in phases:
        name = f", phase {phase.name} of {phase.steps:,} steps"
        step = [costs.step_flops(config, phase, rule=rule) for rule in rules]
        flops.append(line.format(f"per step{name if len(phases) > 1 else ''}", *step))
    held_out = "the records do not exist yet"
    if data:
        held_out = f"held-out records: {len(data.eval_files)} files"
    totals = [costs.run_flops(config, vocab_size, rule=rule) for rule in rules]
    flops.append(line.format("in total", *totals))
    return "\n".join(
        [
            summary(config, model, vocab_size, data and data.manifest),
            f"parameters: {counts}",
            *flops,
            f"{held_out}; one mask has {config.predictions_per_seq} slots per row",
            "dry run: nothing was trained.",
        ]
    )


def parameters(model: tf.keras.Model) -> int:
    """Counts the parameters, frozen ones included, without counters and seeds."""
    return sum(int(np.prod(v.shape)) for v in learned_weights(model))


def next_steps(folder: PretrainingFolder) -> str:
    """Lists the outputs of a finished run and the next commands."""
    return (
        f"\n{folder.path} holds {', '.join(folder.outputs())}. Next:\n"
        f"  python -m electra_tf finetune --flagfile=configs/tasks/tiny.cfg "
        f"--encoder={folder.model_path('encoder')}\n"
        f"  tensorboard --logdir={folder.path / TENSORBOARD}"
    )

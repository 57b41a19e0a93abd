"""Reports of a pretraining run: sizes, costs and held-out metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import numpy as np

from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.records import Manifest
from electra_tf.folders.pretraining import TENSORBOARD, PretrainingFolder
from electra_tf.pretraining import PretrainingModel
from electra_tf.pretraining.base import learned_weights
from electra_tf.systems import costs
from electra_tf.training.sinks import metric_cards

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


def held_out_rows(
    logs: Mapping[str, float], baselines: Mapping[str, float]
) -> list[tuple[str, str, str, str]]:
    """Returns name, value, trivial baseline and its meaning of held-out metrics."""
    rows = []
    for card in metric_cards(logs):
        if card.format and card.name in logs:
            trivial = ("", "")
            if card.name in baselines:
                value = card.format.format(baselines[card.name])
                trivial = (value, card.baseline)
            rows.append((card.name, card.format.format(logs[card.name]), *trivial))
    return rows


def held_out_table(rows: Sequence[tuple[str, str, str, str]]) -> str:
    """Formats the held-out metrics beside the trivial baseline."""
    header = ("held-out text", "this model", "trivial", "trivial means")
    return "\n".join(
        f"{a:<28}{b:>12}{c:>12}  {d}".rstrip() for a, b, c, d in (header, *rows)
    )


def dry_run(
    config: PretrainConfig,
    model: PretrainingModel,
    vocab_size: int,
    manifest: Manifest | None,
) -> str:
    """Reports parameters and FLOPs of a run without training it."""
    models = {**model.artifacts(), "all, shared once": model}
    counts = ", ".join(f"{name} {parameters(part):,}" for name, part in models.items())
    line = "FLOPs {}: {:.3g} (matrix products), {:.3g} (the original's rules)"
    rules, flops = ("matmul", "original"), []
    phases = costs.phases(config, vocab_size)
    for phase in phases:
        name = f", phase {phase.name} of {phase.steps:,} steps"
        step = [costs.step_flops(config, phase, rule=rule) for rule in rules]
        flops.append(line.format(f"per step{name if len(phases) > 1 else ''}", *step))
    totals = [costs.run_flops(config, vocab_size, rule=rule) for rule in rules]
    flops.append(line.format("in total", *totals))
    return "\n".join(
        [
            summary(config, model, vocab_size, manifest),
            f"parameters: {counts}",
            *flops,
            f"one mask has {config.predictions_per_seq} slots per row",
            "dry run: nothing was trained.",
        ]
    )


def parameters(model: keras.Model) -> int:
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

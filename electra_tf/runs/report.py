"""Reports of a pretraining run: sizes, costs, held-out metrics and warnings."""

import collections
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from electra_tf.cli import Log
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.records import Manifest
from electra_tf.folders.pretraining import TENSORBOARD, PretrainingFolder
from electra_tf.pretraining import PretrainingModel
from electra_tf.pretraining.base import learned_weights
from electra_tf.pretraining.metrics import entropy
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
    lines = [
        f"{config.objective.objective}: {parameters(model):,} parameters; encoder "
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
    """Formats the held-out metrics with the trivial baseline."""
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


class HealthWarnings:
    """Warns once about a collapsed discriminator or too strong a generator.

    One of ``training.sinks``. A rule must hold for ``windows`` consecutive windows
    after ``min_steps``:

    - collapse: AUC below 0.55, and a loss no better than the entropy of the base rate.
      Both count replaceable tokens only, if the logs have them. Low recall alone is
      normal: 0.05 at 5,000 steps with an AUC of 0.68 is healthy. Replaced-token
      detection only.
    - strong generator: fewer than 30 % of the masked tokens are replaced. About 40 % is
      usual at the end of training (6 % of all tokens at a mask rate of 15 %).

    ``mask_rate`` is the fraction of real tokens that are masked.
    """

    def __init__(self, mask_rate: float, log: Log, *, min_steps: int, windows: int = 5):
        self._mask_rate = mask_rate
        self._log = log
        self._min_steps = min_steps
        self._windows = windows
        self._counts = collections.Counter()

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        rules = {
            "discriminator_auc": self._collapse,
            "replaced_fraction": self._strong_generator,
        }
        for metric, rule in rules.items():
            count = self._counts[metric]
            # Held-out rows lack these metrics. A rule that has warned stays silent.
            if step < self._min_steps or metric not in values or count == self._windows:
                continue
            message = rule(values)
            self._counts[metric] = count + 1 if message else 0
            if self._counts[metric] == self._windows:
                self._log(f"step {step}: {message}")

    def _collapse(self, values: Mapping[str, float]) -> str | None:
        if not {"discriminator_loss", "replaced_fraction"} <= values.keys():
            return None  # An objective from outside.
        auc, loss = values["discriminator_auc"], values["discriminator_loss"]
        # Fraction of replaced tokens in the discriminator's loss.
        replaced = values.get("replaced_masked_fraction", values["replaced_fraction"])
        chance = entropy(replaced)
        if "replaceable_auc" in values:
            auc, loss = values["replaceable_auc"], values["replaceable_loss"]
            chance = entropy(values["replaced_replaceable_fraction"])
        if auc >= 0.55 or loss < 0.98 * chance:
            return None
        return (
            f"the discriminator does not separate replaced from real tokens (AUC "
            f"{auc:.3f}, loss {loss:.4f} where a constant guess has {chance:.4f}). "
            "Lower the learning rate or lengthen the warm-up; if the generator was "
            "trained first, start the discriminator from its weights; check that "
            "discriminator_weight is 50."
        )

    def _strong_generator(self, values: Mapping[str, float]) -> str | None:
        replaced = values["replaced_fraction"]
        if replaced >= 0.3 * self._mask_rate:
            return None
        return (
            f"the generator guesses so well that only {replaced:.1%} of the tokens are "
            f"replaced at a mask rate of {self._mask_rate:.0%}, which leaves the "
            "discriminator little to learn from. Use a smaller generator (1/4 to 1/2 "
            "of the discriminator's width), a higher mask rate (25 % in ELECTRA-Large) "
            "or a higher sampling temperature."
        )

"""Reports of a pretraining run: sizes, costs, held-out metrics and warnings."""

import collections
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from electra_tf.cli import Log
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.records import Manifest
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
    encoder, run = config.encoder, config.run
    text = (
        f"{config.objective.objective}: {parameters(model):,} parameters; encoder "
        f"{encoder.num_layers} layers x {encoder.hidden_size}, "
        f"{vocab_size:,} tokens in the vocabulary"
    )
    if manifest:
        per_pass = manifest.num_records
        passes = run.num_train_steps * run.train_batch_size / per_pass
        text += (
            f"\n{per_pass:,} training records of {manifest.num_tokens:,} tokens; "
            f"{run.num_train_steps:,} steps of {run.train_batch_size} are "
            f"{passes:.1f} passes"
        )
        if passes > MOST_PASSES:
            steps = max(1, MOST_PASSES * per_pass // run.train_batch_size)
            text += (
                f"\nwarning: {passes:.0f} passes memorize the text. Give more text, or "
                f"stop after {MOST_PASSES} passes with --num_train_steps={steps}."
            )
    return text


def held_out_rows(
    logs: Mapping[str, float], baselines: Mapping[str, float]
) -> list[tuple[str, str, str, str]]:
    """Returns name, value, trivial baseline and its meaning of held-out metrics."""
    rows = []
    for card in metric_cards(logs):
        if card.format and card.name in logs:
            value, trivial = logs[card.name], ("", "")
            if card.name in baselines:
                trivial = (card.format.format(baselines[card.name]), card.baseline)
            rows.append((card.name, card.format.format(value), *trivial))
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
    lines = [summary(config, model, vocab_size, manifest), f"parameters: {counts}"]
    rules, flops = ("matmul", "original"), {}
    by_rule = [costs.phases(config, vocab_size, rule=rule) for rule in rules]
    for pair in zip(*by_rule, strict=True):
        name = f", phase {pair[0].name} of {pair[0].steps:,} steps"
        step = [phase.flops for phase in pair]
        flops[f"per step{name if len(by_rule[0]) > 1 else ''}"] = step
    flops["in total"] = [costs.run_flops(config, vocab_size, rule=x) for x in rules]
    lines += [
        f"FLOPs {name}: {matmul:.3g} (matrix products), {original:.3g} (the original's "
        "rules)"
        for name, (matmul, original) in flops.items()
    ]
    lines.append(f"one mask has {config.predictions_per_seq} slots per row")
    return "\n".join([*lines, "dry run: nothing was trained."])


def parameters(model: keras.Model) -> int:
    """Counts the parameters, frozen ones included, without counters and seeds."""
    return sum(int(np.prod(v.shape)) for v in learned_weights(model))


class HealthWarnings:
    """Warns once about a collapsed discriminator or too strong a generator.

    One of ``training.sinks``. A rule must hold for ``windows`` consecutive windows
    after ``min_steps``:

    - collapse: AUC below 0.55, and a loss no better than the entropy of the base rate.
      Low recall alone is normal: 0.05 at 5,000 steps with an AUC of 0.68 is healthy.
    - strong generator: fewer than 30 % of the masked tokens are replaced. About 40 % is
      usual at the end of training (6 % of all tokens at a ``mask_rate`` of 15 %).
    """

    def __init__(self, mask_rate: float, log: Log, *, min_steps: int, windows: int = 5):
        self.mask_rate, self.log = mask_rate, log
        self.min_steps, self.windows = min_steps, windows
        self._counts = collections.Counter()

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        # Held-out rows lack the metrics, as does an objective from outside.
        collapse = {"discriminator_auc", "discriminator_loss", "replaced_fraction"}
        needed = {
            self._collapse: collapse,
            self._strong_generator: {"replaced_fraction"},
        }
        for rule, names in needed.items():
            # A rule that has warned stays silent.
            has_warned = self._counts[rule] == self.windows
            if step < self.min_steps or not names <= values.keys() or has_warned:
                continue
            message = rule(values)
            self._counts[rule] = self._counts[rule] + 1 if message else 0
            if self._counts[rule] == self.windows:
                self.log(f"step {step}: {message}")

    def _collapse(self, values: Mapping[str, float]) -> str:
        auc, loss = values["discriminator_auc"], values["discriminator_loss"]
        # Fraction of replaced tokens in the discriminator's loss.
        replaced = values.get("replaced_masked_fraction", values["replaced_fraction"])
        if "replaceable_auc" in values:
            auc, loss = values["replaceable_auc"], values["replaceable_loss"]
            replaced = values["replaced_replaceable_fraction"]
        chance = entropy(replaced)
        if auc >= 0.55 or loss < 0.98 * chance:
            return ""
        return (
            f"the discriminator does not separate replaced from real tokens (AUC "
            f"{auc:.3f}, loss {loss:.4f} where a constant guess has {chance:.4f}). "
            "Lower the learning rate or lengthen the warm-up; after training the "
            "generator first, start the discriminator from its weights; check that "
            "discriminator_weight is 50."
        )

    def _strong_generator(self, values: Mapping[str, float]) -> str:
        replaced = values["replaced_fraction"]
        if replaced >= 0.3 * self.mask_rate:
            return ""
        return (
            f"the generator guesses so well that only {replaced:.1%} of the tokens are "
            f"replaced at a mask rate of {self.mask_rate:.0%}. Use a smaller generator "
            "(1/4 to 1/2 of the discriminator's width), a higher mask rate (25 % in "
            "ELECTRA-Large) or a higher sampling temperature."
        )

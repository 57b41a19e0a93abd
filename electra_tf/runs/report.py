"""Reports of a pretraining run: sizes, costs, held-out metrics and warnings."""

import collections
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from electra_tf.cli import Log
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.records import Shard
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
    shards: Sequence[Shard] | None,
) -> str:
    """Summarizes the objective, model and data of a run."""
    encoder, run = config.encoder, config.run
    text = (
        f"{config.objective.objective}: {parameters(model):,} parameters; encoder "
        f"{encoder.num_layers} layers x {encoder.hidden_size}, "
        f"{vocab_size:,} tokens in the vocabulary"
    )
    if shards:
        per_pass = sum(shard.records for shard in shards)
        tokens = sum(shard.tokens for shard in shards)
        passes = run.num_train_steps * run.train_batch_size / per_pass
        text += (
            f"\n{per_pass:,} training records of {tokens:,} tokens; {passes:.1f} "
            f"passes in {run.num_train_steps:,} steps of {run.train_batch_size}"
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
    shards: Sequence[Shard] | None,
) -> str:
    """Reports parameters and FLOPs of a run without training it."""
    models = {**model.artifacts(), "all, shared once": model}
    counts = ", ".join(f"{name} {parameters(part):,}" for name, part in models.items())
    lines = [summary(config, model, vocab_size, shards), f"parameters: {counts}"]
    for rule, about in ("matmul", "matrix products"), ("original", "original's rules"):
        total = costs.run_flops(config, vocab_size, rule=rule)
        mean = total / config.run.num_train_steps
        lines.append(f"FLOPs ({about}): {total:.3g} in total, {mean:.3g} per step")
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
        if step < self.min_steps or "replaced_fraction" not in values:
            return
        for rule in (self._collapse, self._strong_generator):
            if self._counts[rule] == self.windows:
                continue
            message = rule(values)
            self._counts[rule] = self._counts[rule] + 1 if message else 0
            if self._counts[rule] == self.windows:
                self.log(f"step {step}: {message}")

    def _collapse(self, values: Mapping[str, float]) -> str:
        if not {"discriminator_auc", "discriminator_loss"} <= values.keys():
            return ""
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

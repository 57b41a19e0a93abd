"""The threshold of pretraining progress below which systems are not ranked.

Below it, systems have learned little more than token frequencies, and a probe measures
how fast words are memorized.
"""

from __future__ import annotations

import math
from statistics import fmean

from electra_tf.comparison.plan import UNTRAINED, Plan
from electra_tf.comparison.store import Row
from electra_tf.pretraining.baselines import COPYING

_AUC, _NATS = "replaceable_auc", "masked_lm_loss"
# The run of the shipped encoder had an AUC of 0.68 after this many
# (docs/experiments.md). The length of the plateau is not known in theory.
_POSITIONS = 12_300_000


def below(plan: Plan, runs: dict[str, list[Row]]) -> dict[str, str]:
    """Returns the systems below their threshold, with their AUC or gain in nats.

    Averages over ``runs``, the rows of finished pretraining runs by system. Systems
    without held-out AUC over replaceable tokens and without masked LM loss have no
    threshold, like rows of older versions. Electric has none either: even the best
    energies cannot separate noise that is as likely as text.
    """
    objectives = {row.name: row.config.objective.objective for row in plan.systems}
    found = {}
    for system, rows in runs.items():
        if system == UNTRAINED or objectives[system] == "electric":
            continue
        # NaN is null in the file.
        gains = [gain for row in rows if (gain := _gain(row)) is not None]
        aucs = [x for row in rows if (x := row["held_out"].get(_AUC)) is not None]
        if aucs and fmean(aucs) < plan.config.threshold_auc:
            found[system] = f"AUC {fmean(aucs):.3f}"
        elif gains and fmean(gains) < plan.config.threshold_nats:
            found[system] = f"{fmean(gains):.2f} nats"
    return found


def _gain(row: Row) -> float | None:
    """Returns the gain of a masked LM over the best trivial predictor, in nats."""
    found, trivial = row["held_out"].get(_NATS), row.get("trivial") or {}
    names = (_NATS, f"{_NATS}{COPYING}")
    known = [x for name in names if (x := trivial.get(name)) is not None]
    return min(known) - found if known and found is not None else None


def explain(plan: Plan, below: dict[str, str]) -> str:
    """Returns a paragraph with the systems below threshold and a sufficient budget."""
    config = plan.config
    missing = ", ".join(f"{system} ({value})" for system, value in below.items())
    return (
        f"**Below threshold: {missing}.** A discriminator needs an AUC of "
        f"{config.threshold_auc:g} over the tokens that can be replaced, a masked LM "
        f"{config.threshold_nats:g} nats below the best trivial predictor "
        "(--threshold_auc, --threshold_nats). These systems are not ranked: "
        f"{_enough(plan)}"
    )


def _enough(plan: Plan) -> str:
    config = plan.config
    reference = next(row.config for row in plan.systems if row.name == config.reference)
    per_step = reference.run.train_batch_size * reference.data.max_seq_length
    steps = reference.run.num_train_steps
    enough = math.ceil(_POSITIONS / per_step)
    return (
        f"a run has seen {steps * per_step / 1e6:.1f} million positions, and "
        f"configs/mini.cfg, of 4 layers x 256, had an AUC of 0.68 after "
        f"{_POSITIONS / 1e6:.1f} million; go on with --budget={config.reference}:"
        f"{max(enough, 2 * steps)}."
    )

"""The threshold of pretraining progress below which systems are not ranked.

Below it, systems have learned little more than token frequencies, and a probe measures
how fast words are memorized.
"""

from __future__ import annotations

from statistics import fmean

from electra_tf.comparison.plan import UNTRAINED, Plan
from electra_tf.comparison.store import Row
from electra_tf.pretraining.metrics import COPYING

_AUC, _NATS = "replaceable_auc", "masked_lm_loss"


def below(plan: Plan, runs: dict[str, list[Row]]) -> dict[str, str]:
    """Returns the systems below their threshold, with their AUC or gain in nats.

    Averages over ``runs``, the rows of finished pretraining runs by system. Systems
    without held-out AUC over replaceable tokens and without masked LM loss have no
    threshold, like rows of older versions. Electric has no threshold: even optimal
    energies cannot separate noise that is as likely as text.
    """
    objectives = {row.name: row.config.objective.objective for row in plan.systems}
    values = {}
    for system, rows in runs.items():
        if system == UNTRAINED or objectives[system] == "electric":
            continue
        # NaN is null in the file.
        gains = [gain for row in rows if (gain := _gain(row)) is not None]
        aucs = [x for row in rows if (x := row["held_out"].get(_AUC)) is not None]
        if aucs and fmean(aucs) < plan.config.threshold_auc:
            values[system] = f"AUC {fmean(aucs):.3f}"
        elif gains and fmean(gains) < plan.config.threshold_nats:
            values[system] = f"{fmean(gains):.2f} nats"
    return values


def _gain(row: Row) -> float | None:
    """Returns the gain of a masked LM over the best trivial predictor, in nats."""
    nats, trivial = row["held_out"].get(_NATS), row.get("trivial") or {}
    names = (_NATS, f"{_NATS}{COPYING}")
    known = [x for name in names if (x := trivial.get(name)) is not None]
    return min(known) - nats if known and nats is not None else None


def explain(plan: Plan, below: dict[str, str]) -> str:
    """Returns a paragraph with the systems below threshold."""
    config = plan.config
    missing = ", ".join(f"{system} ({value})" for system, value in below.items())
    return (
        f"**Below threshold: {missing}.** A discriminator needs an AUC of "
        f"{config.threshold_auc:g} over the tokens that can be replaced, a masked LM "
        f"{config.threshold_nats:g} nats below the best trivial predictor "
        "(--threshold_auc, --threshold_nats). These systems are not ranked: use "
        "a larger --budget."
    )

"""Which systems have learned enough for their scores to say something about them.

Below the threshold all systems are where frequencies of tokens alone take them, and
what a probe measures is how fast words are memorised.
"""

from __future__ import annotations

import math
from statistics import fmean

from electra_tf.comparison.plan import UNTRAINED, Plan
from electra_tf.comparison.store import Row
from electra_tf.pretraining.baselines import COPYING

_AUC, _NATS = "replaceable_auc", "masked_lm_loss"
# After which the run behind the shipped encoder had an AUC of 0.68, for want of a
# theory of when a plateau ends (docs/experiments.md).
_POSITIONS = 12_300_000


def below(plan: Plan, runs: dict[str, list[Row]]) -> dict[str, str]:
    """Systems that have not reached their threshold, each with what it has.

    ``runs`` are the lines of finished pretraining runs by system; the mean over them
    counts. Systems whose held-out numbers have neither an AUC over replaceable tokens
    nor a masked LM's loss have no threshold, nor have lines of older versions. Neither
    has Electric: noise that is as likely as text cannot be told from it by the best
    energies either.
    """
    objectives = {row.name: row.config.objective.objective for row in plan.systems}
    found = {}
    for system, rows in runs.items():
        if system == UNTRAINED or objectives[system] == "electric":
            continue
        # What is not a number is null in the file.
        gains = [gain for row in rows if (gain := _gain(row)) is not None]
        aucs = [x for row in rows if (x := row["held_out"].get(_AUC)) is not None]
        if aucs and fmean(aucs) < plan.config.threshold_auc:
            found[system] = f"AUC {fmean(aucs):.3f}"
        elif gains and fmean(gains) < plan.config.threshold_nats:
            found[system] = f"{fmean(gains):.2f} nats"
    return found


def _gain(row: Row) -> float | None:
    """By how many nats a masked LM is better than the best trivial predictor."""
    found, trivial = row["held_out"].get(_NATS), row.get("trivial") or {}
    names = (_NATS, f"{_NATS}{COPYING}")
    known = [x for name in names if (x := trivial.get(name)) is not None]
    return min(known) - found if known and found is not None else None


def explain(plan: Plan, below: dict[str, str]) -> str:
    """What is missing, and the budget that would be enough, as a paragraph."""
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
    """The budget with which a run is known to have passed, or twice this one."""
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

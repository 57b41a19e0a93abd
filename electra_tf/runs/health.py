"""Warnings about runs that do not learn, as one of ``training.sinks``."""

import collections
import logging
from collections.abc import Mapping

from electra_tf.cli import Log
from electra_tf.pretraining.metrics import entropy

Values = Mapping[str, float]


class HealthWarnings:
    """Warns once about a collapsed discriminator or too strong a generator.

    A rule must hold for ``windows`` consecutive windows after ``min_steps``:

    - collapse: AUC below 0.55, and a loss no better than the entropy of the base rate.
      Both count replaceable tokens only, if the logs have them. Low recall alone is
      normal: 0.05 at 5,000 steps with an AUC of 0.68 is healthy. Replaced-token
      detection only.
    - strong generator: fewer than 30 % of the masked tokens are replaced. About 40 % is
      usual at the end of training (6 % of all tokens at a mask rate of 15 %).

    Args:
        mask_rate: fraction of real tokens that are masked.
        log: receives the warnings; None uses the module's logger.
    """

    def __init__(
        self,
        mask_rate: float,
        *,
        min_steps: int = 5000,
        windows: int = 5,
        log: Log | None = None,
    ):
        self.mask_rate = mask_rate
        self.min_steps = min_steps
        self.windows = windows
        self._log = log or logging.getLogger(__name__).warning
        # Rules, each with a metric that it requires.
        self._rules = {
            "collapse": ("discriminator_auc", self._collapse),
            "generator": ("replaced_fraction", self._strong_generator),
        }
        self._counts = collections.Counter()

    def __call__(self, step: int, values: Values) -> None:
        """Warns if a rule has held for enough consecutive windows."""
        if step < self.min_steps:
            return
        for name, (needed, rule) in [*self._rules.items()]:
            if needed not in values:
                continue
            message = rule(values)
            self._counts[name] = self._counts[name] + 1 if message else 0
            if self._counts[name] == self.windows:
                self._log(f"step {step}: {message}")
                del self._rules[name]

    def _collapse(self, values: Values) -> str | None:
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
            f"the discriminator does not tell replaced tokens from real ones (AUC "
            f"{auc:.3f}, loss {loss:.4f} where a constant guess has {chance:.4f}). "
            "Lower the learning rate or lengthen the warm-up; if the generator was "
            "trained first, start the discriminator from its weights; check that "
            "discriminator_weight is 50."
        )

    def _strong_generator(self, values: Values) -> str | None:
        replaced = values["replaced_fraction"]
        if replaced >= 0.3 * self.mask_rate:
            return None
        return (
            f"the generator guesses so well that only {replaced:.1%} of the tokens are "
            f"replaced at a mask rate of {self.mask_rate:.0%}, which leaves the "
            "discriminator little to learn from. Use a smaller generator (1/4 to 1/2 "
            "of the discriminator's width), a higher mask rate (25 % in ELECTRA-Large) "
            "or a higher sampling temperature."
        )

"""Scores of predictors that use only token frequencies and base rates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

# Suffix of the scores of ``TrivialBaselines.copying``.
COPYING = "_copying"


def log_frequencies(counts: np.ndarray) -> np.ndarray:
    """Returns the log unigram distribution, float64 [V], from token counts [V].

    Add-one smoothing gives unseen tokens a probability above 0.
    """
    smoothed = np.asarray(counts, np.float64) + 1.0
    return np.log(smoothed / smoothed.sum())


class TrivialBaselines:
    """Unigram distribution, most common token, and base rates.

    ``counts`` [V] are token counts of the training text without special tokens; raises
    ValueError if they sum to 0. Pass ``mask_id`` if the generator reads masked text:
    some targets stay visible and can be copied.
    """

    def __init__(self, counts: np.ndarray, mask_id: int | None = None):
        if counts.sum() == 0:
            raise ValueError("The training text has no tokens.")
        self._log_probabilities = log_frequencies(counts)
        self._most_common = int(np.argmax(counts))
        self._mask_id = mask_id
        self._targets: list[np.ndarray] = []
        self._shown: list[np.ndarray] = []

    def update(self, batch: Mapping[str, np.ndarray]) -> None:
        """Adds the masked positions of one held-out batch."""
        used = batch["masked_lm_weights"] > 0
        self._targets.append(batch["masked_lm_ids"][used])
        if self._mask_id is not None:
            read, where = batch["masked_input_ids"], batch["masked_lm_positions"]
            self._shown.append(np.take_along_axis(read, where, axis=1)[used])

    def generator(self) -> dict[str, float]:
        """Returns unigram cross-entropy (nats) and most-common-token accuracy."""
        return _summary(*self._unigram())

    def copying(self) -> dict[str, float]:
        """Returns the scores of copying visible tokens, or {} without ``mask_id``.

        The probability of a visible token is the rate at which visible tokens are the
        target; the rest of the mass is the unigram distribution.
        """
        if self._mask_id is None:
            return {}
        chances, right = self._unigram()
        shown = np.concatenate(self._shown)
        visible, kept = shown != self._mask_id, shown == np.concatenate(self._targets)
        share = kept[visible].mean() if visible.any() else 0.0
        mixed = share * kept + (1 - share) * chances
        chances = np.where(visible, mixed, chances)
        return _summary(chances, np.where(visible, kept, right))

    def _unigram(self) -> tuple[np.ndarray, np.ndarray]:
        targets = np.concatenate(self._targets)
        return np.exp(self._log_probabilities[targets]), targets == self._most_common

    def scores(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Returns the trivial score of each held-out metric in ``logs`` that has one.

        Base rates come from ``logs``. Scores of ``copying`` get the suffix COPYING.
        """
        unigram, copying, values = self.generator(), self.copying(), {}
        for prefix in ("generator", "masked_lm"):
            for score, value in unigram.items():
                values[f"{prefix}_{score}"] = value
                if copying:
                    values[f"{prefix}_{score}{COPYING}"] = copying[score]
        everywhere = logs.get("replaced_fraction", 0.0)
        # Rate among the positions in the loss.
        rate = logs.get("replaced_masked_fraction", everywhere)
        replaceable = logs.get("replaced_replaceable_fraction", rate)
        corrupted = logs.get("corrupted_fraction", 0.0)
        values |= {
            "discriminator_loss": entropy(rate),
            "discriminator_accuracy": max(rate, 1 - rate),
            "discriminator_auc": 0.5,
            "replaceable_loss": entropy(replaceable),
            "replaceable_auc": 0.5,
            "copy_auc": 0.5,
            "sentence_loss": entropy(corrupted),
            "sentence_accuracy": max(corrupted, 1 - corrupted),
            # Keeps a token with probability 1 - rate, else samples the unigram
            # distribution, ignoring samples that equal the token.
            "prediction_loss": entropy(rate) + rate * unigram["loss"],
            "prediction_accuracy": 1 - rate,
            "corrected_accuracy": 0.0,
        }
        return {
            name: value
            for name, value in values.items()
            if name.removesuffix(COPYING) in logs
        }


def entropy(rate: float) -> float:
    """Returns the entropy of a binary label in nats, the loss of the base rate."""
    rate = min(max(rate, 1e-12), 1 - 1e-12)
    return -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))


def _summary(chances: np.ndarray, right: np.ndarray) -> dict[str, float]:
    return {"loss": float(-np.log(chances).mean()), "accuracy": float(right.mean())}

"""What a model that learned nothing but frequencies would score.

Plain NumPy: shown beside the held-out numbers of a run, so that a reader sees at once
how far the model is above trivial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np


def token_counts(batches: Iterable[np.ndarray], vocab_size: int) -> np.ndarray:
    """Counts tokens.

    Args:
        batches: arrays of token ids of any shape, without padding.
        vocab_size: V.

    Returns:
        [V] int64.
    """
    counts = np.zeros(vocab_size, np.int64)
    for ids in batches:
        counts += np.bincount(np.ravel(ids), minlength=vocab_size)
    return counts


class TrivialBaselines:
    """Scores of the unigram generator and of the constant discriminator.

    Args:
        counts: [V] token counts of the training text, specials not counted.

    Raises:
        ValueError: if no token was counted.
    """

    def __init__(self, counts: np.ndarray):
        if counts.sum() == 0:
            raise ValueError("The training text holds no token to count.")
        # One is added to every count, so that no held-out token has probability 0.
        self._log_probabilities = np.log((counts + 1.0) / (counts + 1.0).sum())
        self._most_common = int(np.argmax(counts))
        self._loss = 0.0
        self._correct = 0
        self._slots = 0

    def update(self, batch: Mapping[str, np.ndarray]) -> None:
        """Adds the masked positions of one held-out batch."""
        targets = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
        self._loss -= self._log_probabilities[targets].sum()
        self._correct += int((targets == self._most_common).sum())
        self._slots += targets.size

    def generator(self) -> dict[str, float]:
        """Cross-entropy (nats) and accuracy of the unigram distribution.

        Accuracy is that of always guessing the most common token.
        """
        slots = max(self._slots, 1)
        return {"loss": self._loss / slots, "accuracy": self._correct / slots}

    @staticmethod
    def discriminator(replaced_fraction: float) -> dict[str, float]:
        """Scores of answering every token with the base rate.

        Args:
            replaced_fraction: share of tokens that are replaced, in [0, 1].

        Returns:
            ``loss`` (nats, the entropy of the base rate), ``accuracy`` (majority
            class) and ``auc`` (0.5).
        """
        rate = replaced_fraction
        return {"loss": _entropy(rate), "accuracy": max(rate, 1 - rate), "auc": 0.5}

    def prediction(self, replaced_fraction: float) -> dict[str, float]:
        """Scores of predicting originals from corrupted tokens, alike at all of them.

        Every token is kept with probability 1 - replaced_fraction, else redrawn from
        the unigram distribution of the masked tokens.

        Args:
            replaced_fraction: share of the predicted tokens that are replaced.

        Returns:
            ``loss`` (nats; not counting that a redrawn token may be the one kept),
            ``accuracy`` of keeping every token, and ``corrected``, its accuracy on
            replaced ones: 0.
        """
        rate = replaced_fraction
        loss = _entropy(rate) + rate * self.generator()["loss"]
        return {"loss": loss, "accuracy": 1 - rate, "corrected": 0.0}

    def scores(self, logs: Mapping[str, float]) -> dict[str, float]:
        """The trivial predictor's value for each held-out number that has one.

        Args:
            logs: held-out metrics of a model, by name; the shares of replaced tokens
                and of corrupted rows are taken from them.
        """
        masked_lm = self.generator()
        replaced = logs.get("replaced_fraction", 0.0)
        # Where the loss is taken at masked positions only, the share among those.
        replaced = logs.get("replaced_masked_fraction", replaced)
        found = {
            "generator": masked_lm,
            "masked_lm": masked_lm,
            "discriminator": self.discriminator(replaced),
            "copy": {"auc": 0.5},
            "sentence": self.discriminator(logs.get("corrupted_fraction", 0.0)),
        }
        prediction = self.prediction(replaced)
        names = {
            f"{part}_{name}": value
            for part, values in found.items()
            for name, value in values.items()
        } | {
            "prediction_loss": prediction["loss"],
            "prediction_accuracy": prediction["accuracy"],
            "corrected_accuracy": prediction["corrected"],
        }
        return {name: value for name, value in names.items() if name in logs}


def _entropy(rate: float) -> float:
    """Of a yes-or-no answer, in nats."""
    rate = min(max(rate, 1e-12), 1 - 1e-12)
    return -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))

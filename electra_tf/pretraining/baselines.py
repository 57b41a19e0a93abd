"""What a model that learned nothing but frequencies would score.

Plain NumPy: shown beside the held-out numbers of a run, so that a reader sees at once
how far the model is above trivial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

# What the names of the scores of ``TrivialBaselines.copying`` end in.
COPYING = "_copying"


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


def log_frequencies(counts: np.ndarray) -> np.ndarray:
    """Log of the unigram distribution, natural.

    Args:
        counts: [V] token counts. One is added to each, so that no token of another
            text has probability 0.

    Returns:
        [V] float64.
    """
    smoothed = np.asarray(counts, np.float64) + 1.0
    return np.log(smoothed / smoothed.sum())


class TrivialBaselines:
    """Scores of the unigram generator and of the constant discriminator.

    Args:
        counts: [V] token counts of the training text, specials not counted.
        mask_id: [MASK], if the generator reads the masked text: some of the tokens it
            is asked for were left in place there, and copying them takes no learning.
            None: it sees none of them.

    Raises:
        ValueError: if no token was counted.
    """

    def __init__(self, counts: np.ndarray, mask_id: int | None = None):
        if counts.sum() == 0:
            raise ValueError("The training text holds no token to count.")
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
        """Cross-entropy (nats) and accuracy of the unigram distribution.

        Accuracy is that of always guessing the most common token.
        """
        chances, right = self._unigram()
        return _summary(chances, right)

    def copying(self) -> dict[str, float]:
        """The same, but for positions where a token shows instead of [MASK].

        There it is that token, in the share of cases in which it is the right one, and
        else the unigram distribution. Without ``mask_id`` it is empty.
        """
        if self._mask_id is None:
            return {}
        chances, right = self._unigram()
        shown = np.concatenate(self._shown)
        visible, kept = shown != self._mask_id, shown == np.concatenate(self._targets)
        share = kept[visible].mean() if visible.any() else 0.0
        mixed = share * kept + (1 - share) * chances
        return _summary(
            np.where(visible, mixed, chances), np.where(visible, kept, right)
        )

    def _unigram(self):
        targets = np.concatenate(self._targets)
        return np.exp(self._log_probabilities[targets]), targets == self._most_common

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

        Returns:
            Values by the names of ``logs``, and those of ``copying`` with COPYING at
            the end of the name.
        """
        copying = self.copying().items()
        masked_lm = self.generator() | {f"{n}{COPYING}": v for n, v in copying}
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
        return {n: v for n, v in names.items() if n.removesuffix(COPYING) in logs}


def _summary(chances, right):
    return {"loss": float(-np.log(chances).mean()), "accuracy": float(right.mean())}


def _entropy(rate: float) -> float:
    """Of a yes-or-no answer, in nats."""
    rate = min(max(rate, 1e-12), 1 - 1e-12)
    return -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))

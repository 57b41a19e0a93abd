"""What a model that learned nothing but frequencies would score.

Plain NumPy: shown beside the held-out numbers of a run, so that a reader sees at once
how far the model is above trivial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from electra_tf.errors import UserError
from electra_tf.training.cards import MetricCard, Trivial

# What the names of the scores of ``TrivialBaselines.copying`` end in.
COPYING = "_copying"


def log_frequencies(counts: np.ndarray) -> np.ndarray:
    """Natural log of the unigram distribution, float64 [V], from token counts [V].

    One is added to each count, so that no token of another text has probability 0.
    """
    smoothed = np.asarray(counts, np.float64) + 1.0
    return np.log(smoothed / smoothed.sum())


class TrivialBaselines:
    """Scores of the unigram generator and of the constant discriminator.

    ``counts`` [V] are those of the training text, specials not counted; none at all
    are a ValueError. ``mask_id`` is given if the generator reads the masked text: some
    of the tokens it is asked for were left in place there, and copying them takes no
    learning. None: it sees none of them.
    """

    def __init__(self, counts: np.ndarray, mask_id: int | None = None):
        if counts.sum() == 0:
            raise UserError("The training text holds no token to count.")
        self._log_probabilities = log_frequencies(counts)
        self._most_common = int(np.argmax(counts))
        self._mask_id = mask_id
        self._targets: list[np.ndarray] = []
        self._shown: list[np.ndarray] = []
        # How often each token was read: half of the text, replaceable, replaced, V.
        self._read = np.zeros([2, 2, 2, len(counts)], np.int64)
        magnitudes = np.log2(np.asarray(counts, np.float64) + 1.0).astype(np.int64)
        # What tokens may be told apart by.
        self._groups = {
            "kind": np.zeros_like(magnitudes),
            "frequency": magnitudes,
            "token": np.arange(len(counts)),
        }

    def update(
        self,
        batch: Mapping[str, np.ndarray],
        labels: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Adds the masked positions of one held-out batch.

        ``labels`` are the batch's ``PretrainingModel.detection_labels``, if any.
        """
        if labels:
            asked = labels["is_asked"]
            # Every other row: both halves hold parts of the same documents.
            half = np.broadcast_to(np.arange(len(asked))[:, None] % 2, asked.shape)
            names = ("is_replaceable", "is_replaced", "corrupted_ids")
            place = [half, *(labels[name].astype(np.int64) for name in names)]
            np.add.at(self._read, tuple(each[asked] for each in place), 1)
        used = batch["masked_lm_weights"] > 0
        self._targets.append(batch["masked_lm_ids"][used])
        if self._mask_id is not None:
            read, where = batch["masked_input_ids"], batch["masked_lm_positions"]
            self._shown.append(np.take_along_axis(read, where, axis=1)[used])

    def generator(self) -> dict[str, float]:
        """Unigram cross-entropy (nats), accuracy of always the most common token."""
        return _summary(*self._unigram())

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
        chances = np.where(visible, mixed, chances)
        return _summary(chances, np.where(visible, kept, right))

    def _unigram(self) -> tuple[np.ndarray, np.ndarray]:
        targets = np.concatenate(self._targets)
        return np.exp(self._log_probabilities[targets]), targets == self._most_common

    @staticmethod
    def discriminator(replaced_fraction: float) -> dict[str, float]:
        """Scores of answering every token with the base rate; the loss is in nats.

        The accuracy is that of the majority class.
        """
        rate = replaced_fraction
        return {"loss": _entropy(rate), "accuracy": max(rate, 1 - rate), "auc": 0.5}

    def detection(self, prefix: str, logs: Mapping[str, float]) -> dict[str, float]:
        """The best loss (nats) and the best AUC of what looks at one token at a time.

        ``prefix`` is that of the metrics: "discriminator" is about all tokens of the
        loss, "replaceable" about those that can be replaced. Three predictors give each
        token a probability: the replaced share of its kind (replaceable or not), of the
        tokens that are about as frequent in the training text (within a factor of two),
        and of the very token, the last two pulled towards the first by 1 to 1,000
        pseudo-counts, whichever is best. Shares are of one half of the held-out text
        and scored on the other: the samples are then of the generator that the
        discriminator is up against, and nothing is scored on what it was fitted to. A
        choice by the score flatters the predictor a little, not the model.

        Without labels it is the constant predictor's.
        """
        kinds = slice(1, 2) if prefix == "replaceable" else slice(0, 2)
        read = self._read[:, kinds]
        if not read.any():
            rate = logs.get("replaced_replaceable_fraction", base_rate(logs))
            return self.discriminator(rate if kinds.start else base_rate(logs))
        found = [
            _detection(read, groups, strength)
            for groups in self._groups.values()
            for strength in (1.0, 10.0, 100.0, 1000.0)
        ]
        return {
            "loss": min(loss for loss, _ in found),
            "auc": max(auc for _, auc in found),
        }

    def prediction(self, replaced_fraction: float) -> dict[str, float]:
        """Scores of predicting originals from corrupted tokens, alike at all of them.

        Every token is kept with probability 1 - replaced_fraction, else redrawn from
        the unigram distribution of the masked tokens. ``loss`` is in nats, not counting
        that a redrawn token may be the one kept; ``accuracy`` is that of keeping every
        token, and ``corrected`` its accuracy on replaced ones: 0.
        """
        rate = replaced_fraction
        loss = _entropy(rate) + rate * self.generator()["loss"]
        return {"loss": loss, "accuracy": 1 - rate, "corrected": 0.0}

    def scores(
        self, logs: Mapping[str, float], cards: Iterable[MetricCard]
    ) -> dict[str, float]:
        """The trivial predictor's value for each held-out number that has one.

        From ``logs``, held-out metrics of a model, the shares of replaced tokens and of
        corrupted rows are taken. The scores of ``copying`` have COPYING at the end of
        the metric's name.
        """
        values = {}
        for card in cards:
            if card.trivial is None or card.name not in logs:
                continue
            values[card.name] = card.trivial.value(self, logs)
            if card.trivial.copying and self._mask_id is not None:
                values[f"{card.name}{COPYING}"] = card.trivial.copying(self)
        return values


def base_rate(logs: Mapping[str, float]) -> float:
    """Share of replaced tokens among those that the discriminator's loss is about."""
    # Where the loss is taken at masked positions only, the share among those.
    everywhere = logs.get("replaced_fraction", 0.0)
    return logs.get("replaced_masked_fraction", everywhere)


# The trivial predictors of every masked language model.
UNIGRAM = Trivial(
    "unigram frequencies",
    lambda trivial, logs: trivial.generator()["loss"],
    copying=lambda trivial: trivial.copying()["loss"],
)
MOST_COMMON = Trivial(
    "most common token",
    lambda trivial, logs: trivial.generator()["accuracy"],
    copying=lambda trivial: trivial.copying()["accuracy"],
)


def _summary(chances: np.ndarray, right: np.ndarray) -> dict[str, float]:
    return {"loss": float(-np.log(chances).mean()), "accuracy": float(right.mean())}


def _detection(
    read: np.ndarray, groups: np.ndarray, strength: float
) -> tuple[float, float]:
    """Loss in nats and AUC of the replaced share of each group of tokens.

    ``read`` [2, K, 2, V] counts tokens by half, kind and label, and ``groups`` [V]
    numbers the group of each token.
    """
    size = int(groups.max()) + 1
    counts = np.zeros([*read.shape[:3], size])
    np.add.at(counts, (..., groups), read)
    negatives, positives = counts[:, :, 0], counts[:, :, 1]
    total = counts.sum(axis=(0, 3))  # [K, 2]
    prior = (total[:, 1] / np.maximum(total.sum(axis=1), 1))[None, :, None]
    # Of the other half.
    shares = (positives + strength * prior) / (positives + negatives + strength)
    shares = np.clip(shares[::-1], 1e-12, 1 - 1e-12)
    loss = -(positives * np.log(shares) + negatives * np.log(1 - shares)).sum()
    order = np.unique(shares, return_inverse=True)[1].reshape(-1)
    below, above = (np.bincount(order, x.reshape(-1)) for x in (negatives, positives))
    right = (above * (np.cumsum(below) - below / 2)).sum()
    pairs = max(below.sum() * above.sum(), 1)
    return float(loss / counts.sum()), float(right / pairs)


def _entropy(rate: float) -> float:
    """Of a yes-or-no answer, in nats."""
    rate = min(max(rate, 1e-12), 1 - 1e-12)
    return -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))

"""Metrics of the pretraining models, and scores of predictors by base rates."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Suffix of the trivial scores of copying visible tokens.
COPYING = "_copying"


class _Unsaved:
    """Excludes the variables of metrics from saved models."""

    def save_own_variables(self, store: Any) -> None:
        pass

    def load_own_variables(self, store: Any) -> None:
        pass


class Derived(_Unsaved, keras.metrics.Metric):
    """The result of a function: a sum of other metrics, or a schedule's value."""

    def __init__(self, value: Callable, name: str):
        super().__init__(name=name)
        # A closure hides variables that the metric would reset.
        self._value = value

    def result(self) -> tf.Tensor:
        return tf.cast(self._value(), tf.float32)


def total_loss(
    *terms: tuple[keras.metrics.Metric, float | Callable], name: str = "loss"
) -> Derived:
    """Weighted sum of the results of loss metrics; a weight may be a callable."""

    def value() -> tf.Tensor:
        return tf.add_n(
            [
                (weight() if callable(weight) else weight) * metric.result()
                for metric, weight in terms
            ]
        )

    return Derived(value, name)


class LogitAUC(_Unsaved, keras.metrics.AUC):
    """Area under the ROC curve of logits; 0 without labels of both classes."""

    def __init__(self, name: str):
        super().__init__(num_thresholds=2048, name=name)

    def update_state(
        self, labels: tf.Tensor, logits: tf.Tensor, sample_weight: tf.Tensor
    ) -> None:
        # Keras spaces thresholds evenly from 0 to 1: few would resolve probabilities
        # of rare labels. The order of smaller logits is the same.
        super().update_state(labels, tf.sigmoid(logits / 4), sample_weight)


class TokenMean(_Unsaved, keras.metrics.Mean):
    """Weighted mean over positions; values and weights have any dtype and one shape."""


class Likelihood:
    """Metrics of token prediction: mean loss in nats and accuracy."""

    def __init__(self, prefix: str):
        self.loss = TokenMean(name=f"{prefix}_loss")
        self.accuracy = TokenMean(name=f"{prefix}_accuracy")

    def update_state(
        self, values: tf.Tensor, is_right: tf.Tensor, weights: tf.Tensor
    ) -> None:
        self.loss.update_state(values, weights)
        self.accuracy.update_state(is_right, weights)


def log_frequencies(counts: np.ndarray) -> np.ndarray:
    """Returns log frequencies, float64 [V], of counts [V] plus one, hence finite."""
    smoothed = np.asarray(counts, np.float64) + 1.0
    return np.log(smoothed / smoothed.sum())


def trivial_scores(
    counts: np.ndarray,
    batches: Iterable[Mapping[str, np.ndarray]],
    logs: Mapping[str, float],
    mask_id: int | None = None,
) -> dict[str, float]:
    """Returns the trivial score of each held-out metric in ``logs`` that has one.

    ``counts`` are token counts [V] of the training text without special tokens;
    ``logs`` also have the base rates of the held-out ``batches``. With ``mask_id``, of
    a generator that reads masked text, scores of copying are added (suffix COPYING).
    """
    targets, shown = [], []
    for batch in batches:
        used = batch["masked_lm_weights"] > 0
        targets.append(batch["masked_lm_ids"][used])
        if mask_id is not None:
            read, where = batch["masked_input_ids"], batch["masked_lm_positions"]
            shown.append(np.take_along_axis(read, where, axis=1)[used])
    target = np.concatenate(targets)
    chances = np.exp(log_frequencies(counts))[target]
    right = target == np.argmax(counts)
    unigram = _mean_scores(chances, right)
    predictors = {"": unigram}
    if mask_id is not None:
        # A visible token equals the target at the measured rate; the remaining
        # probability follows the unigram distribution.
        token = np.concatenate(shown)
        visible, kept = token != mask_id, token == target
        rate = kept[visible].mean() if visible.any() else 0.0
        chances = np.where(visible, rate * kept + (1 - rate) * chances, chances)
        predictors[COPYING] = _mean_scores(chances, np.where(visible, kept, right))
    values = {
        f"{prefix}_{score}{suffix}": value
        for prefix in ("generator", "masked_lm")
        for suffix, scores in predictors.items()
        for score, value in scores.items()
    }
    # Rate among the positions in the loss.
    rate = logs.get("replaced_masked_fraction", logs.get("replaced_fraction", 0.0))
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
    return {n: x for n, x in values.items() if n.removesuffix(COPYING) in logs}


def entropy(rate: float) -> float:
    """Returns the entropy of a binary label in nats, the loss of the base rate."""
    rate = min(max(rate, 1e-12), 1 - 1e-12)
    return -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))


def _mean_scores(chances: np.ndarray, right: np.ndarray) -> dict[str, float]:
    return {"loss": float(-np.log(chances).mean()), "accuracy": float(right.mean())}

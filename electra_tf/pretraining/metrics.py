"""Metrics shared by the pretraining models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf


class _Unsaved:
    """Excludes the variables of metrics from saved models."""

    def save_own_variables(self, store: Any) -> None:
        """Saves no variables."""

    def load_own_variables(self, store: Any) -> None:
        """Loads no variables."""


class Derived(_Unsaved, keras.metrics.Metric):
    """The result of a function: a sum of other metrics, or a schedule's value."""

    def __init__(self, value: Callable, name: str):
        super().__init__(name=name)
        # A closure hides variables that the metric would reset.
        self._value = value

    def update_state(self) -> None:
        """Resets no variables: the result is derived."""

    def result(self) -> tf.Tensor:
        """Returns the current value, a float32 scalar."""
        return tf.cast(self._value(), tf.float32)


def total_loss(
    terms: Sequence[tuple[keras.metrics.Metric, float | Callable]], name: str = "loss"
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


class BucketAUC(_Unsaved, keras.metrics.Metric):
    """Area under the ROC curve of logits, from counts in buckets of equal width.

    Keras's ``AUC`` spaces its 200 thresholds evenly in probability, so few resolve
    rare labels. Logits within a bucket (0.012 wide) count as tied.
    """

    _BUCKETS, _LIMIT = 2048, 12.0

    def __init__(self, name: str):
        super().__init__(name=name)
        # Rows: negatives, positives.
        shape = (2, self._BUCKETS)
        self._counts = self.add_variable(shape, "zeros", name="counts")

    def update_state(
        self, labels: tf.Tensor, logits: tf.Tensor, sample_weight: tf.Tensor
    ) -> None:
        """Adds logits, labels (0 or 1) and weights of one shape."""
        share = (logits + self._LIMIT) / (2 * self._LIMIT)
        bucket = tf.cast(share * self._BUCKETS, tf.int32)
        bucket = tf.clip_by_value(bucket, 0, self._BUCKETS - 1)
        bucket += self._BUCKETS * tf.cast(labels, tf.int32)
        weights = tf.reshape(tf.cast(sample_weight, tf.float32), [-1])
        counts = tf.math.unsorted_segment_sum(
            weights, tf.reshape(bucket, [-1]), 2 * self._BUCKETS
        )
        self._counts.assign_add(tf.reshape(counts, self._counts.shape))

    def result(self) -> tf.Tensor:
        """Returns the fraction of correctly ordered pairs (ties 1/2), or 0 if none."""
        negatives, positives = tf.unstack(tf.convert_to_tensor(self._counts))
        below = tf.cumsum(negatives, exclusive=True) + negatives / 2
        pairs = tf.reduce_sum(negatives) * tf.reduce_sum(positives)
        return tf.math.divide_no_nan(tf.reduce_sum(positives * below), pairs)


class TokenMean(_Unsaved, keras.metrics.Mean):
    """Weighted mean over positions, for values of any dtype."""

    def update_state(self, values: tf.Tensor, sample_weight: tf.Tensor) -> None:
        """Adds values [..] with weights of the same shape."""
        values = tf.cast(tf.stop_gradient(values), tf.float32)
        super().update_state(values, sample_weight=tf.cast(sample_weight, tf.float32))


class Likelihood:
    """Metrics of token prediction: mean loss in nats and accuracy."""

    def __init__(self, prefix: str):
        self.loss = TokenMean(name=f"{prefix}_loss")
        self.accuracy = TokenMean(name=f"{prefix}_accuracy")

    def update_state(
        self, values: tf.Tensor, is_right: tf.Tensor, weights: tf.Tensor
    ) -> None:
        """Adds losses, correctness and weights of one shape."""
        self.loss.update_state(values, weights)
        self.accuracy.update_state(is_right, weights)

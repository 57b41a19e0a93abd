"""Metrics shared by the pretraining models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf


class _Unsaved:
    """Keeps the counts of a metric out of saved models, where nobody reads them.

    So a model file loads whatever metrics its class has now.
    """

    def save_own_variables(self, store: Any) -> None:
        """Saves nothing."""

    def load_own_variables(self, store: Any) -> None:
        """Loads nothing."""


class TotalLoss(_Unsaved, keras.metrics.Metric):
    """The weighted sum of other loss metrics; a weight may be a callable.

    Derived from their results instead of tracked, so that it is the loss of all rows
    seen since the last reset, on every replica and in every micro-batch.
    """

    def __init__(
        self,
        terms: Sequence[tuple[keras.metrics.Metric, float | Callable]],
        name: str = "loss",
    ):
        super().__init__(name=name)
        # A tuple is not tracked: the metrics stay their owners'.
        self._terms = tuple(
            (metric, weight if callable(weight) else lambda weight=weight: weight)
            for metric, weight in terms
        )

    def update_state(self) -> None:
        """Nothing to do: the result is derived."""

    def result(self) -> tf.Tensor:
        """Returns the weighted sum of the terms' results."""
        return tf.add_n([weight() * metric.result() for metric, weight in self._terms])


class StepValue(_Unsaved, keras.metrics.Metric):
    """What a schedule says of the next update, as the learning rate in the logs."""

    def __init__(self, value: Callable, name: str):
        super().__init__(name=name)
        # A closure, not the step itself: a metric resets the variables it holds.
        self._value = value

    def update_state(self) -> None:
        """Nothing to do: the result is derived."""

    def result(self) -> tf.Tensor:
        """Returns the float32 scalar."""
        return tf.cast(self._value(), tf.float32)


class BucketAUC(_Unsaved, keras.metrics.Metric):
    """Area under the ROC curve of logits, from counts in buckets of equal width.

    One segment sum a step, where Keras's ``AUC`` compares with 200 thresholds that are
    evenly spaced in probability and leave few for rare labels. Within a bucket, 0.012
    of a logit, positives and negatives count as tied.
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
        """Adds logits of any shape, with labels (0 or 1) and weights of the same."""
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
        """Returns the share of pairs in the right order, ties as half; 0 of none."""
        negatives, positives = tf.unstack(tf.convert_to_tensor(self._counts))
        below = tf.cumsum(negatives, exclusive=True) + negatives / 2
        pairs = tf.reduce_sum(negatives) * tf.reduce_sum(positives)
        return tf.math.divide_no_nan(tf.reduce_sum(positives * below), pairs)


class TokenMean(_Unsaved, keras.metrics.Mean):
    """Mean over positions with a weight each; values of any dtype."""

    def update_state(self, values: tf.Tensor, sample_weight: tf.Tensor) -> None:
        """Adds values [..] with weights of the same shape."""
        values = tf.cast(tf.stop_gradient(values), tf.float32)
        super().update_state(values, sample_weight=tf.cast(sample_weight, tf.float32))


class Likelihood:
    """Metrics of a model that predicts tokens: mean loss in nats, and accuracy."""

    def __init__(self, prefix: str):
        self.loss = TokenMean(name=f"{prefix}_loss")
        self.accuracy = TokenMean(name=f"{prefix}_accuracy")

    def update_state(
        self, values: tf.Tensor, is_right: tf.Tensor, weights: tf.Tensor
    ) -> None:
        """Adds losses, hits and weights of one shape."""
        self.loss.update_state(values, weights)
        self.accuracy.update_state(is_right, weights)

"""Metrics shared by the pretraining models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf


class TotalLoss(keras.metrics.Metric):
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


class StepValue(keras.metrics.Metric):
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


class TokenMean(keras.metrics.Mean):
    """Mean over positions with a weight each; values of any dtype."""

    def update_state(self, values: tf.Tensor, sample_weight: tf.Tensor) -> None:
        """Adds values [..] with weights of the same shape."""
        values = tf.cast(tf.stop_gradient(values), tf.float32)
        super().update_state(values, sample_weight=tf.cast(sample_weight, tf.float32))

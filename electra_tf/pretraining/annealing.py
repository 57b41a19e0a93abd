"""Schedules of sampling temperatures and mixture weights.

A schedule maps the number of updates in a phase, from 0, to a float32 scalar.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from electra_tf.layers.serialization import Serializable

Schedule = Callable[[tf.Tensor | None], tf.Tensor | float]


@keras.saving.register_keras_serializable(package="electra_tf")
class LinearChange(Serializable, keras.optimizers.schedules.LearningRateSchedule):
    """Linear change from ``start`` to ``end``, then constant.

    Begins after ``begin`` >= 0 updates and takes ``steps`` >= 1 updates.

    Examples:
        >>> change = pretraining.LinearChange(1.0, 0.0, steps=10, begin=5)
        >>> [float(change(tf.constant(step))) for step in (0, 5, 10, 20)]
        [1.0, 1.0, 0.5, 0.0]
    """

    def __init__(self, start: float, end: float, steps: int, begin: int = 0):
        super().__init__()
        if steps < 1 or begin < 0:
            raise ValueError(
                f"steps must be at least 1 and begin at least 0, got {steps} and "
                f"{begin}."
            )
        self.start, self.end, self.steps, self.begin = start, end, steps, begin

    def __call__(self, step: tf.Tensor | None) -> tf.Tensor:
        """Returns the float32 value at a step."""
        done = _elapsed(step, self.begin) / self.steps
        return self.start + (self.end - self.start) * tf.minimum(done, 1.0)


@keras.saving.register_keras_serializable(package="electra_tf")
class ExponentialDecay(Serializable, keras.optimizers.schedules.LearningRateSchedule):
    """Exponential decay to a limit: end + (start - end) * exp(-step / time_constant).

    Temperature of Fast-ELECTRA (Dong et al., 2023), T = 1 + (T_0 - 1) exp(-u / tau)
    with u the trained fraction: ``time_constant`` > 0 is tau * the number of updates.

    Examples:
        >>> decay = pretraining.ExponentialDecay(2.0, 1.0, time_constant=100.0)
        >>> round(float(decay(tf.constant(100))), 3)
        1.368
    """

    def __init__(self, start: float, end: float, time_constant: float):
        super().__init__()
        if time_constant <= 0:
            raise ValueError(f"time_constant must be positive, got {time_constant}.")
        self.start, self.end, self.time_constant = start, end, time_constant

    def __call__(self, step: tf.Tensor | None) -> tf.Tensor:
        """Returns the float32 value at a step."""
        left = tf.exp(-_elapsed(step, 0) / self.time_constant)
        return self.end + (self.start - self.end) * left


def as_schedule(value: float | Schedule) -> Schedule:
    """Wraps a number in a constant schedule; returns schedules unchanged."""
    if callable(value):
        return value
    number = float(value)
    return lambda step=None: number


def _elapsed(step: tf.Tensor | None, begin: int) -> tf.Tensor:
    if step is None:
        raise ValueError("A schedule needs the step: pass step=model.step.")
    # Integer subtraction keeps the result exact below 2**24 steps.
    return tf.cast(tf.maximum(tf.cast(step, tf.int64) - begin, 0), tf.float32)

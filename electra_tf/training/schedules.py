"""Schedules of learning rates, sampling temperatures and mixture weights.

A schedule maps the number of optimizer updates, from 0, to a float32 scalar.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.layers.serialization import Serializable

Schedule = Callable[[tf.Tensor | None], tf.Tensor | float]


@keras.saving.register_keras_serializable(package="electra_tf")
class WarmupPolynomialDecay(
    Serializable, keras.optimizers.schedules.LearningRateSchedule
):
    """Linear warm-up and polynomial decay.

    ``combine="product"`` multiplies the two, as in the original code:

        rate(step) = decay(step) * min(1, step / warmup_steps)
        decay(step) = end + (learning_rate - end) * (1 - step / total_steps) ** power

    The first update has rate 0. The peak for ``power=1`` is
    ``learning_rate * (1 - warmup_steps / total_steps)``. With ``combine="sequential"``
    the decay starts after the warm-up, from the full ``learning_rate``. From
    ``total_steps`` on the rate is ``end_learning_rate``.

    Raises UserError if a number is out of range or ``combine`` is unknown.

    Examples:
        >>> rate = et.training.WarmupPolynomialDecay(1e-3, 100, warmup_steps=10)
        >>> [round(float(rate(step)), 5) for step in (0, 10, 55, 100)]
        [0.0, 0.0009, 0.00045, 0.0]
    """

    def __init__(
        self,
        learning_rate: float,
        total_steps: int,
        *,
        warmup_steps: int = 0,
        power: float = 1.0,
        end_learning_rate: float = 0.0,
        combine: str = "product",
    ):
        super().__init__()
        if combine not in ("product", "sequential"):
            raise UserError(f"combine is {combine!r}; allowed are product, sequential.")
        # A sequential decay needs a step after the warm-up.
        is_sequential = combine == "sequential"
        least = warmup_steps + 1 if is_sequential else 1
        if warmup_steps < 0 or total_steps < least:
            raise UserError(
                f"warmup_steps {warmup_steps} and total_steps {total_steps} must be at "
                f"least 0 and {least}."
            )
        self.learning_rate, self.end_learning_rate = learning_rate, end_learning_rate
        self.total_steps, self.warmup_steps = total_steps, warmup_steps
        self.power, self.combine = power, combine
        self._decay_start = warmup_steps if is_sequential else 0

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        step = tf.cast(step, tf.int64)
        length = self.total_steps - self._decay_start
        # Steps are subtracted as integers, so float32 is exact.
        remaining = tf.clip_by_value(self.total_steps - step, 0, length)
        fraction = tf.cast(remaining, tf.float32) / float(length)
        span = self.learning_rate - self.end_learning_rate
        rate = self.end_learning_rate + span * fraction**self.power
        if self.warmup_steps == 0:
            return rate
        warmup = tf.cast(step, tf.float32) / float(self.warmup_steps)
        return rate * tf.minimum(1.0, warmup)


@keras.saving.register_keras_serializable(package="electra_tf")
class FitSchedule(Serializable, keras.optimizers.schedules.LearningRateSchedule):
    """Warm-up and linear decay to 0 in each ``fit`` of a text model, else constant.

    ``start`` begins the schedule of ``WarmupPolynomialDecay`` and ``stop`` ends it.
    ``assign`` sets a constant rate, as ``optimizer.learning_rate = rate`` of ``AdamW``.
    The number of warm-up steps, ``warmup_proportion`` of all, is rounded down.

    Examples:
        >>> rate = et.training.FitSchedule(1e-3)
        >>> rate.start(step=50, total_steps=100)
        >>> [round(float(rate(step)), 5) for step in (50, 60, 100, 150)]
        [0.0, 0.0009, 0.0005, 0.0]
        >>> rate.stop()
        >>> round(float(rate(150)), 5)
        0.001
    """

    def __init__(
        self,
        learning_rate: float,
        *,
        warmup_proportion: float = 0.1,
        assigned: float | None = None,
    ):
        super().__init__()
        self.learning_rate = learning_rate
        self.warmup_proportion = warmup_proportion
        # Variables, because traced train steps read them. The first step, all steps and
        # those of the warm-up:
        self._steps = keras.Variable([0, 0, 0], dtype="int64", trainable=False)
        rate = -1.0 if assigned is None else assigned
        self._assigned = keras.Variable(
            rate, dtype="float32", trainable=False, name="assigned"
        )

    @property
    def assigned(self) -> float | None:
        """The constant rate set by ``assign``, or None."""
        value = float(self._assigned.numpy())
        return None if value < 0 else value

    def start(self, step: int, total_steps: int) -> None:
        warmup_steps = int(self.warmup_proportion * total_steps)
        self._steps.assign([step, total_steps, warmup_steps])

    def stop(self) -> None:
        self._steps.assign([0, 0, 0])

    def assign(self, learning_rate: float) -> None:
        if not learning_rate >= 0:
            raise UserError(f"learning_rate is {learning_rate}; give 0 or more.")
        self._assigned.assign(learning_rate)

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        first, total, warmup = tf.unstack(self._steps.value)
        done = tf.cast(step, tf.int64) - first
        left = tf.cast(tf.clip_by_value(total - done, 0, total), tf.float32)
        # In the order of ``WarmupPolynomialDecay``, with the same rounding.
        rate = self.learning_rate * (left / tf.cast(tf.maximum(total, 1), tf.float32))
        share = tf.cast(done, tf.float32) / tf.cast(tf.maximum(warmup, 1), tf.float32)
        rate *= tf.where(warmup > 0, tf.minimum(share, 1.0), 1.0)
        rate = tf.where(total > 0, rate, self.learning_rate)
        assigned = tf.convert_to_tensor(self._assigned.value)
        return tf.where(assigned < 0, rate, assigned)


@keras.saving.register_keras_serializable(package="electra_tf")
class LinearChange(Serializable, keras.optimizers.schedules.LearningRateSchedule):
    """Linear change from ``start`` to ``end``, then constant.

    Begins after ``begin`` >= 0 updates and takes ``steps`` >= 1 updates.

    Examples:
        >>> from electra_tf.pretraining import LinearChange
        >>> [float(LinearChange(1.0, 0.0, steps=10)(step)) for step in (0, 5, 20)]
        [1.0, 0.5, 0.0]
    """

    def __init__(self, start: float, end: float, steps: int, begin: int = 0):
        super().__init__()
        if steps < 1 or begin < 0:
            raise ValueError(
                f"steps must be at least 1, begin at least 0; got {steps} and {begin}."
            )
        self.start, self.end, self.steps, self.begin = start, end, steps, begin

    def __call__(self, step: tf.Tensor | None) -> tf.Tensor:
        done = _elapsed(step, self.begin) / self.steps
        return self.start + (self.end - self.start) * tf.minimum(done, 1.0)


@keras.saving.register_keras_serializable(package="electra_tf")
class ExponentialDecay(Serializable, keras.optimizers.schedules.LearningRateSchedule):
    """Exponential decay to a limit: end + (start - end) * exp(-step / time_constant).

    Temperature of Fast-ELECTRA (Dong et al., 2023), T = 1 + (T_0 - 1) exp(-u / tau)
    with u the trained fraction: ``time_constant`` > 0 is tau * the number of updates.

    Examples:
        >>> from electra_tf.pretraining import ExponentialDecay
        >>> round(float(ExponentialDecay(2.0, 1.0, time_constant=100.0)(100)), 3)
        1.368
    """

    def __init__(self, start: float, end: float, time_constant: float):
        super().__init__()
        if time_constant <= 0:
            raise ValueError(f"time_constant must be positive, got {time_constant}.")
        self.start, self.end, self.time_constant = start, end, time_constant

    def __call__(self, step: tf.Tensor | None) -> tf.Tensor:
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

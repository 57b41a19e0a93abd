"""Learning-rate schedules: warm-up and polynomial decay as ELECTRA combines them.

Steps are optimizer updates, counted from 0: the first update uses the rate of step 0.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.layers.serialization import Serializable

COMBINE = ("product", "sequential")


@keras.saving.register_keras_serializable(package="electra_tf")
class WarmupPolynomialDecay(
    Serializable, keras.optimizers.schedules.LearningRateSchedule
):
    """Linear warm-up times polynomial decay, the schedule of the original code.

    ``combine="product"`` multiplies the two, both counted from step 0:

        rate(step) = decay(step) * min(1, step / warmup_steps)
        decay(step) = end + (learning_rate - end) * (1 - step / total_steps) ** power

    so the first update has rate 0, the two overlap, and the highest rate is
    ``learning_rate * (1 - warmup_steps / total_steps)`` for ``power=1``. With
    ``combine="sequential"`` the decay starts where the warm-up ends, at the full
    ``learning_rate``. From ``total_steps`` on the rate is ``end_learning_rate``.

    Remaining steps are subtracted as integers and rounded once, so runs of millions of
    steps lose nothing to float32 (exact below 2**24 steps).

    Raises:
        ValueError: a number out of its range or an unknown ``combine``.

    Examples:
        >>> rate = et.training.WarmupPolynomialDecay(
        ...     1e-3, total_steps=100, warmup_steps=10
        ... )
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
        if total_steps < 1:
            raise UserError(f"total_steps is {total_steps}; a run has at least 1 step.")
        if warmup_steps < 0:
            raise UserError(
                f"warmup_steps is {warmup_steps}; use 0 for no warm-up, or a "
                "positive number of steps."
            )
        if combine not in COMBINE:
            raise UserError(
                f"combine is {combine!r}; allowed are {', '.join(COMBINE)}."
            )
        if combine == "sequential" and warmup_steps >= total_steps:
            raise UserError(
                f"warmup_steps {warmup_steps} leaves no step of total_steps "
                f"{total_steps} for the decay: shorten the warm-up, lengthen the "
                "run, or use combine='product'."
            )
        self.learning_rate = learning_rate
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.power = power
        self.end_learning_rate = end_learning_rate
        self.combine = combine
        self._decay_start = warmup_steps if combine == "sequential" else 0

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        """Returns the float32 scalar rate of update number ``step``, from 0."""
        step = tf.cast(step, tf.int64)
        length = self.total_steps - self._decay_start
        remaining = tf.clip_by_value(self.total_steps - step, 0, length)
        fraction = tf.cast(remaining, tf.float32) / float(length)
        span = self.learning_rate - self.end_learning_rate
        rate = self.end_learning_rate + span * fraction**self.power
        if self.warmup_steps == 0:
            return rate
        warmup = tf.cast(step, tf.float32) / float(self.warmup_steps)
        return rate * tf.minimum(1.0, warmup)

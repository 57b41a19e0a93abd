"""From generator logits to the discriminator's input.

A sampler is a callable (mlm_logits, masked_lm_ids, seed, step) -> sampled_ids; ``step``
is the number of updates done, for what changes with it. One that varies with the step
names its schedules in ``schedules``, and they are logged.

Letters: B batch, S sequence, P predicted positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.features import scatter_positions
from electra_tf.pretraining.base import deserialize_parts
from electra_tf.pretraining.schedules import Schedule, as_schedule, varying


class Corrupted(NamedTuple):
    """What the discriminator reads and is asked.

    Attributes:
        inputs: encoder inputs, with ``input_ids`` the corrupted ids [B, S].
        is_masked: [B, S] bool, positions that were chosen.
        is_replaced: [B, S] bool, chosen and different from the original. A sample
            that equals the original counts as real (section 2 of the paper).
        batch: the tensors of ``features.PRETRAINING`` it was made from.
    """

    inputs: dict[str, tf.Tensor]
    is_masked: tf.Tensor
    is_replaced: tf.Tensor
    batch: Mapping[str, tf.Tensor]


def corrupt(batch: Mapping[str, tf.Tensor], sampled_ids: tf.Tensor) -> Corrupted:
    """Puts samples in place of the originals at every chosen position.

    The samples go into the *original* ids, so the discriminator never sees [MASK]
    unless the generator drew it, and positions that were left visible are replaced
    like the others.

    Args:
        batch: the tensors of ``features.PRETRAINING``.
        sampled_ids: [B, P] int32.
    """
    original = batch["input_ids"]
    positions = batch["masked_lm_positions"]
    used = batch["masked_lm_weights"] > 0
    # No gradient flows through the samples (section 2): they are integers, and the
    # stop makes that independent of how a sampler computes them.
    sampled_ids = tf.stop_gradient(sampled_ids)
    corrupted_ids = scatter_positions(original, positions, sampled_ids, used)
    is_masked = scatter_positions(
        tf.zeros_like(original), positions, tf.ones_like(positions), used
    )
    return Corrupted(
        inputs={
            "input_ids": corrupted_ids,
            "input_mask": batch["input_mask"],
            "segment_ids": batch["segment_ids"],
        },
        is_masked=is_masked > 0,
        is_replaced=corrupted_ids != original,
        batch=batch,
    )


@keras.saving.register_keras_serializable(package="electra_tf")
class CategoricalSampler:
    """Draws one token per position from the generator's distribution.

    Args:
        temperature: divides the logits; above 1 flattens the distribution. A number,
            or a schedule (``electra_tf.pretraining.schedules``).
        disallow_correct: never draw the original token (appendix of the paper: no
            gain).

    Raises:
        ValueError: if the temperature is not positive.
    """

    def __init__(
        self, temperature: float | Schedule = 1.0, disallow_correct: bool = False
    ):
        if not callable(temperature) and temperature <= 0:
            raise ValueError(
                f"temperature must be positive, got {temperature}; for the limit 0 "
                "use GreedySampler."
            )
        self.temperature = temperature
        self.disallow_correct = disallow_correct
        self._temperature = as_schedule(temperature)
        self._adjust = _forbid_originals if disallow_correct else _keep

    @property
    def schedules(self) -> dict[str, Schedule]:
        """What varies with the step, by the name it is logged under."""
        return varying({"temperature": self._temperature})

    def distribution(
        self,
        mlm_logits: tf.Tensor,
        masked_lm_ids: tf.Tensor,
        step: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns the logits [B, P, V] of what is drawn from; arguments as the call."""
        shape = tf.shape(mlm_logits)
        vocab_size = mlm_logits.shape[-1]
        logits = tf.reshape(mlm_logits, [-1, vocab_size]) / self._temperature(step)
        logits = self._adjust(logits, tf.reshape(masked_lm_ids, [-1]))
        return tf.ensure_shape(tf.reshape(logits, shape), mlm_logits.shape)

    def __call__(
        self,
        mlm_logits: tf.Tensor,
        masked_lm_ids: tf.Tensor,
        seed: tf.Tensor,
        step: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Draws tokens.

        Args:
            mlm_logits: [B, P, V] float32.
            masked_lm_ids: [B, P] int32, the originals.
            seed: int32 [2].
            step: integer scalar, updates done; may be None if nothing varies with it.

        Returns:
            sampled_ids [B, P] int32.
        """
        size, vocab_size = mlm_logits.shape[1:]
        logits = self.distribution(mlm_logits, masked_lm_ids, step)
        logits = tf.reshape(logits, [-1, vocab_size])
        # Deviation: the original adds Gumbel noise with 1e-9 in both logarithms, which
        # cuts its tail at about 16.6; this draws from the softmax itself.
        drawn = tf.random.stateless_categorical(logits, 1, seed, dtype=tf.int32)
        # Of logits that are not finite the op draws V, which no table has. The loss is
        # not finite then either, and its guard must get to say so.
        return tf.reshape(tf.minimum(drawn, vocab_size - 1), [-1, size])

    def get_config(self):
        """Returns the constructor's arguments."""
        return {
            "temperature": self.temperature,
            "disallow_correct": self.disallow_correct,
        }

    @classmethod
    def from_config(cls, config):
        """Rebuilds the sampler from ``get_config``."""
        return cls(**deserialize_parts(config))


def _keep(logits: tf.Tensor, original_ids: tf.Tensor) -> tf.Tensor:
    del original_ids
    return logits


def _forbid_originals(logits: tf.Tensor, original_ids: tf.Tensor) -> tf.Tensor:
    """Lowers [N, V] logits at the originals [N], far below any other yet finite."""
    # Deviation: 1e9 where the original takes off 1000; the same unless logits are huge.
    rows = tf.stack([tf.range(tf.shape(original_ids)[0]), original_ids], axis=1)
    penalties = tf.fill(tf.shape(original_ids), -1e9)
    return tf.tensor_scatter_nd_add(logits, rows, penalties)


@keras.saving.register_keras_serializable(package="electra_tf")
class GreedySampler:
    """The generator's most probable token: the limit of temperature 0."""

    schedules: Mapping[str, Schedule] = {}

    def __call__(self, mlm_logits, masked_lm_ids, seed, step=None):
        """Takes the argmax; arguments and result as ``CategoricalSampler``."""
        del masked_lm_ids, seed, step
        return tf.argmax(mlm_logits, axis=-1, output_type=tf.int32)

    def get_config(self):
        """Returns the constructor's arguments: none."""
        return {}

    @classmethod
    def from_config(cls, config):
        """Rebuilds the sampler from ``get_config``."""
        return cls(**config)

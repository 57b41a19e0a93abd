"""Samplers of replacement tokens, and the corruption of a batch.

A sampler is a callable (mlm_logits, masked_lm_ids, seed, step) -> sampled_ids. ``seed``
is int32 [3] with the row offset, ``step`` the number of updates. ``schedules`` maps
names in the logs to the sampler's schedules.

Letters: B batch, S sequence, P predicted positions, V vocabulary, R rows (B * P).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from electra_tf.features import scatter_positions
from electra_tf.layers.compilation import compiled
from electra_tf.layers.randomness import check_rate, fold_in, known_shape, uniform
from electra_tf.layers.serialization import Serializable
from electra_tf.training.schedules import Schedule, as_schedule

# Random stream of ``LeaveRows``, folded into the sampler's seed.
_ROWS = 1
# Vocabulary entries per chunk of the cumulative sum.
_CHUNK = 256


class Corrupted(NamedTuple):
    """Input and labels of the discriminator.

    ``is_replaced`` is masked and different from the original. A sample that equals the
    original counts as real (section 2 of the paper).
    """

    inputs: dict[str, tf.Tensor]  # Encoder inputs with the corrupted ids.
    is_masked: tf.Tensor  # bool [B, S]
    is_replaced: tf.Tensor  # bool [B, S]
    is_replaceable: tf.Tensor  # bool [B, S], positions that the masking may choose.
    sampled_ids: tf.Tensor  # int32 [B, P], samples at the masked positions.
    batch: Mapping[str, tf.Tensor]  # Before the corruption.
    predicted: Any = None  # The generator's output.


def candidates(batch: Mapping[str, tf.Tensor], special_ids: Sequence[int]) -> tf.Tensor:
    """Returns a mask of the real tokens that are not special, bool [B, S]."""
    ids = tf.expand_dims(batch["input_ids"], 2)
    specials = tf.constant(list(special_ids), tf.int32)
    return (batch["input_mask"] > 0) & ~tf.reduce_any(ids == specials, axis=2)


def corrupt(
    batch: Mapping[str, tf.Tensor],
    sampled_ids: tf.Tensor,
    special_ids: Sequence[int] = (),
    predicted: Any = None,
) -> Corrupted:
    """Replaces the tokens at every masked position with the samples.

    The samples replace *original* ids, also at masked positions that stayed visible, so
    only the generator can produce a [MASK].
    """
    original, positions = batch["input_ids"], batch["masked_lm_positions"]
    used = batch["masked_lm_weights"] > 0
    # No gradient through the samples of any sampler (section 2).
    sampled_ids = tf.stop_gradient(sampled_ids)
    corrupted_ids = scatter_positions(original, positions, sampled_ids, used)
    is_masked = scatter_positions(
        tf.zeros_like(original), positions, tf.ones_like(positions), used
    )
    kept = {name: batch[name] for name in ("input_mask", "segment_ids")}
    return Corrupted(
        inputs={"input_ids": corrupted_ids, **kept},
        is_masked=is_masked > 0,
        is_replaced=corrupted_ids != original,
        is_replaceable=candidates(batch, special_ids),
        sampled_ids=sampled_ids,
        batch=batch,
        predicted=predicted,
    )


@keras.saving.register_keras_serializable(package="electra_tf")
class CategoricalSampler(Serializable):
    """Draws one token per position from the generator's distribution.

    Samples are functions of seed, step and row: unlike ``tf.random.categorical``'s,
    they do not depend on devices and threads. No gradient flows through them.

    Args:
        temperature: divisor of the logits; above 1 flattens the distribution. A
            positive number or a schedule (``electra_tf.training.schedules``).
        disallow_correct: never sample the original token (appendix: no gain).

    Examples:
        >>> logits, ids, seed = tf.zeros([1, 1, 3]), tf.constant([[2]]), [1, 2, 3]
        >>> sampler = et.CategoricalSampler(disallow_correct=True)
        >>> int(sampler(logits, ids, tf.constant(seed))[0, 0]) in (0, 1)
        True
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

    @property
    def schedules(self) -> dict[str, Schedule]:
        return {"temperature": self.temperature} if callable(self.temperature) else {}

    def distribution(
        self,
        mlm_logits: tf.Tensor,
        masked_lm_ids: tf.Tensor,
        step: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns the logits [B, P, V] of the sampling distribution."""
        temperature = tf.cast(self._temperature(step), mlm_logits.dtype)
        # A schedule may end at 0, the limit of the most probable token.
        logits = mlm_logits / tf.maximum(temperature, 1e-6)
        if self.disallow_correct:
            # Improbable, yet finite.
            # Deviation: the original subtracts 1000; the same unless logits are huge.
            logits -= 1e9 * tf.one_hot(masked_lm_ids, mlm_logits.shape[-1])
        return logits

    def __call__(
        self,
        mlm_logits: tf.Tensor,
        masked_lm_ids: tf.Tensor,
        seed: tf.Tensor,
        step: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Samples int32 [B, P], the shape of the original ids ``masked_lm_ids``."""
        batch, size, vocab_size = known_shape(mlm_logits)
        logits = self.distribution(mlm_logits, masked_lm_ids, step)
        logits = tf.reshape(tf.stop_gradient(logits), [-1, vocab_size])
        # Deviation: the original adds Gumbel noise with 1e-9 in both logarithms, which
        # cuts its tail at about 16.6; this samples the softmax itself.
        draws = uniform(seed, [batch, size], tf.float64)
        drawn = token_at(logits, tf.reshape(draws, [-1]))
        return tf.reshape(drawn, [batch, size])


@compiled
def token_at(logits: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Inverts the cumulative softmax of each row at a number: int32 [R].

    ``logits`` are float32 [R, V], ``draws`` float64 [R] in [0, 1). The id is valid even
    for non-finite logits, so that the guard of the loss can report them.
    """
    # TensorFlow's op restarts its random stream in every thread: not reproducible.
    rows, size = known_shape(logits)
    width = min(_CHUNK, size)
    largest = tf.reduce_max(logits, axis=-1, keepdims=True)
    # Padding the last chunk instead of summing it apart makes XLA four times slower.
    whole = size - size % width
    shares = tf.reshape(logits[:, :whole], [rows, whole // width, width])
    shares = tf.reduce_sum(tf.exp(shares - largest[..., tf.newaxis]), axis=-1)
    rest = tf.reduce_sum(tf.exp(logits[:, whole:] - largest), axis=-1, keepdims=True)
    before = tf.concat([shares, rest], axis=1)
    before = tf.cumsum(tf.cast(before, tf.float64), axis=-1)
    target = (draws * before[:, -1])[:, tf.newaxis]
    chunk = tf.reduce_sum(tf.cast(before <= target, tf.int32), axis=-1)
    chunk = tf.minimum(chunk, (size - 1) // width)
    ids = chunk[:, tf.newaxis] * width + tf.range(width)
    near = tf.gather(logits, tf.minimum(ids, size - 1), batch_dims=1)
    near = tf.where(ids < size, tf.exp(near - largest), 0.0)
    inside = tf.cumsum(tf.cast(near, tf.float64), axis=-1)
    end = tf.gather(before, chunk[:, tf.newaxis], batch_dims=1)
    # Measured from the end of the chunk, so that both sums agree despite rounding.
    target = tf.maximum(target + inside[:, -1:] - end, 0.0)
    index = tf.reduce_sum(tf.cast(inside <= target, tf.int32), axis=-1)
    last = tf.reduce_sum(tf.cast(inside < inside[:, -1:], tf.int32), axis=-1)
    return tf.clip_by_value(chunk * width + tf.minimum(index, last), 0, size - 1)


@keras.saving.register_keras_serializable(package="electra_tf")
class GreedySampler(Serializable):
    """Takes the generator's most probable token: the limit of temperature 0.

    Examples:
        >>> logits, ids = tf.constant([[[0.0, 5.0, 1.0]]]), tf.constant([[2]])
        >>> int(pretraining.GreedySampler()(logits, ids)[0, 0])
        1
    """

    def __call__(
        self,
        mlm_logits: tf.Tensor,
        masked_lm_ids: tf.Tensor,
        seed: tf.Tensor | None = None,
        step: tf.Tensor | None = None,
    ) -> tf.Tensor:
        return tf.argmax(mlm_logits, axis=-1, output_type=tf.int32)


@keras.saving.register_keras_serializable(package="electra_tf")
class LeaveRows(Serializable):
    """Leaves a random fraction of the rows uncorrupted.

    The generator trains on these rows, too; ``sampled_accuracy`` counts their tokens as
    correct. ``sampler`` samples the other rows; ``share`` is 0.2 in the paper.

    Examples:
        >>> sampler = pretraining.LeaveRows(pretraining.GreedySampler(), share=0.5)
        >>> model = et.Electra(generator, discriminator, sampler=sampler)
    """

    def __init__(self, sampler: Callable, share: float = 0.2):
        self.sampler = sampler
        self.share = check_rate(share, "share")
        self.schedules = getattr(sampler, "schedules", {})

    def __call__(
        self,
        mlm_logits: tf.Tensor,
        masked_lm_ids: tf.Tensor,
        seed: tf.Tensor,
        step: tf.Tensor | None = None,
    ) -> tf.Tensor:
        sampled_ids = self.sampler(mlm_logits, masked_lm_ids, seed, step)
        batch = known_shape(masked_lm_ids)[0]
        draws = uniform(fold_in(seed, _ROWS), [batch, 1])
        return tf.where(draws < self.share, masked_lm_ids, sampled_ids)

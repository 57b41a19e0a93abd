"""Stateless randomness: draws are pure functions of a seed and a row.

A seed is an int32 tensor of shape [2]. ``split_seed`` and ``fold_in`` derive streams
from it. No variable holds random state, so resumed runs repeat the dropout of
uninterrupted ones. Masks are the same with and without XLA, on every device.

A third word (``at_row``) is the offset of the local rows in the global batch: draws for
a row do not depend on replicas and micro-batches. It is a tensor, so all replicas run
the same compiled code.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

# Sizes of axes: static integers or scalar int32 tensors.
Shape = Sequence[int | tf.Tensor]

_HASH_VALUES = 1 << 32
# Bits per block of the Philox generator, and its number in TensorFlow.
_PHILOX_BITS, _PHILOX = 128, 1


def split_seed(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Derives ``count`` independent seeds, which keep the row offset.

    Examples:
        >>> first, second = et.layers.split_seed(tf.constant([1, 2]), 2)
        >>> first.shape, bool(tf.reduce_any(first != second))
        (TensorShape([2]), True)
    """
    # The default algorithm differs between plain, XLA-compiled and TPU execution.
    seeds = tf.random.stateless_uniform(
        [count, 2], seed[:2], minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    return [tf.concat([own, seed[2:]], 0) for own in tf.unstack(seeds)]


def fold_in(seed: tf.Tensor, data: tf.Tensor | int) -> tf.Tensor:
    """Derives an independent seed from a seed and an integer; keeps the row offset."""
    own = tf.random.experimental.stateless_fold_in(seed[:2], data, alg="philox")
    return tf.concat([own, seed[2:]], 0)


def at_row(seed: tf.Tensor, first: tf.Tensor | int) -> tf.Tensor:
    """Returns the seed, int32 [3], of rows that begin at ``first``."""
    return tf.concat([seed[:2], tf.reshape(tf.cast(first, tf.int32), [1])], 0)


def per_row(seed: tf.Tensor | None, count: int | tf.Tensor) -> tf.Tensor | None:
    """Returns the seed for tensors with ``count`` entries per row on the first axis."""
    if seed is None:
        return None
    return tf.concat([seed[:2], seed[2:] * count], 0)


def uniform(seed: tf.Tensor, shape: Shape, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Draws numbers in [0, 1) for rows, the first axis of ``shape``.

    Computes the local part of ``tf.random.stateless_uniform`` of the global batch.
    """
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed[:2])
    size = math.prod(shape[1:])
    begin = tf.cast(tf.reduce_sum(seed[2:]), tf.int64) * tf.cast(size, tf.int64)
    together = _PHILOX_BITS // (8 * dtype.size)
    blocks = tf.cast(begin // together, tf.uint64)
    # A 128-bit counter in two words, the low one first.
    low = counter[0] + blocks
    high = counter[1] + tf.cast(low < blocks, tf.uint64)
    drawn = tf.raw_ops.StatelessRandomUniformV2(
        # A row may begin within a block.
        shape=[shape[0] * size + together - 1],
        key=key,
        counter=tf.stack([low, high]),
        alg=_PHILOX,
        dtype=dtype,
    )
    return tf.reshape(tf.slice(drawn, [begin % together], [shape[0] * size]), shape)


def known_shape(tensor: tf.Tensor) -> list[int | tf.Tensor]:
    """Returns the shape with static sizes as integers, if known."""
    if None not in tensor.shape:
        return list(tensor.shape)
    dynamic = tf.unstack(tf.shape(tensor))
    return [
        moving if fixed is None else fixed
        for fixed, moving in zip(tensor.shape, dynamic, strict=True)
    ]


def keep_mask(seed: tf.Tensor, shape: Shape, rate: float) -> tf.Tensor:
    """Draws a boolean mask of the elements that dropout keeps.

    An element's draw is a hash of the seed and its index in the global batch; the first
    axis holds rows. XLA fuses it into the consumer, and backward passes recompute it.
    The dropped fraction is exact to 2**-33.
    """
    first, second, *begin = tf.unstack(tf.bitcast(seed, tf.uint32))
    # A zero that depends on the seed prevents a large constant of the indices.
    index, stride = tf.bitwise.bitwise_and(first, tf.constant(0, tf.uint32)), 1
    for axis, size in reversed([*enumerate(shape)][1:]):
        steps = tf.cast(tf.range(size), tf.uint32) * tf.cast(stride, tf.uint32)
        index += tf.reshape(steps, [-1] + [1] * (len(shape) - 1 - axis))
        stride *= size
    rows = tf.cast(tf.range(shape[0]), tf.uint64) + tf.cast(sum(begin), tf.uint64)
    starts = tf.reshape(rows, [-1] + [1] * (len(shape) - 1))
    starts *= tf.cast(stride, tf.uint64)
    index += tf.cast(starts, tf.uint32)
    # Indices above 2**32 use another second word.
    second += tf.cast(
        tf.bitwise.right_shift(starts, tf.constant(32, tf.uint64)), tf.uint32
    )
    # One round per word: after a single round, two seeds give permuted sequences.
    draws = _mix(_mix(tf.bitwise.bitwise_xor(index, first)) + second)
    # Integer comparison is exact and portable, unlike floats in [0, 1).
    return draws >= tf.constant(_drop_threshold(rate), tf.uint32)


def keep_scale(rate: float) -> float:
    """Returns 1 / (probability to keep), which makes dropout exactly unbiased."""
    # Computed from the integer threshold, which only approximates the rate.
    return _HASH_VALUES / (_HASH_VALUES - _drop_threshold(rate))


def drop(inputs: tf.Tensor, seed: tf.Tensor | None, rate: float) -> tf.Tensor:
    """Zeroes a random share of elements and scales the rest; rate 0 needs no seed."""
    if not rate:
        return inputs
    keep = keep_mask(seed, known_shape(inputs), rate)
    # tf.where, because multiplying a dropped infinity by 0 gives NaN.
    return tf.where(keep, inputs * keep_scale(rate), tf.zeros([], inputs.dtype))


def check_rate(rate: float, name: str) -> float:
    """Raises ValueError unless ``rate`` is in [0, 1); returns it."""
    if not 0 <= rate < 1:
        raise ValueError(f"{name} must be in [0, 1), got {rate}: 0 turns it off.")
    return rate


def check_seed(seed: tf.Tensor | None) -> tf.Tensor:
    """Returns the seed; raises ValueError if it is None."""
    if seed is None:
        raise ValueError(
            "training=True with a dropout rate above 0 needs a seed, int32 [2]."
        )
    return tf.convert_to_tensor(seed, tf.int32)


def _drop_threshold(rate: float) -> int:
    return round(rate * _HASH_VALUES)


def _mix(words: tf.Tensor) -> tf.Tensor:
    """Bijective 32-bit mixer ``lowbias32`` of Chris Wellons: all draws are distinct."""
    words = _xor_shift(words, 16) * tf.constant(0x7FEB352D, tf.uint32)
    words = _xor_shift(words, 15) * tf.constant(0x846CA68B, tf.uint32)
    return _xor_shift(words, 16)


def _xor_shift(words: tf.Tensor, bits: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(words, tf.constant(bits, tf.uint32))
    return tf.bitwise.bitwise_xor(words, shifted)

"""Stateless randomness: whatever is drawn is a pure function of a seed and of a row.

A seed is an int32 tensor of shape [2]. Sites derive their own streams from it with
``split_seed`` and ``fold_in``, so nothing random is hidden in a variable and a resumed
run drops what the uninterrupted run would have dropped. Masks are the same in plain and
in XLA-compiled execution, on every device.

A seed of three words says besides where the rows at hand begin in the global batch
(``at_row``): what is drawn for a row is what the whole batch in one piece would have
drawn for it, however devices and micro-batches share the batch. The third word goes
along with the seeds that are derived. It is a tensor as the others are, so replicas
that differ in it run the same compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

# Sizes of axes: integers where they are static, scalar int32 tensors elsewhere.
Shape = Sequence[int | tf.Tensor]

_HASH_VALUES = 1 << 32
# Bits that the Philox generator gives at a time, and its number among TensorFlow's.
_PHILOX_BITS, _PHILOX = 128, 1


def split_seed(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Derives ``count`` independent seeds from one; each has the words it has.

    Examples:
        >>> first, second = et.layers.split_seed(tf.constant([1, 2]), 2)
        >>> first.shape, bool(tf.reduce_any(first != second))
        (TensorShape([2]), True)
    """
    # The algorithm is named because the default one differs between plain,
    # XLA-compiled and TPU execution.
    seeds = tf.random.stateless_uniform(
        [count, 2], seed[:2], minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    return [tf.concat([own, seed[2:]], 0) for own in tf.unstack(seeds)]


def fold_in(seed: tf.Tensor, data: tf.Tensor | int) -> tf.Tensor:
    """Derives an independent seed, with the words it has, from one and an integer."""
    # The algorithm is named for the reason given in ``split_seed``.
    own = tf.random.experimental.stateless_fold_in(seed[:2], data, alg="philox")
    return tf.concat([own, seed[2:]], 0)


def at_row(seed: tf.Tensor, first: tf.Tensor | int) -> tf.Tensor:
    """Returns the seed, int32 [3], of rows of which ``first`` is where they begin."""
    return tf.concat([seed[:2], tf.reshape(tf.cast(first, tf.int32), [1])], 0)


def per_row(seed: tf.Tensor | None, count: int | tf.Tensor) -> tf.Tensor | None:
    """Returns the seed for tensors whose first axis has ``count`` places per row."""
    if seed is None:
        return None
    return tf.concat([seed[:2], seed[2:] * count], 0)


def uniform(seed: tf.Tensor, shape: Shape, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Draws numbers in [0, 1) for rows, the first axis of ``shape``.

    The numbers are those that ``tf.random.stateless_uniform`` draws for the whole
    global batch; only those of the rows at hand are computed.
    """
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed[:2])
    size = math.prod(shape[1:])
    begin = tf.cast(tf.reduce_sum(seed[2:]), tf.int64) * tf.cast(size, tf.int64)
    together = _PHILOX_BITS // (8 * dtype.size)
    blocks = tf.cast(begin // together, tf.uint64)
    # Two words of one number, the low one first.
    low = counter[0] + blocks
    high = counter[1] + tf.cast(low < blocks, tf.uint64)
    drawn = tf.raw_ops.StatelessRandomUniformV2(
        # As a row may begin within a block.
        shape=[shape[0] * size + together - 1],
        key=key,
        counter=tf.stack([low, high]),
        alg=_PHILOX,
        dtype=dtype,
    )
    return tf.reshape(tf.slice(drawn, [begin % together], [shape[0] * size]), shape)


def known_shape(tensor: tf.Tensor) -> list[int | tf.Tensor]:
    """Returns the ``Shape``, so that static sizes stay static through a reshape."""
    if None not in tensor.shape:
        return list(tensor.shape)
    dynamic = tf.unstack(tf.shape(tensor))
    return [
        moving if fixed is None else fixed
        for fixed, moving in zip(tensor.shape, dynamic, strict=True)
    ]


def keep_mask(seed: tf.Tensor, shape: Shape, rate: float) -> tf.Tensor:
    """Draws which elements of a tensor of ``shape`` dropout keeps, as booleans.

    An element's draw is a hash of its index in the global batch, of which the first
    axis has the rows, under the two words of the seed. XLA fuses it into the loop that
    uses the mask and backward passes draw it again, so masks never exist in memory; the
    words of a random generator would have to, and drawing them took about 7 % of a
    training step. The share dropped is exact to 2**-33.
    """
    first, second, *begin = tf.unstack(tf.bitcast(seed, tf.uint32))
    # Row-major, and summed up axis by axis from a zero that is not known before the
    # seed is: TensorFlow would make one range a constant of that many numbers.
    index, stride = tf.bitwise.bitwise_and(first, tf.constant(0, tf.uint32)), 1
    for axis, size in reversed([*enumerate(shape)][1:]):
        steps = tf.cast(tf.range(size), tf.uint32) * tf.cast(stride, tf.uint32)
        index += tf.reshape(steps, [-1] + [1] * (len(shape) - 1 - axis))
        stride *= size
    rows = tf.cast(tf.range(shape[0]), tf.uint64) + tf.cast(sum(begin), tf.uint64)
    starts = tf.reshape(rows, [-1] + [1] * (len(shape) - 1))
    starts *= tf.cast(stride, tf.uint64)
    index += tf.cast(starts, tf.uint32)
    # Of a batch with more than 2**32 elements, the rest draws under another word.
    second += tf.cast(
        tf.bitwise.right_shift(starts, tf.constant(32, tf.uint64)), tf.uint32
    )
    # A round for each word of the seed: after one round alone, the draws of two seeds
    # are the same sequence in another order.
    draws = _mix(_mix(tf.bitwise.bitwise_xor(index, first)) + second)
    # Integers are compared, not floats in [0, 1): exact, and the same everywhere.
    return draws >= tf.constant(_drop_threshold(rate), tf.uint32)


def keep_scale(rate: float) -> float:
    """Returns 1 / (probability to keep), which makes dropout exactly unbiased."""
    # Of the threshold that is used, not of the rate, which it approximates.
    return _HASH_VALUES / (_HASH_VALUES - _drop_threshold(rate))


def drop(inputs: tf.Tensor, seed: tf.Tensor | None, rate: float) -> tf.Tensor:
    """Zeroes a share of the elements and scales the others; rate 0 needs no seed."""
    if not rate:
        return inputs
    keep = keep_mask(seed, known_shape(inputs), rate)
    # Selected, not multiplied by 0: an infinite element that is dropped leaves no NaN.
    return tf.where(keep, inputs * keep_scale(rate), tf.zeros([], inputs.dtype))


def check_rate(rate: float, name: str) -> float:
    """Raises ValueError unless ``rate`` can be a dropout rate; returns it."""
    if not 0 <= rate < 1:
        raise ValueError(f"{name} must be in [0, 1), got {rate}: 0 turns it off.")
    return rate


def check_seed(seed: tf.Tensor | None) -> tf.Tensor:
    """Raises ValueError when a stochastic call got no seed; returns it."""
    if seed is None:
        raise ValueError(
            "training=True with a dropout rate above 0 needs a seed: got None, pass an "
            "int32 tensor of shape [2], or set the dropout rates to 0."
        )
    return tf.convert_to_tensor(seed, tf.int32)


def _drop_threshold(rate: float) -> int:
    return round(rate * _HASH_VALUES)


def _mix(words: tf.Tensor) -> tf.Tensor:
    """Bijective 32-bit mixer: two rounds of shift, xor and odd multiplication.

    Bijective, so that the draws of all elements are distinct before the threshold. The
    constants are those of Chris Wellons' ``lowbias32``.
    """
    words = _xor_shift(words, 16) * tf.constant(0x7FEB352D, tf.uint32)
    words = _xor_shift(words, 15) * tf.constant(0x846CA68B, tf.uint32)
    return _xor_shift(words, 16)


def _xor_shift(words: tf.Tensor, bits: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(words, tf.constant(bits, tf.uint32))
    return tf.bitwise.bitwise_xor(words, shifted)

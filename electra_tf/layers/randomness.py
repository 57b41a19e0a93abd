"""Stateless randomness: every dropout mask is a pure function of a seed.

A seed is an int32 tensor of shape [2]. Sites derive their own streams from it with
`split_seed`, so nothing random is hidden in a variable and a resumed run drops what
the uninterrupted run would have dropped. Masks are the same in plain and in
XLA-compiled execution, on every device.
"""

import math

import tensorflow as tf

_HASH_VALUES = 1 << 32


def split_seed(seed, count):
    """Derives independent seeds from one.

    Args:
        seed: int32 [2].
        count: How many seeds to derive.

    Returns:
        A list of `count` int32 tensors of shape [2].
    """
    # The generator is named because the default differs between plain, XLA-compiled
    # and TPU execution.
    seeds = tf.random.stateless_uniform(
        [count, 2], seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    return tf.unstack(seeds)


def known_shape(tensor):
    """Returns the shape as a list: integers where static, scalar tensors elsewhere."""
    if None not in tensor.shape:
        return list(tensor.shape)
    dynamic = tf.unstack(tf.shape(tensor))
    return [
        moving if fixed is None else fixed
        for fixed, moving in zip(tensor.shape, dynamic, strict=True)
    ]


def keep_mask(seed, shape, rate):
    """Draws which elements dropout keeps.

    An element's draw is a hash of its index under the two words of the seed. XLA fuses
    it into the loop that uses the mask and backward passes draw it again, so masks
    never exist in memory; a generator's random words would have to.

    Args:
        seed: int32 [2].
        shape: List of integers or scalar int32 tensors.
        rate: Share of elements to drop, exact to 2**-33.

    Returns:
        Boolean tensor of that shape.
    """
    first, second = tf.unstack(tf.bitcast(seed, tf.uint32))
    index = tf.cast(tf.reshape(tf.range(_product(shape)), shape), tf.uint32)
    draws = _mix(_mix(tf.bitwise.bitwise_xor(index, first)) + second)
    return draws >= tf.constant(_drop_threshold(rate), tf.uint32)


def keep_scale(rate):
    """Returns 1 / (probability to keep), which makes dropout exactly unbiased."""
    return _HASH_VALUES / (_HASH_VALUES - _drop_threshold(rate))


def drop(inputs, seed, rate):
    """Zeroes a share of the elements and scales the others; nothing at rate 0.

    Args:
        inputs: Float tensor.
        seed: int32 [2]; may be None at rate 0.
        rate: Share of elements to drop.

    Returns:
        Tensor like `inputs`.
    """
    if not rate:
        return inputs
    keep = keep_mask(seed, known_shape(inputs), rate)
    return tf.where(keep, inputs * keep_scale(rate), tf.zeros([], inputs.dtype))


def check_rate(rate, name):
    """Raises ValueError unless `rate` can be a dropout rate; returns it."""
    if not 0 <= rate < 1:
        raise ValueError(f"{name} must be in [0, 1), got {rate}: 0 turns it off.")
    return rate


def check_seed(seed):
    """Raises ValueError when a stochastic call got no seed; returns it."""
    if seed is None:
        raise ValueError(
            "training=True with a dropout rate above 0 needs a seed: got None, pass an "
            "int32 tensor of shape [2], or set the dropout rates to 0."
        )
    return tf.convert_to_tensor(seed, tf.int32)


def _drop_threshold(rate):
    return round(rate * _HASH_VALUES)


def _product(shape):
    if all(isinstance(size, int) for size in shape):
        return math.prod(shape)
    return tf.reduce_prod(tf.stack(shape))


def _mix(words):
    """Bijective 32-bit mixer: two rounds of shift, xor and odd multiplication.

    The constants are those of Chris Wellons' `lowbias32`.
    """
    words = _xor_shift(words, 16) * tf.constant(0x7FEB352D, tf.uint32)
    words = _xor_shift(words, 15) * tf.constant(0x846CA68B, tf.uint32)
    return _xor_shift(words, 16)


def _xor_shift(words, bits):
    shifted = tf.bitwise.right_shift(words, tf.constant(bits, tf.uint32))
    return tf.bitwise.bitwise_xor(words, shifted)

"""Randomness of a row as a pure function of its key, in plain integer operations.

A counter-based generator (SplitMix64): unlike ``tf.random.stateless_*`` it takes one
key *per row* in a single vectorized call, and eager and graph mode give the same bits.

Letters: B batch.
"""

from __future__ import annotations

import tensorflow as tf

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def mix(x: tf.Tensor) -> tf.Tensor:
    """SplitMix64's finalizer, a bijection on uint64 (Steele et al., 2014)."""
    shift, xor = tf.bitwise.right_shift, tf.bitwise.bitwise_xor
    x = xor(x, shift(x, tf.constant(30, tf.uint64))) * tf.constant(_MIX_1, tf.uint64)
    x = xor(x, shift(x, tf.constant(27, tf.uint64))) * tf.constant(_MIX_2, tf.uint64)
    return xor(x, shift(x, tf.constant(31, tf.uint64)))


def row_keys(
    fingerprints: tf.Tensor, variants: tf.Tensor, *, seed: int = 0
) -> tf.Tensor:
    """Combines record, mask variant and run seed into one key per row.

    Args:
        fingerprints: [B] int64, a hash of each record.
        variants: [B] int64, which of the record's masks to draw.
        seed: the run's seed.

    Returns:
        [B] uint64.
    """
    seed_key = mix(tf.constant((seed + 1) * _GOLDEN % 2**64, tf.uint64))
    variant_keys = mix(tf.cast(variants, tf.uint64) + seed_key)
    return mix(tf.bitwise.bitwise_xor(tf.cast(fingerprints, tf.uint64), variant_keys))


def row_noise(keys: tf.Tensor, stream: int, size: int) -> tf.Tensor:
    """Independent 63-bit noise, ``size`` values per key.

    Args:
        keys: [B] uint64.
        stream: which of a row's streams; different streams never overlap.
        size: values per row.

    Returns:
        [B, size] int64, uniform over [0, 2**63).
    """
    counters = tf.range(1, size + 1, dtype=tf.int64) + (stream << 32)
    offsets = tf.cast(counters, tf.uint64) * tf.constant(_GOLDEN, tf.uint64)
    bits = mix(keys[:, None] + offsets[None, :])
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)


def uniform(noise: tf.Tensor) -> tf.Tensor:
    """Turns 63-bit noise into float32 in [0, 1) with 24 random bits."""
    high_bits = tf.bitwise.right_shift(noise, tf.constant(39, tf.int64))
    return tf.cast(high_bits, tf.float32) * 2.0**-24


def uniform64(noise: tf.Tensor) -> tf.Tensor:
    """Turns 63-bit noise into float64 in (0, 1), never 0 or 1, with 52 random bits."""
    high_bits = tf.bitwise.right_shift(noise, tf.constant(11, tf.int64))
    return (tf.cast(high_bits, tf.float64) + 0.5) * 2.0**-52


def remixed(noise: tf.Tensor) -> tf.Tensor:
    """Further 63-bit noise of the same shape, a hash of what there is."""
    bits = mix(tf.cast(noise, tf.uint64) + tf.constant(_GOLDEN, tf.uint64))
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)

import numpy as np
import tensorflow as tf

from electra_tf.layers import fused, losses
from tests.strategy import two_cpus


def test_token_cross_entropy_by_hand():
    # Two classes with odds 3 : 1.
    logits = [[[np.log(3.0), 0.0], [np.log(3.0), 0.0]]]
    result = losses.token_cross_entropy(logits, [[0, 1]])
    np.testing.assert_allclose(result, [[-np.log(0.75), -np.log(0.25)]], rtol=1e-6)
    result = losses.token_cross_entropy(tf.constant([[300.0, -300]], tf.bfloat16), [1])
    assert result.dtype == tf.float32
    np.testing.assert_allclose(result, [600.0], rtol=1e-2)


def test_token_cross_entropy_of_a_low_precision():
    # At these logits, exp overflows unless the maximum is subtracted first.
    rng = np.random.default_rng(0)
    logits = tf.constant(rng.normal(0, 60, (2, 3, 50)), tf.float32)
    ids = tf.constant(rng.integers(50, size=(2, 3)), tf.int32)
    upstream = tf.constant(rng.normal(size=(2, 3)), tf.float32)
    found = []
    for ops in (losses, fused):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            values = tf.function(ops.token_cross_entropy)(logits, ids)
        found.append((values, tape.gradient(values, logits, upstream)))
    for exact, fast in zip(*found, strict=True):
        assert fast.dtype == tf.float32
        np.testing.assert_allclose(fast, exact, rtol=1e-5, atol=1e-5)


def test_binary_cross_entropy_by_hand():
    result = losses.binary_cross_entropy([True, False, True], [0.0, np.log(3.0), 500.0])
    np.testing.assert_allclose(result, [np.log(2), np.log(4), 0.0], atol=1e-6)
    low = losses.binary_cross_entropy([0], tf.zeros([1], tf.bfloat16))
    assert low.dtype == tf.float32
    np.testing.assert_allclose(losses.binary_cross_entropy([0], [500.0]), [500.0])


def test_weighted_mean_by_hand():
    np.testing.assert_allclose(losses.weighted_mean([1.0, 2.0, 9.0], [1, 3, 0]), 1.75)
    np.testing.assert_allclose(losses.weighted_mean([1.0, 2.0], [1, 1], total=10), 0.3)
    values = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        mean = losses.weighted_mean(values, [0, 0])
    assert mean == 0.0
    np.testing.assert_array_equal(tape.gradient(mean, values), [0.0, 0.0])


def test_two_replicas_equal_one():
    """Unequal weights on the replicas: a mean of means would be wrong."""
    values = np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]], np.float32)
    weights = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]], np.float32)
    expected = losses.weighted_mean(values, weights)
    np.testing.assert_allclose(expected, 4.0)

    strategy = two_cpus()
    with strategy.scope():
        factor = tf.Variable(1.0)

    def replica_fn():
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        value, weight = tf.gather(values, index), tf.gather(weights, index)
        with tf.GradientTape() as tape:
            mean = losses.weighted_mean(factor * value, weight)
        return mean, tape.gradient(mean, factor)

    for per_replica in tf.function(lambda: strategy.run(replica_fn))():
        total = strategy.reduce("SUM", per_replica, axis=None)
        np.testing.assert_allclose(total, expected, rtol=1e-6)

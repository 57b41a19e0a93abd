"""Loss functions: pure, float32, and right under data parallelism."""

import tensorflow as tf


def all_replicas_sum(value):
    """Sums a tensor over the replicas of the current strategy.

    Must be called outside of `tf.while_loop` and `tf.cond` when there is more than
    one replica: TensorFlow cannot synchronize replicas inside of them.

    Args:
        value: Tensor of any shape, computed by this replica.

    Returns:
        The sum, the same on every replica; `value` itself without a strategy.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return value
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)


def weighted_mean(values, weights, total=None):
    """Sum of `values * weights` on this replica over the sum of all weights.

    The denominator is taken over all replicas, so that summing the results over the
    replicas (as the optimizer does with gradients) gives the mean over the whole
    batch, however unequal the weights of the replicas are.

    Args:
        values: Float tensor.
        weights: Tensor of the same shape.
        total: Scalar denominator; by default the sum of `weights` over all replicas.

    Returns:
        float32 scalar, 0 where the total is 0.
    """
    weights = tf.cast(weights, tf.float32)
    if total is None:
        total = all_replicas_sum(tf.reduce_sum(weights))
    weighted = tf.reduce_sum(tf.cast(values, tf.float32) * weights)
    return tf.math.divide_no_nan(weighted, tf.cast(total, tf.float32))


def token_cross_entropy(logits, ids):
    """Negative log-likelihood of each id.

    Args:
        logits: Float tensor [..., V].
        ids: Integer tensor [...], each in [0, V).

    Returns:
        float32 [...], in nats.
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=ids, logits=tf.cast(logits, tf.float32)
    )


def binary_cross_entropy(labels, logits):
    """Negative log-likelihood of each binary label.

    Args:
        labels: Tensor of any shape, boolean or numbers in [0, 1].
        logits: Float tensor of the same shape; positive favors label 1.

    Returns:
        float32 tensor of that shape, in nats.
    """
    return tf.nn.sigmoid_cross_entropy_with_logits(
        labels=tf.cast(labels, tf.float32), logits=tf.cast(logits, tf.float32)
    )

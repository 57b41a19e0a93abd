"""Loss functions in float32, exact under data parallelism."""

import tensorflow as tf

from electra_tf.layers.replicas import all_replicas_sum

__all__ = [
    "all_replicas_sum",
    "binary_cross_entropy",
    "token_cross_entropy",
    "weighted_mean",
]


def weighted_mean(
    values: tf.Tensor, weights: tf.Tensor, total: tf.Tensor | None = None
) -> tf.Tensor:
    """Sum of ``values * weights`` on this replica over the sum of all weights.

    The denominator, ``total``, is by default the sum over all replicas. The results of
    the replicas then sum to the mean over the global batch. Values and weights have one
    shape. The result, a float32 scalar, is 0 if the total is 0.

    Examples:
        >>> values, weights = tf.constant([[1.0, 3.0, 100.0], [1.0, 1.0, 0.0]])
        >>> float(et.losses.weighted_mean(values, weights))
        2.0
    """
    weights = tf.cast(weights, tf.float32)
    if total is None:
        total = all_replicas_sum(tf.reduce_sum(weights))
    weighted = tf.reduce_sum(tf.cast(values, tf.float32) * weights)
    return tf.math.divide_no_nan(weighted, tf.cast(total, tf.float32))


def token_cross_entropy(logits: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Negative log-likelihood of ids [...] under logits [..., V]; float32, in nats.

    Examples:
        >>> logits, ids = tf.zeros([1, 2, 8]), tf.constant([[3, 5]])
        >>> et.losses.token_cross_entropy(logits, ids).numpy().round(3)  # the log of 8
        array([[2.079, 2.079]], dtype=float32)
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=ids, logits=tf.cast(logits, tf.float32)
    )


def binary_cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Negative log-likelihood of binary labels; float32 of the same shape, in nats.

    Labels are boolean or in [0, 1]; a positive logit favors label 1.

    Examples:
        >>> labels, logits = tf.constant([True]), tf.constant([0.0])
        >>> loss = et.losses.binary_cross_entropy(labels, logits)
        >>> loss.numpy().round(3)  # the log of 2
        array([0.693], dtype=float32)
    """
    return tf.nn.sigmoid_cross_entropy_with_logits(
        labels=tf.cast(labels, tf.float32), logits=tf.cast(logits, tf.float32)
    )

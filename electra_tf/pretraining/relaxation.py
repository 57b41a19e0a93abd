"""Relaxed samples: one-hots forward, a softmax backward (straight-through Gumbel).

Jang et al., 2017, "Categorical Reparameterization with Gumbel-Softmax", sections 2.1
and 2.2. Letters: B batch, S sequence, P predicted positions, V vocabulary, E embedding
size.
"""

from __future__ import annotations

import tensorflow as tf

from electra_tf.layers.randomness import known_shape


def perturbed_logits(
    logits: tf.Tensor, sampled_ids: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Adds Gumbel noise as it must have been for ``sampled_ids`` to be the argmax.

    Drawing ids from softmax(logits) and then this noise has the joint distribution of
    drawing noise first and taking the argmax (Maddison et al., 2014, truncated
    Gumbels): with Z = logsumexp(logits) the largest value is Z - log E_0, and the
    others are -log(E_i exp(-logits_i) + exp(-largest)), all E exponential. So the
    samples may come from any exact sampler, and float32 uniforms, which cut the tail
    of Gumbel noise near 16, decide nothing.

    The noise is a constant for gradients: d perturbed / d logits is the identity.

    Args:
        logits: [B, P, V] float32, of the distribution that was sampled from.
        sampled_ids: [B, P] int32.
        seed: int32 [2].

    Returns:
        [B, P, V] float32.
    """
    fixed = tf.stop_gradient(logits)
    uniform = tf.random.stateless_uniform(
        tf.shape(logits), seed, minval=1e-30, maxval=1.0, alg="philox"
    )
    # log E with E exponential: minus a Gumbel number.
    log_exponential = tf.math.log(-tf.math.log(uniform))
    is_sampled = tf.one_hot(
        sampled_ids, logits.shape[-1], on_value=True, off_value=False
    )
    own = tf.where(is_sampled, log_exponential, 0.0)
    largest = tf.reduce_logsumexp(fixed, -1, keepdims=True) - tf.reduce_sum(
        own, -1, keepdims=True
    )
    first, second = log_exponential - fixed, -largest
    others = -(tf.maximum(first, second) + tf.nn.softplus(-tf.abs(first - second)))
    perturbed = tf.where(is_sampled, largest, others)
    return logits + (perturbed - fixed)


def straight_through(perturbed: tf.Tensor, sampled_ids: tf.Tensor, temperature: float):
    """The one-hot of the sample, with the gradient of softmax(perturbed / temperature).

    Args:
        perturbed: [B, P, V] float32, of ``perturbed_logits``.
        sampled_ids: [B, P] int32, its argmax.
        temperature: of the relaxation; small is a better gradient with more variance.

    Returns:
        [B, P, V] float32, exactly zeros and ones.
    """
    hard = tf.one_hot(sampled_ids, perturbed.shape[-1], dtype=tf.float32)

    @tf.custom_gradient
    def one_hot_of(soft):
        return tf.identity(hard), tf.identity

    return one_hot_of(tf.nn.softmax(perturbed / temperature))


def reverse_gradient(values: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Returns ``values``; gradients that come back are multiplied by ``-scale``.

    What is behind ascends where what is before descends.

    Args:
        values: float tensor.
        scale: float32 scalar.
    """

    @tf.custom_gradient
    def unchanged(inputs):
        return tf.identity(inputs), lambda upstream: -scale * upstream

    return unchanged(values)


def put_rows(
    rows: tf.Tensor, positions: tf.Tensor, used: tf.Tensor, into: tf.Tensor
) -> tf.Tensor:
    """Puts vectors at positions that are zero.

    Args:
        rows: [B, P, E] float32.
        positions: [B, P] int32, different ones within a row where ``used``.
        used: [B, P] bool; the other rows go nowhere.
        into: [B, S, E] float32, zero at the positions that are used.

    Returns:
        [B, S, E] float32.
    """
    batch, slots, size = known_shape(rows)
    kept = tf.where(used[..., tf.newaxis], rows, 0.0)
    index = tf.stack(
        [tf.repeat(tf.range(batch), slots), tf.reshape(positions, [-1])], 1
    )
    return tf.tensor_scatter_nd_add(into, index, tf.reshape(kept, [-1, size]))

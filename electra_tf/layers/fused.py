"""The functions of `plain` for training: faster, and remembering less.

Each function has the arguments, the result and the gradient of its namesake in
`plain`. Element-wise chains are compiled by XLA, forward and backward, so that they
pass over memory once; matrix products stay outside, where TensorFlow's own kernels
are faster. Backward passes recompute what is cheap: they keep low-precision inputs
and seeds, never float32 intermediates or masks.

Letters: B batch, S sequence, R rows (B * S), D width, N heads, H head size.
"""

import tensorflow as tf

from electra_tf.layers import plain, randomness
from electra_tf.layers.randomness import keep_mask, keep_scale, known_shape


def compiled(function):
    """Compiles a function of tensors and hashable Python values."""
    return tf.function(function, jit_compile=True, autograph=False)


def recomputed(function):
    """Compiles a function and its gradient, which starts over from the inputs.

    Args:
        function: Takes what is differentiated (float tensors) by position and the
            rest (tensors or Python values) by keyword; returns one tensor.

    Returns:
        A function with the same signature, result and gradient.
    """
    forward = compiled(function)

    @compiled
    def backward(tensors, upstream, options):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors, **options)
        return tape.gradient(result, tensors, upstream)

    def call(*tensors, **options):
        @tf.custom_gradient
        def run(*tensors):
            def gradient(upstream):
                return backward(tensors, upstream, options)

            return forward(*tensors, **options), gradient

        return run(*map(tf.convert_to_tensor, tensors))

    return call


drop = recomputed(randomness.drop)
norm_drop = recomputed(plain.norm_drop)
bias_activation = recomputed(plain.bias_activation)
bias_drop_add_norm = recomputed(plain.bias_drop_add_norm)


def attention(
    qkv, bias, *, mask, num_heads, seed, rate, score_penalty=plain.both_directions
):
    """Does what `plain.attention` does and remembers one [B, N, S, S] tensor.

    The probabilities are kept once, in the dtype of `qkv`, with the dropout mask in
    their sign bits.
    """
    bias = tf.convert_to_tensor(bias)
    rows = known_shape(mask)

    @tf.custom_gradient
    def run(qkv, bias):
        query, key, value = _split_heads(qkv, bias, rows, num_heads)
        scores = tf.matmul(query, key, transpose_b=True)
        signed, dropped = _softmax(
            scores, mask, query.shape[-1], score_penalty, seed=seed, rate=rate
        )
        context = plain.merge_heads(tf.matmul(dropped, value))

        def gradient(upstream):
            upstream = _unmerge_heads(upstream, rows, num_heads)
            slopes, dropped = _softmax_gradient(
                signed,
                tf.matmul(upstream, value, transpose_b=True),
                query.shape[-1],
                rate,
            )
            return _split_heads_gradient(
                tf.matmul(slopes, key),
                tf.matmul(slopes, query, transpose_a=True),
                tf.matmul(dropped, upstream, transpose_a=True),
                bias.dtype,
            )

        return context, gradient

    return run(qkv, bias)


_split_heads = compiled(plain.split_heads)


@compiled
def _unmerge_heads(context, rows, num_heads):
    head_size = context.shape[-1] // num_heads
    context = tf.reshape(context, [*rows, num_heads, head_size])
    return tf.transpose(context, [0, 2, 1, 3])


@compiled
def _split_heads_gradient(query, key, value, bias_dtype):
    """Gradients of `plain.split_heads`: [R, 3 * D] and [3 * D]."""
    size = 3 * query.shape[1] * query.shape[3]
    qkv = tf.transpose(tf.stack([query, key, value]), [1, 3, 0, 2, 4])
    qkv = tf.reshape(qkv, [-1, size])
    bias = tf.reduce_sum(tf.cast(qkv, tf.float32), axis=0)
    return qkv, tf.cast(bias, bias_dtype)


@compiled
def _softmax(scores, mask, head_size, score_penalty, *, seed, rate):
    """Returns the scaled probabilities with dropped ones negative, and dropped ones 0.

    Backward reads from the first what it needs: the size is the probability, the sign
    says whether it was kept. A probability of 0 loses its sign, and needs none.
    """
    probabilities = plain.masked_softmax(scores, mask, head_size, score_penalty)
    probabilities = tf.cast(probabilities * keep_scale(rate), scores.dtype)
    if not rate:
        return probabilities, probabilities
    keep = keep_mask(seed, known_shape(scores), rate)
    signed = tf.where(keep, probabilities, -probabilities)
    return signed, tf.nn.relu(signed)


@compiled
def _softmax_gradient(signed, upstream, head_size, rate):
    """Returns the gradient of the scores, and the dropped probabilities once more."""
    values = tf.cast(signed, tf.float32)
    probabilities = tf.abs(values) / keep_scale(rate)
    weighted = tf.nn.relu(values) * tf.cast(upstream, tf.float32)
    mean = tf.reduce_sum(weighted, axis=-1, keepdims=True)
    slopes = (weighted - probabilities * mean) * head_size**-0.5
    return tf.cast(slopes, upstream.dtype), tf.nn.relu(signed)

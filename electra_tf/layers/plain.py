"""The element-wise parts of a Transformer in plain TensorFlow operations.

They define what `fused` computes, and they are what inference runs: a SavedModel
holds nothing else. Whatever the dtype of the activations, the arithmetic inside is
float32; the result has the dtype of the first argument unless another is given.

Letters: B batch, S sequence, R rows (B * S), D width, N heads, H head size.
"""

import tensorflow as tf

from electra_tf.layers.randomness import drop, known_shape

MASKED_SCORE = -10000.0
# So far below MASKED_SCORE that a row of padding alone still obeys its direction.
_FORBIDDEN_SCORE = -1e9


def gelu(inputs):
    """Exact Gaussian error linear unit, x * Phi(x)."""
    return 0.5 * inputs * (1.0 + tf.math.erf(inputs * 0.5**0.5))


def gelu_tanh(inputs):
    """The tanh approximation of GELU, which keras_hub's backbones use."""
    return tf.nn.gelu(inputs, approximate=True)


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": tf.nn.relu}


def get_activation(name):
    """Returns the activation of that name; ValueError lists the known ones."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"Unknown activation {name!r}: choose one of {sorted(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]


def bias_activation(inputs, bias, *, activation):
    """Returns activation(inputs + bias).

    Args:
        inputs: [R, D].
        bias: [D].
        activation: Function of a float32 tensor.

    Returns:
        [R, D].
    """
    return tf.cast(activation(_float32(inputs) + _float32(bias)), inputs.dtype)


def layer_norm(inputs, gamma, beta, *, epsilon):
    """Normalizes float32 rows over the last axis, then scales and shifts them."""
    centered = inputs - tf.reduce_mean(inputs, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    normalized = centered * tf.math.rsqrt(variance + epsilon)
    return normalized * _float32(gamma) + _float32(beta)


def norm_drop(inputs, gamma, beta, *, seed, rate, epsilon, dtype):
    """Returns dropout(LayerNorm(inputs)).

    Args:
        inputs: [..., D].
        gamma: [D].
        beta: [D].
        seed: int32 [2]; may be None at rate 0.
        rate: Dropout rate.
        epsilon: Added to the variance.
        dtype: Of the result.

    Returns:
        [..., D].
    """
    normalized = layer_norm(_float32(inputs), gamma, beta, epsilon=epsilon)
    return tf.cast(drop(normalized, seed, rate), dtype)


def bias_drop_add_norm(inputs, bias, residual, gamma, beta, *, seed, rate, epsilon):
    """Returns LayerNorm(dropout(inputs + bias) + residual).

    Args:
        inputs: [R, D], the output of a matrix product.
        bias: [D].
        residual: [R, D].
        gamma: [D].
        beta: [D].
        seed: int32 [2]; may be None at rate 0.
        rate: Dropout rate.
        epsilon: Added to the variance.

    Returns:
        [R, D].
    """
    total = drop(_float32(inputs) + _float32(bias), seed, rate) + _float32(residual)
    return tf.cast(layer_norm(total, gamma, beta, epsilon=epsilon), inputs.dtype)


def both_directions(mask):
    """Penalty of attention scores that hides padding: [B, S] to [B, 1, 1, S]."""
    penalty = (1.0 - _float32(mask)) * MASKED_SCORE
    # Not tf.newaxis: LiteRT's built-in strided slice knows no new axes.
    return tf.expand_dims(tf.expand_dims(penalty, 1), 1)


def left_to_right(mask):
    """Hides padding and everything to the right of a position: [B, 1, S, S]."""
    positions = tf.range(known_shape(mask)[1])
    is_hidden = tf.expand_dims(positions, 0) > tf.expand_dims(positions, 1)
    return both_directions(mask) + _float32(is_hidden) * _FORBIDDEN_SCORE


def right_to_left(mask):
    """Hides padding and everything to the left of a position: [B, 1, S, S]."""
    positions = tf.range(known_shape(mask)[1])
    is_hidden = tf.expand_dims(positions, 0) < tf.expand_dims(positions, 1)
    return both_directions(mask) + _float32(is_hidden) * _FORBIDDEN_SCORE


# What a position attends to: everything, or itself and one side of it.
DIRECTIONS = {
    "both": both_directions,
    "left_to_right": left_to_right,
    "right_to_left": right_to_left,
}


def get_direction(name):
    """Returns the penalty function of that name; ValueError lists the known ones."""
    if name not in DIRECTIONS:
        raise ValueError(
            f"Unknown direction {name!r}: choose one of {sorted(DIRECTIONS)}."
        )
    return DIRECTIONS[name]


def attention(qkv, bias, *, mask, num_heads, seed, rate, score_penalty=both_directions):
    """Multi-head self-attention between the input and the output projection.

    Args:
        qkv: [R, 3 * D], query, key and value of all heads side by side.
        bias: [3 * D].
        mask: [B, S], 1 where a position may be attended to.
        num_heads: N.
        seed: int32 [2]; may be None at rate 0.
        rate: Dropout rate of the probabilities.
        score_penalty: One of `DIRECTIONS`, from the mask to what is added to scores.

    Returns:
        [R, D].
    """
    query, key, value = split_heads(qkv, bias, known_shape(mask), num_heads)
    scores = tf.matmul(query, key, transpose_b=True)
    probabilities = masked_softmax(scores, mask, query.shape[-1], score_penalty)
    probabilities = drop(probabilities, seed, rate)
    return merge_heads(tf.matmul(tf.cast(probabilities, qkv.dtype), value))


def split_heads(qkv, bias, rows, num_heads):
    """Adds the bias and returns query, key and value, each [B, N, S, H].

    Args:
        qkv: [R, 3 * D].
        bias: [3 * D].
        rows: The pair (B, S).
        num_heads: N.
    """
    head_size = qkv.shape[-1] // (3 * num_heads)
    qkv += tf.cast(bias, qkv.dtype)
    qkv = tf.reshape(qkv, [*rows, 3, num_heads, head_size])
    # Slicing instead of unstacking would cost a padded copy per slice in the gradient.
    return tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]))


def merge_heads(context):
    """Lays the heads side by side: [B, N, S, H] to [R, D]."""
    size = context.shape[1] * context.shape[3]
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, size])


def masked_softmax(scores, mask, head_size, score_penalty=both_directions):
    """Softmax of scores / sqrt(H) over the positions that may be attended to.

    Args:
        scores: [B, N, S, S].
        mask: [B, S], 1 where a position may be attended to.
        head_size: H.
        score_penalty: One of `DIRECTIONS`.

    Returns:
        float32 [B, N, S, S].
    """
    return tf.nn.softmax(_float32(scores) * head_size**-0.5 + score_penalty(mask))


def _float32(tensor):
    return tf.cast(tensor, tf.float32)

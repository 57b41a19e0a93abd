"""Element-wise parts of a Transformer in plain TensorFlow operations.

The reference for ``fused``, and the inference code: consumers of a SavedModel, such as
LiteRT, have no XLA. All arithmetic is float32, because bfloat16 sums lose small terms.
Results have the dtype of the first argument.

Letters: B batch, S sequence, R rows (B * S), D width, N heads, H head size. A bias has
the width of the input; ``gamma`` and ``beta`` are [D]; ``rate`` is the dropout rate;
``seed``, int32 [2], may be None at rate 0; ``epsilon`` is added to the variance; a
``mask`` [B, S] is 1 for positions that may be attended to.
"""

from collections.abc import Callable

import tensorflow as tf

from electra_tf.layers.randomness import Shape, drop, known_shape

# The original's value. Finite, so that a row of padding still has a softmax.
MASKED_SCORE = -10000.0
# Far below MASKED_SCORE, so that directions hold even in a row of padding.
_FORBIDDEN_SCORE = -1e9
DIRECTIONS = ("both", "left_to_right", "right_to_left")


def gelu(inputs: tf.Tensor) -> tf.Tensor:
    """Exact Gaussian error linear unit, x * Phi(x)."""
    return 0.5 * inputs * (1.0 + tf.math.erf(inputs * 0.5**0.5))


def gelu_tanh(inputs: tf.Tensor) -> tf.Tensor:
    """Tanh approximation of GELU, as in keras_hub's backbones."""
    return tf.nn.gelu(inputs, approximate=True)


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": tf.nn.relu}


def bias_activation(
    inputs: tf.Tensor, bias: tf.Tensor, *, activation: Callable
) -> tf.Tensor:
    """Returns activation(inputs + bias) of [R, D]."""
    return tf.cast(activation(_float32(inputs) + _float32(bias)), inputs.dtype)


def layer_norm(
    inputs: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *, epsilon: float
) -> tf.Tensor:
    """Normalizes float32 rows over the last axis, then scales and shifts them."""
    # Centered first: E[x^2] - E[x]^2 cancels for a large mean, and may be negative.
    centered = inputs - tf.reduce_mean(inputs, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    normalized = centered * tf.math.rsqrt(variance + epsilon)
    return normalized * _float32(gamma) + _float32(beta)


def norm_drop(
    inputs: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    *,
    seed: tf.Tensor | None,
    rate: float,
    epsilon: float,
    dtype: str | tf.DType,
) -> tf.Tensor:
    """Returns dropout(LayerNorm(inputs)) of [..., D] in ``dtype``."""
    normalized = layer_norm(_float32(inputs), gamma, beta, epsilon=epsilon)
    return tf.cast(drop(normalized, seed, rate), dtype)


def bias_drop_add_norm(
    inputs: tf.Tensor,
    bias: tf.Tensor,
    residual: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    *,
    seed: tf.Tensor | None,
    rate: float,
    epsilon: float,
) -> tf.Tensor:
    """Returns LayerNorm(dropout(inputs + bias) + residual) of [R, D]."""
    total = drop(_float32(inputs) + _float32(bias), seed, rate) + _float32(residual)
    return tf.cast(layer_norm(total, gamma, beta, epsilon=epsilon), inputs.dtype)


def attention(
    qkv: tf.Tensor,
    bias: tf.Tensor,
    *,
    mask: tf.Tensor,
    num_heads: int,
    seed: tf.Tensor | None = None,
    rate: float = 0.0,
    direction: str = "both",
) -> tf.Tensor:
    """Multi-head self-attention between the input and the output projection.

    Maps ``qkv`` [R, 3 * D], query, key and value of all heads side by side, to [R, D].
    Dropout applies to the probabilities; ``direction`` is one of ``DIRECTIONS``.
    """
    query, key, value = split_heads(qkv, bias, known_shape(mask), num_heads)
    scores = tf.matmul(query, key, transpose_b=True)
    probabilities = masked_softmax(scores, mask, query.shape[-1], direction)
    probabilities = drop(probabilities, seed, rate)
    return merge_heads(tf.matmul(tf.cast(probabilities, qkv.dtype), value))


def split_heads(
    qkv: tf.Tensor, bias: tf.Tensor, rows: Shape, num_heads: int
) -> list[tf.Tensor]:
    """Adds the bias to [R, 3 * D]; returns query, key and value, each [B, N, S, H]."""
    head_size = qkv.shape[-1] // (3 * num_heads)
    qkv += tf.cast(bias, qkv.dtype)
    qkv = tf.reshape(qkv, [*rows, 3, num_heads, head_size])
    # One transpose for all three; the gradient of slices would copy the whole tensor.
    return tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]))


def merge_heads(context: tf.Tensor) -> tf.Tensor:
    """Concatenates the heads: [B, N, S, H] to [R, D]."""
    size = context.shape[1] * context.shape[3]
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, size])


def masked_softmax(
    scores: tf.Tensor, mask: tf.Tensor, head_size: int, direction: str
) -> tf.Tensor:
    """Softmax of scores [B, N, Q, S] / sqrt(H) over visible positions, in float32.

    The queries are the first Q positions of a row.
    """
    penalty = (1.0 - _float32(mask)) * MASKED_SCORE
    # Not tf.newaxis, which LiteRT's built-in strided slice does not support.
    penalty = tf.expand_dims(tf.expand_dims(penalty, 1), 1)
    if direction != "both":
        is_hidden = tf.greater if direction == "left_to_right" else tf.less
        queries, keys = (tf.range(size) for size in known_shape(scores)[2:])
        hidden = is_hidden(tf.expand_dims(keys, 0), tf.expand_dims(queries, 1))
        penalty += _float32(hidden) * _FORBIDDEN_SCORE
    return tf.nn.softmax(_float32(scores) * head_size**-0.5 + penalty)


def _float32(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float32)

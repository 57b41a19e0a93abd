"""The element-wise parts of a Transformer in plain TensorFlow operations.

They define what ``fused`` computes, and they are what inference runs: a SavedModel
holds nothing else, because a consumer such as LiteRT has no XLA to compile with.
Whatever the dtype of the activations, the arithmetic inside is float32, since sums of
many bfloat16 terms would lose their small ones; the result has the dtype of the first
argument unless another is given.

Letters: B batch, S sequence, R rows (B * S), D width, N heads, H head size. In all of
them a bias is as wide as the input and ``gamma`` and ``beta`` are [D]; ``rate`` is of
dropout, and ``seed``, int32 [2], may be None at rate 0; ``epsilon`` is added to the
variance; a ``mask`` [B, S] is 1 where a position may be attended to.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from electra_tf.layers.randomness import Shape, drop, known_shape

# From a mask to what is added to attention scores; from float32 to float32.
Penalty = Callable[[tf.Tensor], tf.Tensor]
Activation = Callable[[tf.Tensor], tf.Tensor]

# BERT's and the original's number. Finite: a row of padding alone still has a softmax.
MASKED_SCORE = -10000.0
# So far below MASKED_SCORE that a row of padding alone still obeys its direction.
_FORBIDDEN_SCORE = -1e9


def gelu(inputs: tf.Tensor) -> tf.Tensor:
    """Exact Gaussian error linear unit, x * Phi(x)."""
    return 0.5 * inputs * (1.0 + tf.math.erf(inputs * 0.5**0.5))


def gelu_tanh(inputs: tf.Tensor) -> tf.Tensor:
    """The tanh approximation of GELU, which keras_hub's backbones use."""
    return tf.nn.gelu(inputs, approximate=True)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": tf.nn.relu,
}


def bias_activation(
    inputs: tf.Tensor, bias: tf.Tensor, *, activation: Activation
) -> tf.Tensor:
    """Returns activation(inputs + bias) of [R, D]."""
    return tf.cast(activation(_float32(inputs) + _float32(bias)), inputs.dtype)


def layer_norm(
    inputs: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, *, epsilon: float
) -> tf.Tensor:
    """Normalizes float32 rows over the last axis, then scales and shifts them."""
    # The variance of centered values: E[x^2] - E[x]^2 would cancel where the mean is
    # large, and may come out negative.
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
    """Returns LayerNorm(dropout(inputs + bias) + residual), all of them [R, D].

    ``inputs`` are the output of a matrix product.
    """
    total = drop(_float32(inputs) + _float32(bias), seed, rate) + _float32(residual)
    return tf.cast(layer_norm(total, gamma, beta, epsilon=epsilon), inputs.dtype)


def both_directions(mask: tf.Tensor) -> tf.Tensor:
    """Penalty of attention scores that hides padding: [B, S] to [B, 1, 1, S]."""
    penalty = (1.0 - _float32(mask)) * MASKED_SCORE
    # Not tf.newaxis: LiteRT's built-in strided slice knows no new axes.
    return tf.expand_dims(tf.expand_dims(penalty, 1), 1)


def left_to_right(mask: tf.Tensor) -> tf.Tensor:
    """Hides padding and everything to the right of a position: [B, 1, S, S]."""
    positions = tf.range(known_shape(mask)[1])
    is_hidden = tf.expand_dims(positions, 0) > tf.expand_dims(positions, 1)
    return both_directions(mask) + _float32(is_hidden) * _FORBIDDEN_SCORE


def right_to_left(mask: tf.Tensor) -> tf.Tensor:
    """Hides padding and everything to the left of a position: [B, 1, S, S]."""
    positions = tf.range(known_shape(mask)[1])
    is_hidden = tf.expand_dims(positions, 0) < tf.expand_dims(positions, 1)
    return both_directions(mask) + _float32(is_hidden) * _FORBIDDEN_SCORE


# What a position attends to: everything, or itself and one side of it.
DIRECTIONS: dict[str, Penalty] = {
    "both": both_directions,
    "left_to_right": left_to_right,
    "right_to_left": right_to_left,
}


def choose(kind: str, name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the "activation" or "direction" of that name; ValueError lists them."""
    choices = {"activation": ACTIVATIONS, "direction": DIRECTIONS}[kind]
    if name not in choices:
        raise ValueError(f"Unknown {kind} {name!r}: choose one of {sorted(choices)}.")
    return choices[name]


def attention(
    qkv: tf.Tensor,
    bias: tf.Tensor,
    *,
    mask: tf.Tensor,
    num_heads: int,
    seed: tf.Tensor | None,
    rate: float,
    score_penalty: Penalty = both_directions,
) -> tf.Tensor:
    """Multi-head self-attention between the input and the output projection.

    ``qkv`` [R, 3 * D], query, key and value of all heads side by side, becomes [R, D].
    Dropout is of the probabilities; ``score_penalty``, one of ``DIRECTIONS``, makes of
    the mask what is added to scores.
    """
    query, key, value = split_heads(qkv, bias, known_shape(mask), num_heads)
    scores = tf.matmul(query, key, transpose_b=True)
    probabilities = masked_softmax(scores, mask, query.shape[-1], score_penalty)
    probabilities = drop(probabilities, seed, rate)
    return merge_heads(tf.matmul(tf.cast(probabilities, qkv.dtype), value))


def split_heads(
    qkv: tf.Tensor, bias: tf.Tensor, rows: Shape, num_heads: int
) -> list[tf.Tensor]:
    """Adds the bias to [R, 3 * D]; returns query, key and value, each [B, N, S, H].

    ``rows`` is the pair (B, S).
    """
    head_size = qkv.shape[-1] // (3 * num_heads)
    qkv += tf.cast(bias, qkv.dtype)
    qkv = tf.reshape(qkv, [*rows, 3, num_heads, head_size])
    # One transpose for all three. Unstacked, not sliced: in the gradient each slice
    # would cost a padded copy of the whole.
    return tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]))


def merge_heads(context: tf.Tensor) -> tf.Tensor:
    """Lays the heads side by side: [B, N, S, H] to [R, D]."""
    size = context.shape[1] * context.shape[3]
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, size])


def masked_softmax(
    scores: tf.Tensor,
    mask: tf.Tensor,
    head_size: int,
    score_penalty: Penalty = both_directions,
) -> tf.Tensor:
    """Softmax of scores / sqrt(H) over the positions that may be attended to.

    Scores [B, N, S, S] become float32 of that shape; ``score_penalty`` is one of
    ``DIRECTIONS``.
    """
    return tf.nn.softmax(_float32(scores) * head_size**-0.5 + score_penalty(mask))


def _float32(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float32)

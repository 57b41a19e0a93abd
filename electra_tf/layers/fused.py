"""XLA-compiled versions of `plain` with recomputed gradients, for training.

XLA compiles the element-wise chains into one pass over memory. Matrix products stay
outside, because TensorFlow's kernels are faster.

Letters: B batch, S sequence, R rows (B * S), D width, N heads, H head size.
"""

from collections.abc import Callable

import tensorflow as tf

from electra_tf.layers import plain, randomness
from electra_tf.layers.compilation import compiled
from electra_tf.layers.randomness import keep_mask, keep_scale, known_shape


def recomputed(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Compiles a function with a gradient that recomputes it from the inputs.

    XLA fuses the recomputation into the backward pass, and no float32 intermediate is
    stored. Only differentiable tensors are positional; the result is one tensor.
    """
    forward = compiled(function)

    def backward(
        tensors: tuple[tf.Tensor, ...], upstream: tf.Tensor, options: dict
    ) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors, **options)
        return tape.gradient(result, tensors, upstream)

    # Profiles show this name.
    backward.__name__ = f"{function.__name__}_gradient"
    backward = compiled(backward)

    def call(*tensors: tf.Tensor, **options: object) -> tf.Tensor:
        @tf.custom_gradient
        def run(*tensors: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
                return backward(tensors, upstream, options)

            return forward(*tensors, **options), gradient

        # Custom gradients cannot capture variables.
        return run(*map(tf.convert_to_tensor, tensors))

    return call


drop = recomputed(randomness.drop)
norm_drop = recomputed(plain.norm_drop)
bias_activation = recomputed(plain.bias_activation)
bias_drop_add_norm = recomputed(plain.bias_drop_add_norm)


def attention(
    qkv: tf.Tensor,
    bias: tf.Tensor,
    *,
    mask: tf.Tensor,
    num_heads: int,
    seed: tf.Tensor | None,
    rate: float,
    direction: str = "both",
) -> tf.Tensor:
    """Computes ``plain.attention``; stores one [B, N, S, S] tensor for the gradient.

    These are the probabilities in the dtype of ``qkv``, with the dropout mask in their
    signs. Recomputing the two matrix products would be expensive.
    """
    bias = tf.convert_to_tensor(bias)
    rows = known_shape(mask)

    @tf.custom_gradient
    def run(qkv: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        query, key, value = _split_heads(qkv, bias, rows, num_heads)
        head_size = query.shape[-1]
        scores = tf.matmul(query, key, transpose_b=True)
        signed, dropped = _softmax(scores, mask, head_size, direction, seed, rate)
        context = plain.merge_heads(tf.matmul(dropped, value))

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            upstream = tf.reshape(upstream, [*rows, num_heads, head_size])
            upstream = tf.transpose(upstream, [0, 2, 1, 3])
            slopes = tf.matmul(upstream, value, transpose_b=True)
            slopes, dropped = _softmax_gradient(signed, slopes, head_size, rate)
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
def _split_heads_gradient(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, bias_dtype: tf.DType
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the gradients of ``plain.split_heads``: [R, 3 * D] and [3 * D]."""
    size = 3 * query.shape[1] * query.shape[3]
    qkv = tf.transpose(tf.stack([query, key, value]), [1, 3, 0, 2, 4])
    qkv = tf.reshape(qkv, [-1, size])
    # float32: bfloat16 sums over thousands of rows lose small terms.
    bias = tf.reduce_sum(tf.cast(qkv, tf.float32), axis=0)
    return qkv, tf.cast(bias, bias_dtype)


@compiled
def _softmax(
    scores: tf.Tensor,
    mask: tf.Tensor,
    head_size: int,
    direction: str,
    seed: tf.Tensor | None,
    rate: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns scaled probabilities with negative dropped ones, and dropout's output."""
    probabilities = plain.masked_softmax(scores, mask, head_size, direction)
    probabilities = tf.cast(probabilities * keep_scale(rate), scores.dtype)
    if not rate:
        return probabilities, probabilities
    keep = keep_mask(seed, known_shape(scores), rate)
    signed = tf.where(keep, probabilities, -probabilities)
    # relu zeroes the dropped (negative) probabilities.
    return signed, tf.nn.relu(signed)


@compiled
def _softmax_gradient(
    signed: tf.Tensor, upstream: tf.Tensor, head_size: int, rate: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the gradient of the scores, and dropout's output once more.

    With probabilities p, dropout's output d and its gradient u, the gradient of the
    softmax is d * u - p * sum(d * u).
    """
    values = tf.cast(signed, tf.float32)
    probabilities = tf.abs(values) / keep_scale(rate)
    weighted = tf.nn.relu(values) * tf.cast(upstream, tf.float32)
    mean = tf.reduce_sum(weighted, axis=-1, keepdims=True)
    slopes = (weighted - probabilities * mean) * head_size**-0.5
    return tf.cast(slopes, upstream.dtype), tf.nn.relu(signed)


def token_cross_entropy(logits: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Computes ``losses.token_cross_entropy`` three times as fast.

    Stores logsumexp of each row. TensorFlow's kernel computes the gradients of all
    logits [..., V] in the forward pass. Results differ in the last bits.
    """

    @tf.custom_gradient
    def run(logits: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        values, normalizers = _cross_entropy(logits, ids)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return _cross_entropy_gradient(logits, ids, normalizers, upstream)

        return values, gradient

    return run(tf.convert_to_tensor(logits, tf.float32))


@compiled
def _cross_entropy(logits: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    normalizers = tf.reduce_logsumexp(logits, axis=-1)
    picked = tf.gather(logits, ids, batch_dims=len(ids.shape))
    return normalizers - picked, normalizers


@compiled
def _cross_entropy_gradient(
    logits: tf.Tensor, ids: tf.Tensor, normalizers: tf.Tensor, upstream: tf.Tensor
) -> tf.Tensor:
    probabilities = tf.exp(logits - normalizers[..., tf.newaxis])
    # A comparison fuses into the pass over the logits; a scatter does not.
    is_id = tf.range(logits.shape[-1], dtype=ids.dtype) == ids[..., tf.newaxis]
    slopes = probabilities - tf.cast(is_id, tf.float32)
    return slopes * upstream[..., tf.newaxis]

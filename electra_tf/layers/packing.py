"""Inference on the tokens of a batch without its padding.

Most of a Transformer treats each token alone, so tokens may as well stand in one list,
[T, D] for the T tokens that are there, whatever row of the batch they come from. Only
attention has to know the rows: it picks queries, keys and values out of the list, in
the layout that its products take, and puts the result back. What padding would cost
elsewhere is saved, and the answers are the same: no token reads padding.

Letters: B batch, S sequence, T tokens, D width, N heads, H head size, Q queries, and K
tokens that are kept.
"""

from __future__ import annotations

import dataclasses
from typing import Self

import tensorflow as tf

from electra_tf.layers import plain
from electra_tf.layers.randomness import known_shape


def bias_activation(
    inputs: tf.Tensor, bias: tf.Tensor, *, activation: plain.Activation
) -> tf.Tensor:
    """Does what ``plain.bias_activation`` does, in one operation with the product.

    TensorFlow's graph optimizer joins a product, ``bias_add`` and GELU if all have one
    dtype, and computes GELU in float32 in any case.
    """
    # Training has + instead: the gradient of bias_add is summed in another order.
    return activation(tf.nn.bias_add(inputs, tf.cast(bias, inputs.dtype)))


def bias_drop_add_norm(
    inputs: tf.Tensor,
    bias: tf.Tensor,
    residual: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    *,
    epsilon: float,
    **dropout: object,
) -> tf.Tensor:
    """Does what its namesake in ``plain`` does; product and bias are one operation.

    Nothing is dropped, whatever ``seed`` and ``rate`` are.
    """
    del dropout
    total = tf.nn.bias_add(inputs, tf.cast(bias, inputs.dtype))
    total = tf.cast(total, tf.float32) + tf.cast(residual, tf.float32)
    normalized = plain.layer_norm(total, gamma, beta, epsilon=epsilon)
    return tf.cast(normalized, inputs.dtype)


@dataclasses.dataclass(frozen=True)
class Packing:
    """Which tokens of a batch are in the list, and where attention finds them.

    Attributes:
        mask: [B, S], 1 where a position may be attended to.
        tokens: int32 [T], the position of each token among B * S.
        rows: int32 [B, S], the token of each position; of padding, any.
        queries: int32 [B, N, Q]; this and ``keys`` and ``values``, [B, N, S], count
            vectors of H numbers in the product [T, 3 * D] that holds all three.
        merged: int32 [K, N], where in the context, [B, N, Q, H], are the heads of each
            token that is kept.
        kept: int32 [K], the tokens that are kept after attention; None for all.
    """

    mask: tf.Tensor
    tokens: tf.Tensor
    rows: tf.Tensor
    queries: tf.Tensor
    keys: tf.Tensor
    values: tf.Tensor
    merged: tf.Tensor
    kept: tf.Tensor | None = None

    @classmethod
    def of(cls, mask: tf.Tensor, num_heads: int) -> Self:
        """Lists the tokens of a mask [B, S]: all that may be attended to, and [CLS].

        The first token of a row is there in any case, so that every row has one.
        """
        batch, length = known_shape(mask)
        is_first = tf.expand_dims(tf.range(length) < 1, 0)
        flat = tf.reshape(tf.logical_or(tf.cast(mask, tf.bool), is_first), [-1])
        tokens = tf.cast(tf.squeeze(tf.where(flat), 1), tf.int32)
        rows = tf.reshape(tf.cumsum(tf.cast(flat, tf.int32)) - 1, [batch, length])
        heads = tf.range(num_heads)
        vectors = 3 * num_heads * tf.expand_dims(rows, 1) + tf.expand_dims(heads, 1)
        row, column = tokens // length, tokens % length
        merged = tf.expand_dims(row * num_heads, 1) + heads
        return cls(
            mask=mask,
            tokens=tokens,
            rows=rows,
            queries=vectors,
            keys=vectors + num_heads,
            values=vectors + 2 * num_heads,
            merged=merged * length + tf.expand_dims(column, 1),
        )

    def first(self) -> Packing:
        """Keeps the first token of each row only, which still attends to all."""
        batch, num_heads, _ = known_shape(self.queries)
        return dataclasses.replace(
            self,
            queries=self.queries[:, :, :1],
            merged=tf.reshape(tf.range(batch * num_heads), [batch, num_heads]),
            kept=self.rows[:, 0],
        )

    def pack(self, hidden: tf.Tensor) -> tf.Tensor:
        """Lists the tokens of [B, S, D] as [T, D]."""
        return tf.gather(tf.reshape(hidden, [-1, hidden.shape[-1]]), self.tokens)

    def keep(self, tokens: tf.Tensor) -> tf.Tensor:
        """Picks those of a list [T, D] that are kept: [K, D]."""
        return tokens if self.kept is None else tf.gather(tokens, self.kept)

    def unpack(self, tokens: tf.Tensor) -> tf.Tensor:
        """Puts a list [T, D] back into its rows, [B, S, D], with zeros as padding."""
        batch, length = known_shape(self.mask)
        size = tokens.shape[-1]
        places = tf.expand_dims(self.tokens, 1)
        hidden = tf.scatter_nd(places, tokens, [batch * length, size])
        return tf.reshape(hidden, [batch, length, size])

    def attention(
        self,
        qkv: tf.Tensor,
        bias: tf.Tensor,
        score_penalty: plain.Penalty = plain.both_directions,
    ) -> tf.Tensor:
        """Does what ``plain.attention`` does: [T, 3 * D] to [K, D]."""
        size = qkv.shape[-1] // 3
        head_size = size // self.merged.shape[1]
        vectors = tf.reshape(qkv + tf.cast(bias, qkv.dtype), [-1, head_size])
        query, key, value = (
            tf.gather(vectors, index)
            for index in (self.queries, self.keys, self.values)
        )
        scores = tf.matmul(query, key, transpose_b=True)
        probabilities = plain.masked_softmax(
            scores, self.mask, head_size, self._of_queries(score_penalty)
        )
        context = tf.matmul(tf.cast(probabilities, qkv.dtype), value)
        heads = tf.gather(tf.reshape(context, [-1, head_size]), self.merged)
        return tf.reshape(heads, [-1, size])

    def _of_queries(self, score_penalty: plain.Penalty) -> plain.Penalty:
        """Cuts penalties, [B, 1, 1 or S, S], to the queries there are."""
        count = known_shape(self.queries)[2]
        return lambda mask: score_penalty(mask)[:, :, :count]

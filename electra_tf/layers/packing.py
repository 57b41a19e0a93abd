"""Inference without padding.

The T real tokens of a batch are packed into one list, [T, D]. Only attention depends on
the rows: it gathers queries, keys and values from the list. Results are unchanged.

Letters: B batch, S sequence, T tokens, D width, N heads, H head size, Q queries, and K
tokens that are kept.
"""

from __future__ import annotations

import dataclasses
from typing import Self

import tensorflow as tf

from electra_tf.layers import plain
from electra_tf.layers.randomness import known_shape


@dataclasses.dataclass(frozen=True)
class Packing:
    """Gather indices that map padded rows, the packed list and attention heads.

    Attributes:
        mask: [B, S], 1 for positions that may be attended to.
        tokens: int32 [T], the index of each token in [B * S].
        rows: int32 [B, S], the index in [T] of each position; arbitrary for padding.
        queries: int32 [B, N, Q], indices into qkv [T, 3 * D] as [3 * T * N, H].
        keys: int32 [B, N, S], indices into the same rows.
        values: int32 [B, N, S], indices into the same rows.
        merged: int32 [K, N], indices of each kept token's heads in [B * N * Q, H].
        kept: int32 [K], the tokens kept after attention; None for all.
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
        """Packs the tokens of a mask [B, S]; always includes the first of each row."""
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
        """Keeps only the first token of each row, which attends to all."""
        batch, num_heads, _ = known_shape(self.queries)
        return dataclasses.replace(
            self,
            queries=self.queries[:, :, :1],
            merged=tf.reshape(tf.range(batch * num_heads), [batch, num_heads]),
            kept=self.rows[:, 0],
        )

    def pack(self, hidden: tf.Tensor) -> tf.Tensor:
        """Packs [B, S, D] into [T, D]."""
        return tf.gather(tf.reshape(hidden, [-1, hidden.shape[-1]]), self.tokens)

    def keep(self, tokens: tf.Tensor) -> tf.Tensor:
        """Selects the kept tokens of a list: [T, D] to [K, D]."""
        return tokens if self.kept is None else tf.gather(tokens, self.kept)

    def unpack(self, tokens: tf.Tensor) -> tf.Tensor:
        """Unpacks [T, D] into rows, [B, S, D], padded with zeros."""
        batch, length = known_shape(self.mask)
        size = tokens.shape[-1]
        places = tf.expand_dims(self.tokens, 1)
        hidden = tf.scatter_nd(places, tokens, [batch * length, size])
        return tf.reshape(hidden, [batch, length, size])

    def attention(self, qkv: tf.Tensor, bias: tf.Tensor, direction: str) -> tf.Tensor:
        """Computes ``plain.attention``: [T, 3 * D] to [K, D]."""
        size = qkv.shape[-1] // 3
        head_size = size // self.merged.shape[1]
        vectors = tf.reshape(qkv + tf.cast(bias, qkv.dtype), [-1, head_size])
        query, key, value = (
            tf.gather(vectors, index)
            for index in (self.queries, self.keys, self.values)
        )
        scores = tf.matmul(query, key, transpose_b=True)
        probabilities = plain.masked_softmax(scores, self.mask, head_size, direction)
        context = tf.matmul(tf.cast(probabilities, qkv.dtype), value)
        heads = tf.gather(tf.reshape(context, [-1, head_size]), self.merged)
        return tf.reshape(heads, [-1, size])

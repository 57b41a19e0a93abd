"""Attention statistics of an encoder.

Letters: H heads, S tokens of a row with [CLS] and [SEP].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from electra_tf.features import derive_inputs
from electra_tf.layers import plain, weights
from electra_tf.layers.encoder import TextEncoder


@dataclasses.dataclass(frozen=True)
class Attention:
    """Statistics of attention heads, averaged over query tokens: arrays [blocks, H].

    ``entropy`` is in nats, ``distance`` from query to key in tokens. ``special`` is the
    weight on [CLS] and [SEP].
    """

    entropy: np.ndarray
    distance: np.ndarray
    special: np.ndarray


@dataclasses.dataclass(frozen=True)
class Heads:
    """Attention weights in a text.

    ``shares`` [blocks, H, S, S] are the weights, from queries (rows) to keys (columns);
    each row sums to 1. ``tokens`` are the S word pieces.
    """

    text: str
    tokens: tuple[str, ...]
    shares: np.ndarray


def looking(encoder: TextEncoder, sep_id: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function: ids [S] -> attention weights, float32 [blocks, H, S, S]."""
    blocks = encoder.transformer.blocks

    @tf.function(reduce_retracing=True)
    def look(ids: tf.Tensor) -> tf.Tensor:
        mask = tf.ones_like(ids)
        states = encoder.states(derive_inputs(ids, mask, sep_id))
        found = []
        for block, state in zip(blocks, states, strict=False):
            product = weights.matmul(
                tf.reshape(state, [-1, encoder.hidden_size]), block.qkv_kernel
            )
            shape = (tf.shape(ids)[0], tf.shape(ids)[1])
            query, key, _ = plain.split_heads(
                product, block.qkv_bias, shape, block.num_heads
            )
            scores = tf.matmul(query, key, transpose_b=True)
            penalty = plain.choose("direction", block.direction)
            found.append(
                plain.masked_softmax(scores, mask, query.shape[-1], penalty)[0]
            )
        return tf.stack(found)

    return lambda row: look(tf.constant(row[None], tf.int32)).numpy()


def attention(
    encoder: TextEncoder, rows: Sequence[np.ndarray], sep_id: int, cls_id: int
) -> Attention:
    """Measures attention by head over rows; [CLS] and [SEP] are not queries."""
    look = looking(encoder, sep_id)
    blocks = encoder.transformer.blocks
    totals = np.zeros([3, len(blocks), blocks[0].num_heads])
    looking_tokens = 0
    for row in rows:
        shares = look(row)
        is_special = np.isin(row, [sep_id, cls_id])
        at = np.arange(len(row))
        apart = np.abs(at[:, None] - at)
        logs = np.log(np.maximum(shares, 1e-30))
        given = shares[:, :, ~is_special]
        totals[0] -= (given * logs[:, :, ~is_special]).sum((2, 3))
        totals[1] += (given * apart[~is_special]).sum((2, 3))
        totals[2] += given[..., is_special].sum((2, 3))
        looking_tokens += int((~is_special).sum())
    return Attention(*(totals / max(looking_tokens, 1)))

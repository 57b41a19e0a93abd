"""What the heads of an encoder look at.

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
    """What heads look at, on average over tokens: arrays [blocks, H].

    ``entropy`` in nats; ``distance`` in tokens between who looks and what is looked at;
    ``special``: the share of [CLS] and [SEP].
    """

    entropy: np.ndarray
    distance: np.ndarray
    special: np.ndarray


@dataclasses.dataclass(frozen=True)
class Heads:
    """Who looks at what in a text.

    ``shares`` [blocks, H, S, S]: what each head, in each row of a square, gives to each
    token; a row sums to 1. ``tokens`` are the S word pieces.
    """

    text: str
    tokens: tuple[str, ...]
    shares: np.ndarray


def looking(encoder: TextEncoder, sep_id: int) -> Callable[[np.ndarray], np.ndarray]:
    """A function of the ids of a row [S]: the attention of all heads.

    It returns float32 [blocks, H, S, S], who looks (rows) at what (columns).
    """
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
    """Measures the attention of every head in rows of ids, one by one.

    Tokens that look are all but [CLS] and [SEP].
    """
    look = looking(encoder, sep_id)
    blocks = encoder.transformer.blocks
    totals = np.zeros([3, len(blocks), blocks[0].num_heads])
    looking_tokens = 0
    for row in rows:
        # [blocks, H, S, S] of who looks at what.
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

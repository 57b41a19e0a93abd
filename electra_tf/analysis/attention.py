"""Attention weights of an encoder.

Letters: H heads, S tokens of a row with [CLS] and [SEP].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from electra_tf.features import derive_inputs
from electra_tf.layers import plain, weights
from electra_tf.layers.encoder import TextEncoder


@dataclasses.dataclass(frozen=True)
class Heads:
    """Attention weights in a text.

    ``shares`` [blocks, H, S, S] are the weights, from queries (rows) to keys (columns);
    each row sums to 1. ``tokens`` are the S word pieces.
    """

    text: str
    tokens: tuple[str, ...]
    shares: np.ndarray


def attention_function(
    encoder: TextEncoder, sep_id: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function: ids [S] -> attention weights, float32 [blocks, H, S, S]."""
    blocks = encoder.transformer.blocks

    @tf.function(reduce_retracing=True)
    def compute(ids: tf.Tensor) -> tf.Tensor:
        mask = tf.ones_like(ids)
        states = encoder.states(derive_inputs(ids, mask, sep_id))
        shares = []
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
            shares.append(
                plain.masked_softmax(scores, mask, query.shape[-1], penalty)[0]
            )
        return tf.stack(shares)

    return lambda row: compute(tf.constant(row[None], tf.int32)).numpy()

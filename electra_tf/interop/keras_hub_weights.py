"""Which variable of keras-hub's `ElectraBackbone` is which of `TextEncoder`.

Letters: V vocabulary, E embedding size, D hidden size, N heads, H head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np

from electra_tf.encoder import TextEncoder


class Pair(NamedTuple):
    """One of our variables, and those of keras-hub that hold it side by side.

    Attributes:
        ours: The variable of the encoder.
        theirs: The variables of the backbone, concatenated along our last axis.
        shape: What each of them must have.
    """

    ours: keras.Variable
    theirs: tuple[keras.Variable, ...]
    shape: tuple[int, ...]


def to_encoder(backbone: keras.Model, encoder: TextEncoder) -> None:
    """Copies all weights of a backbone but its pooler's.

    Raises:
        ValueError: A variable of either side has no partner of its shape on the other;
            the message names it. Nothing is copied then.
    """
    for ours, theirs, _ in pairs(backbone, encoder):
        rows = (*ours.shape[:-1], -1)
        columns = [np.reshape(variable.numpy(), rows) for variable in theirs]
        ours.assign(np.concatenate(columns, axis=-1))


def to_backbone(encoder: TextEncoder, backbone: keras.Model) -> None:
    """Copies all weights of an encoder; the backbone's pooler stays as it is.

    Raises:
        ValueError: As `to_encoder`.
    """
    for ours, theirs, shape in pairs(backbone, encoder):
        values = np.split(ours.numpy(), len(theirs), axis=-1)
        for variable, value in zip(theirs, values, strict=True):
            variable.assign(value.reshape(shape))


def pooler_is_untrained(backbone: keras.Model) -> bool:
    """Whether the pooler's bias is still zero, which one update would change."""
    return not np.any(backbone.pooled_dense.bias.numpy())


def pairs(backbone: keras.Model, encoder: TextEncoder) -> list[Pair]:
    """All variables of both sides but the pooler's, each exactly once.

    Raises:
        ValueError: A variable is left over or has the wrong shape.
    """
    found = list(_pairs(backbone, encoder))
    taken = {id(pair.ours) for pair in found}
    taken |= {id(variable) for pair in found for variable in pair.theirs}
    taken |= {id(variable) for variable in backbone.pooled_dense.weights}
    sides = {"keras-hub": backbone.weights, "encoder": encoder.weights}
    left = [
        f"{variable.path} ({side})"
        for side, variables in sides.items()
        for variable in variables
        if id(variable) not in taken
    ]
    if left:
        raise ValueError(
            f"These variables have no partner on the other side: {', '.join(left)}."
        )
    for pair in found:
        _check_shapes(pair)
    return found


def _check_shapes(pair):
    for variable in pair.theirs:
        if tuple(variable.shape) != pair.shape:
            raise ValueError(
                f"{variable.path} has the shape {list(variable.shape)}, where "
                f"{pair.ours.path} needs {list(pair.shape)}: the sizes differ."
            )


def _pairs(backbone, encoder) -> Iterator[Pair]:
    table = encoder.embeddings
    norm = backbone.embeddings_layer_norm
    yield _same(table.word_embeddings, backbone.token_embedding.embeddings)
    yield _same(
        table.position_embeddings, backbone.position_embedding.position_embeddings
    )
    yield _same(table.segment_embeddings, backbone.segment_embedding.embeddings)
    yield _same(table.gamma, norm.gamma)
    yield _same(table.beta, norm.beta)
    projection = getattr(backbone, "embeddings_projection", None)
    if encoder.projection and projection is not None:
        kernel, bias = encoder.projection
        yield _same(kernel, projection.kernel)
        yield _same(bias, projection.bias)
    # Not strict: a layer without a partner is named as left over.
    layers = zip(encoder.transformer.blocks, backbone.transformer_layers, strict=False)
    for block, layer in layers:
        yield from _attention_pairs(block, layer._self_attention_layer)
        norm = layer._self_attention_layer_norm
        yield _same(block.attention_gamma, norm.gamma)
        yield _same(block.attention_beta, norm.beta)
        wide = layer._feedforward_intermediate_dense
        yield _same(block.intermediate_kernel, wide.kernel)
        yield _same(block.intermediate_bias, wide.bias)
        narrow = layer._feedforward_output_dense
        yield _same(block.output_kernel, narrow.kernel)
        yield _same(block.output_bias, narrow.bias)
        norm = layer._feedforward_layer_norm
        yield _same(block.output_gamma, norm.gamma)
        yield _same(block.output_beta, norm.beta)


def _attention_pairs(block, attention) -> Iterator[Pair]:
    """Ours is one kernel [D, 3 D]; theirs are three [D, N, H] and an [N, H, D]."""
    inputs = [attention._query_dense, attention._key_dense, attention._value_dense]
    output = attention._output_dense
    size = block.qkv_kernel.shape[0]
    heads = (block.num_heads, size // block.num_heads)
    yield Pair(
        block.qkv_kernel, tuple(dense.kernel for dense in inputs), (size, *heads)
    )
    yield Pair(block.qkv_bias, tuple(dense.bias for dense in inputs), heads)
    yield Pair(block.attention_output_kernel, (output.kernel,), (*heads, size))
    yield _same(block.attention_output_bias, output.bias)


def _same(ours, theirs) -> Pair:
    return Pair(ours, (theirs,), tuple(ours.shape))

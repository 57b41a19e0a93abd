"""Converts between towers of arrays and the Keras models of a finished run."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np

from electra_tf.errors import UserError
from electra_tf.interop.imported import EMBEDDINGS, Arrays, Imported, Sizes, Tower
from electra_tf.layers import TextEmbedding
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import (
    MaskedLM,
    ReplacedTokenDetection,
    ReplacedTokenDetector,
)

_EPSILON = 1e-12
# Fields of `Sizes` that encoder and embeddings share; embedding_size is `size` there.
_OF_ENCODER = (
    *("num_layers", "hidden_size", "num_heads", "intermediate_size"),
    *("dropout", "attention_dropout", "initializer_range"),
)
_OF_EMBEDDINGS = ("vocab_size", "max_positions", "num_segments")


def models(imported: Imported) -> dict[str, keras.Model]:
    """Builds the models of a finished run, by file name, with shared embeddings.

    Always contains the encoder of the discriminator, or else of the generator. Contains
    generator and discriminator if the source has them with their heads.
    """
    shared = imported.main.sizes
    embeddings = TextEmbedding(
        size=shared.embedding_size,
        **{name: getattr(shared, name) for name in _OF_EMBEDDINGS},
        dropout=shared.dropout,
        initializer_range=shared.initializer_range,
        layer_norm_epsilon=_EPSILON,
        dtype="float32",
        name="embeddings",
    )
    built: dict[str, keras.Model] = {}
    if tower := imported.generator:
        text_encoder = _encoder(tower.sizes, "generator", embeddings)
        generator = MaskedLM(text_encoder, name="masked_lm")
        assign(encoder_variables(generator.encoder), tower.encoder)
        assign(head_variables(generator.head), tower.head)
        built |= {"generator": generator, "encoder": generator.encoder}
    if tower := imported.discriminator:
        built["encoder"] = _encoder(tower.sizes, "discriminator", embeddings)
        assign(encoder_variables(built["encoder"]), tower.encoder)
        if tower.head:
            objective = ReplacedTokenDetection(name="objective")
            built["discriminator"] = ReplacedTokenDetector(built["encoder"], objective)
            assign(head_variables(objective.head), tower.head)
    return built


def _encoder(sizes: Sizes, name: str, embeddings: TextEmbedding) -> TextEncoder:
    return TextEncoder(
        embeddings,
        **{name: getattr(sizes, name) for name in _OF_ENCODER},
        layer_norm_epsilon=_EPSILON,
        dtype="float32",
        name=name,
    )


def assign(variables: Mapping[str, keras.Variable], arrays: Arrays) -> None:
    """Assigns arrays to the variables of the same names; ValueError if they differ."""
    if different := sorted(variables.keys() ^ arrays.keys()):
        raise UserError(f"The model differs in {', '.join(different[:5])}.")
    for name, variable in variables.items():
        variable.assign(arrays[name])


def encoder_tower(
    encoder: TextEncoder, source: str, head: keras.layers.Layer | None = None
) -> Tower:
    """Returns the arrays of an encoder and of its head, if given.

    Raises ValueError, naming ``source``, for options that other formats lack.
    """
    activations = {block.activation for block in encoder.transformer.blocks}
    epsilons = {encoder.layer_norm_epsilon, encoder.embeddings.layer_norm_epsilon}
    if activations - {"gelu"} or epsilons != {_EPSILON}:
        raise UserError(
            f"{source} has the activations {', '.join(sorted(activations))} and the "
            f"LayerNorm epsilons {sorted(epsilons)}; only gelu with {_EPSILON} can be "
            "converted."
        )
    if encoder.lora_rank:
        encoder = encoder.merge_lora()
    heads = {} if head is None else values(head_variables(head))
    return Tower(sizes(encoder), values(encoder_variables(encoder)), heads)


def sizes(encoder: TextEncoder) -> Sizes:
    """Returns the sizes, dropout and initializer of an encoder."""
    table = encoder.embeddings
    return Sizes(
        embedding_size=table.size,
        **{name: getattr(table, name) for name in _OF_EMBEDDINGS},
        **{name: getattr(encoder, name) for name in _OF_ENCODER},
    )


def encoder_variables(encoder: TextEncoder) -> dict[str, keras.Variable]:
    """Returns the variables under the names of ``names.Style.encoder``."""
    named = {f"{EMBEDDINGS}{v.name}": v for v in encoder.embeddings.weights}
    for index, block in enumerate(encoder.transformer.blocks):
        named |= {f"layer_{index}/{v.name}": v for v in block.weights}
    known = {id(variable) for variable in named.values()}
    rest = [v for v in encoder.weights if id(v) not in known]
    return named | {variable.name: variable for variable in rest}


def head_variables(head: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Returns a head's own variables by name, without a tied word table."""
    table = getattr(head, "embeddings", None)
    shared = {id(v) for v in table.variables} if table is not None else set()
    return {v.name: v for v in head.weights if id(v) not in shared}


def values(variables: Mapping[str, keras.Variable]) -> Arrays:
    """Returns the values of variables, float32."""
    return {name: np.asarray(v.numpy(), np.float32) for name, v in variables.items()}

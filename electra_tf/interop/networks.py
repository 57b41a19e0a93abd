"""Between towers of arrays and the Keras models that a finished run saves."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from electra_tf.encoder import TextEncoder
from electra_tf.interop.imported import EMBEDDINGS, Arrays, Imported, Sizes, Tower
from electra_tf.layers import TextEmbedding
from electra_tf.pretraining import (
    MaskedLM,
    ReplacedTokenDetection,
    ReplacedTokenDetector,
)

_EPSILON = 1e-12


def models(imported: Imported) -> dict[str, keras.Model]:
    """What a finished run saves, by file name; towers share their embeddings.

    Returns:
        encoder (always: the discriminator's, or else the generator's); generator and
        discriminator where the source has them with their heads.
    """
    embeddings = _embeddings(imported.main.sizes)
    built = {}
    if imported.generator is not None:
        built["generator"] = MaskedLM(
            _encoder(imported.generator, embeddings, "generator"), name="masked_lm"
        )
        _assign(built["generator"].head, imported.generator.head)
        built["encoder"] = built["generator"].encoder
    if imported.discriminator is not None:
        encoder = _encoder(imported.discriminator, embeddings, "discriminator")
        built["encoder"] = encoder
        if imported.discriminator.head:
            objective = ReplacedTokenDetection(name="objective")
            built["discriminator"] = ReplacedTokenDetector(encoder, objective)
            _assign(objective.head, imported.discriminator.head)
    return built


def _embeddings(sizes):
    return TextEmbedding(
        sizes.vocab_size,
        sizes.embedding_size,
        max_positions=sizes.max_positions,
        num_segments=sizes.num_segments,
        dropout=sizes.dropout,
        initializer_range=sizes.initializer_range,
        dtype="float32",
        name="embeddings",
    )


def _encoder(tower, embeddings, name):
    sizes = tower.sizes
    encoder = TextEncoder(
        embeddings,
        num_layers=sizes.num_layers,
        hidden_size=sizes.hidden_size,
        num_heads=sizes.num_heads,
        intermediate_size=sizes.intermediate_size,
        dropout=sizes.dropout,
        attention_dropout=sizes.attention_dropout,
        initializer_range=sizes.initializer_range,
        dtype="float32",
        name=name,
    )
    variables = encoder_variables(encoder)
    for key, variable in variables.items():
        variable.assign(tower.encoder[key])
    return encoder


def _assign(head, arrays):
    for name, variable in head_variables(head).items():
        variable.assign(arrays[name])


def load_model(path: Path) -> keras.Model:
    """A saved model, not compiled.

    Raises:
        ValueError: It cannot be loaded.
    """
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:  # Keras raises whatever its parts raise.
        raise ValueError(f"{path} cannot be loaded by Keras: {error}") from error


def encoder_variables(encoder: TextEncoder) -> dict[str, keras.Variable]:
    """The trainable variables of an encoder under the names of `encoder_shapes`."""
    named = {f"{EMBEDDINGS}{v.name}": v for v in encoder.embeddings.trainable_variables}
    for index, block in enumerate(encoder.transformer.blocks):
        named |= {f"layer_{index}/{v.name}": v for v in block.trainable_variables}
    known = {id(variable) for variable in named.values()}
    rest = [v for v in encoder.trainable_variables if id(v) not in known]
    return named | {variable.name: variable for variable in rest}


def encoder_tower(encoder: TextEncoder, head: Arrays, what: str) -> Tower:
    """The arrays of an encoder, with those of its head.

    Raises:
        ValueError: The encoder has an option that no other format has.
    """
    _check_plain(encoder, what)
    table = encoder.embeddings
    sizes = Sizes(
        vocab_size=table.vocab_size,
        embedding_size=table.size,
        max_positions=table.max_positions,
        num_segments=table.num_segments,
        num_layers=encoder.num_layers,
        hidden_size=encoder.hidden_size,
        num_heads=encoder.num_heads,
        intermediate_size=encoder.intermediate_size,
        dropout=encoder.dropout,
        attention_dropout=encoder.attention_dropout,
        initializer_range=encoder.initializer_range,
    )
    variables = encoder_variables(encoder)
    return Tower(sizes, {name: _value(v) for name, v in variables.items()}, head)


def head_arrays(head: keras.layers.Layer) -> dict[str, np.ndarray]:
    """The arrays of a head by the names of its variables."""
    return {name: _value(v) for name, v in head_variables(head).items()}


def head_variables(head: keras.layers.Layer) -> dict[str, keras.Variable]:
    """A head's own variables by name, without the embeddings of a `MaskedLMHead`."""
    table = getattr(head, "embeddings", None)
    shared = {id(v) for v in table.variables} if table is not None else set()
    return {v.name: v for v in head.trainable_variables if id(v) not in shared}


def _value(variable):
    return np.asarray(variable.numpy(), np.float32)


def _check_plain(encoder, what):
    activations = {block.activation for block in encoder.transformer.blocks}
    epsilons = {encoder.layer_norm_epsilon, encoder.embeddings.layer_norm_epsilon}
    if activations - {"gelu"} or epsilons != {_EPSILON}:
        raise ValueError(
            f"{what} has the activations {', '.join(sorted(activations))} and the "
            f"LayerNorm epsilons {sorted(epsilons)}; only gelu with {_EPSILON} can be "
            "converted."
        )

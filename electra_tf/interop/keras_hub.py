"""Converts presets of keras-hub's ``ElectraBackbone``.

A backbone has a pooler, which ELECTRA does not train, and no heads of ELECTRA.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import keras
import numpy as np

from electra_tf import files
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.errors import UserError, explained
from electra_tf.folders import models
from electra_tf.interop.names import Row, Style
from electra_tf.interop.networks import Imported, Sizes, Source, Tower

NAME = "keras_hub"
CONFIG, TOKENIZER, HEAD = "config.json", "tokenizer.json", "task.weights.h5"
VOCABULARY = "assets/tokenizer/vocabulary.txt"
OUTPUTS = (VOCABULARY, CONFIG, "metadata.json", "model.weights.h5", TOKENIZER)

GELU_NOTE = (
    "keras-hub approximates GELU by tanh, this library does not: hidden states differ "
    "by 1e-4 (2 layers) to 2e-3 (12 layers) at a spread of 1."
)
POOLER_NOTE = "The pooler of keras-hub's backbone (pooled_dense) is not part of ELECTRA"

# Field of `Sizes` -> argument of a backbone, which has one dropout rate.
_SIZES = {
    "vocab_size": "vocab_size",
    "embedding_size": "embedding_dim",
    "max_positions": "max_sequence_length",
    "num_segments": "num_segments",
    "num_layers": "num_layers",
    "hidden_size": "hidden_dim",
    "num_heads": "num_heads",
    "intermediate_size": "intermediate_dim",
    "dropout": "dropout",
}
# Paths of a backbone's variables.
_STYLE = Style(
    renamed=(
        ("embeddings/word_embeddings", "token_embedding/embeddings"),
        ("embeddings/position_embeddings", "position_embedding/embeddings"),
        ("embeddings/token_type_embeddings", "segment_embedding/embeddings"),
        ("embeddings/LayerNorm", "embeddings_layer_norm"),
        ("embeddings_project/", "embeddings_projection/"),
        ("encoder/layer_", "transformer_layer_"),
        ("attention/self/", "self_attention_layer/"),
        ("attention/output/dense", "self_attention_layer/attention_output"),
        ("attention/output/LayerNorm", "self_attention_layer_norm"),
        ("intermediate/dense", "feedforward_intermediate_dense"),
        ("/output/dense", "/feedforward_output_dense"),
        ("/output/LayerNorm", "/feedforward_layer_norm"),
    ),
    flip=False,
)
_POOLER = ("pooled_dense/kernel", "pooled_dense/bias")


def detect(source: Source) -> bool:
    """Returns True for a preset: a folder or a name of keras-hub."""
    path, name = Path(source.path), source.path
    if path.is_dir():
        return files.read_json(path / CONFIG, {}).get("class_name") == "ElectraBackbone"
    # The prefix first: most names need no import of keras-hub.
    prefix = name.startswith("electra_") and not path.exists()
    return prefix and name in _hub().models.ElectraBackbone.presets


def read(source: Source) -> Imported:
    """Reads a backbone, without a head, as the tower to fine-tune."""
    source.reject("generator", "num_heads", "pair")
    path = Path(source.path)
    with explained(f"{path} cannot be loaded by keras-hub", Exception):
        if path.is_dir():
            _check_config(path)
        # Downloads presets by name. Keras's global policy would round the weights.
        backbone = _hub().models.ElectraBackbone.from_preset(str(path), dtype="float32")
        known = {ours: getattr(backbone, theirs) for ours, theirs in _SIZES.items()}
        sizes, arrays = Sizes(**known, attention_dropout=backbone.dropout), {}
        for row, variables in _variables(backbone, sizes):
            # Attention weights have an additional axis of heads.
            parts = [np.reshape(x.numpy(), row.their_shape) for x in variables]
            arrays[row.ours] = row.join(parts).astype(np.float32)
        tokenizer = _tokenizer_of(path)
    return Imported(
        format=NAME,
        source=source.path,
        **source.selected({"discriminator": Tower(sizes, arrays, {})}),
        **tokenizer,
        not_taken=(HEAD,) if (path / HEAD).is_file() else (),
        notes=(f"{POOLER_NOTE} and was not taken.", GELU_NOTE),
    )


def _variables(
    backbone: keras.Model, sizes: Sizes
) -> list[tuple[Row, list[keras.Variable]]]:
    variables = {variable.path: variable for variable in backbone.weights}
    rows = list(_STYLE.encoder(sizes))
    known = {*_POOLER, *(name for row in rows for name in row.theirs)}
    if different := sorted(variables.keys() ^ known):
        names = ", ".join(different[:5])
        raise UserError(f"This version of keras-hub has other variables: {names}.")
    return [(row, [variables[name] for name in row.theirs]) for row in rows]


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes a preset of the main tower's encoder; returns notes on omissions."""
    hub, vocabulary, sizes = _hub(), model.vocabulary, model.main.sizes
    if vocabulary.special_tokens != SPECIAL_TOKENS:
        raise UserError(
            f"keras-hub's ElectraTokenizer needs the special tokens {SPECIAL_TOKENS}, "
            f"not {vocabulary.special_tokens}."
        )
    backbone = hub.models.ElectraBackbone(
        **{theirs: getattr(sizes, ours) for ours, theirs in _SIZES.items()},
        dtype="float32",
    )
    for row, variables in _variables(backbone, sizes):
        parts = row.split(model.main.encoder[row.ours]).values()
        for variable, part in zip(variables, parts, strict=True):
            variable.assign(part.reshape(variable.shape))
    tokenizer = hub.models.ElectraTokenizer(
        vocabulary=list(vocabulary.tokens),
        lowercase=model.lower_case,
        # keras-hub would strip accents of cased text; ``WordPiece`` never does.
        strip_accents=model.lower_case and model.strip_accents,
    )
    backbone.save_to_preset(str(folder))
    tokenizer.save_to_preset(str(folder))
    return (
        "The preset holds the encoder only: keras-hub has no place for the heads.",
        f"{POOLER_NOTE}: in the preset it has random initial weights. Use "
        '"sequence_output"[:, 0] and not "pooled_output".',
        GELU_NOTE,
        f"keras-hub has one dropout rate, here {sizes.dropout}, also of the attention.",
    )


def _tokenizer_of(path: Path) -> dict[str, Any]:
    """Returns the fields ``vocabulary``, ``lower_case`` and ``strip_accents``."""
    if path.is_dir() and not (path / TOKENIZER).is_file():
        return {}
    tokenizer = _hub().models.ElectraTokenizer.from_preset(str(path))
    prefix, splits = tokenizer.suffix_indicator, tokenizer.split
    if prefix != "##" or not (splits and tokenizer.split_on_cjk):
        raise UserError(
            f"suffix_indicator is {prefix!r}, split {splits} and split_on_cjk "
            f"{tokenizer.split_on_cjk}, not '##', True and True."
        )
    if tokenizer.strip_accents and not tokenizer.lowercase:
        raise UserError("strip_accents without lowercase is not supported.")
    return {
        "vocabulary": Vocabulary(tuple(tokenizer.get_vocabulary())),
        "lower_case": tokenizer.lowercase,
        "strip_accents": tokenizer.strip_accents,
    }


def _check_config(folder: Path) -> None:
    """Raises ValueError if sizes or layers of the config do not fit the weights."""
    config = files.read_json(folder / CONFIG, shape={"config": dict})["config"]
    sizes = {ours: config.get(theirs) for ours, theirs in _SIZES.items()}
    held = sum(file.stat().st_size for file in folder.glob("*.h5"))
    models.check_sizes({**sizes, "size": sizes["embedding_size"]}, held)
    with h5py.File(folder / "model.weights.h5") as file:
        # Keras 2 has another name for `layers`.
        names = [x for x in file.get("layers", ()) if x.startswith("transformer")]
    # Keras does not read further layers.
    if len(names) > (count := config.get("num_layers", len(names))):
        raise UserError(
            f"model.weights.h5 has {len(names)} layers, and num_layers in {CONFIG} is "
            f"{count}: correct it"
        )


def _hub() -> ModuleType:
    # The import takes seconds.
    import keras_hub

    return keras_hub

"""Converts keras-hub's ``ElectraBackbone``: presets and ``.keras`` files.

A backbone is an encoder without ELECTRA's heads. It adds a pooler, which ELECTRA does
not train, and approximates GELU by tanh. Google's code and this library use exact GELU.
"""

import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np

from electra_tf import files
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders import models
from electra_tf.interop.networks import EMBEDDINGS, Imported, Sizes, Source, Tower

NAME = "keras_hub"
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
VOCABULARY = "assets/tokenizer/vocabulary.txt"
OUTPUTS = (VOCABULARY, CONFIG, "metadata.json", "model.weights.h5", TOKENIZER)

CLASS_NAME = "ElectraBackbone"

# The config.json of the large model has 3 kB.
_MAX_CONFIG_BYTES = 1 << 20

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


def detect(source: Source) -> bool:
    """Whether the source is a preset (folder or name) or a ``.keras`` backbone.

    Reads names and JSON only.
    """
    path, name = Path(source.path), source.path
    if not path.exists():
        # The prefix first: most names need no import of keras-hub.
        prefix = name.startswith("electra_")
        return prefix and name in _hub().models.ElectraBackbone.presets
    return _json(path).get("class_name") == CLASS_NAME


def read(source: Source) -> Imported:
    """Reads a backbone, without a head, as the tower to fine-tune."""
    if source.generator or source.only == "generator":
        raise UserError(
            f"{source.path} is a keras-hub backbone, which has no generator: leave out "
            "--generator and --only=generator."
        )
    source.reject("num_heads", "pair")
    return Imported(
        format=NAME,
        source=source.path,
        discriminator=_tower(_load(Path(source.path))),
        **_tokenizer_beside(source.path),
        notes=(
            f"{POOLER_NOTE} and was not taken.",
            GELU_NOTE,
            "The format has no heads, which fine-tuning does not need.",
        ),
    )


def _tower(backbone: keras.Model) -> Tower:
    arrays = {}
    for name, variables in _variables(backbone).items():
        # One kernel here holds query, key and value, with the heads side by side.
        parts = [np.asarray(variable.numpy(), np.float32) for variable in variables]
        if name.endswith(("qkv_kernel", "qkv_bias")):
            parts = [part.reshape([*part.shape[:-2], -1]) for part in parts]
        elif name.endswith("attention_output_kernel"):
            parts = [part.reshape([-1, part.shape[-1]]) for part in parts]
        arrays[name] = np.concatenate(parts, axis=-1)
    known = {ours: getattr(backbone, theirs) for ours, theirs in _SIZES.items()}
    return Tower(Sizes(**known, attention_dropout=backbone.dropout), arrays, {})


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes a preset of the main tower's encoder; returns notes on omissions.

    ``ElectraBackbone`` and ``ElectraTokenizer`` of ``keras_hub.models`` load it with
    ``from_preset(folder)``. Raises ValueError if the special tokens have other names.
    """
    hub, vocabulary, known = _hub(), model.vocabulary, vars(model.main.sizes)
    if vocabulary.special_tokens != SPECIAL_TOKENS:
        raise UserError(
            "keras-hub's ElectraTokenizer needs the special tokens to be called "
            f"[PAD], [UNK], [CLS], [SEP] and [MASK], not {vocabulary.special_tokens}."
        )
    backbone = hub.models.ElectraBackbone(
        **{theirs: known[ours] for ours, theirs in _SIZES.items()}, dtype="float32"
    )
    for name, variables in _variables(backbone).items():
        parts = np.split(model.main.encoder[name], len(variables), axis=-1)
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
    notes = [
        "The preset holds the encoder only: keras-hub has no place for the heads.",
        f"{POOLER_NOTE}: in the preset it has random initial weights. Use "
        '"sequence_output"[:, 0] and not "pooled_output".',
        GELU_NOTE,
    ]
    if known["attention_dropout"] != known["dropout"]:
        notes.append(
            f"keras-hub has one dropout rate: {known['dropout']} replaces the "
            f"attention dropout of {known['attention_dropout']}."
        )
    return tuple(notes)


def _load(path: Path) -> keras.Model:
    """Loads a backbone; keras-hub downloads presets by name."""
    try:
        if path.suffix == ".keras":
            models.check_archive(path)
            _check_sizes(path, path.stat().st_size)
            return keras.saving.load_model(path, compile=False)
        if path.is_dir():
            _check_sizes(path, sum(x.stat().st_size for x in path.glob("*.h5")))
        return _hub().models.ElectraBackbone.from_preset(str(path))
    except Exception as error:  # Keras raises many types.
        raise UserError(f"{path} cannot be loaded by keras-hub: {error}") from error


def _tokenizer_beside(source: str) -> dict[str, Any]:
    """Returns the vocabulary and casing as fields of ``Imported``; {} if unknown."""
    folder = Path(source)
    if not folder.exists():
        tokenizer = _hub().models.ElectraTokenizer.from_preset(source)
        return {
            "vocabulary": Vocabulary(tuple(tokenizer.get_vocabulary())),
            "lower_case": tokenizer.lowercase,
            "strip_accents": tokenizer.strip_accents,
        }
    if not (folder / VOCABULARY).is_file():
        return {}
    config = _config(folder / TOKENIZER)
    return {
        "vocabulary": Vocabulary.load(folder / VOCABULARY),
        "lower_case": bool(config.get("lowercase")),
        "strip_accents": bool(config.get("strip_accents")),
    }


def _json(path: Path) -> dict[str, Any]:
    """Reads a JSON file, or the config.json inside a preset or ``.keras`` file.

    Returns {} if the file is damaged. Raises ValueError if the config is too large.
    """
    path = path / CONFIG if path.is_dir() else path
    try:
        if path.suffix != ".keras":
            return files.read_json(path)
        with zipfile.ZipFile(path) as archive:
            size = archive.getinfo(CONFIG).file_size
            if size <= _MAX_CONFIG_BYTES:
                return files.parse_json(archive.read(CONFIG).decode(), str(path), dict)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return {}
    raise UserError(f"{path}: its {CONFIG} would unpack to {size} bytes.")


def _config(path: Path) -> dict[str, Any]:
    config = _json(path).get("config")
    return config if isinstance(config, dict) else {}


def _check_sizes(path: Path, held: int) -> None:
    """Raises ValueError if ``held`` bytes are too few for the config's sizes.

    Keras would allocate all weights before it detects that the file lacks them.
    """
    config = _config(path)
    sizes = {ours: config.get(theirs) for ours, theirs in _SIZES.items()}
    models.check_sizes({"config": {**sizes, "size": sizes["embedding_size"]}}, held)


def _hub() -> ModuleType:
    """Imports keras-hub lazily, because the import takes seconds."""
    import keras_hub

    return keras_hub


def _variables(backbone: keras.Model) -> dict[str, tuple[keras.Variable, ...]]:
    """Maps each array name of ``names.Style.encoder`` to the variables that hold it."""
    tables = {
        "word": backbone.token_embedding.embeddings,
        "position": backbone.position_embedding.position_embeddings,
        "segment": backbone.segment_embedding.embeddings,
    }
    variables = {f"{EMBEDDINGS}{name}_embeddings": (x,) for name, x in tables.items()}

    def add(name: str, *layers: keras.Layer) -> None:
        if isinstance(layers[0], keras.layers.LayerNormalization):
            variables[f"{name}_gamma"] = (layers[0].gamma,)
            variables[f"{name}_beta"] = (layers[0].beta,)
        else:
            variables[f"{name}_kernel"] = tuple(layer.kernel for layer in layers)
            variables[f"{name}_bias"] = tuple(layer.bias for layer in layers)

    add(f"{EMBEDDINGS}layer_norm", backbone.embeddings_layer_norm)
    if projection := getattr(backbone, "embeddings_projection", None):
        add("embeddings_projection", projection)
    for index, layer in enumerate(backbone.transformer_layers):
        block, attention = f"layer_{index}/", layer._self_attention_layer
        inputs = (attention._query_dense, attention._key_dense, attention._value_dense)
        add(f"{block}qkv", *inputs)
        add(f"{block}attention_output", attention._output_dense)
        add(f"{block}attention_layer_norm", layer._self_attention_layer_norm)
        add(f"{block}intermediate", layer._feedforward_intermediate_dense)
        add(f"{block}output", layer._feedforward_output_dense)
        add(f"{block}output_layer_norm", layer._feedforward_layer_norm)
    known = {id(variable) for parts in variables.values() for variable in parts}
    known |= {id(variable) for variable in backbone.pooled_dense.weights}
    if unknown := [v.path for v in backbone.weights if id(v) not in known]:
        raise UserError(f"unknown variables of an {CLASS_NAME}: {', '.join(unknown)}")
    return variables

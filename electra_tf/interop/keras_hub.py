"""keras-hub's ``ElectraBackbone``, both ways: presets, ``.keras`` files, live models.

A backbone is an encoder and nothing more: it has neither of ELECTRA's two heads. It
carries a pooler that no ELECTRA was ever trained with, and its GELU is the tanh
approximation where Google's code and this library have the exact function.

Letters: D hidden size, N heads, H head size.
"""

from __future__ import annotations

import dataclasses
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import keras
import numpy as np

from electra_tf import files
from electra_tf.cli import Log, say
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders import models
from electra_tf.interop import networks
from electra_tf.interop.imported import EMBEDDINGS, Imported, Sizes, Source
from electra_tf.layers.encoder import TextEncoder

NAME = "keras_hub"
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
VOCABULARY = "assets/tokenizer/vocabulary.txt"
OUTPUTS = (VOCABULARY, CONFIG, "metadata.json", "model.weights.h5", TOKENIZER)

CLASS_NAME = "ElectraBackbone"
# Built into ElectraBackbone: no argument, not part of its config.
LAYER_NORM_EPSILON = 1e-12

GELU_NOTE = (
    "keras-hub computes GELU by its tanh approximation, this library (as Google's "
    "code) exactly: the same weights give hidden states that differ by 1e-4 (2 layers) "
    "to 2e-3 (12 layers) at a spread of 1."
)
POOLER_NOTE = "The pooler of keras-hub's backbone (pooled_dense) is not part of ELECTRA"

# Field of `Sizes` -> what a backbone calls it; its one dropout rate is for all.
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
# The config.json of the large model has 3 kB.
_MAX_CONFIG_BYTES = 1 << 20


# The format, as ``electra_tf.interop.imported`` asks for it


def detect(source: Source) -> bool:
    """Whether it is a preset (folder or name) or a ``.keras`` file of a backbone."""
    return is_backbone(source.path)


def read(source: Source) -> Imported:
    """Takes a backbone as the tower to fine-tune; it has no head."""
    if source.generator or source.only == "generator":
        raise UserError(
            f"{source.path} is a keras-hub backbone, which has no generator: leave out "
            "--generator and --only=generator."
        )
    source.reject("num_heads", "generator_num_heads", "pair")
    model = read_backbone(source.path, log=lambda _: None)
    return Imported(
        format=NAME,
        source=source.path,
        discriminator=networks.encoder_tower(model.encoder, source.path),
        vocabulary=model.vocabulary,
        lower_case=model.lower_case,
        strip_accents=model.strip_accents,
        notes=model.notes,
    )


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes a preset of the main tower's encoder; returns what it does not hold."""
    encoder = networks.models(model)["encoder"]
    casing = (model.lower_case, model.strip_accents)
    return _save_preset(folder, encoder, model.vocabulary, *casing)


# The same for programs that have a backbone or an encoder at hand


@dataclasses.dataclass(frozen=True)
class KerasHubModel:
    """What a backbone and the tokenizer beside it hold; None without a tokenizer.

    ``notes`` say what was not taken, or is not the same, one sentence each.
    """

    encoder: TextEncoder
    vocabulary: Vocabulary | None
    lower_case: bool | None
    strip_accents: bool | None
    notes: tuple[str, ...]


def is_backbone(source: str | os.PathLike | keras.Model) -> bool:
    """Whether it is a backbone, a preset (folder or name) or a ``.keras`` of one.

    Looks at names and JSON only; nothing is loaded.
    """
    if isinstance(source, keras.Model):
        return type(source).__name__ == CLASS_NAME
    path = Path(source)
    if not path.exists():
        return _is_preset_name(str(source))
    config = _json(path / CONFIG if path.is_dir() else path)
    return config.get("class_name") == CLASS_NAME


def read_backbone(
    source: str | os.PathLike | keras.Model, log: Log = say
) -> KerasHubModel:
    """Takes the encoder out of a keras-hub backbone.

    ``source`` is an ``ElectraBackbone``, a preset folder, a ``.keras`` file of a
    backbone, or the name of a preset, which keras-hub then downloads (not verified
    here: there was no network). ``log`` is told what was not taken.

    What is no ElectraBackbone, or has a variable without a partner of its shape, is a
    ValueError; what is not there an OSError.
    """
    backbone = load(source)
    epsilons = {backbone.embeddings_layer_norm.epsilon}
    epsilons |= {layer.layer_norm_epsilon for layer in backbone.transformer_layers}
    if len(epsilons) > 1:
        raise UserError(
            f"The backbone's LayerNorms have different epsilons, {sorted(epsilons)}; "
            "an encoder of this library has one."
        )
    (epsilon,) = epsilons
    encoder = networks.encoder(sizes(backbone), "encoder", layer_norm_epsilon=epsilon)
    to_encoder(backbone, encoder)
    vocabulary, lower_case, strip_accents = _tokenizer_beside(source)
    # One update of the optimizer would have moved the bias away from zero.
    untrained = " (it is untrained)" * (not backbone.pooled_dense.bias.numpy().any())
    notes = (
        f"{POOLER_NOTE} and was not taken{untrained}.",
        GELU_NOTE,
        "The format has no heads: neither replaced tokens can be detected nor masks "
        "filled in. Fine-tuning needs neither.",
    )
    for note in notes:
        log(note)
    return KerasHubModel(encoder, vocabulary, lower_case, strip_accents, notes)


def write_preset(
    folder: str | os.PathLike,
    encoder: TextEncoder,
    vocabulary: Vocabulary,
    *,
    lower_case: bool = True,
    strip_accents: bool = True,
    overwrite: bool = False,
    log: Log = say,
) -> tuple[str, ...]:
    """Writes a keras-hub preset, whole or not at all: backbone, weights and tokenizer.

    ``from_preset(folder)`` of ``ElectraBackbone`` and of ``ElectraTokenizer`` in
    ``keras_hub.models`` read it. The encoder is a discriminator's or a generator's,
    with its vocabulary; heads cannot be written, and accents are stripped only of text
    that is lower-cased. ``log`` is told what the format does not hold, which is also
    returned.

    A folder that exists, or an encoder or vocabulary that the format cannot hold, is a
    ValueError; what cannot be written an OSError.
    """
    folder = Path(folder)
    if folder.exists() and not overwrite:
        raise UserError(f"{folder} exists: pass --overwrite to replace it.")
    # A file of weights that is cut short can end the process when it is closed.
    with files.replacing(folder, size=4 * encoder.count_params()) as part:
        notes = _save_preset(part, encoder, vocabulary, lower_case, strip_accents)
    for note in notes:
        log(note)
    return notes


def _save_preset(
    folder: Path,
    encoder: TextEncoder,
    vocabulary: Vocabulary,
    lower_case: bool,
    strip_accents: bool,
) -> tuple[str, ...]:
    _check_writable(encoder, vocabulary)
    hub, known = _hub(), vars(networks.sizes(encoder))
    backbone = hub.models.ElectraBackbone(
        **{theirs: known[ours] for ours, theirs in _SIZES.items()}, dtype="float32"
    )
    to_backbone(encoder, backbone)
    tokenizer = hub.models.ElectraTokenizer(
        vocabulary=list(vocabulary.tokens),
        lowercase=lower_case,
        # Their tokenizer would strip accents of text that it does not lower-case,
        # which ``WordPiece`` never does.
        strip_accents=lower_case and strip_accents,
    )
    backbone.save_to_preset(str(folder))
    tokenizer.save_to_preset(str(folder))
    notes = [
        "The preset holds the encoder only: keras-hub has no place for the heads that "
        "detect replaced tokens and fill in masks.",
        f"{POOLER_NOTE}: in the preset it has random initial weights. Use "
        '"sequence_output"[:, 0] and not "pooled_output".',
        GELU_NOTE,
    ]
    if encoder.attention_dropout != encoder.dropout:
        notes.append(
            f"keras-hub has one dropout rate: {encoder.dropout} now also stands for "
            f"the attention dropout of {encoder.attention_dropout}."
        )
    return tuple(notes)


def _check_writable(encoder: TextEncoder, vocabulary: Vocabulary) -> None:
    if len(vocabulary) != encoder.embeddings.vocab_size:
        raise UserError(
            f"The vocabulary has {len(vocabulary)} tokens but the encoder has "
            f"embeddings for {encoder.embeddings.vocab_size}: give the vocabulary it "
            "was trained with."
        )
    if vocabulary.special_tokens != SPECIAL_TOKENS:
        raise UserError(
            "keras-hub's ElectraTokenizer needs the special tokens to be called "
            f"[PAD], [UNK], [CLS], [SEP] and [MASK], not {vocabulary.special_tokens}."
        )
    epsilons = {encoder.layer_norm_epsilon, encoder.embeddings.layer_norm_epsilon}
    if epsilons != {LAYER_NORM_EPSILON}:
        raise UserError(
            f"The encoder's LayerNorm epsilon is {sorted(epsilons)}, and keras-hub's "
            f"backbone has {LAYER_NORM_EPSILON} built in: it would compute something "
            "else."
        )


def load(source: str | os.PathLike | keras.Model) -> keras.Model:
    """Loads a backbone; errors as of ``read_backbone``."""
    model = source if isinstance(source, keras.Model) else _load(Path(source))
    if not isinstance(model, _hub().models.ElectraBackbone):
        raise UserError(f"A {type(model).__name__} is not an {CLASS_NAME}.")
    return model


def _load(path: Path) -> keras.Model:
    if not path.exists() and not _is_preset_name(str(path)):
        raise FileNotFoundError(
            f"No keras-hub backbone at {path}: give a preset folder, a .keras file or "
            f"the name of a preset ({', '.join(_preset_names())})."
        )
    if not is_backbone(path):
        raise UserError(f"{path} holds no {CLASS_NAME}.")
    try:
        if path.suffix == ".keras":
            models.check_archive(path)
            _check_sizes(path, path.stat().st_size)
            return keras.saving.load_model(path, compile=False)
        if path.is_dir():
            _check_sizes(path, sum(x.stat().st_size for x in path.glob("*.h5")))
        return _hub().models.ElectraBackbone.from_preset(str(path))
    except Exception as error:  # Keras raises whatever its parts raise.
        raise UserError(f"{path} cannot be loaded by keras-hub: {error}") from error


def _tokenizer_beside(
    source: str | os.PathLike | keras.Model,
) -> tuple[Vocabulary | None, bool | None, bool | None]:
    """Vocabulary, lower_case and strip_accents; None each without a tokenizer."""
    if isinstance(source, keras.Model) or str(source).endswith(".keras"):
        return None, None, None
    folder = Path(source)
    if not folder.exists():
        tokenizer = _hub().models.ElectraTokenizer.from_preset(str(source))
        vocabulary = Vocabulary(tuple(tokenizer.get_vocabulary()))
        return vocabulary, tokenizer.lowercase, tokenizer.strip_accents
    if not (folder / VOCABULARY).is_file():
        return None, None, None
    said = casing(folder)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    return vocabulary, said.get("lower_case", False), said.get("strip_accents", False)


def casing(folder: Path) -> dict[str, bool]:
    """``lower_case`` and ``strip_accents`` as far as a preset's tokenizer tells."""
    config = _json(folder / TOKENIZER).get("config")
    config = config if isinstance(config, dict) else {}
    names = {"lower_case": "lowercase", "strip_accents": "strip_accents"}
    return {ours: bool(config[x]) for ours, x in names.items() if x in config}


def _json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or from config.json inside a ``.keras`` file.

    Returns {} for a file that cannot be read. Raises ValueError if the config is too
    large to be unpacked.
    """
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


def _check_sizes(path: Path, held: int) -> None:
    """Raises ValueError if ``held`` bytes cannot be the weights of the config's sizes.

    Keras would allocate all weights before it misses them in the file.
    """
    config = _json(path / CONFIG if path.is_dir() else path).get("config")
    config = config if isinstance(config, dict) else {}
    sizes = {}
    for ours, theirs in _SIZES.items():
        value = config.get(theirs)
        sizes[ours] = abs(value) if files.fits(value, int) else 1
    width, hidden = sizes["embedding_size"], sizes["hidden_size"]
    rows = sizes["vocab_size"] + sizes["max_positions"] + sizes["num_segments"]
    layer = 4 * hidden**2 + 2 * hidden * sizes["intermediate_size"]
    weights = rows * width + width * hidden + sizes["num_layers"] * layer
    # Two bytes in half precision.
    if 2 * weights > held:
        raise UserError(
            f"its weights have {held} bytes, but its {CONFIG} describes {weights} "
            "weights"
        )


def _preset_names() -> list[str]:
    return sorted(_hub().models.ElectraBackbone.presets)


def _is_preset_name(name: str) -> bool:
    # The prefix first: most names need no import of keras-hub.
    return name.startswith("electra_") and name in _preset_names()


def _hub() -> ModuleType:
    """keras-hub, imported late: it takes seconds and few need it."""
    import keras_hub

    return keras_hub


# Which variable is which


class Pair(NamedTuple):
    """One of our variables, and those of keras-hub that hold it side by side.

    ``theirs``, each of the given shape, are concatenated along our last axis.
    """

    ours: keras.Variable
    theirs: tuple[keras.Variable, ...]
    shape: tuple[int, ...]


def sizes(backbone: keras.Model) -> Sizes:
    """Sizes and dropout of a backbone, under our names."""
    known = {ours: getattr(backbone, theirs) for ours, theirs in _SIZES.items()}
    return Sizes(**known, attention_dropout=backbone.dropout)


def table_variables(backbone: keras.Model) -> dict[str, keras.Variable]:
    """The variables of the embeddings under the names of ``encoder_shapes``."""
    variables = {
        "word_embeddings": backbone.token_embedding.embeddings,
        "position_embeddings": backbone.position_embedding.position_embeddings,
        "segment_embeddings": backbone.segment_embedding.embeddings,
        "layer_norm_gamma": backbone.embeddings_layer_norm.gamma,
        "layer_norm_beta": backbone.embeddings_layer_norm.beta,
    }
    return {f"{EMBEDDINGS}{name}": x for name, x in variables.items()}


def to_encoder(backbone: keras.Model, encoder: TextEncoder) -> None:
    """Copies all weights but the pooler's; nothing, if ``pairs`` has a ValueError."""
    for ours, theirs, _ in pairs(backbone, encoder):
        rows = (*ours.shape[:-1], -1)
        columns = [np.reshape(variable.numpy(), rows) for variable in theirs]
        ours.assign(np.concatenate(columns, axis=-1))


def to_backbone(encoder: TextEncoder, backbone: keras.Model) -> None:
    """Copies all weights but to the backbone's pooler; errors as of ``pairs``."""
    for ours, theirs, shape in pairs(backbone, encoder):
        values = np.split(ours.numpy(), len(theirs), axis=-1)
        for variable, value in zip(theirs, values, strict=True):
            variable.assign(value.reshape(shape))


def pairs(backbone: keras.Model, encoder: TextEncoder) -> list[Pair]:
    """All variables of both sides but the pooler's, each exactly once.

    A ValueError names those without a partner of their shape on the other side.
    """
    paired = list(_pairs(backbone, encoder))
    taken = {id(x) for pair in paired for x in (pair.ours, *pair.theirs)}
    taken |= {id(variable) for variable in backbone.pooled_dense.weights}
    sides = {"keras-hub": backbone.weights, "encoder": encoder.weights}
    left = [
        f"{variable.path} ({side})"
        for side, variables in sides.items()
        for variable in variables
        if id(variable) not in taken
    ]
    if left:
        raise UserError(
            f"These variables have no partner on the other side: {', '.join(left)}."
        )
    for ours, theirs, shape in paired:
        for variable in theirs:
            if tuple(variable.shape) != shape:
                raise UserError(
                    f"{variable.path} has the shape {list(variable.shape)}, where "
                    f"{ours.path} needs {list(shape)}: the sizes differ."
                )
    return paired


def _pairs(backbone: keras.Model, encoder: TextEncoder) -> Iterator[Pair]:
    theirs = table_variables(backbone)
    for name, ours in networks.table_variables(encoder.embeddings).items():
        yield _same(ours, theirs[name])
    projection = getattr(backbone, "embeddings_projection", None)
    if encoder.projection and projection is not None:
        yield from map(_same, encoder.projection, (projection.kernel, projection.bias))
    # Not strict: what one side has more of is reported by name, in ``pairs``.
    blocks = encoder.transformer.blocks
    for block, layer in zip(blocks, backbone.transformer_layers, strict=False):
        attention = layer._self_attention_layer
        inputs = (attention._query_dense, attention._key_dense, attention._value_dense)
        output = attention._output_dense
        # Ours is one kernel [D, 3 D]; theirs are three [D, N, H] and an [N, H, D].
        size = block.qkv_kernel.shape[0]
        heads = (block.num_heads, size // block.num_heads)
        yield Pair(block.qkv_kernel, tuple(x.kernel for x in inputs), (size, *heads))
        yield Pair(block.qkv_bias, tuple(x.bias for x in inputs), heads)
        yield Pair(block.attention_output_kernel, (output.kernel,), (*heads, size))
        yield _same(block.attention_output_bias, output.bias)
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


def _same(ours: keras.Variable, theirs: keras.Variable) -> Pair:
    return Pair(ours, (theirs,), tuple(ours.shape))

"""keras-hub's `ElectraBackbone`, both ways.

A backbone is an encoder and nothing more: it has neither of ELECTRA's two heads. It
carries a pooler that no ELECTRA was ever trained with, and its GELU is the tanh
approximation where Google's code and this library have the exact function.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.encoder import TextEncoder
from electra_tf.interop import keras_hub_weights as weights
from electra_tf.layers import TextEmbedding

Log = Callable[[str], None]

CLASS_NAME = "ElectraBackbone"
# The preset's files that are read here by name; keras-hub writes more.
CONFIG, VOCABULARY = "config.json", "assets/tokenizer/vocabulary.txt"
TOKENIZER = "tokenizer.json"
# Fixed in ElectraBackbone: no argument, not part of its config.
LAYER_NORM_EPSILON = 1e-12

GELU_NOTE = (
    "keras-hub computes GELU by its tanh approximation, this library (as Google's "
    "code) exactly: the same weights give hidden states that differ by 1e-4 (2 layers) "
    "to 2e-3 (12 layers) at a spread of 1."
)
POOLER_NOTE = "The pooler of keras-hub's backbone (pooled_dense) is not part of ELECTRA"


@dataclasses.dataclass(frozen=True)
class KerasHubModel:
    """What a keras-hub backbone and the tokenizer beside it hold.

    Attributes:
        encoder: The encoder, with all weights but the pooler's.
        vocabulary: Of the tokenizer; None if there is none beside the backbone.
        lower_case: Whether the tokenizer lower-cases; None without tokenizer.
        strip_accents: Whether it strips accents; None without tokenizer.
        notes: What was not taken, or is not the same, one sentence each.
    """

    encoder: TextEncoder
    vocabulary: Vocabulary | None
    lower_case: bool | None
    strip_accents: bool | None
    notes: tuple[str, ...]


def detect(source: Any) -> bool:
    """Whether `source` is a backbone, a preset (folder or name) or a `.keras` of one.

    Looks at names and JSON only; nothing is loaded.
    """
    if isinstance(source, keras.Model):
        return type(source).__name__ == CLASS_NAME
    path = Path(source)
    if path.is_dir():
        return _json(path / CONFIG).get("class_name") == CLASS_NAME
    if path.is_file():
        return _json(path).get("class_name") == CLASS_NAME
    return _is_preset_name(str(source))


def read(source: Any, log: Log = print) -> KerasHubModel:
    """Takes the encoder out of a keras-hub backbone.

    Args:
        source: An `ElectraBackbone`, a preset folder, a `.keras` file of a backbone, or
            the name of a preset, which keras-hub then downloads (not verified here:
            there was no network).
        log: Is told what was not taken.

    Raises:
        ValueError: It is no ElectraBackbone, or a variable of one side has no partner
            of its shape on the other; the message names it.
        OSError: It is not there.
    """
    backbone = load(source)
    encoder = _empty_encoder(backbone)
    weights.to_encoder(backbone, encoder)
    vocabulary, casing = _tokenizer_beside(source)
    notes = (
        f"{POOLER_NOTE} and was not taken"
        f"{' (it is untrained)' if weights.pooler_is_untrained(backbone) else ''}.",
        GELU_NOTE,
        "The format has no heads: neither replaced tokens can be detected nor masks "
        "filled in. Fine-tuning needs neither.",
    )
    for note in notes:
        log(note)
    return KerasHubModel(encoder, vocabulary, *casing, notes)


def write(
    folder: str | os.PathLike,
    encoder: TextEncoder,
    vocabulary: Vocabulary,
    *,
    lower_case: bool = True,
    strip_accents: bool = True,
    overwrite: bool = False,
    log: Log = print,
) -> tuple[str, ...]:
    """Writes a keras-hub preset: backbone, weights and tokenizer.

    `keras_hub.models.ElectraBackbone.from_preset(folder)` and
    `keras_hub.models.ElectraTokenizer.from_preset(folder)` read it.

    Args:
        folder: To write; whole or not at all.
        encoder: Of the discriminator or of the generator; heads cannot be written.
        vocabulary: The encoder's.
        lower_case: Whether the tokenizer lower-cases.
        strip_accents: Whether it strips accents, if it lower-cases.
        overwrite: Whether to replace a folder that is there.
        log: Is told what the format does not hold.

    Returns:
        What the format does not hold, one sentence each.

    Raises:
        ValueError: The folder exists, or the format cannot hold this encoder or
            vocabulary.
        OSError: It cannot be written.
    """
    folder = Path(folder)
    if folder.exists() and not overwrite:
        raise ValueError(f"{folder} exists: pass --overwrite to replace it.")
    _check_writable(encoder, vocabulary)
    hub = _hub()
    backbone = hub.models.ElectraBackbone(
        vocab_size=encoder.embeddings.vocab_size,
        num_layers=encoder.num_layers,
        num_heads=encoder.num_heads,
        hidden_dim=encoder.hidden_size,
        embedding_dim=encoder.embeddings.size,
        intermediate_dim=encoder.intermediate_size,
        dropout=encoder.dropout,
        max_sequence_length=encoder.embeddings.max_positions,
        num_segments=encoder.embeddings.num_segments,
        dtype="float32",
    )
    weights.to_backbone(encoder, backbone)
    tokenizer = hub.models.ElectraTokenizer(
        vocabulary=list(vocabulary.tokens),
        lowercase=lower_case,
        strip_accents=lower_case and strip_accents,
    )
    part = folder.with_name(f"part-{os.getpid()}-{folder.name}")
    try:
        backbone.save_to_preset(str(part))
        tokenizer.save_to_preset(str(part))
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    notes = (
        "The preset holds the encoder only: keras-hub has no place for the heads that "
        "detect replaced tokens and fill in masks.",
        f"{POOLER_NOTE}: in the preset it has random initial weights. Use "
        '"sequence_output"[:, 0] and not "pooled_output".',
        GELU_NOTE,
        *_dropout_note(encoder),
    )
    for note in notes:
        log(note)
    return notes


def _dropout_note(encoder):
    if encoder.attention_dropout == encoder.dropout:
        return ()
    return (
        f"keras-hub has one dropout rate: {encoder.dropout} now also stands for the "
        f"attention dropout of {encoder.attention_dropout}.",
    )


def _empty_encoder(backbone) -> TextEncoder:
    table = TextEmbedding(
        backbone.vocab_size,
        backbone.embedding_dim,
        max_positions=backbone.max_sequence_length,
        num_segments=backbone.num_segments,
        dropout=backbone.dropout,
        layer_norm_epsilon=_epsilon(backbone),
        dtype="float32",
        name="embeddings",
    )
    return TextEncoder(
        table,
        num_layers=backbone.num_layers,
        hidden_size=backbone.hidden_dim,
        num_heads=backbone.num_heads,
        intermediate_size=backbone.intermediate_dim,
        dropout=backbone.dropout,
        attention_dropout=backbone.dropout,
        layer_norm_epsilon=_epsilon(backbone),
        dtype="float32",
        name="encoder",
    )


def _epsilon(backbone) -> float:
    found = {backbone.embeddings_layer_norm.epsilon}
    found |= {layer.layer_norm_epsilon for layer in backbone.transformer_layers}
    if len(found) > 1:
        raise ValueError(
            f"The backbone's LayerNorms have different epsilons, {sorted(found)}; an "
            "encoder of this library has one."
        )
    return found.pop()


def _check_writable(encoder, vocabulary):
    if len(vocabulary) != encoder.embeddings.vocab_size:
        raise ValueError(
            f"The vocabulary has {len(vocabulary)} tokens but the encoder has "
            f"embeddings for {encoder.embeddings.vocab_size}: give the vocabulary it "
            "was trained with."
        )
    if vocabulary.special_tokens != SPECIAL_TOKENS:
        raise ValueError(
            "keras-hub's ElectraTokenizer needs the special tokens to be called "
            f"[PAD], [UNK], [CLS], [SEP] and [MASK], not {vocabulary.special_tokens}."
        )
    epsilons = {encoder.layer_norm_epsilon, encoder.embeddings.layer_norm_epsilon}
    if epsilons != {LAYER_NORM_EPSILON}:
        raise ValueError(
            f"The encoder's LayerNorm epsilon is {sorted(epsilons)}, and keras-hub's "
            f"backbone has {LAYER_NORM_EPSILON} built in: it would compute something "
            "else."
        )


def load(source: Any) -> keras.Model:
    """Loads a backbone and insists on its class; raises as `read`."""
    found = source if isinstance(source, keras.Model) else _load(Path(source))
    if not isinstance(found, _hub().models.ElectraBackbone):
        raise ValueError(f"A {type(found).__name__} is not an {CLASS_NAME}.")
    return found


def _load(path):
    hub = _hub()
    if not path.exists() and not _is_preset_name(str(path)):
        raise FileNotFoundError(
            f"No keras-hub backbone at {path}: give a preset folder, a .keras file or "
            f"the name of a preset ({', '.join(_preset_names())})."
        )
    if not detect(path):
        raise ValueError(f"{path} holds no {CLASS_NAME}.")
    try:
        if path.suffix == ".keras":
            return keras.saving.load_model(path, compile=False)
        return hub.models.ElectraBackbone.from_preset(str(path))
    except Exception as error:  # Keras raises whatever its parts raise.
        raise ValueError(f"{path} cannot be loaded by keras-hub: {error}") from error


def _tokenizer_beside(source):
    """Vocabulary, and lower_case and strip_accents; None each without a tokenizer."""
    if isinstance(source, keras.Model) or str(source).endswith(".keras"):
        return None, (None, None)
    if not Path(source).exists():
        tokenizer = _hub().models.ElectraTokenizer.from_preset(str(source))
        vocabulary = Vocabulary(tuple(tokenizer.get_vocabulary()))
        return vocabulary, (tokenizer.lowercase, tokenizer.strip_accents)
    folder = Path(source)
    if not (folder / VOCABULARY).is_file():
        return None, (None, None)
    config = _json(folder / TOKENIZER).get("config", {})
    casing = (bool(config.get("lowercase")), bool(config.get("strip_accents")))
    return Vocabulary.load(folder / VOCABULARY), casing


def _json(path) -> dict[str, Any]:
    """A JSON object from a file, or from config.json inside a `.keras` file."""
    try:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                found = json.loads(archive.read(CONFIG))
        else:
            found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return {}
    return found if isinstance(found, dict) else {}


def _preset_names():
    return sorted(_hub().models.ElectraBackbone.presets)


def _is_preset_name(name):
    # The prefix first: most names need no import of keras-hub.
    return name.startswith("electra_") and name in _preset_names()


def _hub():
    """keras-hub, imported late: it takes seconds and few need it."""
    import keras_hub

    return keras_hub

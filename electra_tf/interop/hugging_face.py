"""Folders and hub repositories of Hugging Face `transformers`.

Discriminator and generator are two folders there, each with a config.json of its own.
`write` puts the generator into `generator/` below the discriminator, and `read` finds
it there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from electra_tf.interop import names, tensor_files, tokenizer_files
from electra_tf.interop.imported import (
    HEADS,
    Imported,
    Source,
    Tower,
    encoder_shapes,
)
from electra_tf.interop.model_card import CLASSES, model_card
from electra_tf.interop.names import HUGGING_FACE, Tensors, prefixed

NAME = "hugging_face"
GENERATOR = "generator"
OUTPUTS = (
    "config.json",
    "model.safetensors",
    "README.md",
    *tokenizer_files.OUTPUTS,
    f"{GENERATOR}/config.json",
    f"{GENERATOR}/model.safetensors",
    *(f"{GENERATOR}/{name}" for name in tokenizer_files.OUTPUTS),
)

# What every model here is, by their name; absent is the same.
_FIXED = {
    "model_type": "electra",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
_SIZES = {
    "vocab_size": "vocab_size",
    "embedding_size": "embedding_size",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "num_segments",
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "initializer_range",
}
# Heads of fine-tuned models: the encoder below them is what is wanted.
_TASK_HEADS = ("classifier.", "qa_outputs.", "sequence_summary.", "summary.")
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
_OUTPUT_MATRIX = "generator_lm_head.weight"
_WORDS = "embeddings.word_embeddings.weight"

HEAD_ROWS = HUGGING_FACE.heads("dense_prediction", "generator_lm_head.bias")


@dataclasses.dataclass(frozen=True)
class _Half:
    """What one folder holds: a tower, and which of the two it is."""

    role: str
    tower: Tower
    not_taken: tuple[str, ...]


def detect(source: Source) -> bool:
    """Whether it is a folder with weights of `transformers`, or a name on the hub."""
    folder = Path(source.path)
    if not folder.is_dir():
        return tensor_files.is_hub_name(source.path)
    if any((folder / name).is_file() for name in tensor_files.FILES):
        return True
    return "model_type" in tensor_files.read_json(folder / "config.json")


def read(source: Source) -> Imported:
    """Reads one folder, and the generator's if it is known.

    Raises:
        ValueError: Something is damaged, is a variant that this library does not
            have, or has tensors that are missing, misshapen or unknown.
        OSError: Something is missing.
    """
    folder = tensor_files.local_folder(source.path)
    num_heads = {
        "discriminator": source.num_heads,
        "generator": source.generator_num_heads,
    }
    first = _read_half(folder, num_heads)
    halves = {first.role: first}
    other = source.generator
    if other is None and (folder / GENERATOR / "config.json").is_file():
        other = str(folder / GENERATOR)
    if other is not None and source.only != "discriminator":
        below = tensor_files.local_folder(other)
        second = _read_half(below, num_heads)
        if (first.role, second.role) != ("discriminator", "generator"):
            raise ValueError(
                f"{source.path} holds a {first.role} and {other} a {second.role}; "
                "needed are a discriminator and a generator, in this order."
            )
        halves[second.role] = second
    if source.only and source.only not in halves:
        raise ValueError(f"{source.path} holds no {source.only}.")
    tokenizer = tokenizer_files.read_tokenizer(folder)
    return Imported(
        format=NAME,
        source=source.path,
        **{
            role: half.tower
            for role, half in halves.items()
            if source.only in (None, role)
        },
        vocabulary=tokenizer.vocabulary,
        lower_case=tokenizer.lower_case,
        strip_accents=tokenizer.strip_accents,
        trained_length=tokenizer.max_length,
        not_taken=tuple(name for half in halves.values() for name in half.not_taken),
        notes=tokenizer.notes,
    )


def _read_half(folder: Path, heads_given: Mapping[str, int | None]) -> _Half:
    config = tensor_files.read_json(folder / "config.json")
    if not config:
        raise FileNotFoundError(f"{folder} has no config.json.")
    _refuse_variants(config, folder)
    tensors = Tensors(tensor_files.read_tensors(folder), str(folder))
    is_generator = tensors.starting_with("generator_")
    role = "generator" if is_generator else "discriminator"
    num_heads = heads_given[role]
    # The bare encoder is saved without this prefix.
    prefix = "electra." if tensors.starting_with("electra.") else ""
    sizes = tensors.sizes(
        HUGGING_FACE,
        embeddings=prefix,
        body=prefix,
        # Absent is their default, not the original's rule.
        num_heads=num_heads or config.get("num_attention_heads", 4),
        dropout=config.get("hidden_dropout_prob", 0.1),
        attention_dropout=config.get("attention_probs_dropout_prob", 0.1),
        initializer_range=config.get("initializer_range", 0.02),
    )
    _check_config(config, sizes, folder, ignore=num_heads and "num_attention_heads")
    rows = prefixed([*HUGGING_FACE.embeddings(), *HUGGING_FACE.body(sizes)], prefix)
    encoder = tensors.read(rows, encoder_shapes(sizes))
    head = {}
    if is_generator or tensors.starting_with("discriminator_predictions."):
        head = tensors.read(HEAD_ROWS[role], HEADS[role](sizes))
    _check_output_matrix(tensors, prefix + _WORDS, folder)
    return _Half(role, Tower(sizes, encoder, head), _not_taken(tensors, prefix, folder))


def _refuse_variants(config, folder):
    wrong = [
        f"{name} is {config[name]!r}, not {value!r}"
        for name, value in _FIXED.items()
        if config.get(name, value) != value
    ] + [
        f"{name} is {config[name]!r}, not a number"
        for name in _SIZES
        if type(config.get(name, 0)) not in (int, float)
    ]
    if wrong:
        raise ValueError(
            f"{folder / 'config.json'} describes a variant that cannot be imported: "
            f"{'; '.join(wrong)}."
        )


def _check_config(config, sizes, folder, ignore):
    """The shapes decide; a config of other weights would bring the wrong heads."""
    wrong = [
        f"{theirs} is {config[theirs]} there and {getattr(sizes, ours)} by the tensors"
        for theirs, ours in _SIZES.items()
        if theirs in config
        and theirs != ignore
        and config[theirs] != getattr(sizes, ours)
    ]
    if wrong:
        raise ValueError(
            f"{folder / 'config.json'} does not belong to the tensors beside it: "
            f"{'; '.join(wrong)}."
        )


def _check_output_matrix(tensors, words, folder):
    if _OUTPUT_MATRIX not in tensors:
        return
    if not np.array_equal(tensors.get(_OUTPUT_MATRIX), tensors.get(words)):
        raise ValueError(
            f"{folder}: {_OUTPUT_MATRIX} differs from {words}: an output matrix that "
            "is not the word table cannot be imported."
        )


def _not_taken(tensors, prefix, folder):
    known = (*_TASK_HEADS, *(prefix + name for name in _BUFFERS))
    unknown = [name for name in tensors.left if not name.startswith(known)]
    if unknown:
        raise ValueError(
            f"{folder} has {len(unknown)} tensors that belong to no part of ELECTRA "
            f"known here: {', '.join(unknown[:5])}."
        )
    return tuple(tensors.left)


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes what `transformers` loads: weights, config, tokenizer, model card.

    Raises:
        ValueError: A variable has no place in the format.
        OSError: A file cannot be written.
    """
    (main, tower), *others = model.towers.items()
    _write_half(folder, model, main, tower)
    for name, other in others:
        (folder / GENERATOR).mkdir()
        _write_half(folder / GENERATOR, model, name, other)
    card = model_card(model, main, has_generator=bool(others))
    (folder / "README.md").write_text(card, "utf-8")
    return ()


def _write_half(folder, model, role, tower):
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    prefix = "electra." if tower.head else ""
    sizes = tower.sizes
    rows = prefixed([*HUGGING_FACE.embeddings(), *HUGGING_FACE.body(sizes)], prefix)
    arrays = names.scatter(rows, tower.encoder)
    if tower.head:
        arrays |= names.scatter(HEAD_ROWS[role], tower.head)
    path = folder / "model.safetensors"
    try:
        # "pt" is what `transformers` asks for; it says nothing of the content.
        save_file(arrays, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
    config = {
        "architectures": [CLASSES[role] if tower.head else "ElectraModel"],
        **_FIXED,
        **{theirs: getattr(sizes, ours) for theirs, ours in _SIZES.items()},
        "pad_token_id": model.vocabulary.pad_id,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "config.json").write_text(text, "utf-8")
    tokenizer_files.write_tokenizer(
        folder,
        model.vocabulary,
        lower_case=model.lower_case,
        strip_accents=model.strip_accents,
        max_length=model.trained_length,
    )

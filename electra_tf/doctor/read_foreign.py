"""Other libraries' files: Google's TensorFlow 1, keras-hub.

Read by name and shape, without building a model of them (but for keras-hub, which
numbers its variables: there the backbone is loaded).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import tensorflow as tf

from electra_tf import model_folder
from electra_tf.doctor.subject import (
    COPY,
    SHARED,
    Subject,
    Tensor,
    Tower,
    any_starts,
    in_memory,
    json_or_empty,
    problem,
    sizes_of,
    vocabulary_in,
    warning,
)
from electra_tf.interop import google_tf1
from electra_tf.interop import keras_hub as keras_hub_format

_TF1_TABLES = (
    "word_embeddings",
    "position_embeddings",
    "token_type_embeddings",
    "LayerNorm/gamma",
    "LayerNorm/beta",
)
# Scope of each network, and of its head.
_TF1_SCOPES = {
    "discriminator": ("electra/", "discriminator_predictions/"),
    "generator": ("generator/", "generator_predictions/"),
}
_SLOT = re.compile(r"/adam_[mv]$")


def checkpoint_prefix(path: Path) -> str | None:
    """Prefix of a TensorFlow checkpoint: the path itself, or the newest in a folder."""
    if path.is_dir():
        newest = tf.train.latest_checkpoint(str(path))
        found = sorted(path.glob("*.index"))
        return newest or (str(found[-1])[: -len(".index")] if found else None)
    prefix = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", str(path))
    return prefix if Path(f"{prefix}.index").is_file() else None


def read_google_tf1(path: Path) -> Subject:
    """Reads the names, shapes and values of Google's TensorFlow 1 code.

    Raises:
        ValueError: It is another checkpoint.
    """
    prefix = checkpoint_prefix(path)
    subject = Subject(
        kind="google_tf1",
        path=Path(prefix),
        vocabulary=vocabulary_in(
            *(folder / model_folder.VOCABULARY for folder in Path(prefix).parents[:3])
        ),
    )
    try:
        shapes, arrays = _tf1_arrays(prefix)
    except ValueError as error:
        return dataclasses.replace(subject, findings=(problem(str(error), COPY),))
    if not any_starts(shapes, "electra/"):
        raise ValueError(
            f"{prefix} has no variables under electra/, so it is not a checkpoint of "
            "Google's ELECTRA. For a checkpoint of a run of this library, give the "
            "folder of the run."
        )
    tensors = {name: in_memory(array) for name, array in arrays.items()}
    findings = []
    if any_starts(tensors, "generator_ltr/") or any_starts(tensors, "cloze_"):
        findings.append(
            warning(
                "this is Electric: its generator has two towers, one per direction",
                "Its discriminator can be used as any other; its generator is no "
                "masked language model.",
            )
        )
    towers = {
        name: _tf1_tower(name, tensors, *scopes)
        for name, scopes in _TF1_SCOPES.items()
        if any(any_starts(tensors, scope) for scope in scopes)
    }
    return dataclasses.replace(
        subject,
        towers=towers,
        findings=tuple(findings),
        optimizer_slots=sum(bool(_SLOT.search(name)) for name in shapes),
    )


def _tf1_arrays(prefix):
    """Shapes of all variables, and the values of those that are weights."""
    with google_tf1.whole(prefix):
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        return shapes, {
            name: reader.get_tensor(name)
            for name in shapes
            if not _SLOT.search(name) and name != "global_step"
        }


def _tf1_tower(name, tensors, scope, head) -> Tower:
    # Tied tables are stored once, under electra/embeddings/.
    own = f"{scope}embeddings/"
    place = own if any_starts(tensors, own) else "electra/embeddings/"
    mine = {n: t for n, t in tensors.items() if n.startswith((scope, head, place))}
    tables = {
        role: f"{place}{leaf}"
        for role, leaf in zip(SHARED, _TF1_TABLES, strict=True)
        if f"{place}{leaf}" in mine
    }
    wide = mine.get(f"{scope}encoder/layer_0/intermediate/dense/kernel")
    return Tower(
        name=name,
        tensors=mine,
        tables=tables,
        has_head=any_starts(mine, head),
        # Fixed in Google's code, not stored.
        activation="gelu",
        layer_norm_epsilon=1e-12,
        sizes=sizes_of(mine, tables, wide.shape if wide else None),
        declared={},
    )


def read_keras_hub(path: Path) -> Subject:
    """Loads a keras-hub preset's backbone and the tokenizer's files.

    Raises:
        ValueError: It is no ElectraBackbone, or damaged.
        OSError: A file cannot be read.
    """
    backbone = keras_hub_format.load(path)
    tensors = {v.path: Tensor(tuple(v.shape), v.numpy) for v in backbone.weights}
    config = backbone.get_config()
    table = backbone.embeddings_layer_norm
    variables = (
        backbone.token_embedding.embeddings,
        backbone.position_embedding.position_embeddings,
        backbone.segment_embedding.embeddings,
        table.gamma,
        table.beta,
    )
    tokenizer = json_or_empty(path / keras_hub_format.TOKENIZER).get("config", {})
    tower = Tower(
        name="encoder",
        tensors=tensors,
        tables={r: v.path for r, v in zip(SHARED, variables, strict=True)},
        has_head=False,
        activation="gelu_tanh",
        layer_norm_epsilon=table.epsilon,
        sizes={
            "vocab_size": config["vocab_size"],
            "embedding_size": config["embedding_dim"],
            "max_positions": config["max_sequence_length"],
            "hidden_size": config["hidden_dim"],
            "intermediate_size": config["intermediate_dim"],
            "num_layers": config["num_layers"],
        },
        declared={},
    )
    casing = {"lowercase": "lower_case", "strip_accents": "strip_accents"}
    return Subject(
        kind="keras_hub",
        path=path,
        towers={"encoder": tower},
        vocabulary=vocabulary_in(path / keras_hub_format.VOCABULARY),
        casing={
            ours: bool(tokenizer[k]) for k, ours in casing.items() if k in tokenizer
        },
    )

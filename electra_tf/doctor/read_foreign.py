"""Other libraries' files: Hugging Face, Google's TensorFlow 1, keras-hub.

Read by name and shape, without building a model of them (but for keras-hub, which
numbers its variables: there the backbone is loaded).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf import model_folder
from electra_tf.doctor.subject import (
    SHARED,
    Finding,
    Subject,
    Tensor,
    Tower,
    count_layers,
    problem,
    vocabulary_in,
    warning,
)
from electra_tf.interop import google_tf1, tensor_files
from electra_tf.interop import keras_hub as keras_hub_format
from electra_tf.interop.tokenizer_files import read_tokenizer

_HF_TABLES = dict(
    zip(
        SHARED,
        (
            "embeddings.word_embeddings.weight",
            "embeddings.position_embeddings.weight",
            "embeddings.token_type_embeddings.weight",
            "embeddings.LayerNorm.weight",
            "embeddings.LayerNorm.bias",
        ),
        strict=True,
    )
)
_HF_HEADS = {
    "discriminator": "discriminator_predictions.",
    "generator": "generator_predictions.",
}
_HF_ARCHITECTURES = {
    "ElectraForPreTraining": "discriminator",
    "ElectraForMaskedLM": "generator",
}
_HF_SIZES = {
    "vocab_size": "vocab_size",
    "embedding_size": "embedding_size",
    "max_positions": "max_position_embeddings",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
}
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
_COPY = "Copy or download it again."
_SLOT = re.compile(r"/adam_[mv]$")


def is_hugging_face(path: Path) -> bool:
    """Whether it is a folder with a config.json that names a model_type."""
    return "model_type" in model_folder.read_config(path)


def read_hugging_face(path: Path) -> Subject:
    """Reads config.json and the safetensors files.

    Raises:
        ValueError: It is not ELECTRA, or a file is damaged.
        OSError: A file cannot be read.
    """
    config = model_folder.read_config(path)
    if config["model_type"] != "electra":
        raise ValueError(
            f"{path} holds a model of type {config['model_type']}, not electra."
        )
    tensors, findings = _hf_tensors(path)
    # A bare ElectraModel is saved without the prefix.
    tensors = {n.removeprefix("electra."): t for n, t in tensors.items()}
    wanted = {
        _HF_ARCHITECTURES[name]
        for name in config.get("architectures") or ()
        if name in _HF_ARCHITECTURES
    }
    there = {k for k, start in _HF_HEADS.items() if _starting(tensors, start)}
    names = (there | wanted) or {"encoder"}
    whole, config_of_it = (
        _json(path / f"tokenizer{part}.json") for part in ("", "_config")
    )
    lower_case = config_of_it.get(
        "do_lower_case", (whole.get("normalizer") or {}).get("lowercase")
    )
    has_vocabulary = whole or (path / model_folder.VOCABULARY).is_file()
    return Subject(
        kind="hugging_face",
        path=path,
        towers={
            name: _hf_tower(name, tensors, config, name in there)
            for name in sorted(names)
            if tensors
        },
        vocabulary=(lambda: read_tokenizer(path).vocabulary)
        if has_vocabulary
        else None,
        casing={} if lower_case is None else {"lower_case": bool(lower_case)},
        findings=tuple(findings),
    )


def _hf_tensors(path) -> tuple[dict[str, Tensor], list[Finding]]:
    if any(path.glob("model*.safetensors")):
        try:
            arrays = tensor_files.read_tensors(path)
        except (ValueError, OSError) as error:
            return {}, [problem(str(error), _COPY)]
        return {name: _tensor(array) for name, array in arrays.items()}, []
    save = "Load it with transformers and call save_pretrained."
    pickles = sorted(file.name for file in path.glob("pytorch_model*.bin"))
    if pickles:
        return {}, [
            warning(f"{', '.join(pickles)}: pickles, which were not looked at", save)
        ]
    return {}, [problem("there are no weights (model.safetensors)", save)]


def _tensor(array) -> Tensor:
    return Tensor(array.shape, lambda: array.astype(np.float32, copy=False))


def _hf_tower(name, tensors, config, has_head) -> Tower:
    own = {
        n: t
        for n, t in tensors.items()
        # Not weights: 0, 1, 2, ..., and an alias of the output bias.
        if not n.endswith(("position_ids", "generator_lm_head.weight"))
        and not (name == "discriminator" and n.startswith("generator_"))
        and not (name == "generator" and n.startswith("discriminator_"))
    }
    tables = {role: n for role, n in _HF_TABLES.items() if n in own}
    if name == "generator" and "generator_lm_head.weight" in tensors:
        own["generator_lm_head.weight"] = tensors["generator_lm_head.weight"]
        tables["output"] = "generator_lm_head.weight"
    wide = own.get("encoder.layer.0.intermediate.dense.weight")
    return Tower(
        name=name,
        tensors=own,
        tables=tables,
        has_head=has_head,
        activation=config.get("hidden_act", "gelu"),
        layer_norm_epsilon=config.get("layer_norm_eps", 1e-12),
        sizes=_sizes(own, tables, wide.shape[::-1] if wide else None),
        declared={
            size: config[key] for size, key in _HF_SIZES.items() if key in config
        },
    )


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
        return dataclasses.replace(subject, findings=(problem(str(error), _COPY),))
    if not _starting(shapes, "electra/"):
        raise ValueError(
            f"{prefix} has no variables under electra/, so it is not a checkpoint of "
            "Google's ELECTRA. For a checkpoint of a run of this library, give the "
            "folder of the run."
        )
    tensors = {name: _tensor(array) for name, array in arrays.items()}
    findings = []
    if _starting(tensors, "generator_ltr/") or _starting(tensors, "cloze_"):
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
        if any(_starting(tensors, scope) for scope in scopes)
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
    place = own if _starting(tensors, own) else "electra/embeddings/"
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
        has_head=_starting(mine, head),
        # Fixed in Google's code, not stored.
        activation="gelu",
        layer_norm_epsilon=1e-12,
        sizes=_sizes(mine, tables, wide.shape if wide else None),
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
    tokenizer = _json(path / keras_hub_format.TOKENIZER).get("config", {})
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


def _sizes(tensors, tables, wide) -> dict[str, int]:
    """Sizes from shapes: the tables', and [hidden, intermediate] of a layer."""
    found = {"num_layers": count_layers(tensors)}
    if "word_embeddings" in tables:
        shape = tensors[tables["word_embeddings"]].shape
        found |= dict(zip(("vocab_size", "embedding_size"), shape, strict=True))
    if "position_embeddings" in tables:
        found["max_positions"] = tensors[tables["position_embeddings"]].shape[0]
    if wide:
        found |= dict(zip(("hidden_size", "intermediate_size"), wide, strict=True))
    return found


def _starting(names, start) -> bool:
    return any(name.startswith(start) for name in names)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

"""Hugging Face folders, read by name and shape: no model is built of them."""

from __future__ import annotations

from pathlib import Path

from electra_tf import model_folder
from electra_tf.doctor.subject import (
    COPY,
    SHARED,
    Finding,
    Subject,
    Tensor,
    Tower,
    any_starts,
    in_memory,
    json_or_empty,
    problem,
    sizes_of,
    warning,
)
from electra_tf.interop import tensor_files
from electra_tf.interop.tokenizer_files import read_tokenizer

_TABLES = dict(
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
_HEADS = {
    "discriminator": "discriminator_predictions.",
    "generator": "generator_predictions.",
}
_ARCHITECTURES = {
    "ElectraForPreTraining": "discriminator",
    "ElectraForMaskedLM": "generator",
}
_SIZES = {
    "vocab_size": "vocab_size",
    "embedding_size": "embedding_size",
    "max_positions": "max_position_embeddings",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
}


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
    tensors, findings = _tensors(path)
    # A bare ElectraModel is saved without the prefix.
    tensors = {n.removeprefix("electra."): t for n, t in tensors.items()}
    wanted = {
        _ARCHITECTURES[name]
        for name in config.get("architectures") or ()
        if name in _ARCHITECTURES
    }
    there = {k for k, start in _HEADS.items() if any_starts(tensors, start)}
    names = (there | wanted) or {"encoder"}
    whole, config_of_it = (
        json_or_empty(path / f"tokenizer{part}.json") for part in ("", "_config")
    )
    lower_case = config_of_it.get(
        "do_lower_case", (whole.get("normalizer") or {}).get("lowercase")
    )
    has_vocabulary = whole or (path / model_folder.VOCABULARY).is_file()
    return Subject(
        kind="hugging_face",
        path=path,
        towers={
            name: _tower(name, tensors, config, name in there)
            for name in sorted(names)
            if tensors
        },
        vocabulary=(lambda: read_tokenizer(path).vocabulary)
        if has_vocabulary
        else None,
        casing={} if lower_case is None else {"lower_case": bool(lower_case)},
        findings=tuple(findings),
    )


def _tensors(path) -> tuple[dict[str, Tensor], list[Finding]]:
    if any(path.glob("model*.safetensors")):
        try:
            arrays = tensor_files.read_tensors(path)
        except (ValueError, OSError) as error:
            return {}, [problem(str(error), COPY)]
        return {name: in_memory(array) for name, array in arrays.items()}, []
    save = "Load it with transformers and call save_pretrained."
    pickles = sorted(file.name for file in path.glob("pytorch_model*.bin"))
    if pickles:
        return {}, [
            warning(f"{', '.join(pickles)}: pickles, which were not looked at", save)
        ]
    return {}, [problem("there are no weights (model.safetensors)", save)]


def _tower(name, tensors, config, has_head) -> Tower:
    own = {
        n: t
        for n, t in tensors.items()
        # Not weights: 0, 1, 2, ..., and an alias of the output bias.
        if not n.endswith(("position_ids", "generator_lm_head.weight"))
        and not (name == "discriminator" and n.startswith("generator_"))
        and not (name == "generator" and n.startswith("discriminator_"))
    }
    tables = {role: n for role, n in _TABLES.items() if n in own}
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
        sizes=sizes_of(own, tables, wide.shape[::-1] if wide else None),
        declared={size: config[key] for size, key in _SIZES.items() if key in config},
    )

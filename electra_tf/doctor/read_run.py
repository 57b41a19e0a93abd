"""The folder of a pretraining run or of an import, and a flagfile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
from absl import flags as absl_flags

from electra_tf import config as config_lib
from electra_tf import flags as flags_lib
from electra_tf import model_folder
from electra_tf.config import EncoderConfig, PretrainConfig
from electra_tf.doctor.subject import (
    SHARED,
    Finding,
    Subject,
    Tensor,
    Tower,
    problem,
    vocabulary_in,
    warning,
)
from electra_tf.encoder import TextEncoder
from electra_tf.training.naming import named_variables
from electra_tf.training.sinks import read_metrics

# Discriminators and generators come in several classes; each has an `encoder`.
_KINDS = {
    "discriminator": keras.Model,
    "generator": keras.Model,
    "encoder": TextEncoder,
}


def is_run(path: Path) -> bool:
    """Whether it is the folder of a pretraining run, finished or not, or an import."""
    if any((path / f"{name}.keras").is_file() for name in _KINDS):
        return True
    described = _described(path)
    # Hugging Face and keras-hub call theirs config.json, too.
    return "config" in described and not {"model_type", "class_name"} & described.keys()


def read_run(path: Path) -> Subject:
    """Loads what the folder has; what cannot be loaded becomes a finding.

    Raises:
        ValueError: It is a fine-tuning run, or config.json is damaged.
    """
    if (path / "task.json").is_file():
        raise ValueError(
            f"{path} is a fine-tuning run: give the pretraining run it started from."
        )
    described = _described(path)
    flags = model_folder.flags(described)
    is_import = "imported" in described or not flags
    # An import's flags are made from its weights.
    declared = {} if is_import else _declared(flags)
    findings, towers = [], {}
    for name, kind in _KINDS.items():
        file = path / f"{name}.keras"
        if not file.is_file():
            findings += _missing(name, flags, is_import)
            continue
        try:
            model = model_folder.load(file, kind, "Save it again.")
        except ValueError as error:
            advice = "Run the same training command again: it writes the models anew."
            findings.append(problem(str(error), advice))
            continue
        if isinstance(model, TextEncoder) or hasattr(model, "encoder"):
            towers[name] = _tower(name, model, declared.get(name, {}))
        else:
            text = f"{file.name} holds a {type(model).__name__}, which is not looked at"
            findings.append(warning(text, "Its encoder cannot be checked."))
    data = described.get("data")
    metrics = path / "metrics.jsonl"
    return Subject(
        kind="run",
        path=path,
        towers=towers,
        vocabulary=vocabulary_in(path / model_folder.VOCABULARY),
        flags=flags,
        casing=model_folder.casing(described),
        vocabulary_sha256=data.get("vocabulary_sha256") if data else None,
        metrics=tuple(read_metrics(metrics)) if metrics.is_file() else (),
        findings=tuple(findings),
    )


def read_flagfile(path: str) -> Subject:
    """Parses a flagfile such as configs/small.cfg.

    Raises:
        ValueError: It holds an unknown flag, or a value that is not allowed.
        OSError: It cannot be read.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"No flagfile at {path}.")
    values = absl_flags.FlagValues()
    flags_lib.define(PretrainConfig, values)
    try:
        values(["doctor", f"--flagfile={path}"])
    except absl_flags.Error as error:
        raise ValueError(f"{path}: {error}") from error
    config = flags_lib.read(PretrainConfig, values)
    return Subject(
        kind="config", path=Path(path), flags=dict(config_lib.to_flat(config))
    )


def _described(path) -> dict[str, Any]:
    return model_folder.read_config(path)


def _missing(name, flags, is_import) -> Iterator[Finding]:
    """What it means that a file is not there."""
    if name == "discriminator" and flags.get("objective") == "mlm":
        return
    file = f"{name}.keras is missing"
    again = "Finish the run (the same command goes on), or copy the file here."
    if name == "encoder":
        yield problem(f"{file}: nothing can be fine-tuned", again)
    elif not is_import:
        yield problem(f"{file}: the run has not finished, or it was deleted", again)
    else:
        needs = {"discriminator": "verdicts", "generator": "fills and corruption"}
        yield warning(
            f"{file}: the import's source had none; no {needs[name]}, and pretraining "
            "cannot go on from here",
            f"Import the checkpoint of the {name}, too, if you need that.",
        )


def _declared(flags) -> dict[str, dict[str, int]]:
    """Sizes of each tower as the flags have them."""
    if "hidden_size" not in flags:
        return {}
    config = config_lib.from_flat(dict(flags))
    encoder = _sizes_of(config.encoder)
    generator = _sizes_of(config.generator_encoder)
    if config.objective.objective == "mlm":
        generator = encoder
    return {"encoder": encoder, "discriminator": encoder, "generator": generator}


def _sizes_of(config: EncoderConfig) -> dict[str, int]:
    names = (
        "num_layers",
        "hidden_size",
        "intermediate_size",
        "embedding_size",
        "max_positions",
    )
    return {name: getattr(config, name) for name in names}


def _tower(name: str, model: keras.Model, declared) -> Tower:
    encoder = model if isinstance(model, TextEncoder) else model.encoder
    named = {n: v for n, v in named_variables(model).items() if v.trainable}
    names = {id(variable): n for n, variable in named.items()}
    table = encoder.embeddings
    variables = [
        table.word_embeddings,
        table.position_embeddings,
        table.segment_embeddings,
        table.gamma,
        table.beta,
    ]
    epsilons = {encoder.layer_norm_epsilon, table.layer_norm_epsilon}
    return Tower(
        name=name,
        tensors={n: Tensor(tuple(v.shape), v.numpy) for n, v in named.items()},
        tables={
            role: names[id(variable)]
            for role, variable in zip(SHARED, variables, strict=True)
            if id(variable) in names
        },
        has_head=model is not encoder,
        activation=encoder.transformer.activation,
        # The one further from what it should be, if they differ.
        layer_norm_epsilon=max(epsilons),
        sizes={
            "vocab_size": table.vocab_size,
            "embedding_size": table.size,
            "max_positions": table.max_positions,
            "hidden_size": encoder.hidden_size,
            "intermediate_size": encoder.intermediate_size,
            "num_layers": encoder.num_layers,
        },
        declared=declared,
    )

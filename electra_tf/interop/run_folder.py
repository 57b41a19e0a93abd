"""Folders of this library: what a pretraining run leaves, or `convert` has written."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.data.vocabulary import Vocabulary
from electra_tf.encoder import TextEncoder
from electra_tf.interop import networks
from electra_tf.interop.imported import Imported, Source, Tower
from electra_tf.interop.tensor_files import read_json
from electra_tf.pretraining import (
    MaskedLM,
    ReplacedTokenDetection,
    ReplacedTokenDetector,
)

NAME = "electra_tf"
MODELS = ("encoder", "generator", "discriminator")
OUTPUTS = (*(f"{name}.keras" for name in MODELS), "vocab.txt", "config.json")


def detect(source: Source) -> bool:
    """Whether it is a folder with models of this library."""
    return any((Path(source.path) / f"{name}.keras").is_file() for name in MODELS)


def read(source: Source) -> Imported:
    """Reads the saved models, vocab.txt, config.json and the last held-out scores.

    Raises:
        ValueError: A file is damaged, or holds a model that no other format has; or
            `source` says what the files say.
        OSError: A file cannot be read.
    """
    source.refuse("generator", "num_heads", "generator_num_heads")
    folder = Path(source.path)
    run = read_json(folder / "config.json")
    # The section `data` tells how the records were made and wins over the flags.
    flags = {**run.get("config", {}), **run.get("data", {})}
    towers = _towers(folder)
    if source.only:
        towers = {role: tower for role, tower in towers.items() if role == source.only}
    vocabulary = folder / "vocab.txt"
    return Imported(
        format=NAME,
        source=source.path,
        **towers,
        vocabulary=Vocabulary.load(vocabulary) if vocabulary.is_file() else None,
        lower_case=flags.get("lower_case"),
        strip_accents=flags.get("strip_accents"),
        trained_length=flags.get("max_seq_length"),
        run=run,
        scores=_scores(folder / "metrics.jsonl"),
    )


def _towers(folder: Path) -> dict[str, Tower]:
    towers = {}
    generator = _load(folder, "generator", MaskedLM)
    if generator is not None:
        head = networks.head_arrays(generator.head)
        towers["generator"] = _tower(folder, "generator", generator.encoder, head)
    detector = _load(folder, "discriminator", ReplacedTokenDetector)
    if detector is not None:
        if not isinstance(detector.objective, ReplacedTokenDetection):
            raise ValueError(
                f"{folder / 'discriminator.keras'} was trained with the objective "
                f"{type(detector.objective).__name__}, whose head no other format has."
            )
        head = networks.head_arrays(detector.objective.head)
        towers["discriminator"] = _tower(
            folder, "discriminator", detector.encoder, head
        )
        return towers
    encoder = _load(folder, "encoder", TextEncoder)
    if encoder is not None:
        tower = _tower(folder, "encoder", encoder, {})
        # Of masked LM alone, encoder.keras is the encoder of generator.keras.
        if not _same(tower, towers.get("generator")):
            towers["discriminator"] = tower
    return towers


def _tower(folder, name, encoder, head):
    return networks.encoder_tower(encoder, head, str(folder / f"{name}.keras"))


def _same(tower, other):
    return (
        other is not None
        and tower.sizes == other.sizes
        and all(np.array_equal(v, other.encoder[k]) for k, v in tower.encoder.items())
    )


def _load(folder, name, wanted):
    path = folder / f"{name}.keras"
    if not path.is_file():
        return None
    loaded = networks.load_model(path)
    if not isinstance(loaded, wanted):
        raise ValueError(
            f"{path} holds a {type(loaded).__name__}, not a {wanted.__name__}: give "
            "the folder of a pretraining run."
        )
    return loaded


def _scores(path: Path) -> dict[str, float]:
    """The last held-out scores of a run's metrics.jsonl."""
    found = {}
    if path.is_file():
        for line in path.read_text("utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # The line that a killed run was writing.
            scores = {k: v for k, v in row.items() if k.startswith("eval_")}
            found = scores or found
    return {k: v for k, v in found.items() if isinstance(v, int | float)}


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes what a finished run leaves, without its checkpoints and curves.

    Raises:
        ValueError: The model's arrays do not fit its sizes.
    """
    for name, part in networks.models(model).items():
        part.save(folder / f"{name}.keras")
    model.vocabulary.save(folder / "vocab.txt")
    text = json.dumps(_config(model), indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, "utf-8")
    return ()


def _config(model: Imported) -> dict[str, Any]:
    """What fine-tuning and pretraining read: flags by the names of a run's."""
    sizes = model.main.sizes
    known = model.run.get("config", {})
    # A generator alone may have been half of ELECTRA: only a run's own word tells.
    objective = {"objective": "electra"} if model.discriminator else {}
    flags = {
        **objective,
        "vocab_size": sizes.vocab_size,
        "max_seq_length": model.trained_length,
        "lower_case": model.lower_case,
        "strip_accents": model.strip_accents,
        "num_layers": sizes.num_layers,
        "hidden_size": sizes.hidden_size,
        "num_heads": sizes.num_heads,
        "intermediate_size": sizes.intermediate_size,
        "embedding_size": sizes.embedding_size,
        "max_positions": sizes.max_positions,
        "dropout": sizes.dropout,
        "attention_dropout": sizes.attention_dropout,
        "initializer_range": sizes.initializer_range,
    }
    if len(model.towers) == 2:
        small = model.generator.sizes
        flags["generator_hidden_size"] = small.hidden_size / sizes.hidden_size
        flags["generator_layers"] = small.num_layers / sizes.num_layers
    packages = ("tensorflow", "keras", "numpy")
    return {
        "config": {**known, **flags},
        "imported": {
            "format": model.format,
            "source": model.source,
            "not_taken": list(model.not_taken),
            "towers": {name: str(tower.sizes) for name, tower in model.towers.items()},
        },
        "data": {
            **model.run.get("data", {}),
            "vocabulary_sha256": model.vocabulary.sha256,
            "lower_case": model.lower_case,
            "strip_accents": model.strip_accents,
        },
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }

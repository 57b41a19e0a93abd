"""This library's own folders: what a pretraining run leaves, or ``convert`` writes."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.folders.models import HALVES, KERAS, Model
from electra_tf.folders.pretraining import (
    CONFIG,
    MODELS,
    VOCABULARY,
    PretrainingFolder,
    named,
)
from electra_tf.interop import networks, task_heads
from electra_tf.interop.imported import Imported, Source, Tower
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import (
    MaskedLM,
    ReplacedTokenDetection,
    ReplacedTokenDetector,
)

NAME = "electra_tf"
OUTPUTS = (
    *(f"{name}{suffix}" for name in MODELS for suffix in (KERAS, HALVES)),
    *(VOCABULARY, CONFIG),
    *task_heads.OUTPUTS,
)


def detect(source: Source) -> bool:
    """Whether it is a folder with models of this library."""
    return _is_pretrained(source) or task_heads.is_task_folder(Path(source.path))


def _is_pretrained(source: Source) -> bool:
    return any(map(PretrainingFolder(named(source.path)).has_model, MODELS))


def read(source: Source) -> Imported:
    """Reads the saved models, vocab.txt, config.json and the last held-out scores."""
    if not _is_pretrained(source):
        return task_heads.read(source)
    source.reject("generator", "num_heads", "generator_num_heads", "pair")
    folder = PretrainingFolder(named(source.path))
    casing, towers = folder.casing, _towers(folder)
    if source.only:
        towers = {role: x for role, x in towers.items() if role == source.only}
    return Imported(
        format=NAME,
        source=source.path,
        **towers,
        vocabulary=folder.vocabulary(),
        lower_case=casing.get("lower_case"),
        strip_accents=casing.get("strip_accents"),
        trained_length=folder.flags.get("max_seq_length"),
        run=folder.settings,
        scores=folder.held_out(),
    )


def _towers(folder: PretrainingFolder) -> dict[str, Tower]:
    towers: dict[str, Tower] = {}

    def tower(name: str, encoder: TextEncoder, head: Any = None) -> Tower:
        return networks.encoder_tower(encoder, str(folder.model_path(name)), head)

    if generator := _load(folder, "generator", MaskedLM):
        towers["generator"] = tower("generator", generator.encoder, generator.head)
    if detector := _load(folder, "discriminator", ReplacedTokenDetector):
        asked = detector.objective
        if not isinstance(asked, ReplacedTokenDetection):
            raise ValueError(
                f"{folder.model_path('discriminator')} was trained with the objective "
                f"{type(asked).__name__}, whose head no other format has."
            )
        towers["discriminator"] = tower("discriminator", detector.encoder, asked.head)
    elif encoder := _load(folder, "encoder", TextEncoder):
        alone = tower("encoder", encoder)
        # Of masked LM alone, encoder.keras is the encoder of generator.keras.
        if not _same(alone, towers.get("generator")):
            towers["discriminator"] = alone
    return towers


def _same(tower: Tower, other: Tower | None) -> bool:
    if other is None or tower.sizes != other.sizes:
        return False
    return all(np.array_equal(x, other.encoder[n]) for n, x in tower.encoder.items())


def _load(folder: PretrainingFolder, name: str, kind: type[Model]) -> Model | None:
    if not folder.has_model(name):
        return None
    return folder.load(name, kind, "Give the folder of a pretraining run.")


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes what a finished run leaves, without its checkpoints and curves."""
    if model.task:
        return task_heads.write(folder, model)
    home = PretrainingFolder(folder)
    home.save(networks.models(model), halves=model.float16)
    home.describe(_config(model), model.vocabulary)
    return ()


def _config(model: Imported) -> dict[str, Any]:
    """What fine-tuning and pretraining read: flags by the names of a run's."""
    sizes, run = model.main.sizes, model.run
    casing = {"lower_case": model.lower_case, "strip_accents": model.strip_accents}
    flags = {**vars(sizes), **casing, "max_seq_length": model.trained_length}
    # There is no flag for the number of segments.
    del flags["num_segments"]
    # A generator alone may have been half of ELECTRA: only a run's own word tells.
    if model.discriminator:
        flags["objective"] = "electra"
    if len(model.towers) == 2:
        small = model.generator.sizes
        flags["generator_hidden_size"] = small.hidden_size / sizes.hidden_size
        flags["generator_layers"] = small.num_layers / sizes.num_layers
    packages, sha256 = ("tensorflow", "keras", "numpy"), model.vocabulary.sha256
    return {
        "config": {**run.get("config", {}), **flags},
        "imported": {
            "format": model.format,
            "source": model.source,
            "not_taken": list(model.not_taken),
            "towers": {name: str(tower.sizes) for name, tower in model.towers.items()},
        },
        "data": {**run.get("data", {}), **casing, "vocabulary_sha256": sha256},
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }

"""Folders of this library, from pretraining runs and ``convert``."""

from pathlib import Path
from typing import Any

import keras
import numpy as np

from electra_tf import files
from electra_tf.errors import UserError
from electra_tf.folders.cards import facts_of, with_model
from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.folders.models import HALVES, KERAS, Model, versions
from electra_tf.folders.pretraining import (
    CARD,
    CONFIG,
    MODELS,
    RECIPE,
    VOCABULARY,
    PretrainingFolder,
    named,
    recommended,
)
from electra_tf.interop import networks, task_heads
from electra_tf.interop.networks import Imported, Source, Tower
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import (
    Discriminator,
    MaskedLM,
    ReplacedTokenDetection,
    ReplacedTokenDetector,
)

NAME = "electra_tf"
OUTPUTS = (
    *(f"{name}{suffix}" for name in MODELS for suffix in (KERAS, HALVES)),
    *(VOCABULARY, CONFIG, RECIPE, CARD),
    *task_heads.OUTPUTS,
)


def detect(source: Source) -> bool:
    """Returns True for a folder with models of this library."""
    return _is_pretrained(source) or FinetuningFolder(Path(source.path)).has_model


def _is_pretrained(source: Source) -> bool:
    return any(map(PretrainingFolder(named(source.path)).has_model, MODELS))


def read(source: Source) -> Imported:
    """Reads the saved models, vocab.txt, config.json and the model card."""
    source.reject("generator", "num_heads", "pair")
    if not _is_pretrained(source):
        return task_heads.read(source)
    folder = PretrainingFolder(named(source.path))
    return Imported(
        format=NAME,
        source=source.path,
        **source.selected(_towers(folder, source)),
        vocabulary=folder.vocabulary(),
        **folder.casing,
        trained_length=folder.trained_length,
        run=folder.settings,
        facts=facts_of(folder.path / CARD),
        # Of the encoder that fine-tuning starts from.
        recipe={} if source.only == "generator" else recommended(folder.path),
    )


def _towers(folder: PretrainingFolder, source: Source) -> dict[str, Tower]:
    towers: dict[str, Tower] = {}
    is_read = source.only != "discriminator"
    generator = _load(folder, "generator", keras.Model) if is_read else None
    if isinstance(generator, MaskedLM):
        where = f"{source.path}: generator.keras"
        tower = networks.encoder_tower(generator.encoder, where, generator.head)
        towers["generator"] = tower
    elif generator:
        raise _unknown(source, "generator", generator)
    if source.only == "generator":
        return towers
    detector = _load(folder, "discriminator", Discriminator)
    objective = detector and detector.objective
    # Electric has this objective, too, but its outputs are energies.
    detects = isinstance(detector, ReplacedTokenDetector)
    if detects and isinstance(objective, ReplacedTokenDetection):
        where = f"{source.path}: discriminator.keras"
        tower = networks.encoder_tower(detector.encoder, where, objective.head)
        towers["discriminator"] = tower
    elif detector and source.only is None:
        raise _unknown(source, "discriminator", objective)
    elif encoder := _load(folder, "encoder", TextEncoder):
        tower = networks.encoder_tower(encoder, f"{source.path}: encoder.keras")
        other, arrays = towers.get("generator"), tower.encoder.items()
        # After masked LM alone, encoder.keras is the encoder of generator.keras.
        if not (
            other
            and tower.sizes == other.sizes
            and all(np.array_equal(x, other.encoder[name]) for name, x in arrays)
        ):
            towers["discriminator"] = tower
    return towers


def _unknown(source: Source, name: str, part: Any) -> UserError:
    return UserError(
        f"{source.path}: {name}.keras was trained with {type(part).__name__}, which "
        "other formats lack: pass --only=discriminator for the discriminator's encoder."
    )


def _load(folder: PretrainingFolder, name: str, kind: type[Model]) -> Model | None:
    hint = "Give the folder of a pretraining run."
    return folder.load(name, kind, hint) if folder.has_model(name) else None


def write(folder: Path, model: Imported) -> tuple[str, ...]:
    """Writes the folder of a finished run, without checkpoints and curves."""
    if model.task:
        return task_heads.write(folder, model)
    home = PretrainingFolder(folder)
    home.save(networks.models(model), halves=model.float16)
    home.describe(_config(model), model.vocabulary)
    if model.recipe:
        files.write_json(folder / RECIPE, model.recipe)
    if model.facts:
        facts = with_model(model.facts, networks.about(model))
        files.write_text(folder / CARD, f"# Encoder, by ELECTRA\n\n{facts}\n")
    return ()


def _config(model: Imported) -> dict[str, Any]:
    sizes, run, sha256 = model.main.sizes, model.run, model.vocabulary.sha256
    casing = {"lower_case": model.lower_case, "strip_accents": model.strip_accents}
    flags = {**vars(sizes), **casing, "max_seq_length": model.trained_length}
    # There is no flag for the number of segments.
    del flags["num_segments"]
    # The objective of a lone generator is unknown: ELECTRA or masked LM.
    if model.discriminator and model.discriminator.head:
        flags["objective"] = "electra"
    if len(model.towers) == 2:
        small = model.generator.sizes
        flags["generator_hidden_size"] = small.hidden_size / sizes.hidden_size
        flags["generator_layers"] = small.num_layers / sizes.num_layers
    return {
        "config": {**run.get("config", {}), **flags},
        "imported": {
            "format": model.format,
            "source": model.source,
            "not_taken": list(model.not_taken),
            "towers": {name: str(tower.sizes) for name, tower in model.towers.items()},
        },
        "data": {**run.get("data", {}), **casing, "vocabulary_sha256": sha256},
        "versions": versions(),
    }

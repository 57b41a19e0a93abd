"""Folders of this library, from pretraining runs and ``convert``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.errors import UserError
from electra_tf.folders.models import HALVES, KERAS, Model, versions
from electra_tf.folders.pretraining import (
    CHECKPOINTS,
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
    Discriminator,
    MaskedLM,
    ReplacedTokenDetection,
    ReplacedTokenDetector,
)
from electra_tf.pretraining.phases import learned_weights
from electra_tf.systems import build, costs
from electra_tf.training.checkpoints import (
    checkpoints_in,
    load_weights,
    named_variables,
)

NAME = "electra_tf"
OUTPUTS = (
    *(f"{name}{suffix}" for name in MODELS for suffix in (KERAS, HALVES)),
    *(VOCABULARY, CONFIG),
    *task_heads.OUTPUTS,
)


def detect(source: Source) -> bool:
    """Whether the source is a folder with models of this library."""
    if source.checkpoint is not None:
        return True
    return _is_pretrained(source) or task_heads.is_task_folder(Path(source.path))


def _is_pretrained(source: Source) -> bool:
    return any(map(PretrainingFolder(named(source.path)).has_model, MODELS))


def read(source: Source) -> Imported:
    """Reads the saved models, vocab.txt, config.json and the last held-out scores."""
    step = source.checkpoint
    if step is None and not _is_pretrained(source):
        return task_heads.read(source)
    source.reject("generator", "num_heads", "generator_num_heads", "pair")
    folder = PretrainingFolder(named(source.path))
    if step is None:
        towers = _towers(folder, source.only)
    else:
        with tempfile.TemporaryDirectory() as place:
            ended = _at_checkpoint(folder, step, Path(place))
            owner = f"{folder.path} at step {step:,}: "
            towers = _towers(ended, source.only, owner)
    casing = folder.casing
    return Imported(
        format=NAME,
        source=source.path,
        **source.selected(towers),
        vocabulary=folder.vocabulary(),
        lower_case=casing.get("lower_case"),
        strip_accents=casing.get("strip_accents"),
        trained_length=folder.flags.get("max_seq_length"),
        run=folder.settings,
        scores=folder.held_out(last_step=step),
        notes=() if step is None else (f"weights after step {step:,}",),
    )


def _at_checkpoint(
    folder: PretrainingFolder, step: int, place: Path
) -> PretrainingFolder:
    """Saves the models of a checkpoint to another folder, as a finished run does."""
    checkpoints = checkpoints_in(folder.path / CHECKPOINTS)
    if step not in checkpoints:
        steps = ", ".join(f"{step:,}" for step in checkpoints) or "none"
        raise UserError(
            f"--checkpoint={step}: the steps in {folder.path / CHECKPOINTS} are "
            f"{steps}. A run keeps the last --keep_checkpoints."
        )
    vocabulary = folder.vocabulary()
    if vocabulary is None or not folder.flags:
        raise UserError(
            f"--checkpoint={step} needs {CONFIG} and {VOCABULARY} of the run, and "
            f"{folder.path} does not have both."
        )
    try:
        config = fields.from_flat(folder.flags, PretrainConfig)
        costs.check_fits(config, len(vocabulary))
        special_ids = build.special_ids(vocabulary)
        model = build.build_model(config, len(vocabulary), special_ids)
    except ValueError as error:
        raise UserError(f"{folder.path / CONFIG}: {error}") from error
    own = {id(variable) for variable in learned_weights(model)}
    learned = {n: v for n, v in named_variables(model).items() if id(v) in own}
    lacking = load_weights(checkpoints[step], learned).missing
    if lacking:
        raise UserError(
            f"{checkpoints[step]} lacks {', '.join(lacking[:3])} of the model of "
            "config.json: it belongs to another run, or to a first stage without a "
            "discriminator."
        )
    ended = PretrainingFolder(place)
    # Saved models own their tables; restored networks may share them.
    ended.save(model.artifacts())
    return ended


def _towers(
    folder: PretrainingFolder, only: str | None, owner: str = ""
) -> dict[str, Tower]:
    """Returns the networks of a folder; errors name their files, after ``owner``."""
    towers: dict[str, Tower] = {}

    def file(name: str) -> str:
        path = folder.model_path(name)
        return f"{owner}{path.name}" if owner else str(path)

    def tower(name: str, encoder: TextEncoder, head: Any = None) -> Tower:
        return networks.encoder_tower(encoder, file(name), head)

    def unknown(name: str, part: Any) -> ValueError:
        return UserError(
            f"{file(name)} was trained with {type(part).__name__}, which other formats "
            "lack: pass --only=discriminator for the discriminator's encoder."
        )

    generator = _load(folder, "generator", keras.Model)
    if isinstance(generator, MaskedLM):
        towers["generator"] = tower("generator", generator.encoder, generator.head)
    elif generator and only != "discriminator":
        raise unknown("generator", generator)
    detector = _load(folder, "discriminator", Discriminator)
    objective = detector and detector.objective
    # Electric has this objective, too, but its outputs are energies.
    detects = isinstance(detector, ReplacedTokenDetector)
    if detects and isinstance(objective, ReplacedTokenDetection):
        head = objective.head
        towers["discriminator"] = tower("discriminator", detector.encoder, head)
    elif detector and only != "discriminator":
        raise unknown("discriminator", objective)
    elif encoder := _load(folder, "encoder", TextEncoder):
        alone = tower("encoder", encoder)
        # After masked LM alone, encoder.keras is the encoder of generator.keras.
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
    """Writes the folder of a finished run, without checkpoints and curves."""
    if model.task:
        return task_heads.write(folder, model)
    home = PretrainingFolder(folder)
    home.save(networks.models(model), halves=model.float16)
    home.describe(_config(model), model.vocabulary)
    return ()


def _config(model: Imported) -> dict[str, Any]:
    sizes, run, sha256 = model.main.sizes, model.run, model.vocabulary.sha256
    casing = {"lower_case": model.lower_case, "strip_accents": model.strip_accents}
    flags = {**vars(sizes), **casing, "max_seq_length": model.trained_length}
    # There is no flag for the number of segments.
    del flags["num_segments"]
    # The objective of a lone generator is unknown: ELECTRA or masked LM.
    if model.discriminator:
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

"""Text models as presets in keras-hub's layout.

keras_hub loads the backbone and the tokenizer. It has no task classes for ELECTRA, so
only this library reads task.json, task.weights.h5 and preprocessor.json.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras

from electra_tf import files
from electra_tf.cli import reason
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders import models
from electra_tf.interop import keras_hub, networks
from electra_tf.interop.networks import Imported, Source
from electra_tf.tasks.heads import TaskModel

TASK, PREPROCESSOR, HEAD = "task.json", "preprocessor.json", "task.weights.h5"
# Arguments of a text model that preprocessor.json holds.
_TEXT = ("lower_case", "strip_accents", "max_seq_length")


def task_class(folder: str | os.PathLike) -> str:
    """Returns the class of a preset's task, or "" for other folders."""
    if not (Path(folder) / PREPROCESSOR).is_file():
        return ""
    task = files.read_json(Path(folder) / TASK, {})
    is_ours = str(task.get("registered_name", "")).startswith("electra_tf>")
    return str(task.get("class_name", "")) if is_ours else ""


def save(model: TaskModel, tokenizer: WordPiece, folder: Path) -> None:
    """Writes a model to a new folder, atomically."""
    if folder.exists():
        raise UserError(f"{folder} exists already: give a new folder.")
    backbone = Imported(
        format="electra_tf",
        source="the model",
        discriminator=networks.encoder_tower(model.encoder, "the model"),
        vocabulary=tokenizer.vocabulary,
        lower_case=tokenizer.lower_case,
        strip_accents=tokenizer.strip_accents,
    )
    task = keras.saving.serialize_keras_object(model)
    task.pop("compile_config", None)
    del task["config"]["vocabulary"]
    text = {name: task["config"].pop(name) for name in _TEXT}
    preprocessor = {"registered_name": "electra_tf>Preprocessor", "config": text}
    with files.replacing(folder) as part:
        part.mkdir()
        keras_hub.write(part, backbone)
        files.write_json(part / TASK, task)
        files.write_json(part / PREPROCESSOR, preprocessor)
        keras.saving.save_weights(
            model, part / HEAD, objects_to_skip=_not_of_the_head(model)
        )


def load(folder: Path) -> Any:
    """Loads the uncompiled model that ``save`` wrote; ValueError if it is damaged."""
    task = files.read_json(folder / TASK)
    try:
        vocabulary = Vocabulary.load(folder / keras_hub.VOCABULARY)
        task["config"] |= files.read_json(folder / PREPROCESSOR)["config"]
        task["config"]["vocabulary"] = list(vocabulary.tokens)
        task.pop("compile_config", None)
        models.check_class(task, TaskModel)
        model = keras.saving.deserialize_keras_object(task)
        table = model.encoder.embeddings
        if len(vocabulary) != table.vocab_size:
            raise UserError(
                f"{keras_hub.VOCABULARY} has {len(vocabulary)} tokens, and the encoder "
                f"{table.vocab_size}"
            )
        if not 0 < model.max_seq_length <= table.max_positions:
            raise UserError(
                f"{PREPROCESSOR} has the max_seq_length {model.max_seq_length}, and "
                f"the encoder {table.max_positions} positions"
            )
        backbone = keras_hub.read(Source(str(folder))).discriminator
        networks.assign(networks.encoder_variables(model.encoder), backbone.encoder)
        keras.saving.load_weights(
            model, folder / HEAD, objects_to_skip=_not_of_the_head(model)
        )
    except Exception as error:  # Keras raises errors of any type.
        message = reason(error)[:300]
        raise UserError(f"{folder} cannot be loaded as a preset: {message}") from error
    return model


def _not_of_the_head(model: TaskModel) -> list[Any]:
    return [*model.encoder._flatten_layers(), getattr(model, "optimizer", None)]

"""Encoders by folder or name, also of other libraries, and presets of text models.

A preset has keras-hub's layout. keras-hub has no task classes for ELECTRA, so only this
library reads task.json, task.weights.h5 and preprocessor.json.
"""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from electra_tf import files
from electra_tf.cli import reason
from electra_tf.config import fields
from electra_tf.config.commands import ConvertConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders import models
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.folders.settings import TASK
from electra_tf.interop import convert, keras_hub, networks
from electra_tf.interop.networks import Imported, Source
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import finetuning
from electra_tf.tasks.heads import TaskModel, fresh_copy

PREPROCESSOR = "preprocessor.json"
_PREPROCESSOR_NAME = "electra_tf>Preprocessor"
# Arguments of a text model that preprocessor.json holds.
_TEXT = ("lower_case", "strip_accents", "max_seq_length")


def task_class(folder: str | os.PathLike) -> str:
    """Returns the class of a preset's task, or "" for other folders."""
    about = files.read_json(Path(folder) / PREPROCESSOR, {})
    if about.get("registered_name") != _PREPROCESSOR_NAME:
        return ""
    return str(files.read_json(Path(folder) / TASK, {}).get("class_name", ""))


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
    preprocessor = {"registered_name": _PREPROCESSOR_NAME, "config": text}
    with files.replacing(folder) as part:
        part.mkdir()
        keras_hub.write(part, backbone)
        files.write_json(part / TASK, task)
        files.write_json(part / PREPROCESSOR, preprocessor)
        keras.saving.save_weights(
            model, part / keras_hub.HEAD, objects_to_skip=_not_of_the_head(model)
        )


def load(folder: Path) -> Any:
    """Loads and compiles what ``save`` wrote; raises ValueError if it is damaged."""
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
        backbone = keras_hub.read(Source(str(folder))).discriminator
        networks.assign(networks.encoder_variables(model.encoder), backbone.encoder)
        keras.saving.load_weights(
            model, folder / keras_hub.HEAD, objects_to_skip=_not_of_the_head(model)
        )
    except Exception as error:  # Keras raises errors of any type.
        message = reason(error)[:300]
        raise UserError(f"{folder} cannot be loaded as a preset: {message}") from error
    model.compile_default()
    return model


def _not_of_the_head(model: TaskModel) -> list[Any]:
    return [*model.encoder._flatten_layers(), getattr(model, "optimizer", None)]


def _warn(line: str) -> None:
    if line.startswith("warning: "):
        warnings.warn(line.removeprefix("warning: "), stacklevel=2)


@contextlib.contextmanager
def folder_of(source: str | os.PathLike) -> Iterator[Path]:
    """Yields ``source``, or a temporary conversion to this library's format."""
    path = named(source)
    if path.suffix == models.KERAS and not path.is_file():
        raise FileNotFoundError(f"No model at {path}.")
    is_run = (path / TASK).is_file() and not task_class(path)
    if path.is_file() or is_run or PretrainingFolder(path).has_model("encoder"):
        yield path
        return
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "converted"
        options = ConvertConfig(source=str(source), to=str(target))
        convert.main(options, log=lambda line: _warn(line.strip()))
        yield target


def encoder_and_tokenizer(
    source: str | os.PathLike, **options: Any
) -> tuple[TextEncoder, WordPiece, int]:
    """Returns the encoder, its tokenizer and the number of trained positions.

    ``options`` are flags of fine-tuning. Keras's mixed policy is the default precision.
    """
    known = ("dropout", "attention_dropout", "mixed_precision")
    if wrong := sorted(options.keys() - set(known)):
        raise UserError(
            f"Unknown option {wrong[0]!r}; known are {', '.join(known)} and, of new "
            "heads, learning_rate, layerwise_decay, adam_bias_correction, head_init."
        )
    with folder_of(source) as folder:
        flags = {"encoder": str(folder), **options}
        start = finetuning.pretrained(fields.from_flat(flags, FinetuneConfig), _warn)
    encoder, policy = start.encoder, keras.config.dtype_policy().name
    if "mixed_precision" not in options and policy.startswith("mixed_"):
        encoder = fresh_copy(encoder, policy)
        encoder.set_weights(start.encoder.get_weights())
    most = encoder.embeddings.max_positions
    return encoder, start.tokenizer, min(start.trained_length or most, most)

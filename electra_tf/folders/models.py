"""Saved Keras models: there whole or not at all, and of the class one asked for."""

from __future__ import annotations

import importlib.metadata
import zipfile
from pathlib import Path
from typing import TypeVar

import keras

from electra_tf import files
from electra_tf.cli import reason
from electra_tf.tasks.heads import TaskModel

# How to know a Hugging Face folder: its tensors, or the list of the files that hold
# them; the first one that is there is read.
HUGGING_FACE_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

Model = TypeVar("Model", bound=keras.Model)


def save(model: keras.Model, path: Path) -> None:
    """Writes a `.keras` file; a process that dies leaves the one that was there."""
    with files.replacing(path) as part:
        model.save(part)


def load(path: Path, kind: type[Model], hint: str = "") -> Model:
    """Loads a saved Keras model, not compiled, and insists on its class.

    ValueError if the file is damaged or holds another class; ``hint`` ends the message
    and says what to give instead.
    """
    try:
        # Keras says of what is none that there is no such file.
        with zipfile.ZipFile(path):
            loaded = keras.saving.load_model(path, compile=False)
    except Exception as error:  # Keras raises whatever its parts raise.
        said = reason(error)[:300]
        raise ValueError(
            f"{path} cannot be loaded as a Keras model ({said}). {hint}".rstrip()
        ) from error
    if isinstance(loaded, kind):
        return loaded
    if isinstance(loaded, TaskModel):
        hint = f"It is fine-tuned already; start from the pretrained encoder. {hint}"
    kinds = f"holds a {type(loaded).__name__}, not a {kind.__name__}"
    raise ValueError(f"{path} {kinds}. {hint}".rstrip())


def versions(*more: str) -> dict[str, str]:
    """Versions of the packages that a model depends on, for config.json."""
    packages = ("tensorflow", "keras", *more, "numpy")
    return {name: importlib.metadata.version(name) for name in packages}

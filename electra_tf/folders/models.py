"""Saved Keras models: there whole or not at all, and of the class one asked for."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import TypeVar

import keras
import numpy as np
import safetensors.numpy

from electra_tf import files
from electra_tf.tasks.heads import TaskModel

# How to know a Hugging Face folder: its tensors, or the list of the files that hold
# them; the first one that is there is read.
HUGGING_FACE_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

# What a model is saved as: Keras's own, or float16 weights beside Keras's description.
KERAS, HALVES = ".keras", ".safetensors"

Model = TypeVar("Model", bound=keras.Model)


def save(model: keras.Model, path: Path) -> None:
    """Writes a `.keras` file, or a `.safetensors` file of half the size.

    A process that dies leaves the one that was there. ValueError: a weight is beyond
    what 16 bits hold.
    """
    with files.replacing(path) as part:
        if path.suffix == HALVES:
            _save_halves(model, part)
        else:
            model.save(part)


def _save_halves(model: keras.Model, path: Path) -> None:
    tensors = {}
    for number, variable in enumerate(model.weights):
        value = np.asarray(variable)
        if np.abs(value).max(initial=0) > np.finfo(np.float16).max:
            raise ValueError(f"{variable.path} has values that float16 cannot hold.")
        # The order is that of the weights, whatever they are called.
        tensors[f"{number:04}/{variable.path}"] = value.astype(np.float16)
    description = json.dumps(keras.saving.serialize_keras_object(model))
    metadata = {"description": description}
    safetensors.numpy.save_file(tensors, path, metadata)


def _load_halves(path: Path) -> keras.Model:
    with safetensors.safe_open(path, "numpy") as file:
        description = json.loads(file.metadata()["description"])
        tensors = [file.get_tensor(name) for name in sorted(file.keys())]
    model = keras.saving.deserialize_keras_object(description)
    model.set_weights([tensor.astype(np.float32) for tensor in tensors])
    return model


def load(path: Path, kind: type[Model], hint: str = "") -> Model:
    """Loads a saved Keras model, not compiled, and insists on its class.

    Of a network in ``.safetensors`` the encoder may be asked for.

    ValueError if the file is damaged or holds another class; ``hint`` ends the message
    and says what to give instead.
    """
    try:
        if path.suffix == HALVES:
            loaded = _load_halves(path)
        else:
            loaded = keras.saving.load_model(path, compile=False)
    except Exception as error:  # Keras raises whatever its parts raise.
        raise ValueError(
            f"{path} cannot be loaded as a Keras model ({error}). {hint}".rstrip()
        ) from error
    if isinstance(loaded, kind):
        return loaded
    part = getattr(loaded, "encoder", None)
    if path.suffix == HALVES and isinstance(part, kind):
        return part
    if isinstance(loaded, TaskModel):
        hint = f"It is fine-tuned already; start from the pretrained encoder. {hint}"
    kinds = f"holds a {type(loaded).__name__}, not a {kind.__name__}"
    raise ValueError(f"{path} {kinds}. {hint}".rstrip())


def versions(*more: str) -> dict[str, str]:
    """Versions of the packages that a model depends on, for config.json."""
    packages = ("tensorflow", "keras", *more, "numpy")
    return {name: importlib.metadata.version(name) for name in packages}

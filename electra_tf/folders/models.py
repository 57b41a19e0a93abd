"""Saved Keras models: there whole or not at all, and of the class one asked for."""

from __future__ import annotations

import importlib.metadata
import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np
import safetensors.numpy

from electra_tf import files
from electra_tf.cli import reason
from electra_tf.errors import UserError
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
# Keras compresses nothing, and weights hardly can be.
_MOST_UNPACKED = 100
# Arguments of layers: each row's product is a number of weights.
_SIZES = (
    ("num_layers", "hidden_size", "intermediate_size"),
    ("hidden_size", "hidden_size"),
    ("vocab_size", "size"),
    ("max_positions", "size"),
)

Model = TypeVar("Model", bound=keras.Model)


def save(model: keras.Model, path: Path) -> None:
    """Writes a `.keras` file, or a `.safetensors` file of half the size.

    A process that dies leaves the one that was there. ValueError: a weight is beyond
    what 16 bits hold, or the clock says a year that the archive cannot hold.
    """
    try:
        with files.replacing(path) as part:
            if path.suffix == HALVES:
                _save_halves(model, part)
            else:
                model.save(part)
    except ValueError as error:
        raise UserError(f"{path} cannot be written: {error}") from error


def _save_halves(model: keras.Model, path: Path) -> None:
    tensors = {}
    for number, variable in enumerate(model.weights):
        value = np.asarray(variable)
        if np.abs(value).max(initial=0) > np.finfo(np.float16).max:
            raise UserError(f"{variable.path} has values that float16 cannot hold.")
        # The order is that of the weights, whatever they are called.
        tensors[f"{number:04}/{variable.path}"] = value.astype(np.float16)
    description = json.dumps(keras.saving.serialize_keras_object(model))
    metadata = {"description": description}
    safetensors.numpy.save_file(tensors, path, metadata)


def _load_halves(path: Path) -> keras.Model:
    with safetensors.safe_open(path, "numpy") as file:
        said = (file.metadata() or {}).get("description", "")
        description = files.parse_json(said, "its description", dict)
        _check_sizes(description, path.stat().st_size)
        tensors = [file.get_tensor(name) for name in sorted(file.keys())]
    model = keras.saving.deserialize_keras_object(description)
    model.set_weights([tensor.astype(np.float32) for tensor in tensors])
    return model


def check_archive(path: Path) -> None:
    """Refuses a `.keras` file that would take memory or time before Keras fails.

    That unpacks to far more than it is, that names places outside of itself, or whose
    sizes ask for more weights than it holds. Raises ValueError or zipfile.BadZipFile
    (Keras says of what is no archive that there is no such file).
    """
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.startswith("/") or ".." in name.split("/"):
                raise UserError(f"it names {name!r}, a place outside of it")
        held = sum(info.file_size for info in archive.infolist())
        if held > _MOST_UNPACKED * path.stat().st_size:
            raise UserError(f"it would unpack to {held} bytes")
        said = archive.read("config.json").decode("utf-8")
    _check_sizes(files.parse_json(said, "its config.json", dict), held)


def _check_sizes(description: dict[str, Any], held: int) -> None:
    """Refuses a description of layers with more weights than ``held`` bytes can be."""
    for part in _objects(description):
        for names in _SIZES:
            sizes = [part[n] for n in names if files.fits(part.get(n), int)]
            # A weight has two bytes at least.
            if sizes and 2 * math.prod(map(abs, sizes)) > held:
                what = dict(zip(names, sizes, strict=False))
                raise UserError(f"it is too small for the sizes that it names, {what}")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a JSON value."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


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
            check_archive(path)
            loaded = keras.saving.load_model(path, compile=False)
    except Exception as error:  # Keras raises whatever its parts raise.
        said = reason(error)[:300]
        raise UserError(
            f"{path} cannot be loaded as a Keras model ({said}). {hint}".rstrip()
        ) from error
    if isinstance(loaded, kind):
        return loaded
    part = getattr(loaded, "encoder", None)
    if path.suffix == HALVES and isinstance(part, kind):
        return part
    if isinstance(loaded, TaskModel):
        hint = f"It is fine-tuned already; start from the pretrained encoder. {hint}"
    kinds = f"holds a {type(loaded).__name__}, not a {kind.__name__}"
    raise UserError(f"{path} {kinds}. {hint}".rstrip())


def versions(*more: str) -> dict[str, str]:
    """Versions of the packages that a model depends on, for config.json."""
    packages = ("tensorflow", "keras", *more, "numpy")
    return {name: importlib.metadata.version(name) for name in packages}

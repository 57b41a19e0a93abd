"""Saved Keras models: there whole or not at all, and of the class one asked for."""

from __future__ import annotations

import importlib.metadata
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

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
    """Writes a `.keras` file; a process that dies leaves the one that was there."""
    with files.replacing(path) as part:
        model.save(part)


def check_archive(path: Path) -> None:
    """Refuses a `.keras` file that would take memory or time before Keras fails.

    That unpacks to far more than it is, that names places outside of itself, or whose
    sizes ask for more weights than it holds. Raises ValueError or zipfile.BadZipFile
    (Keras says of what is no archive that there is no such file).
    """
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"it names {name!r}, a place outside of it")
        held = sum(info.file_size for info in archive.infolist())
        if held > _MOST_UNPACKED * path.stat().st_size:
            raise ValueError(f"it would unpack to {held} bytes")
        said = archive.read("config.json").decode("utf-8")
    for part in _objects(files.parse_json(said, "its config.json", dict)):
        for names in _SIZES:
            sizes = [part[n] for n in names if files.fits(part.get(n), int)]
            # A weight has two bytes at least.
            if sizes and 2 * math.prod(map(abs, sizes)) > held:
                what = dict(zip(names, sizes, strict=False))
                raise ValueError(f"it is too small for the sizes that it names, {what}")


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

    ValueError if the file is damaged or holds another class; ``hint`` ends the message
    and says what to give instead.
    """
    try:
        check_archive(path)
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

"""Saved Keras models: atomic writes, and reads that check size and class first."""

import collections
import functools
import importlib
import importlib.metadata
import json
import re
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np
import safetensors.numpy

from electra_tf import files
from electra_tf.errors import UserError, explained, reason
from electra_tf.tasks.heads import TaskModel

# Hugging Face weights; the first file that exists is read.
HUGGING_FACE_FILES = ("model.safetensors", "pytorch_model.bin")

# Keras's format, or float16 weights with Keras's config of the model.
KERAS, HALVES = ".keras", ".safetensors"
# Maximum compression ratios; float32 weights are hardly compressible.
_MOST_UNPACKED, _MOST_WEIGHTS_UNPACKED = 100, 4
# Sizes in configs; a layer has at least as many weights as each.
_SIZES = (
    *("vocab_size", "max_positions", "num_segments", "size", "num_layers"),
    *("hidden_size", "intermediate_size", "num_outputs", "dense_size", "num_states"),
)
_BYTES_OF_A_BLOCK = 256
_PACKAGE = "electra_tf>"

Model = TypeVar("Model", bound=keras.Model)


def save(model: keras.Model, path: Path) -> None:
    """Writes a `.keras` or a float16 `.safetensors` file, atomically."""
    with explained(f"{path} cannot be written"), files.replacing(path) as part:
        if path.suffix == HALVES:
            _save_halves(model, part)
        else:
            model.save(part)


@functools.cache
def _register_classes() -> None:
    """Registers all classes of the library, for a file with an unregistered one.

    Not on import: fine-tuning does not import pretraining.
    """
    for name in ("layers", "pretraining", "tasks", "training"):
        package = importlib.import_module(f"electra_tf.{name}")
        for public in package.__all__:
            getattr(package, public)


def to_half(array: np.ndarray, name: str) -> np.ndarray:
    """Converts to float16; raises ValueError if a value is too large."""
    if np.abs(array).max(initial=0) > np.finfo(np.float16).max:
        raise UserError(f"{name} has values that float16 cannot hold.")
    return array.astype(np.float16)


def _save_halves(model: keras.Model, path: Path) -> None:
    tensors = {
        # Numbered, because names do not determine the order.
        f"{number:04}/{variable.path}": to_half(np.asarray(variable), variable.path)
        for number, variable in enumerate(model.weights)
    }
    description = json.dumps(keras.saving.serialize_keras_object(model))
    safetensors.numpy.save_file(tensors, path, {"description": description})


def _load_halves(path: Path) -> keras.Model:
    with safetensors.safe_open(path, "numpy") as file:
        text = (file.metadata() or {}).get("description", "")
        description = files.parse_json(text, "its description", dict)
        check_class(description, keras.Model)
        tensors = [file.get_tensor(name) for name in sorted(file.keys())]
    check_sizes(description, sum(x.nbytes for x in tensors))
    model = keras.saving.deserialize_keras_object(description)
    model.set_weights([tensor.astype(np.float32) for tensor in tensors])
    return model


def _config_of(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked > _MOST_UNPACKED * path.stat().st_size:
            raise UserError(f"it would unpack to {unpacked} bytes")
        text = archive.read("config.json").decode("utf-8")
        weights = archive.getinfo("model.weights.h5").compress_size
    description = files.parse_json(text, "its config.json", dict)
    check_sizes(description, _MOST_WEIGHTS_UNPACKED * weights)
    return description


def check_sizes(description: dict[str, Any], held: int) -> None:
    """Raises UserError if a layer of a config needs more than ``held`` bytes.

    Keras would allocate all weights before it detects that a file lacks them.
    """
    waiting: list[Any] = [description]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            sizes = {n: abs(value[n]) for n in _SIZES if type(value.get(n)) is int}
            if sizes and _fewest_bytes(sizes) > held:
                raise UserError(f"it is too small for the sizes in its config, {sizes}")


def _fewest_bytes(sizes: dict[str, int]) -> int:
    """Returns a lower bound of a layer's bytes; int8 weights have one byte."""
    size = collections.defaultdict(int, sizes)
    hidden, inner = size["hidden_size"], size["intermediate_size"]
    rows = size["vocab_size"] + size["max_positions"] + size["num_segments"]
    block = max(_BYTES_OF_A_BLOCK, hidden * (4 * hidden + 2 * inner))
    outputs = size["num_outputs"] + size["dense_size"]
    parts = (size["size"] * rows, size["num_layers"] * block, hidden * outputs)
    return max(*sizes.values(), *parts)


def check_class(description: dict[str, Any], kind: type[keras.Model]) -> None:
    """Registers the classes of a description; rejects objects that are not a ``kind``.

    Keras itself builds no parts of unregistered classes.
    """
    registered = keras.saving.get_registered_object
    parts = re.findall(rf'"({_PACKAGE}\w+)"', json.dumps(description))
    if None in map(registered, parts):
        _register_classes()
    cls = registered(str(description.get("registered_name")))
    if not (isinstance(cls, type) and issubclass(cls, kind)):
        raise _wrong_class(description.get("class_name"), cls, kind)


def _wrong_class(name: str | None, cls: Any, kind: type[keras.Model]) -> UserError:
    text = f"it holds a {name}, not a {kind.__name__}"
    is_task = isinstance(cls, type) and issubclass(cls, TaskModel)
    if is_task and not issubclass(kind, TaskModel):
        text += "; it is fine-tuned already: start from the pretrained encoder"
    return UserError(text)


def load(
    path: Path, kind: type[Model], hint: str = "", *, compile: bool = False
) -> Model:
    """Loads a saved Keras model of class ``kind``, compiled if ``compile``.

    Checks size and class before building anything. A ``.safetensors`` file of a larger
    network also loads as a ``TextEncoder``. ``hint`` ends the message of errors.
    """
    try:
        if path.suffix != HALVES:
            check_class(_config_of(path), kind)
            return keras.saving.load_model(path, compile=compile)
        loaded = _load_halves(path)
        for model in (loaded, getattr(loaded, "encoder", None)):
            if isinstance(model, kind):
                return model
        raise _wrong_class(type(loaded).__name__, type(loaded), kind)
    except Exception as error:  # Keras raises errors of any type.
        message = reason(error)[:300]
        raise UserError(
            f"{path} cannot be loaded as a {kind.__name__} ({message}). {hint}".rstrip()
        ) from error


def versions(*more: str) -> dict[str, str]:
    """Returns the versions of the packages that a model depends on."""
    packages = ("tensorflow", "keras", *more, "numpy")
    return {name: importlib.metadata.version(name) for name in packages}

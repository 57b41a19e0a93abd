"""Saved Keras models: atomic writes, and reads that check size and class first."""

import collections
import functools
import importlib
import importlib.metadata
import json
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
from electra_tf.layers.serialization import number_shared_objects
from electra_tf.tasks.heads import TaskModel

# Hugging Face weights; the first file that exists is read.
HUGGING_FACE_FILES = ("model.safetensors", "pytorch_model.bin")

# Keras's format, or float16 weights with Keras's config of the model.
KERAS, HALVES = ".keras", ".safetensors"
# Maximum compression ratios; float32 weights are hardly compressible.
_MOST_UNPACKED, _MOST_WEIGHTS_UNPACKED = 100, 4
# Minimum bytes of a weight, and of an HDF5 variable with its header.
_WEIGHT, _HDF5_VARIABLE = 2, 256
_BLOCK_VARIABLES = 12
_PACKAGE = "electra_tf>"

Model = TypeVar("Model", bound=keras.Model)


def save(model: keras.Model, path: Path) -> None:
    """Writes a reproducible `.keras` or a float16 `.safetensors` file, atomically."""
    try:
        with files.replacing(path) as part:
            if path.suffix == HALVES:
                _save_halves(model, part)
            else:
                model.save(part)
                _make_reproducible(part)
    except ValueError as error:
        raise UserError(f"{path} cannot be written: {error}") from error


def _make_reproducible(path: Path) -> None:
    """Removes times and memory addresses from a `.keras` file."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    metadata = json.loads(contents["metadata.json"])
    metadata["date_saved"] = "1980-01-01@00:00:00"
    config = number_shared_objects(json.loads(contents["config.json"]))
    contents["metadata.json"] = json.dumps(metadata)
    contents["config.json"] = json.dumps(config)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            # The default time of a ZipInfo is constant.
            archive.writestr(zipfile.ZipInfo(name), content)


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
    check_sizes(description, sum(x.nbytes for x in tensors), len(tensors))
    model = keras.saving.deserialize_keras_object(description)
    model.set_weights([tensor.astype(np.float32) for tensor in tensors])
    return model


def check_archive(path: Path) -> dict[str, Any]:
    """Returns the config of a `.keras` file.

    Rejects archives that unpack to far more than their size, have paths outside, or
    describe more weights than they hold.
    """
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        for name in members:
            if name.startswith("/") or ".." in name.split("/"):
                raise UserError(f"it has the path {name!r} outside of its folder")
        unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked > _MOST_UNPACKED * path.stat().st_size:
            raise UserError(f"it would unpack to {unpacked} bytes")
        text = archive.read("config.json").decode("utf-8")
    description = files.parse_json(text, "its config.json", dict)
    held = 0
    if weights := members.get("model.weights.h5"):
        held = min(weights.file_size, _MOST_WEIGHTS_UNPACKED * weights.compress_size)
    check_sizes(description, held)
    return description


def check_sizes(
    description: dict[str, Any], held: int, variables: int | None = None
) -> None:
    """Raises UserError if layers need over ``held`` bytes or ``variables`` variables.

    ``variables`` is by default the most that an HDF5 file of this size can hold.
    """
    fewest, blocks = 0, 0
    variables = held // _HDF5_VARIABLE if variables is None else variables
    for config in _configs(description):
        sizes = {n: abs(value) for n, value in config.items() if type(value) is int}
        # int8 weights have half of the bytes.
        fewest += _fewest_weights(sizes) // (2 if config.get("quantization") else 1)
        blocks += sizes.get("num_layers", 0)
        if _WEIGHT * fewest > held or _BLOCK_VARIABLES * blocks > variables:
            raise UserError(f"it is too small for the sizes in its config, {sizes}")


def _fewest_weights(sizes: dict[str, int]) -> int:
    """Returns a lower bound of the weights in a layer with these arguments."""
    size = collections.defaultdict(int, sizes)
    hidden, inner = size["hidden_size"], size["intermediate_size"]
    rows = size["vocab_size"] + size["max_positions"] + size["num_segments"]
    return (
        size["num_layers"] * hidden * (4 * hidden + 2 * inner)
        + size["size"] * rows
        + hidden * (size["num_outputs"] + size["dense_size"])
        + size["num_states"]
    )


def _configs(description: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the config of every object, once if the object is shared."""
    waiting, shared = [description], {}
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            number = value.get("shared_object_id")
            if isinstance(number, int):
                # Keras may build another object with this id.
                if shared.get(number) == value:
                    continue
                shared[number] = value
            if isinstance(value.get("config"), dict):
                yield value["config"]
        waiting += _children(value)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def check_class(description: dict[str, Any], kind: type[keras.Model]) -> None:
    """Rejects objects that are not a ``kind``, or have parts of unknown classes."""
    cls = _registered(description)
    if cls is None or not issubclass(cls, kind):
        raise _wrong_class(description.get("class_name"), cls, kind)
    waiting: list[Any] = [description.get("config")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and {"class_name", "module"} <= value.keys():
            part, name = _registered(value), str(value.get("registered_name"))
            if part is None and not _is_stateless(value):
                raise UserError(
                    f"it has a {value['class_name']}, which is not a registered class"
                )
            if part is not None and not name.startswith(_PACKAGE):
                continue
        waiting += _children(value)


def _registered(description: dict[str, Any]) -> type | None:
    name = str(description.get("registered_name"))
    registered = keras.saving.get_registered_object(name)
    if registered is None and name.startswith(_PACKAGE):
        _register_classes()
        registered = keras.saving.get_registered_object(name)
    return registered if isinstance(registered, type) else None


def _is_stateless(description: dict[str, Any]) -> bool:
    """Returns True if the object is a stateless Keras object, such as a policy."""
    package, _, module = f"{description['module']}.".partition(".")
    is_layer = module.startswith(("layers", "models", "src"))
    is_layer |= description["class_name"] in ("Functional", "Model", "Sequential")
    return package in ("keras", "builtins") and not is_layer


def _wrong_class(
    name: str | None, cls: type | None, kind: type[keras.Model]
) -> UserError:
    text = f"it holds a {name}, not a {kind.__name__}"
    if cls and issubclass(cls, TaskModel) and not issubclass(kind, TaskModel):
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
            check_class(check_archive(path), kind)
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

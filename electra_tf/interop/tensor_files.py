"""Reads the tensors of a Hugging Face folder."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np

from electra_tf import cli, files
from electra_tf.errors import UserError
from electra_tf.folders.models import HUGGING_FACE_FILES

# Variables of LayerNorms in files from before 2020.
_RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
}


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a folder, by name."""
    for name in HUGGING_FACE_FILES:
        if (folder / name).is_file():
            return {
                re.sub(r"LayerNorm\.(gamma|beta)$", lambda m: _RENAMED[m[0]], name): x
                for name, x in _read(folder / name).items()
            }
    raise FileNotFoundError(
        f"{folder} has none of {', '.join(HUGGING_FACE_FILES)}. Weights for "
        "TensorFlow or Flax must be saved by `transformers` as safetensors first."
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix != ".json":
        return (_safetensors if path.suffix == ".safetensors" else _pickled)(path)
    parts = files.read_json(path, shape={"weight_map": dict[str, str]})["weight_map"]
    tensors: dict[str, np.ndarray] = {}
    for part in sorted(set(parts.values())):
        # Rejects files of other folders, and this index itself.
        if Path(part).name != part or Path(part).suffix not in (".safetensors", ".bin"):
            raise UserError(
                f"{path} is damaged: {part!r} is not a weight file of this folder."
            )
        tensors |= _read(path.parent / part)
    return tensors


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    # The NumPy reader of safetensors lacks bfloat16.
    from safetensors import SafetensorError, deserialize

    try:
        tensors = deserialize(path.read_bytes())
    except SafetensorError as error:
        raise UserError(f"{path} is damaged: {error}.") from error
    arrays = {}
    for name, view in tensors:
        dtype = view["dtype"]
        if dtype not in _DTYPES:
            raise UserError(
                f"{path} holds tensors of type {dtype}, such as of quantized weights; "
                f"known are {', '.join(_DTYPES)}."
            )
        array = np.frombuffer(view["data"], _DTYPES[dtype])
        arrays[name] = array.reshape(view["shape"])
    return arrays


def _pickled(path: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path} can be read with PyTorch only: pip install torch, or save the "
            "model as safetensors elsewhere."
        ) from error
    try:
        # Never unpickles code.
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # Unpickling raises many types.
        raise UserError(f"{path} cannot be read: {cli.reason(error)}") from error
    if not isinstance(tensors, dict) or not all(map(torch.is_tensor, tensors.values())):
        raise UserError(
            f"{path} holds more than the tensors of a model, such as the checkpoint of "
            "a training run: save model.state_dict() alone, or call save_pretrained."
        )
    # NumPy has no bfloat16.
    return {
        name: (value.float() if value.is_floating_point() else value).numpy()
        for name, value in tensors.items()
    }

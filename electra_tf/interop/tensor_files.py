"""Reads the tensors of a Hugging Face folder, and gets folders from the hub."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

# File of the tensors, or of a list of files; the first one that is there is read.
FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_SMALL = ("*.json", "vocab.txt")
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_name(path: str) -> bool:
    """Whether it may be a repository on the hub: owner/name, and no local path."""
    return bool(_HUB_NAME.fullmatch(path)) and not Path(path).exists()


def local_folder(path: str) -> Path:
    """The folder itself, or a downloaded copy of a repository on the hub.

    Raises:
        OSError: There is no such folder, and no such repository can be reached.
    """
    if Path(path).is_dir():
        return Path(path)
    if not is_hub_name(path):
        raise FileNotFoundError(f"{path} is neither a folder nor a name on the hub.")
    return _download(path)


def _download(name):
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(name, allow_patterns=[*_SMALL, "*.safetensors"])
        )
        # Both kinds hold the same weights: the second one only without the first.
        if not any(folder.glob("*.safetensors")):
            patterns = [*_SMALL, "pytorch_model*.bin"]
            folder = Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # The client and its transport raise all kinds.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OSError(
            f"{name} is no local folder, and cannot be had from the Hugging Face hub: "
            f"{reason} Download it elsewhere and give its folder."
        ) from error
    return folder


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is not there.

    Raises:
        ValueError: It is there and is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object.")
    return found


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a folder, by name.

    Raises:
        ValueError: A file is damaged, or needs a package that is not installed.
        OSError: There is none.
    """
    for name in FILES:
        if (folder / name).is_file():
            return _read(folder / name)
    raise FileNotFoundError(
        f"{folder} has none of {', '.join(FILES)}. Weights for TensorFlow or Flax must "
        "be saved by `transformers` as safetensors first."
    )


def _read(path):
    if path.suffix != ".json":
        return (_safetensors if path.suffix == ".safetensors" else _pickled)(path)
    parts = read_json(path).get("weight_map")
    if not isinstance(parts, dict):
        raise ValueError(f"{path} is damaged: it has no weight_map of names to files.")
    found = {}
    for part in sorted(set(parts.values())):
        found |= _read(path.parent / part)
    return found


def _safetensors(path):
    from safetensors import SafetensorError, deserialize

    try:
        found = deserialize(path.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}.") from error
    return {
        name: np.frombuffer(view["data"], _dtype(view["dtype"], path)).reshape(
            view["shape"]
        )
        for name, view in found
    }


def _dtype(name, path):
    import ml_dtypes

    known = {
        "F64": np.float64,
        "F32": np.float32,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "I64": np.int64,
        "I32": np.int32,
    }
    if name not in known:
        raise ValueError(
            f"{path} holds tensors of type {name}, such as of quantized weights; known "
            f"are {', '.join(known)}."
        )
    return known[name]


def _pickled(path):
    try:
        import torch
    except ImportError as error:
        raise ValueError(
            f"{path} can be read with PyTorch only: pip install torch, or save the "
            "model as safetensors elsewhere."
        ) from error
    try:
        # Never unpickles code.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # Unpickling raises whatever it runs into.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} cannot be read: {reason}") from error
    if not isinstance(found, dict) or not all(map(torch.is_tensor, found.values())):
        raise ValueError(
            f"{path} holds more than the tensors of a model, such as the checkpoint of "
            "a training run: save model.state_dict() alone, or call save_pretrained."
        )
    return {
        name: (value.float() if value.is_floating_point() else value).numpy()
        for name, value in found.items()
    }

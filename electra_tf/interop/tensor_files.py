"""Downloads Hugging Face folders and reads their tensors."""

import re
from pathlib import Path

import numpy as np

from electra_tf import cli
from electra_tf.errors import UserError
from electra_tf.folders.models import HUGGING_FACE_FILES

# Downloaded besides the weights.
_SMALL = ("*.json", "vocab.txt")
_DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32")
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_name(path: str) -> bool:
    """Returns True if a path may name a hub repository (owner/name)."""
    return bool(_HUB_NAME.fullmatch(path)) and not Path(path).exists()


def local_folder(path: str) -> Path:
    """Returns the folder itself, or a downloaded copy of a hub repository."""
    if Path(path).is_dir():
        return Path(path)
    if not is_hub_name(path):
        raise FileNotFoundError(f"{path} is neither a folder nor a name on the hub.")
    from huggingface_hub import snapshot_download

    try:
        # Downloads pickles only if there are no safetensors.
        for kind in HUGGING_FACE_FILES:
            # Also of the generator's folder in it.
            patterns = [*_SMALL, f"*{kind}"]
            folder = Path(snapshot_download(path, allow_patterns=patterns))
            if (folder / kind).is_file():
                break
    except Exception as error:  # The client raises many types.
        raise OSError(
            f"{path} is not a local folder and cannot be downloaded from the Hugging "
            f"Face hub: {cli.reason(error)} Pass the folder of a copy."
        ) from error
    return folder


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a folder, by name."""
    paths = [folder / name for name in HUGGING_FACE_FILES]
    path = next(filter(Path.is_file, paths), None)
    if path is None:
        raise FileNotFoundError(
            f"{folder} has none of {', '.join(HUGGING_FACE_FILES)}. Weights in several "
            "files, or for TensorFlow or Flax, must be saved by `transformers` as one "
            "safetensors file first."
        )
    read = _safetensors if path.suffix == ".safetensors" else _pickled
    # LayerNorms had other names before 2020.
    return {
        name.replace("Norm.gamma", "Norm.weight").replace("Norm.beta", "Norm.bias"): x
        for name, x in read(path).items()
    }


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
    # NumPy lacks some types.
    except (SafetensorError, AttributeError) as error:
        raise UserError(f"{path} is damaged, or quantized: {error}.") from error
    for name, array in arrays.items():
        if array.dtype.name not in _DTYPES:
            raise UserError(
                f"{path} may be quantized: {name} has the type {array.dtype.name}; "
                f"known are {', '.join(_DTYPES)}."
            )
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
        name: (value.float() if value.is_floating_point() else value).detach().numpy()
        for name, value in tensors.items()
    }

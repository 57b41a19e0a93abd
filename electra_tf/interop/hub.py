"""Downloads folders from the Hugging Face hub and uploads folders to it."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

from electra_tf import cli
from electra_tf.errors import UserError

_SMALL = ("*.json", "vocab.txt")
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_name(path: str) -> bool:
    """Whether a path may be a hub repository: owner/name, not a local path."""
    return bool(_HUB_NAME.fullmatch(path)) and not Path(path).exists()


def local_folder(path: str) -> Path:
    """Returns the folder itself, or a downloaded copy of a hub repository."""
    if Path(path).is_dir():
        return Path(path)
    if not is_hub_name(path):
        raise FileNotFoundError(f"{path} is neither a folder nor a name on the hub.")
    snapshot_download = client(path).snapshot_download
    try:
        # Downloads pickles only if there are no safetensors.
        for kind in ("*.safetensors", "pytorch_model*.bin"):
            folder = Path(snapshot_download(path, allow_patterns=[*_SMALL, kind]))
            if any(folder.glob(kind)):
                break
    except Exception as error:  # The client raises many types.
        raise OSError(
            f"{path} is not a local folder and cannot be downloaded from the Hugging "
            f"Face hub: {cli.reason(error)} Pass the folder of a copy."
        ) from error
    return folder


def client(reason: str) -> ModuleType:
    """Imports huggingface_hub, an optional dependency.

    Raises ValueError, beginning with ``reason``, if it is not installed.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError(
            f"{reason} needs the package huggingface_hub: pip install huggingface_hub."
        ) from error
    return huggingface_hub


def push(folder: Path, name: str, *, private: bool = False) -> str:
    """Uploads a folder as one commit to a model repository; returns its URL.

    Creates the repository if it does not exist, ``private`` or public; keeps its other
    files. The client authenticates with its own token (``HF_TOKEN``, or ``hf auth
    login``). Raises OSError if the hub cannot be reached or refuses.
    """
    api = client(f"--push_to_hub={name}").HfApi(library_name="electra_tf")
    try:
        made = api.create_repo(name, private=private, exist_ok=True)
        message = "Upload by electra_tf"
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except Exception as error:  # The client raises many types.
        raise OSError(
            f"--push_to_hub={name}: cannot upload {folder} to the Hugging Face hub: "
            f"{cli.reason(error)} The folder is written; log in (hf auth login, or "
            "HF_TOKEN) and run `hf upload` with it."
        ) from error
    return str(made)

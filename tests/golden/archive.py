"""Folders in one small file each, which a test cannot change by accident."""

import tarfile
from pathlib import Path

HERE = Path(__file__).parent


def unpack(name, folder):
    """Unpacks NAME.tar.xz; returns the folder."""
    with tarfile.open(HERE / f"{name}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return Path(folder)

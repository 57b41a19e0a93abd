"""File operations for local paths and paths with a scheme, such as ``gs://``.

Paths with a scheme use ``tf.io.gfile``; local paths do not import TensorFlow.
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

from electra_tf import files


def is_remote(path: files.AnyPath) -> bool:
    """Whether a path has a scheme, such as ``gs://``."""
    return "://" in str(path)


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def exists(path: files.AnyPath) -> bool:
    """Whether a file or folder exists."""
    return _gfile().exists(str(path)) if is_remote(path) else os.path.exists(path)


def is_folder(path: files.AnyPath) -> bool:
    """Whether a folder exists."""
    return _gfile().isdir(str(path)) if is_remote(path) else os.path.isdir(path)


def is_file(path: files.AnyPath) -> bool:
    """Whether a file exists."""
    return exists(path) and not is_folder(path)


def matching(pattern: files.AnyPath) -> list[str]:
    """Lists the paths that match a glob pattern, sorted."""
    find = _gfile().glob if is_remote(pattern) else glob.glob
    return sorted(find(str(pattern)))


def inside(folder: files.AnyPath, pattern: str) -> list[str]:
    """Returns sorted paths in a folder that match a pattern; ``folder`` is literal."""
    if is_remote(folder):
        return matching(join(folder, pattern))
    return sorted(str(path) for path in Path(folder).glob(pattern))


def join(folder: files.AnyPath, name: str) -> str:
    """Joins a folder and a name."""
    if is_remote(folder):
        return f"{str(folder).rstrip('/')}/{name}"
    return os.path.join(folder, name)


def parent(path: files.AnyPath) -> str:
    """Returns the folder of a path, or "" for a name without one."""
    return str(path).rpartition("/")[0] if is_remote(path) else os.path.dirname(path)


def size(path: files.AnyPath) -> int:
    """Returns the size of a file in bytes."""
    return _gfile().stat(str(path)).length if is_remote(path) else os.path.getsize(path)


def open_bytes(path: files.AnyPath) -> BinaryIO:
    """Opens a seekable file for reading; raises FileNotFoundError if it is missing."""
    if not is_remote(path):
        return open(path, "rb")
    if not is_file(path):
        raise FileNotFoundError(f"{path} does not exist")
    return io.BufferedReader(_Remote(str(path)), 1 << 20)


def read_bytes(path: files.AnyPath) -> bytes:
    """Reads a whole file."""
    with open_bytes(path) as file:
        return file.read()


def sha256(path: files.AnyPath) -> str:
    """Computes the hex SHA-256 of a file."""
    if not is_remote(path):
        return files.sha256(path)
    with open_bytes(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Remote(io.RawIOBase):
    """A raw Python file on top of ``tf.io.gfile``."""

    def __init__(self, path: str):
        self._file = _gfile().GFile(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def publish(folder: Path, target: str, *, last: str, replaced: str) -> None:
    """Copies the files of a folder to a remote folder, ``last`` as the last file.

    First removes remote files with the same names or that match ``replaced``.
    """
    gfile = _gfile()
    gfile.makedirs(target)
    names = {path.name for path in folder.iterdir() if path.is_file()}
    names = sorted(name for name in names if not name.startswith(".") and name != last)
    copies = [join(target, name) for name in (last, *names)]
    for path in dict.fromkeys((*copies, *inside(target, replaced))):
        if exists(path):
            gfile.remove(path)
    for name in (*names, last):
        gfile.copy(str(folder / name), join(target, name))

"""Local paths and paths with a scheme, such as ``gs://``.

``tf.io.gfile`` reads and writes paths with a scheme, since TFRecord files are read
through the same file systems. Local paths do not import TensorFlow.
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
    """Whether a path has a scheme."""
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
    """Sorted paths that match a glob pattern."""
    find = _gfile().glob if is_remote(pattern) else glob.glob
    return sorted(find(str(pattern)))


def inside(folder: files.AnyPath, pattern: str) -> list[str]:
    """Sorted paths in a folder that match a pattern; the folder's name is literal."""
    if is_remote(folder):
        return matching(join(folder, pattern))
    return sorted(str(path) for path in Path(folder).glob(pattern))


def join(folder: files.AnyPath, name: str) -> str:
    """Joins a folder and a name."""
    if is_remote(folder):
        return f"{str(folder).rstrip('/')}/{name}"
    return os.path.join(folder, name)


def parent(path: files.AnyPath) -> str:
    """The folder of a path; "" for a plain name."""
    return str(path).rpartition("/")[0] if is_remote(path) else os.path.dirname(path)


def size(path: files.AnyPath) -> int:
    """Bytes of a file."""
    return _gfile().stat(str(path)).length if is_remote(path) else os.path.getsize(path)


def open_bytes(path: files.AnyPath) -> BinaryIO:
    """Opens a file for reading; seekable. Raises FileNotFoundError if it is missing."""
    if not is_remote(path):
        return open(path, "rb")
    if not is_file(path):
        raise FileNotFoundError(f"{path} does not exist")
    return io.BufferedReader(_Remote(str(path)), 1 << 20)


def read_bytes(path: files.AnyPath) -> bytes:
    """All bytes of a file."""
    with open_bytes(path) as file:
        return file.read()


def sha256(path: files.AnyPath) -> str:
    """The hex digest of a file's content."""
    if not is_remote(path):
        return files.sha256(path)
    with open_bytes(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Remote(io.RawIOBase):
    """A file of ``tf.io.gfile`` with the interface of Python's files."""

    def __init__(self, path: str):
        self._file = _gfile().GFile(path, "rb")
        self._size = size(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._size}
        self._file.seek(start[whence] + offset)
        return self.tell()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def publish(folder: Path, target: str, *, last: str, replaced: str) -> None:
    """Copies the files of a folder to one with a scheme, the file ``last`` at the end.

    Removes existing files of these names, and those that match ``replaced``, first.
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

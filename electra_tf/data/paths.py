"""File operations for local paths and, with fsspec, paths with a scheme (``gs://``)."""

import contextlib
import functools
import glob
import hashlib
import importlib
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from electra_tf import files
from electra_tf.errors import UserError

# Modules that decompress files, by suffix.
# The module `bz2` ignores all streams after a damaged one.
PACKED = {".gz": "gzip", ".bz2": "pyarrow", ".xz": "lzma", ".zst": "pyarrow"}


def is_remote(path: files.AnyPath) -> bool:
    """Returns True if a path has a scheme, such as ``gs://``."""
    return "://" in str(path)


def identity(path: files.AnyPath) -> str:
    """Returns the same string for all spellings of a path and for links to it."""
    return str(path) if is_remote(path) else os.path.realpath(path)


def is_packed(path: files.AnyPath) -> bool:
    """Returns True if a path ends in a suffix of ``PACKED``, in any case."""
    return str(path).lower().endswith(tuple(PACKED))


def suffix(path: files.AnyPath) -> str:
    """Returns the suffix in lower case; skips a suffix of ``PACKED``."""
    name = PurePath(str(path).lower())
    return name.with_suffix("").suffix if is_packed(path) else name.suffix


def _system(path: files.AnyPath) -> Any:
    import fsspec

    try:
        return fsspec.url_to_fs(str(path))[0]
    except (ImportError, ValueError) as error:
        raise UserError(
            f"{path}: {error}. Install its file system, such as: pip install gcsfs"
        ) from error


def exists(path: files.AnyPath) -> bool:
    """Returns True if a file or folder exists."""
    return _system(path).exists(str(path)) if is_remote(path) else os.path.exists(path)


def is_folder(path: files.AnyPath) -> bool:
    """Returns True if a folder exists."""
    return _system(path).isdir(str(path)) if is_remote(path) else os.path.isdir(path)


def is_file(path: files.AnyPath) -> bool:
    """Returns True if a file exists."""
    return exists(path) and not is_folder(path)


def matching(pattern: files.AnyPath) -> list[str]:
    """Lists the paths that match a glob pattern, sorted."""
    if not is_remote(pattern):
        return sorted(glob.glob(str(pattern), recursive=True))
    system = _system(pattern)
    return sorted(map(system.unstrip_protocol, system.glob(str(pattern))))


def inside(folder: files.AnyPath, pattern: str) -> list[str]:
    """Returns sorted paths in a folder that match a pattern; ``folder`` is literal."""
    if is_remote(folder):
        return matching(os.path.join(folder, pattern))
    return sorted(str(path) for path in Path(folder).glob(pattern))


def size(path: files.AnyPath) -> int:
    """Returns the size of a file in bytes."""
    return _system(path).size(str(path)) if is_remote(path) else os.path.getsize(path)


def open_bytes(path: files.AnyPath) -> BinaryIO:
    """Opens a seekable file for reading; raises FileNotFoundError if it is missing."""
    if not is_remote(path):
        return open(path, "rb")
    # Files of fsspec read lines of any length only.
    return io.BufferedReader(_system(path).open(str(path), "rb"), 1 << 20)


@contextlib.contextmanager
def open_unpacked(path: files.AnyPath) -> Iterator[BinaryIO]:
    """Opens a file for reading; decompresses it by its suffix (``PACKED``)."""
    with open_bytes(path) as file:
        if not is_packed(path):
            yield file
            return
        kind = PurePath(str(path).lower()).suffix
        module = importlib.import_module(PACKED[kind])
        try:
            if module.__name__ == "pyarrow":
                codec = "zstd" if kind == ".zst" else "bz2"
                yield io.BufferedReader(module.CompressedInputStream(file, codec))
            else:
                with module.open(file) as unpacked:
                    if kind == ".xz":
                        # LZMAFile takes a damaged later stream for the end of the file.
                        unpacked._buffer.raw._trailing_error = ()
                    yield unpacked
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            if getattr(error, "errno", None):  # An error of the system.
                raise
            raise UserError(
                f"{path}: cannot be unpacked ({error}). Compress the file again."
            ) from error


def sha256(path: files.AnyPath) -> str:
    """Returns the hex SHA-256 of a file; reads a local one again if it has changed."""
    if is_remote(path):
        return _sha256(path)
    status = os.stat(path)
    return _known_sha256(os.fspath(path), status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _known_sha256(path: str, size: int, changed: int) -> str:
    return _sha256(path)


def _sha256(path: files.AnyPath) -> str:
    with open_bytes(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

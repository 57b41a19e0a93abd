"""Atomic file writes, JSON and locks.

Every output file is written under a temporary name in the same folder, synced, and
renamed. A process that dies leaves the old file or the new one, never a partial one.
"""

import contextlib
import errno
import functools
import json
import math
import os
import re
import shutil
import socket
import types
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import filelock

from electra_tf.errors import UserError

# Infix of temporary names, which identifies leftovers of killed processes.
_PART = ".part-"
_NAME = re.compile(
    rf"\.(?P<stem>.+){re.escape(_PART)}(?P<process>\d+)(-(?P<host>[0-9a-f]{{8}}))?"
    r"(?P<suffix>(\.(?!old$)[^.]*)?)(?P<old>\.old)?",
    re.DOTALL,
)
# Messages of a full disk, for libraries that do not raise OSError.
_FULL = ("No space left on device", "Disk quota exceeded")
_LOCK, _OWNER = ".lock", ".lock.owner"
# Errors that mean locking is unavailable (read-only folder, no lock support).
_DENIED = (errno.EACCES, errno.EPERM)
_NO_LOCK = (*_DENIED, errno.EROFS, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)

AnyPath = str | os.PathLike


@contextlib.contextmanager
def replacing(path: AnyPath, *, size: int = 0) -> Iterator[Path]:
    """Yields a temporary path that atomically replaces `path` after the block.

    The block may create a file or a folder; a folder replaces an existing folder. A
    process killed between the two renames leaves no folder: the next write beside it
    restores the old folder. The temporary name keeps the suffix, from which Keras and
    matplotlib infer the format. If the block raises, `path` is unchanged. Raises
    OSError, which names `path`, if writing fails or less than ``size`` bytes are free.
    """
    path = Path(path)
    part = path.with_name(f".{path.stem}{_PART}{os.getpid()}-{_host()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _clean(path.parent)
        if shutil.disk_usage(path.parent).free < size:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} for {size} bytes")
        # A killed process may have had the same id, as in another container.
        remove(part)
        yield part
        sync(part)
        _put(part, path)
        sync(path.parent)
    except Exception as error:
        named = getattr(error, "filename", None)
        if named and not Path(os.fsdecode(named)).is_relative_to(part):
            raise
        if any(message in str(error) for message in _FULL):
            code, text = errno.ENOSPC, os.strerror(errno.ENOSPC)
        elif isinstance(error, OSError):
            code, text = error.errno or errno.EIO, error.strerror or str(error)
        else:
            raise
        raise OSError(code, text, str(path)) from error
    finally:
        # A failed cleanup must not mask the original error.
        with contextlib.suppress(OSError):
            remove(part)


@functools.cache
def _host() -> str:
    """Returns a hash of host and PID namespace, 8 characters."""
    space = Path("/proc/self/ns/pid")
    about = f"{socket.gethostname()} {space.stat().st_ino if space.exists() else 0}"
    return f"{zlib.crc32(about.encode()):08x}"


@functools.cache
def _clean(folder: Path) -> None:
    """Removes leftovers, once per process and folder."""
    with contextlib.suppress(OSError):
        remove_leftovers(folder)


def _put(part: Path, path: Path) -> None:
    if not (part.is_dir() and path.is_dir()) or path.is_symlink():
        os.replace(part, path)
        return
    # A folder cannot be renamed over one that holds files: the old one moves first.
    old = part.with_name(f"{part.name}.old")
    remove(old)
    os.replace(path, old)
    try:
        os.replace(part, path)
    except OSError:
        os.replace(old, path)
        raise
    remove(old)


@contextlib.contextmanager
def open_new(path: AnyPath, mode: str = "w") -> Iterator[IO]:
    """Opens a file that replaces `path` if the block succeeds, for text or "wb".

    Lone surrogates, which UTF-8 cannot encode, are written as "?".
    """
    text = {"encoding": "utf-8", "errors": "replace", "newline": "\n"}
    options = {} if "b" in mode else text
    with replacing(path) as part, open(part, mode, **options) as file:
        yield file


def check_new(*paths: AnyPath | None, overwrite: bool) -> None:
    """Raises ValueError if a file exists (unless ``overwrite``), or is unwritable."""
    for path in filter(None, paths):
        if os.path.exists(path) and not overwrite:
            raise UserError(f"{path} exists: pass --overwrite to replace it.")
        # Before the work: the first folder above that exists must take new files.
        above = next(each for each in Path(path).absolute().parents if each.exists())
        # A folder, or a device such as /dev/stdout, which a file would replace.
        is_other = os.path.exists(path) and not os.path.isfile(path)
        if is_other or not (above.is_dir() and os.access(above, os.W_OK)):
            raise UserError(f"{path} cannot be written: name a file in another folder.")


def write_text(path: AnyPath, text: str) -> None:
    """Writes a UTF-8 text file."""
    with open_new(path) as file:
        file.write(text)


def write_json(path: AnyPath, value: Any, *, sort_keys: bool = False) -> None:
    """Writes a JSON file with indent 2; numbers that are not finite become null."""
    text = json.dumps(_finite(value), indent=2, sort_keys=sort_keys, allow_nan=False)
    write_text(path, text + "\n")


def read_json(
    path: AnyPath, default: dict[str, Any] | None = None, *, shape: Any = dict
) -> dict[str, Any]:
    """Reads a JSON file that holds one object of a shape (see ``check_shape``).

    Returns ``default`` if the file is missing, unless it is None. Raises UserError,
    which names the file, if the content is not such an object.
    """
    path = Path(path)
    if default is not None and not path.exists():
        return default
    return parse_json(path.read_bytes(), f"{path} is damaged", shape)


def parse_json(text: str | bytes, where: str, shape: Any = object) -> Any:
    """Parses untrusted JSON and checks its shape (see ``check_shape``)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: {error}.") from error
    check_shape(value, shape, where)
    return value


def check_shape(value: Any, shape: Any, where: str) -> None:
    """Checks a JSON value against a schema.

    A shape is a type or an annotation; ``{name: shape}``, an object with at least these
    members; ``[shape]``, a list; or ``(shape, shape)``, a union. Members that allow
    None are optional. Integers must fit into 64 bits. Raises UserError with a message
    that begins with ``where`` and names the location.
    """
    origin, inner = typing.get_origin(shape), typing.get_args(shape)
    if isinstance(shape, tuple) or origin in (typing.Union, types.UnionType):
        is_right = any(fits(value, each) for each in inner or shape)
    elif isinstance(shape, Mapping) or origin is dict:
        is_right = isinstance(value, dict)
        members = value if origin is dict else shape
        for name in members if is_right else ():
            each = inner[1] if origin is dict else shape[name]
            if name in value:
                check_shape(value[name], each, f"{where}: {name}")
            elif not fits(None, each):
                raise UserError(f"{where}: {name} is missing.")
    elif isinstance(shape, list) or origin in (list, tuple):
        is_right = isinstance(value, list)
        items = value if is_right else []
        for number, each in enumerate(items):
            check_shape(each, (inner or shape)[0], f"{where}: {number}")
        if is_right and origin is tuple and inner[-1] is not ...:
            is_right = len(value) == len(inner)
    elif origin is typing.Literal:
        is_right = isinstance(value, str)
    elif shape in (int, float) and type(value) is int:
        is_right = abs(value) < (2**63 if shape is int else 10**300)
    else:
        # A boolean is an instance of int.
        is_right = shape is not int and isinstance(value, shape or types.NoneType)
    if not is_right:
        # The error concerns the whole file, not a member.
        it = ": it" if where.endswith(" is damaged") else ""
        text = json.dumps(value)[:60]
        raise UserError(f"{where}{it} is {text}, expected {_name_of(shape)}.")


def fits(value: Any, shape: Any) -> bool:
    """Returns True if a JSON value has a shape (see ``check_shape``)."""
    try:
        check_shape(value, shape, "")
    except UserError:
        return False
    return True


def _name_of(shape: Any) -> str:
    if isinstance(shape, tuple):
        return " or ".join(map(_name_of, shape))
    if isinstance(shape, Mapping | list):
        return type(shape).__name__
    return shape.__name__ if isinstance(shape, type) else str(shape)


def check_checkpoint_path(path: AnyPath) -> None:
    """Raises ValueError if TensorFlow saves checkpoints to a path but cannot read them.

    TensorFlow reads the path of a checkpoint as a pattern of paths.
    """
    if re.search(r"\[.+\]|\\", os.fspath(path)):
        raise UserError(
            f"{path}: TensorFlow cannot read checkpoints in folders with brackets or "
            "backslashes in their names. Rename the folder."
        )


def append_json_line(path: AnyPath, row: Mapping[str, Any]) -> None:
    """Appends one JSON object as a line and syncs the file.

    Numbers that are not finite become null. A truncated last line is ended first.
    """
    line = to_json(row) + "\n"
    # Unbuffered: a failed write must not be repeated when the file is closed.
    with open(path, "ab+", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        left = line.encode()
        try:
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error


def read_json_lines(path: AnyPath) -> list[dict[str, Any]]:
    """Reads the objects of a JSON-lines file, if it exists; skips truncated lines."""
    path, rows = Path(path), []
    content = path.read_bytes() if path.exists() else b""
    for line in content.decode("utf-8", "replace").split("\n"):
        with contextlib.suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def write_json_lines(path: AnyPath, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a JSON-lines file."""
    with open_new(path) as file:
        file.writelines(to_json(row) + "\n" for row in rows)


def to_json(value: Any, *, ensure_ascii: bool = True) -> str:
    """Returns JSON on one line; numbers that are not finite become null."""
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=ensure_ascii)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def remove(path: AnyPath) -> None:
    """Deletes a file, a link or a folder tree, if it exists."""
    path = Path(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def owned(folder: AnyPath, log: Callable[[str], None] | None = None) -> Iterator[None]:
    """Creates a folder and holds its lock, which is reentrant.

    If another process holds it, waits and logs its name with ``log``, else raises
    UserError. The system releases the lock of a killed process.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Other users of a shared folder need the file, too.
    path = folder.resolve() / _LOCK
    lock = filelock.FileLock(path, mode=0o666, is_singleton=True)
    owner = folder / _OWNER
    try:
        try:
            lock.acquire(0)
        except filelock.Timeout as error:
            who = owner.read_text("utf-8") if owner.exists() else "another process"
            message = f"{who} is working in {folder}"
            if log is None:
                raise UserError(f"{message}: wait, or name another folder.") from error
            log(f"{message}; waiting for it")
            lock.acquire(-1)
    except (OSError, NotImplementedError) as error:
        code = getattr(error, "errno", errno.ENOSYS)
        # In a writable folder, the file is another user's.
        if code not in _NO_LOCK or (code in _DENIED and os.access(folder, os.W_OK)):
            raise
        yield
        return
    try:
        # Overwrites the stale name that a killed process leaves.
        with contextlib.suppress(OSError):
            owner.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        if lock.lock_counter == 1:
            owner.unlink(missing_ok=True)
        lock.release()


def remove_leftovers(folder: AnyPath, *, is_locked: bool = False) -> None:
    """Deletes the temporary files that killed processes left in a folder.

    Restores a folder that was moved but not replaced. Keeps files of running processes,
    and of other hosts unless the folder ``is_locked``.
    """
    # In reverse order a moved folder (.old) comes before its replacement.
    for path in sorted(Path(folder).glob(f".*{_PART}*"), reverse=True):
        match = _NAME.fullmatch(path.name)
        if not (match and (is_locked or match["host"] == _host())):
            continue
        if not _runs(int(match["process"])):
            target = path.with_name(match["stem"] + match["suffix"])
            if match["old"] and not target.exists():
                os.replace(path, target)
            else:
                remove(path)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def sync(path: Path) -> None:
    """Syncs a file, or a temporary folder and its content, to disk."""
    inside = path.rglob("*") if path.is_dir() and _PART in path.name else ()
    for each in (*inside, path):
        # Some file systems cannot sync folders.
        ignored = [OSError] if each.is_dir() else []
        with contextlib.suppress(*ignored):
            descriptor = os.open(each, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

"""What makes a command start sooner, and has to happen before TensorFlow is imported.

``lightly`` leaves out what Keras imports for notebooks, garbage collections that find
nothing, and what TensorFlow says of itself. ``keep_compiled_code`` is about XLA.
TensorFlow can keep on disk what XLA has compiled, and reads it back in a tenth of the
time. It leaves to others all that goes wrong with files: it looks for an entry by the
code alone, although an entry runs only on the processors it was compiled for; an entry
that it cannot read, or a folder that it cannot write, ends the process; and nothing is
ever deleted. So each kind of machine has a folder of its own here, which is tried out,
cleaned and bounded first.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import IO

# Where the cache is, or "off"; by default in the user's cache directory.
CACHE_VARIABLE = "ELECTRA_TF_XLA_CACHE"
MAX_BYTES = 500_000_000
MAX_UNUSED_SECONDS = 30 * 24 * 3600
# With less room than this the cache is off: a full disk would end the process.
MIN_FREE_BYTES = 1_000_000_000

_NOT_FOR_COMMANDS = ("sklearn", "pandas", "matplotlib")
# New objects before the youngest, then collections before the next older are looked at.
_GC_THRESHOLDS = (100_000, 20, 10)

# Absl's lines below errors, and the one before the first of them.
_CHATTER = re.compile(rb"[IW]\d{4} |WARNING: All log messages before absl::Initialize")
_OPTION = "--tf_xla_persistent_cache_directory"
_LOCK = ".lock"
# The fields of an entry: its key, the code before and after compilation.
_FIELDS = {1, 2, 3}
# Held until the process ends, so that nobody deletes what it is about to read.
_held: list[IO] = []


def quiet() -> None:
    """Leaves of TensorFlow's log what ends the process; what the user has set stays.

    Errors are raised too, and XLA calls it one that it reads compiled code back.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@contextlib.contextmanager
def lightly() -> Iterator[None]:
    """Imports in the block take less time; whatever they leave is there to stay."""
    if "tensorflow" in sys.modules:
        yield
        return
    hidden = _HiddenFromKeras()
    sys.meta_path.insert(0, hidden)
    gc.disable()
    try:
        with _without_chatter():
            yield
    finally:
        sys.meta_path.remove(hidden)
        # Millions of objects that live as long as the process, and that every full
        # collection would walk through. Tracing a step makes as many.
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.enable()


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Drops what TensorFlow writes to standard error while it is imported.

    Its libraries report the processor and that they find no GPU before they read
    ``TF_CPP_MIN_LOG_LEVEL``. What is no such line is written at the end of the block;
    nothing is held back from a user who has set that variable below 2.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "") < "2":
        yield
        return
    with tempfile.TemporaryFile() as said:
        sys.stderr.flush()
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            said.seek(0)
            for line in said:
                if not _CHATTER.match(line):
                    os.write(2, line)


class _HiddenFromKeras:
    """Says that packages are not installed, as long as Keras is being imported.

    Keras takes them if they are there, for wrappers, data frames and plots that no
    command uses, which costs as much as half of TensorFlow. Others still find them.
    """

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        """Raises ModuleNotFoundError for these packages, and finds no others."""
        keras = sys.modules.get("keras")
        if name in _NOT_FOR_COMMANDS and keras and keras.__spec__._initializing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def keep_compiled_code() -> Path | None:
    """Lets TensorFlow, not yet imported, keep what XLA compiles.

    Returns the folder; None if ``TF_XLA_FLAGS`` names one or a file of flags, if the
    user has switched it off, or if no folder can be used, which is no error.
    """
    # Slow to import, and --help does not need it.
    from importlib import metadata

    given, root = os.environ.get("TF_XLA_FLAGS", "").strip(), _root()
    is_a_file = given and not given.startswith("-")
    if root is None or _OPTION in given or is_a_file:
        return None
    try:
        folder = root / _key(given, metadata.version("tensorflow"))
    except metadata.PackageNotFoundError:
        # A build of another name, whose version nobody knows.
        return None
    # The quotes are for blanks in the path; nothing is for quotes in it.
    if "'" in str(folder) or not _is_usable(folder):
        return None
    os.environ["TF_XLA_FLAGS"] = f"{given} {_OPTION}='{folder}'".strip()
    return folder


def _root() -> Path | None:
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen).absolute()
    with contextlib.suppress(RuntimeError):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(home, "electra_tf", "xla").absolute()
    return None


def _key(flags: str, version: str) -> str:
    """Name of the folder: a hash of all that compiled code depends on but the code."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n")[0].splitlines()
        names = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
        processor = [x for x in lines if x.partition(":")[0].strip() in names]
    except OSError:
        # Unknown: this computer's own.
        processor = [platform.processor(), platform.node()]
    # XLA divides work by the threads there are when it compiles.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    facts = [
        version,
        platform.machine(),
        *processor,
        str(cores or os.cpu_count()),
        os.environ.get("TF_NUM_INTRAOP_THREADS", ""),
        flags,
        os.environ.get("XLA_FLAGS", ""),
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _is_usable(folder: Path) -> bool:
    """Tries a folder out, and cleans it if no other process is using it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
            return False
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 4096)
        _held.append((folder / _LOCK).open("a"))
        atexit.register(_held[-1].close)
        # The folder was used: after a while without that, others delete it.
        os.utime(folder / _LOCK)
    except OSError:
        return False
    # Some file systems have no locks; then nothing is cleaned.
    with contextlib.suppress(OSError):
        if _lock(_held[-1], fcntl.LOCK_EX):
            _clean(folder)
        fcntl.flock(_held[-1], fcntl.LOCK_SH)
    return True


def _lock(file: IO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clean(folder: Path) -> None:
    """Deletes what is broken, old, or too much, least recently used first."""
    now, size = time.time(), 0
    entries = []
    for path in folder.glob("*.pb*"):
        with _none_missing():
            status = path.stat()
            used = max(status.st_atime, status.st_mtime)
            if path.suffix == ".pb" and _is_whole(path):
                entries.append((used, status.st_size, path))
            elif path.suffix == ".pb" or now - used > 24 * 3600:
                # A part may be of a process on another computer.
                path.unlink()
    for used, bytes_, path in sorted(entries, reverse=True):
        size += bytes_
        if size > MAX_BYTES or now - used > MAX_UNUSED_SECONDS:
            with _none_missing():
                path.unlink()
    for other in folder.parent.glob(f"*/{_LOCK}"):
        with _none_missing(), other.open("a") as file:
            is_old = now - other.stat().st_mtime > MAX_UNUSED_SECONDS
            if is_old and other.parent != folder and _lock(file, fcntl.LOCK_EX):
                shutil.rmtree(other.parent)


def _none_missing() -> contextlib.AbstractContextManager:
    return contextlib.suppress(FileNotFoundError, PermissionError)


def _is_whole(path: Path) -> bool:
    """Whether an entry's fields fill the file, as those of no cut or empty file do."""
    with path.open("rb") as file:
        return set(_fields(file, path.stat().st_size)) == _FIELDS


def _fields(file: IO[bytes], size: int) -> Iterator[int]:
    """Yields the numbers of a protocol buffer's fields; 0 for what is none."""
    while (position := file.tell()) < size:
        head = file.read(11)
        if head[0] & 7 != 2:
            yield 0
            return
        length = shift = 0
        for byte in head[1:]:
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        end = position + 1 + shift // 7 + length
        if end > size:
            yield 0
            return
        yield head[0] >> 3
        file.seek(end)

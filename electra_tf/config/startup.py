"""Faster startup of commands, applied before TensorFlow is imported.

TensorFlow's on-disk cache loads an XLA program in a tenth of the time of compilation.
It keys entries by the program alone, although they run only on the processor they were
compiled for, aborts on empty entries, as a crash of the machine leaves, and never
deletes an entry. Therefore each kind of machine has its own folder here, and empty and
old entries are deleted first.
"""

import contextlib
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
from pathlib import Path

# Environment variable: folder of the cache, or "off". Default: the user's cache folder.
CACHE_VARIABLE = "ELECTRA_TF_XLA_CACHE"
MAX_BYTES = 500_000_000
MAX_UNUSED_SECONDS = 30 * 24 * 3600
# Minimum free space for the cache: TensorFlow aborts on a full disk.
MIN_FREE_BYTES = 1_000_000_000

# Info and warning lines of absl, and its first line.
_CHATTER = re.compile(rb"[IW]\d{4} |WARNING: All log messages before absl::Initialize")
_OPTION = "--tf_xla_persistent_cache_directory"


@contextlib.contextmanager
def lightly() -> Iterator[None]:
    """Speeds up imports in the block and tunes garbage collection for their objects."""
    if "tensorflow" in sys.modules:
        yield
        return
    hidden = _HiddenFromKeras()
    sys.meta_path.insert(0, hidden)
    gc.disable()
    try:
        with without_chatter():
            yield
    finally:
        sys.meta_path.remove(hidden)
        # Excludes millions of permanent objects from garbage collection, and makes it
        # rarer, because tracing a step creates as many objects.
        gc.freeze()
        gc.set_threshold(100_000, 20, 10)
        gc.enable()


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Drops TensorFlow's log lines on standard error during its import.

    Its libraries log before they read ``TF_CPP_MIN_LOG_LEVEL``; below 2, the lines
    stay. Other lines appear after the block.
    """
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
    if level < "2" or "tensorflow" in sys.modules or sys.stderr is None:
        yield
        return
    with tempfile.TemporaryFile() as log:
        sys.stderr.flush()
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            log.seek(0)
            for line in log:
                if not _CHATTER.match(line):
                    os.write(2, line)


class _HiddenFromKeras:
    """Hides optional packages from Keras's import, which takes a tenth less time."""

    def find_spec(self, name: str, *_: object) -> None:
        keras, hidden = sys.modules.get("keras"), ("sklearn", "pandas", "matplotlib")
        if name in hidden and keras and keras.__spec__._initializing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def keep_compiled_code() -> Path | None:
    """Enables TensorFlow's on-disk cache of XLA programs; call before its import.

    Returns the folder, or None if ``TF_XLA_FLAGS`` is set, or if no folder is usable.
    """
    # Slow to import; --help does not need it.
    from importlib import metadata

    root = _root()
    if root is None or os.environ.get("TF_XLA_FLAGS"):
        return None
    try:
        folder = root / _key(metadata.version("tensorflow"))
    except metadata.PackageNotFoundError:
        # A build with another package name, so the version is unknown.
        return None
    # Quotes protect spaces in the path; a quote in it cannot be escaped.
    if "'" in str(folder) or not _is_usable(folder):
        return None
    os.environ["TF_XLA_FLAGS"] = f"{_OPTION}='{folder}'"
    return folder


def _root() -> Path | None:
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return None if chosen == "off" else Path(chosen).absolute()
    with contextlib.suppress(RuntimeError):
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(home, "electra_tf", "xla").absolute()
    return None


def _key(version: str) -> str:
    """Returns a hash of the machine, version and flags that determine compiled code."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
        processor = re.findall(r"^(?:flags|Features)\s*:.*", text, re.MULTILINE)[:1]
    except OSError:
        # Unknown processor: a folder for this host only.
        processor = [platform.processor(), platform.node()]
    # XLA partitions work by the number of threads at compile time.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    variables = ("TF_NUM_INTRAOP_THREADS", "XLA_FLAGS")
    settings = [os.environ.get(name, "") for name in variables]
    machine = (platform.machine(), *processor, str(cores or os.cpu_count()))
    facts = (version, *machine, *settings)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _is_usable(folder: Path) -> bool:
    """Creates a folder and cleans the cache; returns whether entries can be written."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _clean(folder.parent)
        has_space = shutil.disk_usage(folder).free >= MIN_FREE_BYTES
        return has_space and os.access(folder, os.W_OK)
    except OSError:
        return False


def _clean(root: Path) -> None:
    """Deletes empty and old entries, and the least recently used above MAX_BYTES."""
    now, size = time.time(), 0
    entries = []
    for path in root.glob("*/*.pb*"):
        status = path.stat()
        used = max(status.st_atime, status.st_mtime)
        # Other suffixes are temporary names of entries that TensorFlow is writing.
        is_empty = path.suffix == ".pb" and status.st_size == 0
        entries.append((0.0 if is_empty else used, status.st_size, path))
    for used, bytes_, path in sorted(entries, reverse=True):
        size += bytes_
        if size > MAX_BYTES or now - used > MAX_UNUSED_SECONDS:
            path.unlink(missing_ok=True)

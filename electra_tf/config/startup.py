"""Faster startup of commands, applied before TensorFlow is imported."""

import contextlib
import gc
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# Info and warning lines of absl, and its first line.
_CHATTER = re.compile(rb"[IW]\d{4} |WARNING: All log messages before absl::Initialize")


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

"""Builds units in one or several processes, and says how far it is."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from electra_tf.data.units import Recipe, Report, Unit, UnitBuilder, UnitResult

Log = Callable[[str], None]

# Starting a process takes about as long as building this much text.
_BYTES_WORTH_A_PROCESS = 48 << 20


def log_to_stderr(message: str):
    """Writes a line to the standard error stream."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def build_units(
    recipe: Recipe, units: Sequence[Unit], num_processes: int, log: Log
) -> list[UnitResult]:
    """Builds the units that are not finished yet.

    Args:
        recipe: How to build them.
        units: All units.
        num_processes: Processes; 0 means one per core, fewer for little text.
        log: Called with progress.

    Returns:
        The results of all units, in their order.

    Raises:
        OSError: A process was killed, or a file could not be written.
    """
    left = [unit for unit in units if UnitResult.load(recipe.folder, unit) is None]
    if len(left) < len(units):
        log(f"{len(units) - len(left)} of {len(units)} units are finished already")
    if left:
        size = sum(unit.size for unit in left)
        useful = 1 + size // _BYTES_WORTH_A_PROCESS
        workers = min(num_processes or min(os.cpu_count() or 1, useful), len(left))
        progress = Progress(size, log)
        if workers == 1:
            builder = UnitBuilder(recipe)
            for unit in left:
                builder.build(unit, progress.add)
        else:
            _build_in_processes(recipe, left, workers, progress)
        progress.end()
    return [UnitResult.load(recipe.folder, unit) for unit in units]


class Progress:
    """Documents and megabytes per second and time left, on stderr or in the log.

    Args:
        size: Bytes to do.
        log: Called with a line every ten seconds, unless stderr is a terminal.
    """

    def __init__(self, size: int, log: Log):
        self._size = size
        self._terminal = log is log_to_stderr and sys.stderr.isatty()
        self._log = self._overwrite_line if self._terminal else log
        self._interval = 0.5 if self._terminal else 10
        self._started = self._told = time.monotonic()
        self._documents = self._done = 0

    def add(self, documents: int, characters: int):
        """Counts a finished batch."""
        self.set(self._documents + documents, self._done + characters)

    def set(self, documents: int, characters: int):
        """Sets the counts, and tells them if it is time."""
        self._documents, self._done = documents, characters
        if time.monotonic() - self._told >= self._interval:
            self._told = time.monotonic()
            self._log(self._line())

    def end(self):
        """Tells the totals."""
        self._log(self._line())
        if self._terminal:
            sys.stderr.write("\n")

    def _line(self) -> str:
        seconds = max(1e-3, time.monotonic() - self._started)
        speed = self._done / seconds
        left = max(0, self._size - self._done) / max(1, speed)
        return (
            f"{self._documents} documents, {self._done / 1e6:.1f} of about "
            f"{max(self._size, self._done) / 1e6:.1f} MB in {seconds:.0f} s "
            f"({self._documents / seconds:.0f} documents/s, {speed / 1e6:.1f} MB/s), "
            f"{left:.0f} s left"
        )

    def _overwrite_line(self, line: str):
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()


# A forked child of a process that has run TensorFlow hangs, so the workers are spawned;
# what they need is sent once and kept here.
_worker: dict = {}


def _build_in_processes(
    recipe: Recipe, units: Sequence[Unit], workers: int, progress: Progress
):
    spawn = multiprocessing.get_context("spawn")
    counts = spawn.Array("q", 2)
    executor = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=spawn, initializer=_start, initargs=(recipe, counts)
    )
    with executor, _cancel_at_error(executor):
        waiting = {executor.submit(_build, unit) for unit in units}
        while waiting:
            done, waiting = concurrent.futures.wait(
                waiting, timeout=0.5, return_when="FIRST_EXCEPTION"
            )
            progress.set(*counts)
            for future in done:
                future.result()


@contextlib.contextmanager
def _cancel_at_error(executor: concurrent.futures.ProcessPoolExecutor):
    try:
        yield
    except concurrent.futures.process.BrokenProcessPool as error:
        raise OSError(
            "a worker process died, perhaps for lack of memory. Run the same again to "
            "go on, with fewer processes."
        ) from error
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        raise


def _start(recipe: Recipe, counts):
    # The parent deals with Ctrl-C; a worker whose parent was killed must not stay.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # Text needs no GPU, and a worker would take all its memory.
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    _worker.update(builder=UnitBuilder(recipe), report=_shared_report(counts))


def _exit_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def _shared_report(counts) -> Report:
    def report(documents: int, characters: int):
        with counts.get_lock():
            counts[0] += documents
            counts[1] += characters

    return report


def _build(unit: Unit):
    _worker["builder"].build(unit, _worker["report"])

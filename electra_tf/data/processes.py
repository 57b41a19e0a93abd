"""Processes of this machine, or a Beam pipeline, that read and build units."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from electra_tf import cli
from electra_tf.data import beam
from electra_tf.data.units import Recipe, Report, Unit, UnitBuilder, UnitReader

# Starting a process takes about as long as building this much text.
_BYTES_WORTH_A_PROCESS = 4 << 20


def run(
    worker: type[UnitReader] | type[UnitBuilder],
    recipe: Recipe,
    units: Sequence[Unit],
    num_processes: int,
    log: cli.Log,
    *,
    beam_flags: str = "",
) -> None:
    """Lets workers read or build the units that are not finished yet.

    With ``num_processes`` 0 there is one process per core, fewer for little text; with
    ``beam_flags``, a Beam pipeline of them takes the place of processes. An OSError
    says that a process was killed, or that a file could not be written.
    """
    left = [unit for unit in units if not worker.is_done(recipe, unit)]
    if len(left) < len(units):
        log(f"{len(units) - len(left)} of {len(units)} units are finished already")
    if left and beam_flags:
        beam.run(worker, recipe, left, beam_flags)
    elif left:
        size = sum(unit.size for unit in left)
        useful = 1 + size // _BYTES_WORTH_A_PROCESS
        workers = min(num_processes or min(os.cpu_count() or 1, useful), len(left))
        # Only what goes to standard error anyway may be written over there.
        plain = None if log is cli.note else log
        progress = cli.Progress(size, unit="B", scale=True, log=plain)
        done = [0, 0]  # Documents and characters.

        def report(documents: int, characters: int) -> None:
            done[:] = done[0] + documents, done[1] + characters
            progress.update(done[1], f"{done[0]:,} documents")

        report(0, 0)
        if workers == 1:
            own = worker(recipe)
            for unit in left:
                own.build(unit, report)
        else:
            _run_in_processes(worker, recipe, left, workers, report)
        # The total was a guess: bytes of text, of compressed files an estimate.
        progress.total = progress.done
        progress.close()


# A forked child of a process that has run TensorFlow hangs, so the workers are spawned;
# what they need is sent once and kept here.
_worker: dict[str, Any] = {}


def _run_in_processes(
    worker: type[UnitReader] | type[UnitBuilder],
    recipe: Recipe,
    units: Sequence[Unit],
    workers: int,
    report: Report,
) -> None:
    """Lets workers do units in any order, several at once."""
    spawn = multiprocessing.get_context("spawn")
    counts = spawn.Array("q", 2)
    executor = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=spawn, initializer=_start, initargs=(worker, recipe, counts)
    )
    with executor, _cancel_at_error(executor):
        waiting = {executor.submit(_build, unit) for unit in units}
        while waiting:
            done, waiting = concurrent.futures.wait(
                waiting, timeout=0.5, return_when="FIRST_EXCEPTION"
            )
            with counts.get_lock():
                report(*counts)
                counts[:] = 0, 0
            for future in done:
                future.result()


@contextlib.contextmanager
def _cancel_at_error(executor: concurrent.futures.Executor) -> Iterator[None]:
    try:
        yield
    except concurrent.futures.process.BrokenProcessPool as error:
        raise OSError(
            "a worker process died, perhaps for lack of memory. Run the same again to "
            "resume, with fewer processes."
        ) from error
    except BaseException:
        # Without this, leaving the pool would first build all units that are queued.
        executor.shutdown(wait=False, cancel_futures=True)
        raise


def _start(
    worker: type[UnitReader] | type[UnitBuilder], recipe: Recipe, counts: Any
) -> None:
    """Prepares a worker; ``counts``: documents and characters that are not reported."""
    # The parent deals with Ctrl-C; a worker whose parent was killed must not stay.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # In case TensorFlow is loaded. Text needs no GPU; a worker would take its memory.
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_NUM_INTRAOP_THREADS="1")

    def report(documents: int, characters: int) -> None:
        with counts.get_lock():
            counts[0] += documents
            counts[1] += characters

    _worker.update(own=worker(recipe), report=report)


def _exit_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _build(unit: Unit) -> None:
    _worker["own"].build(unit, _worker["report"])

"""Runs a step of a build on units, in local processes or with Apache Beam."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence

from electra_tf import cli
from electra_tf.data import beam
from electra_tf.data.units import Job, Unit, Worker

# Starting a process takes about as long as building this much text.
_BYTES_WORTH_A_PROCESS = 4 << 20


def run(
    step: str,
    job: Job,
    units: Sequence[Unit],
    num_processes: int,
    beam_flags: str,
    log: cli.Log,
) -> None:
    """Runs a step on the unfinished units.

    0 processes mean one per core, or fewer for little text. ``beam_flags`` selects
    Beam instead. Raises ``OSError`` if a process dies or a write fails.
    """
    left = [unit for unit in units if not job.file(unit, step).exists()]
    if len(left) < len(units):
        log(f"{len(units) - len(left)} of {len(units)} units are finished already")
    if left and beam_flags:
        beam.run(step, job, left, beam_flags)
    elif left:
        useful = 1 + sum(unit.size for unit in left) // _BYTES_WORTH_A_PROCESS
        workers = min(num_processes or min(os.cpu_count() or 1, useful), len(left))
        report = _Progress(left, log)
        if workers == 1:
            worker = Worker(job)
            for unit in left:
                report(unit, worker.run(step, unit))
        else:
            _run_in_processes(step, job, left, workers, report)
        report.progress.close()


class _Progress:
    """Shows the bytes and documents of finished units."""

    def __init__(self, units: Sequence[Unit], log: cli.Log):
        # Only standard error has a progress line that overwrites itself.
        plain = None if log is cli.note else log
        total = sum(unit.size for unit in units)
        self.progress = cli.Progress(total, unit="B", scale=True, log=plain)
        self.documents = 0
        self.progress.update(0, "")

    def __call__(self, unit: Unit, documents: int) -> None:
        self.documents += documents
        done = self.progress.done + unit.size
        self.progress.update(done, f"{self.documents:,} documents")


def _run_in_processes(
    step: str,
    job: Job,
    units: Sequence[Unit],
    workers: int,
    report: Callable[[Unit, int], None],
) -> None:
    # A forked child of a process that has run TensorFlow hangs.
    spawn = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=spawn, initializer=_start, initargs=(job,)
    )
    with pool:
        try:
            futures = {pool.submit(_run, step, unit): unit for unit in units}
            for future in concurrent.futures.as_completed(futures):
                report(futures[future], future.result())
        except concurrent.futures.process.BrokenProcessPool as error:
            raise OSError(
                "a worker process died, perhaps for lack of memory. Run the same again "
                "to resume, with fewer processes."
            ) from error
        except BaseException:
            # Otherwise the pool would build all queued units before it exits.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_worker: list[Worker] = []


def _start(job: Job) -> None:
    # The parent handles Ctrl-C. Workers must exit if the parent is killed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # A worker that imports TensorFlow must not allocate GPU memory.
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_NUM_INTRAOP_THREADS="1")
    _worker[:] = [Worker(job)]


def _exit_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _run(step: str, unit: Unit) -> int:
    return _worker[0].run(step, unit)

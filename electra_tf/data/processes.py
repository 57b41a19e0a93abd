"""Runs a step of a build on units, in local processes or with Apache Beam."""

from __future__ import annotations

import concurrent.futures
import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from electra_tf import cli
from electra_tf.data.pools import cores, pool
from electra_tf.data.units import Job, Unit, Worker
from electra_tf.errors import UserError

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
        _run_beam(step, job, left, beam_flags)
    elif left:
        size = sum(unit.size for unit in left)
        useful = 1 + size // _BYTES_WORTH_A_PROCESS
        workers = min(num_processes or min(cores(), useful), len(left))
        # Only standard error has a progress line that overwrites itself.
        plain = None if log is cli.note else log
        progress = cli.Progress(size, unit="B", scale=True, log=plain)
        progress.update(0, "")
        documents = 0
        # Closed on Ctrl-C, which cancels the units in the queue.
        with contextlib.closing(_run_units(step, job, left, workers)) as finished:
            for unit, count in finished:
                documents += count
                progress.update(progress.done + unit.size, f"{documents:,} documents")
        progress.close()


def _run_units(
    step: str, job: Job, units: Sequence[Unit], workers: int
) -> Iterator[tuple[Unit, int]]:
    """Yields each unit when it is finished, with its number of documents."""
    if workers == 1:
        worker = Worker(job)
        yield from ((unit, worker.run(step, unit)) for unit in units)
        return
    with pool(workers, _start, job) as executor:
        try:
            futures = {executor.submit(_run, step, unit): unit for unit in units}
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise OSError(
                "a worker process died, perhaps for lack of memory. Run the same again "
                "to resume, with fewer processes."
            ) from error
        except BaseException:
            # Otherwise the pool would build all queued units before it exits.
            executor.shutdown(wait=False, cancel_futures=True)
            raise


_worker: list[Worker] = []


def _start(job: Job) -> None:
    _worker[:] = [Worker(job)]


def _run(step: str, unit: Unit) -> int:
    return _worker[0].run(step, unit)


def _run_beam(step: str, job: Job, units: Sequence[Unit], flags: str) -> None:
    """Runs a step on units in a Beam pipeline with one unit per element.

    All workers must share ``job.folder``. File writes are atomic and deterministic, so
    bundles can be retried or run twice concurrently.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise UserError(
            "--beam needs the package apache-beam: pip install -r requirements-beam.txt"
        ) from error

    class Work(beam.DoFn):
        def setup(self) -> None:
            self._worker = Worker(job)

        def process(self, element: tuple[int, Iterable[Unit]]) -> None:
            documents = beam.metrics.Metrics.counter("electra_tf", "documents")
            for unit in element[1]:
                documents.inc(self._worker.run(step, unit))

    try:
        with beam.Pipeline(options=PipelineOptions(shlex.split(flags))) as pipeline:
            _ = (
                pipeline
                | beam.Create(list(enumerate(units)))
                # Distributes the units. Some runners lack the timestamps for Reshuffle.
                | beam.GroupByKey()
                | f"units {step}" >> beam.ParDo(Work())
            )
    except Exception as error:
        # The class depends on the runner; the last line of a trace is the cause.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        causes = [line for line in lines if re.match(r"\S*Error: ", line)] or lines
        message = f"the pipeline of --beam={flags} failed: {causes[-1]}"
        raise UserError(message) from error

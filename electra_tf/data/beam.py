"""Builds units of records in an Apache Beam pipeline, on any runner."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from electra_tf.data.units import Job, Unit, Worker
from electra_tf.errors import UserError


def run(step: str, job: Job, units: Sequence[Unit], flags: str) -> None:
    """Runs a step on units in a Beam pipeline with one unit per element.

    All workers must share ``job.folder``. File writes are atomic and deterministic, so
    bundles can be retried or run twice concurrently.

    ``flags`` are Beam's, such as ``--runner=FlinkRunner --parallelism=8``. Raises
    ``ValueError`` if Beam is not installed or the pipeline failed.
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

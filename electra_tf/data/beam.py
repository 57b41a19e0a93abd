"""Units of a records build as a pipeline of Apache Beam, on any of its runners."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from electra_tf.data.units import Recipe, Unit, UnitBuilder, UnitReader
from electra_tf.errors import UserError


def run(
    worker: type[UnitReader] | type[UnitBuilder],
    recipe: Recipe,
    units: Sequence[Unit],
    flags: str,
) -> None:
    """Lets a worker in each of Beam's processes do some of the units.

    An element is a unit: which bytes of which files to read. What is made of it is
    written to ``recipe.folder``, which is the same folder for all. Files appear there
    whole and do not depend on who writes them, so a bundle may be tried again, or be
    run twice at once.

    Args:
        worker: what reads or builds a unit.
        recipe: what it has to know.
        units: those to be done.
        flags: Beam's own, such as ``--runner=FlinkRunner --parallelism=8``.

    Raises:
        ValueError: Beam is not installed, or the pipeline failed.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise UserError(
            "--beam needs the package apache-beam: pip install -r requirements-beam.txt"
        ) from error

    # Here, since its base is there only now.
    class Work(beam.DoFn):
        def setup(self) -> None:
            self._own = worker(recipe)

        def process(self, element: tuple[int, Iterable[Unit]]) -> None:
            count = beam.metrics.Metrics.counter

            def report(documents: int, characters: int) -> None:
                count(worker, "documents").inc(documents)
                count(worker, "characters").inc(characters)

            for unit in element[1]:
                self._own.build(unit, report)

    try:
        with beam.Pipeline(options=PipelineOptions(shlex.split(flags))) as pipeline:
            _ = (
                pipeline
                | beam.Create(list(enumerate(units)))
                # Spreads the units; Reshuffle wants time stamps, which not every
                # runner has.
                | beam.GroupByKey()
                | worker.__name__ >> beam.ParDo(Work())
            )
    except Exception as error:
        # Of any class, by runner; what a worker raised stands in a trace, last.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        said = [line for line in lines if re.match(r"\S*Error: ", line)] or lines
        raise UserError(f"the pipeline of --beam={flags} failed: {said[-1]}") from error

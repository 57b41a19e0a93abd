"""Units of a records build: parts of the corpus that become one shard per split.

The examples of a unit depend on the settings, the seed and its index only. So any
process can build a unit, and a resumed build skips finished units.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import pickle
import random
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import cli, files
from electra_tf.config.records import RecordsConfig
from electra_tf.data import selection
from electra_tf.data.corpora import Document, Source
from electra_tf.data.documents import ExampleBuilder
from electra_tf.data.pools import cores, pool
from electra_tf.data.records import write_shard
from electra_tf.data.selection import characters, text_hash
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.data.words import WordTable
from electra_tf.errors import UserError

MIN_UNIT_BYTES = 1 << 16
UNITS_OF_A_SMALL_CORPUS = 16
SPLITS = ("train", "eval")
# Build steps, and suffixes of the files that mark a unit as finished.
READ, BUILD = "read.npz", "built.json"
_HASHES = 1 << 64
# Starting a process takes about as long as building this much text.
BYTES_WORTH_A_PROCESS = 4 << 20
_MOST_HELD_OUT = 0.05


@dataclasses.dataclass(frozen=True)
class Unit:
    """Consecutive sources, one shard per split; ``index`` seeds random choices.

    ``verdicts`` has the result of ``selection.judge`` for each document.
    """

    index: int
    sources: tuple[Source, ...]
    verdicts: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Bytes of text."""
        return sum(source.size for source in self.sources)

    def documents(self) -> Iterator[Document]:
        """Yields the documents with the verdict ``KEPT``, or all without verdicts."""
        every = itertools.chain.from_iterable(s.documents() for s in self.sources)
        if self.verdicts is None:
            return every
        return itertools.compress(every, self.verdicts == selection.KEPT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Settings of a build; ``held_out`` is the hash range of held-out documents."""

    settings: RecordsConfig
    vocabulary: Vocabulary
    folder: str
    held_out: range = range(0)

    def rng(self, unit: Unit, purpose: str) -> random.Random:
        """Returns a random generator seeded by (seed, unit, purpose)."""
        return random.Random(f"{self.settings.seed} {unit.index} {purpose}")

    def file(self, unit: Unit, suffix: str) -> Path:
        return Path(self.folder, f"unit-{unit.index:05d}.{suffix}")


def plan_units(sources: Sequence[Source], max_bytes: int) -> list[Unit]:
    """Splits and groups sources into units of at most about ``max_bytes``."""
    # Small corpora get smaller units, so that shards can be shuffled and shared. Units
    # must not depend on the number of processes, which can change on resume.
    total = sum(source.size for source in sources)
    wanted = max(MIN_UNIT_BYTES, min(max_bytes, total // UNITS_OF_A_SMALL_CORPUS))
    groups: list[list[Source]] = []
    filled = wanted
    for source in sources:
        for part in source.split(wanted):
            if filled + part.size // 2 >= wanted:
                groups.append([])
                filled = 0
            groups[-1].append(part)
            filled += part.size
    return [Unit(index, tuple(group)) for index, group in enumerate(groups)]


def hold_out(documents: Iterable[Document], fraction: float) -> range:
    """Returns the range of hashes of held-out documents, about ``fraction`` of all.

    Equal documents have equal hashes, so no copy crosses the splits. Reads until both
    splits have documents and the held-out share of the characters is at most the larger
    of ``2 * fraction`` and 5 %. If the corpus ends first, holds out one document and
    its copies, at most the larger of ``fraction`` and 5 %, or none.
    """
    bound = int(fraction * _HASHES)
    sizes: collections.Counter[int] = collections.Counter()
    total = below = 0
    for document in documents:
        value, size = text_hash(document), characters(document)
        sizes[value] += size
        total += size
        below += size if value < bound else 0
        most = max(2 * fraction, _MOST_HELD_OUT) * total
        if bound == 0 or (0 < below < total and below <= most):
            return range(bound)
    if not sizes:
        raise UserError("the corpus is empty: no document passes the filters")
    most = max(fraction, _MOST_HELD_OUT) * total
    fitting = [value for value, size in sizes.items() if size <= most and size < total]
    return range(min(fitting), min(fitting) + 1) if fitting else range(0)


def judge_units(job: Job, units: Sequence[Unit]) -> list[Unit]:
    """Deduplicates the read units; returns them with their final verdicts."""
    read = []
    for unit in units:
        with np.load(job.file(unit, READ)) as arrays:
            read.append(dict(arrays))
    hashes, verdicts, signatures = (
        # Flattened, because a unit without documents has signatures of shape [0].
        np.concatenate([arrays[name] for arrays in read], axis=None)
        for name in ("hashes", "verdicts", "signatures")
    )
    signatures = signatures.reshape(-1, selection.HASHES)
    final = selection.judge(job.settings, hashes, verdicts, signatures)
    ends = np.cumsum([len(arrays["verdicts"]) for arrays in read])
    parts = zip(units, np.split(final, ends[:-1]), strict=True)
    return [dataclasses.replace(unit, verdicts=part) for unit, part in parts]


class Worker:
    """Runs build steps in one process."""

    def __init__(self, job: Job):
        self._job = job
        self._reader = selection.Reader(job.settings)
        self._tokenizer = WordTable(
            job.vocabulary,
            lower_case=job.settings.lower_case,
            strip_accents=job.settings.strip_accents,
        )

    def run(self, step: str, unit: Unit) -> int:
        """Runs ``READ`` or ``BUILD`` of a unit; returns the number of documents."""
        return self._read(unit) if step == READ else self._build(unit)

    def _read(self, unit: Unit) -> int:
        rows = [self._reader(document) for document in unit.documents()]
        hashes, verdicts, signatures = zip(*rows, strict=True) if rows else ((),) * 3
        with files.open_new(self._job.file(unit, READ), "wb") as file:
            np.savez(
                file,
                hashes=np.array(hashes, np.uint64),
                verdicts=np.array(verdicts, np.uint8),
                signatures=np.array(signatures, np.uint32),
            )
        return len(rows)

    def _build(self, unit: Unit) -> int:
        job = self._job
        rows: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
        # One builder per split: examples must not mix held-out and training text.
        builders = {
            split: ExampleBuilder(
                job.settings.max_seq_length,
                cls_id=job.vocabulary.cls_id,
                sep_id=job.vocabulary.sep_id,
                rng=job.rng(unit, split),
                segmenting=job.settings.segmenting,
            )
            for split in SPLITS
        }
        verdicts = () if unit.verdicts is None else unit.verdicts
        counts = collections.Counter(
            selection.REASONS[v] for v in verdicts if v != selection.KEPT
        )
        for document in unit.documents():
            split = "eval" if text_hash(document) in job.held_out else "train"
            rows[split] += builders[split].build([self._tokenizer.encode(document)])
            size = characters(document) + len(document)
            counts.update(documents=1, lines=len(document), characters=size)
        shards: dict[str, Any] = dict.fromkeys(SPLITS)
        for split, examples in rows.items():
            job.rng(unit, f"shuffle {split}").shuffle(examples)
            if examples:
                path = job.file(unit, f"{split}.tfrecord")
                shards[split] = dataclasses.asdict(write_shard(path, examples))
        unk = job.vocabulary.unk_id
        counts["unknown_tokens"] = sum(int((row == unk).sum()) for row in rows["train"])
        files.write_json(job.file(unit, BUILD), {"counts": counts, **shards})
        return counts["documents"]


def run(step: str, job: Job, units: Sequence[Unit], log: cli.Log) -> None:
    """Runs a step on the unfinished units, in one process per core or with Beam."""
    left = [unit for unit in units if not job.file(unit, step).exists()]
    if len(left) < len(units):
        log(f"{len(units) - len(left)} of {len(units)} units are finished already")
    if left and job.settings.beam:
        _run_beam(step, job, left)
    elif left:
        size = sum(unit.size for unit in left)
        workers = min(cores(), 1 + size // BYTES_WORTH_A_PROCESS, len(left))
        # Only standard error has a progress line that overwrites itself.
        plain = None if log is cli.note else log
        progress = cli.Progress(size, unit="B", scale=True, log=plain)
        progress.update(0, "")
        documents = 0
        # On Ctrl-C, closing the generator cancels queued units.
        with contextlib.closing(_run_units(step, job, left, workers)) as counts:
            for unit, count in zip(left, counts, strict=True):
                documents += count
                progress.update(progress.done + unit.size, f"{documents:,} documents")
        progress.close()


def _run_units(
    step: str, job: Job, units: Sequence[Unit], workers: int
) -> Iterator[int]:
    """Yields the numbers of documents in the order of the units."""
    if workers == 1:
        yield from map(functools.partial(Worker(job).run, step), units)
        return
    with pool(workers) as executor:
        try:
            # Bytes are hashable, so each process caches its unpickled worker.
            run_unit = functools.partial(_run, pickle.dumps(job), step)
            yield from executor.map(run_unit, units)
        except concurrent.futures.process.BrokenProcessPool as error:
            raise OSError(
                "a worker process died, perhaps for lack of memory. To resume, run the "
                "same command on fewer cores (taskset)."
            ) from error


@functools.lru_cache(1)
def _worker(job: bytes) -> Worker:
    return Worker(pickle.loads(job))


def _run(job: bytes, step: str, unit: Unit) -> int:
    return _worker(job).run(step, unit)


def _run_beam(step: str, job: Job, units: Sequence[Unit]) -> None:
    """Runs a step on units in a Beam pipeline with one unit per element.

    File writes are atomic and deterministic, so bundles can be retried or run twice.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    class Work(beam.DoFn):
        def setup(self) -> None:
            self._worker = Worker(job)

        def process(self, element: tuple[int, Iterable[Unit]]) -> None:
            documents = beam.metrics.Metrics.counter("electra_tf", "documents")
            for unit in element[1]:
                documents.inc(self._worker.run(step, unit))

    flags = job.settings.beam
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
        # The error class depends on the runner. The last line names the cause.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        causes = [line for line in lines if re.match(r"\S*Error: ", line)] or lines
        raise UserError(f"--beam={flags} failed: {causes[-1]}") from error

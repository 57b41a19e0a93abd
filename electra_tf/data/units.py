"""Units of work of a records build: what to read, and how processes build them.

A unit is a part of the corpus whose examples depend on the settings, the seed and its
number only. So the records are the same whichever process builds it, and a finished
unit need not be built again after an interruption.
"""

from __future__ import annotations

import array
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import multiprocessing
import os
import random
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf import cli, files
from electra_tf.data.corpora import Document, Source
from electra_tf.data.documents import ExampleBuilder
from electra_tf.data.records import SHARD, Shard, write_shard
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.data.words import WordTable

MIN_UNIT_BYTES = 1 << 16
UNITS_OF_A_SMALL_CORPUS = 16
SPLITS = ("train", "eval")
_HASHES = 1 << 64
_MOST_HELD_OUT = 0.05
_BATCH_CHARACTERS = 1 << 19
_LINES_AT_ONCE = 1 << 12
# Starting a process takes about as long as building this much text.
_BYTES_WORTH_A_PROCESS = 4 << 20

# Told after each batch: how many documents and characters were done.
Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Unit:
    """Consecutive sources that become one shard; its number seeds random choices."""

    index: int
    sources: tuple[Source, ...]

    @property
    def size(self) -> int:
        """Bytes of text."""
        return sum(source.size for source in self.sources)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How text becomes examples: all a process needs besides the unit.

    ``held_out`` are hashes of documents; unit files are written to ``folder``.
    """

    vocabulary: Vocabulary
    max_seq_length: int
    segmenting: str
    lower_case: bool
    strip_accents: bool
    seed: int
    held_out: range = range(0)
    folder: str

    def example_builder(self, unit: Unit, split: str) -> ExampleBuilder:
        """A builder whose choices are a function of (seed, unit, split)."""
        return ExampleBuilder(
            self.max_seq_length,
            cls_id=self.vocabulary.cls_id,
            sep_id=self.vocabulary.sep_id,
            rng=self.rng(unit, split),
            segmenting=self.segmenting,
        )

    def rng(self, unit: Unit, purpose: str) -> random.Random:
        """A random source of its own for each (seed, unit, purpose)."""
        return random.Random(f"{self.seed} {unit.index} {purpose}")

    def file(self, unit: Unit, suffix: str) -> Path:
        """A file of the unit, such as its result, ``json``."""
        return Path(self.folder, f"unit-{unit.index:05d}.{suffix}")

    def result(self, unit: Unit) -> UnitResult | None:
        """What became of a finished unit; None if it is not finished."""
        path = self.file(unit, "json")
        if not path.is_file():
            return None
        counts = dict.fromkeys(("documents", "lines", "characters"), int)
        shape = {**counts, **dict.fromkeys(SPLITS, (None, SHARD))}
        content = files.read_json(path, shape=shape)
        for split in SPLITS:
            content[split] = content[split] and Shard(**content[split])
        return UnitResult(**content)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitResult:
    """What was read of a unit, [UNK] tokens to train on, and shards: None if empty."""

    documents: int
    lines: int
    characters: int
    train: Shard | None
    eval: Shard | None
    unknown: int = 0


def plan_units(sources: Sequence[Source], max_bytes: int) -> list[Unit]:
    """Groups sources, cut where needed, into units of about ``max_bytes``, or less."""
    # A small corpus is cut finer, so that shards can be shuffled and shared. Sizes
    # alone decide, never the number of processes: a resumed build, and one on another
    # machine, plans the same units.
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


class Facts(NamedTuple):
    """What one reading tells about a document.

    ``hash`` is 64 bits of the text: equal documents are on the same side of the
    hold-out. ``characters`` are those of the lines.
    """

    hash: int
    lines: int
    characters: int


def facts(document: Document) -> Facts:
    """Reads a document once."""
    digest = hashlib.blake2b(digest_size=8)
    lines = characters = 0
    for line in document:
        digest.update((f"\n{line}" if lines else line).encode("utf-8"))
        lines += 1
        characters += len(line)
    return Facts(int.from_bytes(digest.digest(), "big"), lines, characters)


def hold_out(sources: Iterable[Source], fraction: float) -> range:
    """The hashes of the documents that are held out, about ``fraction`` of them.

    The text decides, not the place: a document stays on its side when others are added
    or the order changes, and no copy of a held-out document is trained on.

    Reads until documents on either side of the bound have been seen and those held
    out are no more than twice the share that is asked for, or 5 %. In a corpus of few
    documents that may never be: then one document (and its duplicates) is held out,
    of those that have at most ``fraction`` or 5 % of the characters; none if all have
    more. Raises ValueError if there is no document at all.
    """
    bound = int(fraction * _HASHES)
    sizes: collections.Counter[int] = collections.Counter()
    total = below = 0
    for source in sources:
        for document in source.documents():
            value, _, size = facts(document)
            sizes[value] += size
            total += size
            below += size if value < bound else 0
            most = max(2 * fraction, _MOST_HELD_OUT) * total
            if bound == 0 or (0 < below < total and below <= most):
                return range(bound)
    if not sizes:
        raise ValueError("the corpus is empty: its sources hold no text")
    most = max(fraction, _MOST_HELD_OUT) * total
    fitting = [value for value, size in sizes.items() if size <= most and size < total]
    return range(min(fitting), min(fitting) + 1) if fitting else range(0)


class UnitBuilder:
    """Builds units, one after the other; owns the tokenizer of its process."""

    def __init__(self, recipe: Recipe):
        self._recipe = recipe
        self._tokenizer = WordTable(
            recipe.vocabulary,
            lower_case=recipe.lower_case,
            strip_accents=recipe.strip_accents,
        )

    def build(self, unit: Unit, report: Report) -> UnitResult:
        """Writes the unit's shards, then the result that marks it as finished."""
        recipe = self._recipe
        unk = recipe.vocabulary.unk_id
        # One builder per split: an example never mixes held-out and training text.
        builders = {split: recipe.example_builder(unit, split) for split in SPLITS}
        counts = collections.Counter(documents=0, lines=0, characters=0)
        read = itertools.chain.from_iterable(s.documents() for s in unit.sources)
        with contextlib.ExitStack() as stack:
            built = {
                split: stack.enter_context(_Examples(recipe.folder, unk))
                for split in SPLITS
            }
            for batch in _batches(read):
                encoded = self._encode(
                    itertools.chain.from_iterable(document for document, _ in batch)
                )
                for _, about in batch:
                    split = "eval" if about.hash in recipe.held_out else "train"
                    ids = itertools.islice(encoded, about.lines)
                    built[split].add(builders[split].build([ids]))
                lines = sum(about.lines for _, about in batch)
                size = lines + sum(about.characters for _, about in batch)
                counts.update(documents=len(batch), lines=lines, characters=size)
                report(len(batch), size)
            shards = {}
            for split, examples in built.items():
                path = recipe.file(unit, f"{split}.tfrecord")
                rows = examples.shuffled(recipe.rng(unit, f"shuffle {split}"))
                shards[split] = write_shard(path, rows) if len(examples) else None
            unknown = built["train"].unknown
        result = UnitResult(**counts, **shards, unknown=unknown)
        # Last: a build that is resumed takes a unit with a result as finished.
        files.write_json(recipe.file(unit, "json"), dataclasses.asdict(result))
        return result

    def _encode(self, lines: Iterator[str]) -> Iterator[Sequence[int]]:
        # Some at a time: the ids of a document of megabytes are not all kept at once.
        some: list[str] = []
        size = 0
        for line in lines:
            some.append(line)
            size += len(line)
            if len(some) == _LINES_AT_ONCE or size >= _BATCH_CHARACTERS:
                yield from self._tokenizer.encode(some)
                some, size = [], 0
        yield from self._tokenizer.encode(some)


def _batches(
    documents: Iterable[Document],
) -> Iterator[list[tuple[Document, Facts]]]:
    """Groups of documents with enough text to tokenize at once."""
    batch: list[tuple[Document, Facts]] = []
    size = 0
    for document in documents:
        batch.append((document, facts(document)))
        size += batch[-1][1].characters
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Examples(contextlib.AbstractContextManager):
    """Examples of a unit, kept on the disk in ``folder`` until they are shuffled.

    ``unknown`` is how many of their tokens are ``unk_id``.
    """

    def __init__(self, folder: str, unk_id: int):
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._folder, self._unk_id = folder, unk_id
        self._ends = array.array("q", [0])  # In tokens.
        self.unknown = 0

    def __exit__(self, *error: object) -> None:
        # What could not be written was said already.
        with contextlib.suppress(OSError):
            self._file.close()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, examples: Iterable[np.ndarray]) -> None:
        """Takes examples of int32."""
        try:
            for example in examples:
                self._file.write(example.tobytes())
                self._ends.append(self._ends[-1] + len(example))
                self.unknown += int((example == self._unk_id).sum())
            self._file.flush()
        except OSError as error:
            if error.filename:
                raise
            raise OSError(error.errno, error.strerror, self._folder) from error

    def shuffled(self, rng: random.Random) -> Iterator[np.ndarray]:
        """Yields the examples in another order."""
        order = array.array("q", range(len(self)))
        rng.shuffle(order)
        for number in order:
            start, end = self._ends[number], self._ends[number + 1]
            row = os.pread(self._file.fileno(), 4 * (end - start), 4 * start)
            yield np.frombuffer(row, np.int32)


def build_units(
    recipe: Recipe, units: Sequence[Unit], num_processes: int, log: cli.Log
) -> list[UnitResult]:
    """Builds the units that are not finished yet; returns the results of all.

    With ``num_processes`` 0 there is one process per core, fewer for little text. An
    OSError says that a process was killed, or that a file could not be written.
    """
    left = [unit for unit in units if recipe.result(unit) is None]
    if len(left) < len(units):
        log(f"{len(units) - len(left)} of {len(units)} units are finished already")
    if left:
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
            builder = UnitBuilder(recipe)
            for unit in left:
                builder.build(unit, report)
        else:
            _build_in_processes(recipe, left, workers, report)
        # The total was a guess: bytes of text, of compressed files an estimate.
        progress.total = progress.done
        progress.close()
    return [recipe.result(unit) for unit in units]


# A forked child of a process that has run TensorFlow hangs, so the workers are spawned;
# what they need is sent once and kept here.
_worker: dict[str, Any] = {}


def _build_in_processes(
    recipe: Recipe, units: Sequence[Unit], workers: int, report: Report
) -> None:
    """Builds units in any order, several at once."""
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


def _start(recipe: Recipe, counts: Any) -> None:
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

    _worker.update(builder=UnitBuilder(recipe), report=report)


def _exit_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _build(unit: Unit) -> None:
    _worker["builder"].build(unit, _worker["report"])

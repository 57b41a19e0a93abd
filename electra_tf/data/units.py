"""Units of work of a records build: what to read, and what is made of it.

A unit is a part of the corpus whose examples depend on the settings, the seed and its
number only. So the records are the same whichever process builds it, and a finished
unit need not be built again after an interruption.
"""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import itertools
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from electra_tf import files
from electra_tf.data import selection
from electra_tf.data.corpora import Document, Source
from electra_tf.data.documents import ExampleBuilder
from electra_tf.data.records import SHARD, Shard, write_shard
from electra_tf.data.selection import Facts, Selection, facts
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.data.words import WordTable
from electra_tf.errors import UserError

MIN_UNIT_BYTES = 1 << 16
UNITS_OF_A_SMALL_CORPUS = 16
SPLITS = ("train", "eval")
_READ, _VERDICTS = "read.npz", "verdicts.npy"
_HASHES = 1 << 64
_MOST_HELD_OUT = 0.05
_BATCH_CHARACTERS = 1 << 19
_LINES_AT_ONCE = 1 << 12

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

    def documents(self) -> Iterator[Document]:
        """The documents of all sources."""
        return itertools.chain.from_iterable(s.documents() for s in self.sources)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How text becomes examples: all a process needs besides the unit.

    ``held_out`` are hashes of documents; with a ``selection``, not all documents are
    kept. Unit files are written to ``folder``.
    """

    vocabulary: Vocabulary
    max_seq_length: int
    segmenting: str
    lower_case: bool
    strip_accents: bool
    seed: int
    held_out: range = range(0)
    selection: Selection | None = None
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
        shards = dict.fromkeys(SPLITS, (None, SHARD))
        shape = {"dropped": dict[str, int] | None, **counts, **shards}
        content = files.read_json(path, shape=shape)
        for split in SPLITS:
            content[split] = content[split] and Shard(**content[split])
        return UnitResult(**content)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitResult:
    """What was kept of a unit, [UNK] tokens to train on, and shards: None if empty.

    ``dropped`` counts the documents that were not kept, by reason.
    """

    documents: int
    lines: int
    characters: int
    train: Shard | None
    eval: Shard | None
    unknown: int = 0
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)


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


def hold_out(documents: Iterable[Document], fraction: float) -> range:
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
    for document in documents:
        value, _, size = facts(document)
        sizes[value] += size
        total += size
        below += size if value < bound else 0
        most = max(2 * fraction, _MOST_HELD_OUT) * total
        if bound == 0 or (0 < below < total and below <= most):
            return range(bound)
    if not sizes:
        raise UserError("the corpus is empty: there is no text, or none that is kept")
    most = max(fraction, _MOST_HELD_OUT) * total
    fitting = [value for value, size in sizes.items() if size <= most and size < total]
    return range(min(fitting), min(fitting) + 1) if fitting else range(0)


class UnitReader:
    """Reads units for a selection, before anything is built of them."""

    def __init__(self, recipe: Recipe):
        self._recipe = recipe
        self._read = recipe.selection.reader()

    @staticmethod
    def is_done(recipe: Recipe, unit: Unit) -> bool:
        """Whether the unit was read already."""
        return recipe.file(unit, _READ).is_file()

    def build(self, unit: Unit, report: Report) -> None:
        """Writes what was found in the unit's documents."""
        found = []
        for document in unit.documents():
            found.append(self._read(document))
            report(1, 0)
        hashes, verdicts, signatures = zip(*found, strict=True) if found else ((),) * 3
        with files.open_new(self._recipe.file(unit, _READ), "wb") as file:
            np.savez(
                file,
                hashes=np.array(hashes, np.uint64),
                verdicts=np.array(verdicts, np.uint8),
                signatures=np.array(signatures, np.uint32),
            )
        report(0, unit.size)


def judge_units(recipe: Recipe, units: Sequence[Unit]) -> np.ndarray:
    """Writes the verdicts of units that were read; returns those of all documents."""
    parts: dict[str, list[np.ndarray]] = {"hashes": [], "verdicts": []}
    # Signatures take half a kilobyte for each document of the corpus: on the disk.
    with tempfile.TemporaryFile(dir=recipe.folder) as file:
        for unit in units:
            with np.load(recipe.file(unit, _READ)) as read:
                for name, each in parts.items():
                    each.append(read[name])
                file.write(read["signatures"].tobytes())
        joined = {name: np.concatenate(each) for name, each in parts.items()}
        signatures = None
        if file.tell():
            file.flush()
            signatures = np.memmap(file, np.uint32, "r").reshape(-1, selection.HASHES)
        verdicts = selection.judge(recipe.selection, **joined, signatures=signatures)
    ends = np.cumsum([len(each) for each in parts["hashes"]])
    for unit, part in zip(units, np.split(verdicts, ends[:-1]), strict=True):
        with files.open_new(recipe.file(unit, _VERDICTS), "wb") as file:
            np.save(file, part)
    return verdicts


class UnitBuilder:
    """Builds units, one after the other; owns the tokenizer of its process."""

    def __init__(self, recipe: Recipe):
        self._recipe = recipe
        self._tokenizer = WordTable(
            recipe.vocabulary,
            lower_case=recipe.lower_case,
            strip_accents=recipe.strip_accents,
        )

    @staticmethod
    def is_done(recipe: Recipe, unit: Unit) -> bool:
        """Whether the unit is finished."""
        return recipe.result(unit) is not None

    def build(self, unit: Unit, report: Report) -> UnitResult:
        """Writes the unit's shards, then the result that marks it as finished."""
        recipe = self._recipe
        unk = recipe.vocabulary.unk_id
        # One builder per split: an example never mixes held-out and training text.
        builders = {split: recipe.example_builder(unit, split) for split in SPLITS}
        counts = collections.Counter(documents=0, lines=0, characters=0)
        read, dropped = unit.documents(), {}
        if recipe.selection:
            verdicts = np.load(recipe.file(unit, _VERDICTS))
            read = itertools.compress(read, verdicts == selection.KEPT)
            dropped = selection.counted(verdicts)
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
        result = UnitResult(**counts, **shards, unknown=unknown, dropped=dropped)
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
        with self._naming_folder():
            for example in examples:
                self._file.write(example.tobytes())
                self._ends.append(self._ends[-1] + len(example))
                self.unknown += int((example == self._unk_id).sum())

    def shuffled(self, rng: random.Random) -> Iterator[np.ndarray]:
        """Yields the examples in another order."""
        with self._naming_folder():
            self._file.flush()
        order = array.array("q", range(len(self)))
        rng.shuffle(order)
        for number in order:
            start, end = self._ends[number], self._ends[number + 1]
            row = os.pread(self._file.fileno(), 4 * (end - start), 4 * start)
            yield np.frombuffer(row, np.int32)

    @contextlib.contextmanager
    def _naming_folder(self) -> Iterator[None]:
        # The file has no name that a full disk could be reported with.
        try:
            yield
        except OSError as error:
            if error.filename:
                raise
            raise OSError(error.errno, error.strerror, self._folder) from error

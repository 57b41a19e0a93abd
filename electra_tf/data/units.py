"""Units of work of a records build: what to read, and how one unit is built.

A unit is a part of the corpus whose examples depend on the settings, the seed and its
number only. So the records are the same whichever process builds it, and a finished
unit need not be built again after an interruption.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from electra_tf.data.documents import ExampleBuilder
from electra_tf.data.records import Shard, write_json, write_shard
from electra_tf.data.sources import Source
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary

MIN_UNIT_BYTES = 1 << 16
UNITS_OF_A_SMALL_CORPUS = 16
_HASHES = 1 << 64
_MOST_HELD_OUT = 0.05
_BATCH_CHARACTERS = 1 << 19
_LINES_AT_ONCE = 1 << 12

# Told after each batch: how many documents and characters were done.
Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Unit:
    """Consecutive sources that become one shard.

    Attributes:
        index: Its number, which seeds its random choices.
        sources: What to read, in order.
    """

    index: int
    sources: tuple[Source, ...]

    @property
    def size(self) -> int:
        """Bytes of text."""
        return sum(source.size for source in self.sources)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How text becomes examples: all a process needs besides the unit.

    Attributes:
        vocabulary: The `Vocabulary`.
        max_seq_length: Longest example.
        segmenting: Rule of the `ExampleBuilder`.
        lower_case: Whether the text is lower-cased.
        strip_accents: Whether accents are removed.
        seed: Seed of all random choices.
        held_out: Hashes of the documents that are held out.
        folder: Where unit files are written.
    """

    vocabulary: Vocabulary
    max_seq_length: int
    segmenting: str
    lower_case: bool
    strip_accents: bool
    seed: int
    held_out: range
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitResult:
    """What a unit's files hold.

    Attributes:
        documents: Documents read.
        lines: Lines read.
        characters: Characters read.
        train: Shard to train on, or None if the unit gave no example.
        eval: Held-out shard, or None.
        unknown: Tokens to train on that are [UNK].
    """

    documents: int
    lines: int
    characters: int
    train: Shard | None
    eval: Shard | None
    unknown: int = 0

    @classmethod
    def load(cls, folder: str | Path, unit: Unit) -> UnitResult | None:
        """The result of a finished unit; None if it is not finished."""
        path = _result_path(folder, unit)
        if not path.is_file():
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        for split in ("train", "eval"):
            content[split] = content[split] and Shard(**content[split])
        return cls(**content)


def plan_units(sources: Sequence[Source], max_bytes: int) -> list[Unit]:
    """Cuts and groups sources into units of similar size.

    Args:
        sources: The corpus.
        max_bytes: Text of a unit, about; a small corpus is cut finer, so that shards
            can be shuffled and shared.
    """
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


def document_hash(document: Sequence[str]) -> int:
    """64 bits of the text: equal documents are on the same side of the hold-out."""
    digest = hashlib.blake2b("\n".join(document).encode("utf-8"), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def hold_out(sources: Iterable[Source], fraction: float) -> range:
    """The hashes of the documents that are held out, about `fraction` of them.

    Reads until documents on either side of the bound have been seen and those held
    out are no more than twice the share that is asked for, or 5 %. In a corpus of few
    documents that may never be: then one document (and its duplicates) is held out,
    of those that have at most `fraction` or 5 % of the characters; none if all have
    more.

    Raises:
        ValueError: There is no document at all.
    """
    bound = int(fraction * _HASHES)
    sizes: collections.Counter[int] = collections.Counter()
    total = below = 0
    for source in sources:
        for document in source.documents():
            value, size = document_hash(document), sum(map(len, document))
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
        self._tokenizer = WordPiece(
            recipe.vocabulary,
            lower_case=recipe.lower_case,
            strip_accents=recipe.strip_accents,
        )

    def build(self, unit: Unit, report: Report) -> UnitResult:
        """Writes the unit's shards, then the result that marks it as finished."""
        examples = {"train": [], "eval": []}
        builders = {
            split: self._recipe.example_builder(unit, split) for split in examples
        }
        documents = lines = characters = 0
        read = itertools.chain.from_iterable(s.documents() for s in unit.sources)
        for batch in _batches(read):
            encoded = self._encode(itertools.chain.from_iterable(batch))
            for document in batch:
                split = self._split(document)
                ids = itertools.islice(encoded, len(document))
                for example in builders[split].build([ids]):
                    # Lists of Python integers would take ten times the memory.
                    examples[split].append(array.array("i", example))
            size = sum(len(line) + 1 for document in batch for line in document)
            documents += len(batch)
            lines += sum(map(len, batch))
            characters += size
            report(len(batch), size)
        shards = {
            split: self._write(unit, split, examples[split]) for split in examples
        }
        unknown = self._recipe.vocabulary.unk_id
        result = UnitResult(
            documents=documents,
            lines=lines,
            characters=characters,
            unknown=sum(example.count(unknown) for example in examples["train"]),
            **shards,
        )
        write_json(_result_path(self._recipe.folder, unit), dataclasses.asdict(result))
        return result

    def _encode(self, lines: Iterator[str]) -> Iterator[list[int]]:
        # Some at a time: the ids of a document of megabytes are not all kept at once.
        while some := list(itertools.islice(lines, _LINES_AT_ONCE)):
            yield from (ids.tolist() for ids in self._tokenizer.encode(some))

    def _split(self, document: Sequence[str]) -> str:
        held_out = document_hash(document) in self._recipe.held_out
        return "eval" if held_out else "train"

    def _write(self, unit: Unit, split: str, examples: list) -> Shard | None:
        if not examples:
            return None
        self._recipe.rng(unit, f"shuffle {split}").shuffle(examples)
        name = f"unit-{unit.index:05d}.{split}.tfrecord"
        return write_shard(Path(self._recipe.folder, name), examples)


def _result_path(folder: str | Path, unit: Unit) -> Path:
    return Path(folder, f"unit-{unit.index:05d}.json")


def _batches(documents: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Groups of documents with enough text to tokenize at once."""
    batch: list[list[str]] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document))
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

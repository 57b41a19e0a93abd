"""Sentences with one tag per word: CoNLL columns, CoNLL-U, and tables.

Letters: W words.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from electra_tf.tasks.tables import read_table, read_text, require_columns

CONLLU_COLUMNS = (
    "ID",
    "FORM",
    "LEMMA",
    "UPOS",
    "XPOS",
    "FEATS",
    "HEAD",
    "DEPREL",
    "DEPS",
    "MISC",
)
_TABLES = (".csv", ".tsv", ".jsonl", ".json")
_SPLITS = {
    "train": re.compile(r"train"),
    "dev": re.compile(r"dev|valid|testa"),
    "test": re.compile(r"test(?!a)"),
}
_DOCUMENT = "-DOCSTART-"


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence and the lines it was read from.

    Attributes:
        id: Name of the sentence: its sent_id, or its number in the file.
        words: W words.
        tags: W tags; None where they are unknown.
        lines: The lines of the sentence, comments included.
        at: Which of the lines are words, W numbers.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: tuple[str, ...]
    at: tuple[int, ...]

    def with_column(self, cells: list[str]) -> list[str]:
        """The lines with one more cell per word, separated as the others are."""
        lines = list(self.lines)
        for number, cell in zip(self.at, cells, strict=True):
            separator = "\t" if "\t" in lines[number] else " "
            lines[number] += separator + cell
        return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceSource:
    """Splits of a tagging task, one file each.

    The end of the name says what a file is. `.conllu`: CoNLL-U, where ranges such as
    3-4 and empty nodes such as 3.1 are no words. `.csv`, `.tsv`, `.jsonl`: a table with
    a header, one sentence per row; words and tags are lists, or separated by spaces.
    Anything else: columns separated by tabs (if there are any) or spaces, one word per
    line, a blank line after each sentence. A line of -DOCSTART- is a blank one.

    Attributes:
        files: Path of each split.
        word_column: Column of the words: its number from 0, negative from the end, or
            its name in CoNLL-U and tables.
        tag_column: Column of the tags, likewise.
        unlabeled: Splits whose tags are not read.
    """

    files: Mapping[str, str | None]
    word_column: str
    tag_column: str
    unlabeled: tuple[str, ...] = ()

    def __call__(self, split: str) -> list[Sentence]:
        """Reads a split.

        Raises:
            ValueError: The file is not what it should be; the message has the line.
            FileNotFoundError: There is no file for it.
        """
        path = self.files.get(split)
        if not path:
            raise FileNotFoundError(f"No file was given for {split}: set --{split}.")
        labeled = split not in self.unlabeled
        if os.path.splitext(path.removesuffix(".gz"))[1] in _TABLES:
            return list(self._table(path, labeled))
        sentences = list(self._columns(path, labeled))
        if not sentences:
            raise ValueError(f"{path} has not a single word.")
        return sentences

    def _columns(self, path: str, labeled: bool) -> Iterator[Sentence]:
        conllu = path.removesuffix(".gz").endswith(".conllu")
        # Not splitlines: a word may hold one of its stranger line ends.
        lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
        tabs = conllu or any("\t" in line.strip() for line in lines)
        cells_of = _tab_cells if tabs else str.split
        word = self._number(self.word_column, conllu, "word", path)
        tag = self._number(self.tag_column, conllu, "tag", path)
        for first, block in _blocks(lines):
            found = []
            for offset, line in enumerate(block):
                if conllu and not re.match(r"\d+\t", line):
                    continue
                where, cells = f"{path}, line {first + offset}", cells_of(line)
                found_word = _cell(cells, word, "word", where)
                found_tag = _tag(cells, tag, word, where) if labeled else ""
                found.append((offset, found_word, found_tag))
            if not found:
                continue
            at, words, tags = zip(*found, strict=True)
            name = (_sentence_id(block) if conllu else "") or f"line {first}"
            yield Sentence(name, words, tags if labeled else None, tuple(block), at)

    def _number(self, column: str, conllu: bool, kind: str, path: str) -> int:
        if re.fullmatch(r"-?\d+", column):
            return int(column)
        if conllu and column.upper() in CONLLU_COLUMNS:
            return CONLLU_COLUMNS.index(column.upper())
        allowed = "a number, from 0 or negative from the end"
        if conllu:
            allowed += f", or one of {', '.join(CONLLU_COLUMNS)}"
        raise ValueError(
            f"--{kind}_column={column}: for {path} it must be {allowed}. Tables with "
            "named columns end in .csv, .tsv or .jsonl."
        )

    def _table(self, path: str, labeled: bool) -> Iterator[Sentence]:
        table = read_table(path)
        require_columns(table, [self.word_column], "word_column")
        if labeled:
            require_columns(table, [self.tag_column], "tag_column")
        for line, row in table.rows:
            where = f"{path}, line {line}"
            words = _list(row[self.word_column], self.word_column, where)
            tags = None
            if labeled:
                tags = _list(row.get(self.tag_column), self.tag_column, where)
                if len(tags) != len(words):
                    raise ValueError(
                        f"{where}: {len(words)} words but {len(tags)} tags; there must "
                        "be one tag per word."
                    )
            lines = (
                words if tags is None else map("\t".join, zip(words, tags, strict=True))
            )
            name = str(row.get("id", line))
            yield Sentence(name, words, tags, tuple(lines), tuple(range(len(words))))


def find_files(folder: str) -> dict[str, str]:
    """The files of a folder whose names say train, dev (valid, testa) or test (testb).

    Raises:
        ValueError: Several files fit one split, or none is for training.
        OSError: The folder cannot be read.
    """
    found: dict[str, str] = {}
    for name in sorted(os.listdir(folder)):
        for split, pattern in _SPLITS.items():
            if not pattern.search(name.lower()):
                continue
            if split in found:
                raise ValueError(
                    f"{folder} has two files for {split}: {found[split]} and {name}. "
                    "Name the files with --train, --eval and --test."
                )
            found[split] = name
    if "train" not in found:
        raise ValueError(
            f"{folder} has no file with 'train' in its name. Name the files with "
            "--train, --eval and --test."
        )
    return {split: os.path.join(folder, name) for split, name in found.items()}


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Groups of lines between blank ones, with the number of their first line.

    A line of -DOCSTART- ends a sentence too, whether or not blank lines are around it.
    """
    block: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        # The first cell, or the one after a number.
        if line.strip() and _DOCUMENT not in line.split()[:2]:
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []


def _tab_cells(line: str) -> list[str]:
    return line.split("\t")


def _cell(cells: list[str], column: int, kind: str, where: str) -> str:
    if not -len(cells) <= column < len(cells):
        raise ValueError(
            f"{where}: {len(cells)} columns, but --{kind}_column is {column}. Correct "
            "the line, or the flag."
        )
    return cells[column]


def _tag(cells: list[str], column: int, word: int, where: str) -> str:
    tag = _cell(cells, column, "tag", where)
    if column % len(cells) == word % len(cells):
        raise ValueError(
            f"{where}: the word {tag!r} is its own tag, because the line has "
            f"{len(cells)} columns. Add the tag, or change --word_column={word} or "
            f"--tag_column={column}."
        )
    if not tag.strip():
        raise ValueError(
            f"{where}: the tag is empty. Fill it in (O is the tag of words outside of "
            "all entities)."
        )
    return tag


def _list(value: Any, column: str, where: str) -> tuple[str, ...]:
    parts = value.split() if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(
            f"{where}: column {column} must hold a list of strings, or one string with "
            f"spaces between them, got {value!r}."
        )
    if not parts or not all(part.strip() for part in parts):
        raise ValueError(f"{where}: column {column} is empty or holds an empty string.")
    return tuple(parts)


def _sentence_id(block: list[str]) -> str:
    for line in block:
        if match := re.match(r"#\s*sent_id\s*=\s*(.*\S)", line):
            return match[1]
    return ""


Source = Callable[[str], list[Sentence]]

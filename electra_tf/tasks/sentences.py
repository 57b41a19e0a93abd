"""Sentences with one tag per word: file formats, spans and span metrics."""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from electra_tf.data import paths
from electra_tf.data.tables import READERS
from electra_tf.errors import UserError
from electra_tf.tasks.base import check_strings
from electra_tf.tasks.tables import (
    LISTS_OF_PANDAS,
    read_table,
    read_text,
    require_columns,
)

CONLLU_COLUMNS = (
    *("ID", "FORM", "LEMMA", "UPOS", "XPOS"),
    *("FEATS", "HEAD", "DEPREL", "DEPS", "MISC"),
)
_SPLITS = {
    "train": re.compile(r"train"),
    "dev": re.compile(r"dev|valid|testa"),
    "test": re.compile(r"test(?!a)"),
}
_DOCUMENT = "-DOCSTART-"
# From this number of rows on, one word each is a mistake.
_MANY = 10
# White space of ``tf.strings.split``, which the SavedModel uses.
_WHITE_SPACE = " \t\n\v\f\r"
_GAP = re.compile(f"[{_WHITE_SPACE}]+")


def split_words(text: str) -> list[str]:
    r"""Splits a text at ASCII white space, as exported models do.

    Examples:
        >>> et.tasks.split_words(" costs 10\u00a0000  euro")
        ['costs', '10\xa0000', 'euro']
    """
    return [word for word in _GAP.split(text) if word]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of words, and its tags (None if unknown).

    Examples:
        >>> sentence = et.tasks.Sentence("1", ("Ada", "wrote"), ("B-PER", "O"))
        >>> dict(zip(sentence.words, sentence.tags, strict=True))
        {'Ada': 'B-PER', 'wrote': 'O'}
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_strings("words", self.words)
        check_strings("tags", self.tags)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceSource:
    r"""Reads the splits of a tagging task, one file each.

    The suffix determines the format:

    - ``.conllu``: CoNLL-U. Ranges such as 3-4 and empty nodes such as 3.1 are skipped.
    - ``.csv``, ``.tsv``, ``.jsonl``, ``.json``: a table with one sentence per row.
      Words and tags are lists, or strings separated by spaces.
    - Others: one word per line and a blank or -DOCSTART- line after each sentence.
      Columns are separated by tabs if the file has any, else by spaces. Lines of
      several words that begin with # are comments if they have another number of
      columns than the other lines.

    Columns are numbers from 0, negative from the end, or names in CoNLL-U and tables.
    Tags of ``unlabeled`` splits are not read.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("dev.conll").write_text("Ada B-PER\nwrote O\n\nIt O\nran O\n")
        >>> source = et.tasks.SentenceSource(
        ...     files={"dev": "dev.conll"}, word_column="0", tag_column="-1"
        ... )
        >>> [sentence.words for sentence in source("dev")]
        [('Ada', 'wrote'), ('It', 'ran')]
    """

    files: Mapping[str, str | None]
    word_column: str
    tag_column: str
    unlabeled: tuple[str, ...] = ()

    def __call__(self, split: str) -> list[Sentence]:
        path = self.files.get(split)
        if not path:
            raise FileNotFoundError(f"No file was given for {split}: set --{split}.")
        labeled = split not in self.unlabeled
        if paths.suffix(path) in READERS:
            return list(self._table(path, labeled))
        return self.columns(path, labeled)

    def columns(self, path: str, labeled: bool = True) -> list[Sentence]:
        """Reads CoNLL-U, or columns of a file with any other suffix."""
        conllu = paths.suffix(path) == ".conllu"
        # Not splitlines: words may contain its other separators, such as U+2028.
        lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
        tabs = conllu or any("\t" in line.strip(_WHITE_SPACE) for line in lines)
        word = _number(self.word_column, conllu, "word", path)
        tag = _number(self.tag_column, conllu, "tag", path)

        def split(line: str) -> list[str]:
            return line.split("\t") if tabs else re.findall(r"[^ \t]+", line)

        sentences, blocks = [], list(_blocks(lines))
        rows = (line for _, block in blocks for line in block)
        widths = {len(split(line)) for line in rows if not line.startswith("#")}
        for first, block in blocks:
            words, tags = [], []
            for number, line in enumerate(block, first):
                where = f"{path}, line {number}"
                if conllu and not re.match(r"\d+\t", line):
                    if not re.match(r"#|\d+[-.]\d+\t", line):
                        raise UserError(
                            f"{where}: {line[:40]!r} must begin with an ID and a tab, "
                            "or with # if it is a comment: correct the line."
                        )
                    continue
                cells = split(line)
                # The word # has as many columns as the other words.
                if re.match(r"#.*\s\S", line) and len(cells) not in widths:
                    continue
                words.append(_cell(cells, word, "word", where))
                if labeled:
                    tags.append(_tag(cells, tag, word, where))
            if words:
                known = tuple(tags) if labeled else None
                sentences.append(Sentence(f"line {first}", tuple(words), known))
        if not sentences:
            raise UserError(f"{path} has no words.")
        counted = [tuple(map(str, range(1, len(s.words) + 1))) for s in sentences]
        if counted == [sentence.words for sentence in sentences]:
            raise UserError(
                f"{path}: column {self.word_column} numbers the words: set "
                "--word_column, such as 1, and --tag_column."
            )
        return sentences

    def _table(self, path: str, labeled: bool) -> Iterator[Sentence]:
        layout = (
            f"{path}: a table has one sentence per row, in the columns --word_column "
            "and --tag_column. For one word per line, rename it to .conll and delete "
            "the header, if any."
        )
        is_plain = paths.suffix(path) not in (".json", ".jsonl")
        is_number = re.fullmatch("-?[0-9]+", self.word_column)
        header = read_text(path).partition("\n")[0]
        if (
            is_plain
            and is_number
            and self.word_column not in re.findall(r"\w+", header)
        ):
            raise UserError(layout)
        table = read_table(path)
        require_columns(table, [self.word_column], "word_column")
        if labeled:
            require_columns(table, [self.tag_column], "tag_column")
        count, longest = len(table.rows), 0
        for line, row in table.rows:
            where = f"{path}, line {line}"
            words = _list(row.get(self.word_column), self.word_column, where)
            tags = None
            if labeled:
                tags = _list(row.get(self.tag_column), self.tag_column, where)
                if len(tags) != len(words):
                    raise UserError(
                        f"{where}: {len(words)} words but {len(tags)} tags; there must "
                        "be one tag per word."
                    )
            yield Sentence(str(row.get("id", line)), words, tags)
            longest = max(longest, len(words))
        if is_plain and count >= _MANY and longest == 1:
            raise UserError(layout)


def find_files(folder: str) -> dict[str, str]:
    """Finds files with names that contain train, dev (valid, testa) or test (testb).

    Raises ValueError if a split has several files, or if train is missing.
    """
    by_split: dict[str, str] = {}
    for split, pattern in _SPLITS.items():
        names = [n for n in sorted(os.listdir(folder)) if pattern.search(n.lower())]
        if len(names) > 1 or (split == "train" and not names):
            raise UserError(
                f"{folder} has {' and '.join(names) or 'no file'} for {split}, and "
                "needs one. Name the files with --train, --eval and --test."
            )
        if names:
            by_split[split] = os.path.join(folder, names[0])
    return by_split


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields (first line number, lines) between blank or -DOCSTART- lines."""
    block: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        # -DOCSTART- is the first cell, or the second one after a number.
        if line.strip(_WHITE_SPACE) and _DOCUMENT not in line.split()[:2]:
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []


def _number(column: str, conllu: bool, kind: str, path: str) -> int:
    if re.fullmatch("-?[0-9]{1,9}", column):
        return int(column)
    if conllu and column.upper() in CONLLU_COLUMNS:
        return CONLLU_COLUMNS.index(column.upper())
    named = f", or one of {', '.join(CONLLU_COLUMNS)}" if conllu else ""
    raise UserError(
        f"--{kind}_column={column}: for {path} it must be a number, from 0 or negative "
        f"from the end{named}. Tables with named columns end in .csv, .tsv or .jsonl."
    )


def _cell(cells: list[str], column: int, kind: str, where: str) -> str:
    if not -len(cells) <= column < len(cells):
        raise UserError(
            f"{where}: {len(cells)} columns, but --{kind}_column is {column}. Correct "
            "the line, or the flag."
        )
    if not cells[column].strip(_WHITE_SPACE):
        hint = " (O marks words outside of all entities)" if kind == "tag" else ""
        raise UserError(f"{where}: the {kind} is empty. Fill it in{hint}.")
    return cells[column]


def _tag(cells: list[str], column: int, word: int, where: str) -> str:
    tag = _cell(cells, column, "tag", where)
    if column % len(cells) == word % len(cells):
        raise UserError(
            f"{where}: the word {tag!r} is its own tag, because the line has "
            f"{len(cells)} columns. Add the tag, or change --word_column={word} or "
            f"--tag_column={column}."
        )
    return tag


def _list(value: Any, column: str, where: str) -> tuple[str, ...]:
    is_text = isinstance(value, str) and not value.startswith(LISTS_OF_PANDAS)
    parts = split_words(value) if is_text else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise UserError(
            f"{where}: column {column} must hold a list of strings, or one string with "
            f"spaces between them, got {value!r}."
        )
    if not parts or not all(part.strip(_WHITE_SPACE) for part in parts):
        raise UserError(f"{where}: column {column} is empty or holds an empty string.")
    return tuple(parts)


Span = tuple[str, int, int]
_SPAN_TAG = re.compile(r"O|[BIES](-.*)?", re.DOTALL)


def is_span_tag(tag: str) -> bool:
    """Returns True if a tag is O, or B, I, E or S with or without a type."""
    return _SPAN_TAG.fullmatch(tag) is not None


def spans(tags: Sequence[str]) -> list[Span]:
    """Returns the spans of a sentence in order: (type, first word, word after last).

    One rule decodes IOB1, IOB2 and BIOES, including invalid sequences. B and S start a
    span. I and E do so if the previous word is not in an open span of the same type.
    The rule is conlleval's for IOB, and seqeval's default mode for BIOES.
    """
    closed: list[Span] = []
    before, kind_before, start = "O", "", 0
    # The appended O closes the last span.
    for number, tag in enumerate([*tags, "O"]):
        letter, _, kind = tag.partition("-")
        continues = letter in "IE" and before in "BI" and kind == kind_before
        if before != "O" and not continues:
            closed.append((kind_before, start, number))
        if not continues:
            start = number
        before, kind_before = letter, kind
    return closed


def tag_counts(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> np.ndarray:
    """Counts by sentence, int64 [N, 5], for ``tag_shares``.

    They are correct tags, words, and correct, labeled and predicted spans.
    """
    counts = np.zeros([len(labels), 5], np.int64)
    for row, gold, answer in zip(counts, labels, predictions, strict=True):
        right = sum(tag == other for tag, other in zip(gold, answer, strict=True))
        wanted, given = set(spans(gold)), set(spans(answer))
        row[:] = right, len(gold), len(wanted & given), len(wanted), len(given)
    return counts


def span_shares(counts: np.ndarray) -> dict[str, float]:
    """Returns precision, recall and F1 from correct, labeled and predicted spans, [3].

    They are in [0, 1], and 0 if their denominator is 0.
    """
    right, labeled, predicted = counts.tolist()
    return {
        "f1": 2 * right / max(labeled + predicted, 1),
        "precision": right / max(predicted, 1),
        "recall": right / max(labeled, 1),
    }

"""Sentences with one tag per word: file formats, spans and span metrics."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from electra_tf.data import paths
from electra_tf.errors import UserError
from electra_tf.tasks.base import check_strings
from electra_tf.tasks.tables import read_table, read_text, require_columns

CONLLU_COLUMNS = (
    *("ID", "FORM", "LEMMA", "UPOS", "XPOS"),
    *("FEATS", "HEAD", "DEPREL", "DEPS", "MISC"),
)
# White space of ``tf.strings.split``, which the SavedModel uses.
_WHITE_SPACE = " \t\n\v\f\r"


def split_words(text: str) -> list[str]:
    """Splits a text at ASCII white space, as exported models do."""
    return re.findall(f"[^{_WHITE_SPACE}]+", text)


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of words, and its tags (None if unknown).

    Examples:
        >>> et.tasks.Sentence("1", ("Ada", "wrote"), ("B-PER", "O")).words
        ('Ada', 'wrote')
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
    - ``.jsonl``, ``.json``: one object per sentence. Words and tags are lists, or
      strings separated by spaces.
    - Others, such as ``.conll`` and ``.tsv``, but not ``.csv``: one word per line and a
      blank or -DOCSTART- line after each sentence. Columns are separated by tabs if the
      file has any, else by spaces. # lines of another column count are comments.

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
        if paths.suffix(path) == ".csv":
            raise UserError(
                f"{path}: CSV is not for tagging: use JSON Lines, or one word per line "
                "in .conll."
            )
        is_table = paths.suffix(path) in (".jsonl", ".json")
        read = self._table if is_table else self.columns
        return read(path, split not in self.unlabeled)

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
                where, cells = f"{path}, line {number}", split(line)
                if conllu and not re.match(r"\d+\t", line):
                    if re.match(r"#|\d+[-.]\d+\t", line):
                        continue
                    raise UserError(f"{where}: {line[:40]!r} lacks an ID and a tab.")
                # The word # has as many columns as the other words.
                if re.match(r"#.*\s\S", line) and len(cells) not in widths:
                    continue
                words.append(_cell(cells, word, "word", where))
                if not labeled:
                    continue
                tags.append(_cell(cells, tag, "tag", where))
                if not conllu and " " in tags[-1].strip():
                    raise UserError(
                        f"{where}: {tags[-1][:40]!r} is not one tag: give one word per "
                        "line, or whole sentences as JSON Lines."
                    )
                if (tag - word) % len(cells) == 0:
                    raise UserError(
                        f"{where}: the word {tags[-1]!r} is its own tag: the line has "
                        f"{len(cells)} columns, and --tag_column={tag}."
                    )
            if words:
                known = tuple(tags) if labeled else None
                sentences.append(Sentence(f"line {first}", tuple(words), known))
        if not sentences:
            raise UserError(f"{path} has no words.")
        numbers = tuple(map(str, range(1, 1 + max(len(s.words) for s in sentences))))
        if all(s.words == numbers[: len(s.words)] for s in sentences):
            raise UserError(
                f"{path}: column {self.word_column} numbers the words: set "
                "--word_column, such as 1, and --tag_column."
            )
        return sentences

    def _table(self, path: str, labeled: bool) -> list[Sentence]:
        table, columns = read_table(path), {"word_column": self.word_column}
        if labeled:
            columns["tag_column"] = self.tag_column
        for flag, name in columns.items():
            require_columns(table, [name], flag)
        sentences = []
        for line, row in table.rows:
            where = f"{path}, line {line}"
            words, *tags = (_list(row.get(n), n, where) for n in columns.values())
            if tags and len(tags[0]) != len(words):
                raise UserError(f"{where}: {len(words)} words but {len(tags[0])} tags.")
            sentences.append(Sentence(str(row.get("id", line)), words, *tags))
        return sentences


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields (first line number, lines) between blank or -DOCSTART- lines."""
    block: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        # -DOCSTART- is the first cell, or the second one after a number.
        if line.strip(_WHITE_SPACE) and "-DOCSTART-" not in line.split()[:2]:
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []


def _number(column: str, conllu: bool, kind: str, path: str) -> int:
    if re.fullmatch("-?[0-9]{1,9}", str(column)):
        return int(column)
    if conllu and column.upper() in CONLLU_COLUMNS:
        return CONLLU_COLUMNS.index(column.upper())
    named = f" or one of {', '.join(CONLLU_COLUMNS)}" if conllu else ""
    raise UserError(f"--{kind}_column={column}: it must be a number{named} for {path}.")


def _cell(cells: list[str], column: int, kind: str, where: str) -> str:
    if not -len(cells) <= column < len(cells):
        raise UserError(f"{where}: {len(cells)} columns; --{kind}_column is {column}.")
    if not cells[column].strip(_WHITE_SPACE):
        raise UserError(f"{where}: the {kind} is empty.")
    return cells[column].strip(_WHITE_SPACE)


def _list(value: Any, column: str, where: str) -> tuple[str, ...]:
    # pandas writes lists into strings as ['a', 'b'].
    is_text = isinstance(value, str) and not value.startswith(("['", '["'))
    parts = split_words(value) if is_text else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise UserError(
            f"{where}: column {column} must hold a list of strings, got {value!r}."
        )
    if not parts or not all(part.strip(_WHITE_SPACE) for part in parts):
        raise UserError(f"{where}: column {column} is empty or holds an empty string.")
    return tuple(part.strip(_WHITE_SPACE) for part in parts)


Span = tuple[str, int, int]


def is_span_tag(tag: str) -> bool:
    """Returns True if a tag is O, or B, I, E or S with or without a type."""
    return tag == "O" or tag.partition("-")[0] in ("B", "I", "E", "S")


def spans(tags: Sequence[str]) -> list[Span]:
    """Returns the spans of a sentence in order: (type, first word, word after last).

    Decodes IOB1, IOB2, BIOES and invalid sequences, as conlleval and seqeval do. B and
    S start a span, I and E if the previous word is not in an open span of their type.
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
    """Counts right tags, words and right, labeled and predicted spans, int64 [N, 5]."""
    counts = np.zeros([len(labels), 5], np.int64)
    for row, gold, answer in zip(counts, labels, predictions, strict=True):
        right = sum(tag == other for tag, other in zip(gold, answer, strict=True))
        wanted, given = set(spans(gold)), set(spans(answer))
        row[:] = right, len(gold), len(wanted & given), len(wanted), len(given)
    return counts

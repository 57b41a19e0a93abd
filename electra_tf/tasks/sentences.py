"""Sentences with one tag per word: file formats, tag schemes and span metrics.

A span is (type, first word, word after the last). Span tags are O, or a letter and a
type, such as B-PER. One rule decodes IOB1, IOB2 and BIOES, including invalid sequences.
B and S start a span. I and E do so if the previous word is not in an open span of the
same type. The rule is conlleval's for IOB, and seqeval's default mode for BIOES.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from electra_tf.data import paths
from electra_tf.data.tables import READERS
from electra_tf.errors import UserError
from electra_tf.tasks.tables import read_table, read_text, require_columns

CONLLU_COLUMNS = (
    *("ID", "FORM", "LEMMA", "UPOS", "XPOS"),
    *("FEATS", "HEAD", "DEPREL", "DEPS", "MISC"),
)
_SENT_ID = re.compile(r"#\s*sent_id\s*=\s*(.*\S)")
_SPLITS = {
    "train": re.compile(r"train"),
    "dev": re.compile(r"dev|valid|testa"),
    "test": re.compile(r"test(?!a)"),
}
_DOCUMENT = "-DOCSTART-"
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
    """A sentence with its lines in the file, including comments.

    ``id`` is its sent_id or position in the file. ``tags`` is None if unknown. ``at``
    are the indices of the W words in ``lines``.

    Examples:
        >>> sentence = et.tasks.Sentence("1", ("Ada", "wrote"), ("B-PER", "O"), (), ())
        >>> dict(zip(sentence.words, sentence.tags, strict=True))
        {'Ada': 'B-PER', 'wrote': 'O'}
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: tuple[str, ...]
    at: tuple[int, ...]

    def with_column(self, cells: Sequence[str]) -> list[str]:
        """Returns the lines with one more column, one cell per word."""
        lines = list(self.lines)
        for number, cell in zip(self.at, cells, strict=True):
            separator = "\t" if "\t" in lines[number] else " "
            lines[number] += separator + cell
        return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceSource:
    r"""Reads the splits of a tagging task, one file each.

    The suffix determines the format:

    - ``.conllu``: CoNLL-U. Ranges such as 3-4 and empty nodes such as 3.1 are skipped.
    - ``.csv``, ``.tsv``, ``.jsonl``, ``.json``: a table with one sentence per row.
      Words and tags are lists, or strings separated by spaces.
    - Others: one word per line and a blank or -DOCSTART- line after each sentence.
      Columns are separated by tabs if the file has any, else by spaces.

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
        """Reads a split; raises ValueError with the line if the file is invalid."""
        path = self.files.get(split)
        if not path:
            raise FileNotFoundError(f"No file was given for {split}: set --{split}.")
        labeled = split not in self.unlabeled
        if paths.suffix(path) in READERS:
            return list(self._table(path, labeled))
        sentences = list(self._columns(path, labeled))
        if not sentences:
            raise UserError(f"{path} has not a single word.")
        return sentences

    def _columns(self, path: str, labeled: bool) -> Iterator[Sentence]:
        conllu = paths.suffix(path) == ".conllu"
        # Not splitlines: words may contain its other separators, such as U+2028.
        lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
        tabs = conllu or any("\t" in line.strip(_WHITE_SPACE) for line in lines)
        word = _number(self.word_column, conllu, "word", path)
        tag = _number(self.tag_column, conllu, "tag", path)
        for first, block in _blocks(lines):
            rows = []
            for offset, line in enumerate(block):
                if conllu and not re.match(r"\d+\t", line):
                    continue
                where = f"{path}, line {first + offset}"
                cells = line.split("\t") if tabs else re.findall(r"[^ \t]+", line)
                read_word = _cell(cells, word, "word", where)
                read_tag = _tag(cells, tag, word, where) if labeled else ""
                rows.append((offset, read_word, read_tag))
            if rows:
                at, words, tags = zip(*rows, strict=True)
                ids = filter(None, map(_SENT_ID.match, block)) if conllu else ()
                name = next((match[1] for match in ids), f"line {first}")
                yield Sentence(name, words, tags if labeled else None, tuple(block), at)

    def _table(self, path: str, labeled: bool) -> Iterator[Sentence]:
        table = read_table(path)
        require_columns(table, [self.word_column], "word_column")
        if labeled:
            require_columns(table, [self.tag_column], "tag_column")
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
            columns = (words,) if tags is None else (words, tags)
            lines = tuple(map("\t".join, zip(*columns, strict=True)))
            name = str(row.get("id", line))
            yield Sentence(name, words, tags, lines, tuple(range(len(words))))


def find_files(folder: str) -> dict[str, str]:
    """Finds files whose names contain train, dev (valid, testa) or test (testb).

    Raises ValueError if a split has several files, or if train is missing.
    """
    by_split: dict[str, str] = {}
    for name in sorted(os.listdir(folder)):
        for split, pattern in _SPLITS.items():
            if not pattern.search(name.lower()):
                continue
            if split in by_split:
                raise UserError(
                    f"{folder} has two files for {split}: {by_split[split]} and "
                    f"{name}. Name the files with --train, --eval and --test."
                )
            by_split[split] = name
    if "train" not in by_split:
        raise UserError(
            f"{folder} has no file with 'train' in its name. Name the files with "
            "--train, --eval and --test."
        )
    return {split: os.path.join(folder, name) for split, name in by_split.items()}


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
    return cells[column]


def _tag(cells: list[str], column: int, word: int, where: str) -> str:
    tag = _cell(cells, column, "tag", where)
    if column % len(cells) == word % len(cells):
        raise UserError(
            f"{where}: the word {tag!r} is its own tag, because the line has "
            f"{len(cells)} columns. Add the tag, or change --word_column={word} or "
            f"--tag_column={column}."
        )
    if not tag.strip():
        raise UserError(
            f"{where}: the tag is empty. Fill it in (O is the tag of words outside of "
            "all entities)."
        )
    return tag


def _list(value: Any, column: str, where: str) -> tuple[str, ...]:
    parts = split_words(value) if isinstance(value, str) else value
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
    """Whether a tag is O, or B, I, E or S with or without a type."""
    return _SPAN_TAG.fullmatch(tag) is not None


def split_tag(tag: str) -> tuple[str, str]:
    """Returns letter and type; the type may be empty or contain hyphens."""
    letter, _, kind = tag.partition("-")
    return letter, kind


def begins(tag: str, before: str) -> bool:
    """Whether ``tag`` starts a new span after ``before`` (O at the start)."""
    letter, kind = split_tag(tag)
    letter_before, kind_before = split_tag(before)
    if letter == "O":
        return False
    return letter in "BS" or letter_before in "OES" or kind != kind_before


def spans(tags: Sequence[str]) -> list[Span]:
    """Returns the spans of a sentence in order."""
    closed: list[Span] = []
    before, start = "O", 0
    # The appended O closes the last span.
    for number, tag in enumerate([*tags, "O"]):
        letter, _ = split_tag(tag)
        if split_tag(before)[0] != "O" and (letter == "O" or begins(tag, before)):
            closed.append((split_tag(before)[1], start, number))
        if begins(tag, before):
            start = number
        before = tag
    return closed


def tags_of(
    of_sentence: Iterable[Span], length: int, scheme: Literal["iob2", "bioes"]
) -> list[str]:
    """Returns the tags of a sentence of ``length`` words; spans must not overlap."""
    tags = ["O"] * length
    for kind, start, end in of_sentence:
        ending = f"-{kind}" if kind else ""
        letters = ["B"] + ["I"] * (end - start - 1)
        if scheme == "bioes":
            letters[-1] = "E" if len(letters) > 1 else "S"
        tags[start:end] = [letter + ending for letter in letters]
    return tags


def span_counts(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> np.ndarray:
    """Counts correct, labeled and predicted spans per sentence, int64 [N, 3]."""
    counts = np.zeros([len(labels), 3], np.int64)
    for row, gold, answer in zip(counts, labels, predictions, strict=True):
        wanted, given = set(spans(gold)), set(spans(answer))
        row[:] = len(wanted & given), len(wanted), len(given)
    return counts


def span_shares(counts: np.ndarray) -> dict[str, float]:
    """Computes micro-averaged scores from summed ``span_counts``, [3].

    Precision, recall and F1 are in [0, 1], and 0 if their denominator is 0.
    """
    right, labeled, predicted = counts.tolist()
    return {
        "f1": 2 * right / max(labeled + predicted, 1),
        "precision": right / max(predicted, 1),
        "recall": right / max(labeled, 1),
    }


def word_counts(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> np.ndarray:
    """Counts correct tags and words per sentence, int64 [N, 2]."""
    counts = np.zeros([len(labels), 2], np.int64)
    for row, *both in zip(counts, labels, predictions, strict=True):
        pairs = list(zip(*both, strict=True))
        row[:] = sum(tag == answer for tag, answer in pairs), len(pairs)
    return counts


@dataclasses.dataclass(frozen=True)
class TagSet:
    """Tag set of a task.

    ``learned`` are the tags in the order of the model's outputs. ``fallback``, O or the
    most frequent tag, is for words without word pieces. If ``rewritten``, the model
    learns spans as BIOES, and predictions are converted back to IOB2.
    """

    learned: tuple[str, ...]
    fallback: str
    rewritten: bool = False

    @classmethod
    def of(
        cls,
        sentences: Iterable[Sequence[str]],
        *,
        span_tags: bool,
        encoding: Literal["given", "bioes"],
    ) -> TagSet:
        """Collects the tags of training sentences.

        Raises ValueError for fewer than two tags. Also raises it for tags that are not
        span tags, if ``span_tags`` is set or ``encoding`` is "bioes".
        """
        given = collections.Counter(tag for tags in sentences for tag in tags)
        wrong = [tag for tag in given if not is_span_tag(tag)]
        if wrong and (span_tags or encoding == "bioes"):
            raise UserError(
                f"The training data has the tag {wrong[0]!r}, but the tags of spans "
                "are O, B-X, I-X, E-X and S-X. For tags of single words use "
                "--task=pos, without --tag_encoding=bioes."
            )
        if len(given) < 2:
            raise UserError(
                f"All {given.total()} words of the training data have the tag "
                f"{next(iter(given))!r}: there is nothing to learn."
            )
        is_bioes = any(split_tag(tag)[0] in ("E", "S") for tag in given)
        rewritten = encoding == "bioes" and not is_bioes
        if rewritten:
            learned = map(_as_bioes, sentences)
            given = collections.Counter(tag for tags in learned for tag in tags)
        fallback = "O" if "O" in given else given.most_common(1)[0][0]
        return cls(tuple(sorted(given)), fallback, rewritten)

    def check(
        self, sentences: Iterable[Sentence], *, span_tags: bool, unknown: bool
    ) -> None:
        """Raises ValueError if the model cannot predict a tag of evaluation data.

        ``span_tags`` requires span tags. ``unknown`` allows tags, or types of spans,
        that are not in the training data.
        """
        span_tags = span_tags or self.rewritten

        def part(tag: str) -> Any:
            # Only the type must be known: letters may differ between splits.
            return (tag == "O", split_tag(tag)[1]) if span_tags else tag

        known = {part(tag) for tag in self.learned}
        for sentence in sentences:
            for word, tag in zip(sentence.words, sentence.tags or (), strict=False):
                where = f"Sentence {sentence.id} has the tag {tag!r} (of {word!r})"
                if span_tags and not is_span_tag(tag):
                    raise UserError(
                        f"{where}, but the tags of spans are O, B-X, I-X, E-X and S-X. "
                        "Correct the tag, or use --task=pos for tags of single words."
                    )
                if not unknown and part(tag) not in known:
                    raise UserError(
                        f"{where}, which the training data lacks: it has "
                        f"{', '.join(self.learned)}. Correct the tag, add training "
                        "sentences with it, or count it as wrong with "
                        "--unknown_tags=allow."
                    )

    def learn(self, tags: Sequence[str]) -> Sequence[str]:
        """Converts the tags of a sentence to the learned scheme."""
        return _as_bioes(tags) if self.rewritten else tags

    def answer(self, tags: Sequence[str]) -> list[str]:
        """Converts predicted tags of a sentence to the data's scheme."""
        pairs = itertools.pairwise(["O", *tags])
        return [self.answer_tag(tag, before) for before, tag in pairs]

    def answer_tag(self, tag: str, before: str) -> str:
        """Converts ``tag`` after ``before`` (O at the start) to the data's scheme."""
        if not self.rewritten or tag == "O":
            return tag
        return ("B" if begins(tag, before) else "I") + tag[1:]


def _as_bioes(tags: Sequence[str]) -> list[str]:
    return tags_of(spans(tags), len(tags), "bioes")

"""Reads sentences with marked errors: M2, columns and minimal pairs.

For a missing word, the word after the gap is marked, or the last word of the sentence
(as in Rei and Yannakoudakis, 2016).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from electra_tf.analysis import alignment
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.runs.minimal_pairs import read_pairs
from electra_tf.tasks.sentences import Sentence, SentenceSource
from electra_tf.tasks.tables import read_text

RIGHT = ""
# Annotator -> spans and kinds of edits.
_Edits = dict[str, list[tuple[int, int, str]]]


@dataclasses.dataclass(frozen=True)
class Marked:
    """Words with their kinds of error, ``RIGHT`` if correct."""

    words: tuple[str, ...]
    kinds: tuple[str, ...]


def read(path: str, log: Log) -> list[Marked]:
    """Reads M2 (``.m2``), columns, or BLiMP's minimal pairs (``.jsonl``, or a folder).

    Of minimal pairs, the words of the bad sentence that differ are marked with the
    paradigm. In M2, half of the annotators must mark a word. Skips and logs M2
    sentences with an edit beyond their last word, since their tokenization differs.

    Raises UserError if a line is malformed or there are no words, OSError if the file
    does not exist.
    """
    if path.endswith(".jsonl") or Path(path).is_dir():
        sentences = []
        for pair in read_pairs([path]):
            words = pair.bad.split()
            edits = alignment.edits(words, pair.good.split())
            spans = [(first, last, pair.paradigm) for first, last, _, _ in edits]
            sentences.append(Marked(tuple(words), tuple(_marks(len(words), spans))))
    elif path.removesuffix(".gz").endswith(".m2"):
        sentences = list(_m2(path, log))
    else:
        sentences = list(_columns(path))
    if not any(sentence.words for sentence in sentences):
        raise UserError(f"{path} has no words.")
    return sentences


def _m2(path: str, log: Log) -> Iterator[Marked]:
    """Yields sentences with the words that half of the annotators mark.

    As in the M2 scorer, an annotator without edits in a sentence finds no error there.
    """
    blocks = _m2_blocks(path)
    annotators = {name for _, edits in blocks for name in edits}
    skipped = 0
    for words, edits in blocks:
        spans = [span for own in edits.values() for span in own]
        if any(not first <= last <= len(words) for first, last, _ in spans):
            skipped += 1
            continue
        votes = [_marks(len(words), own) for own in edits.values()]
        kinds = []
        for word in range(len(words)):
            marks = [vote[word] for vote in votes if vote[word]]
            is_wrong = marks and len(marks) >= len(annotators) / 2
            common = collections.Counter(marks).most_common(1)
            kinds.append(common[0][0] if is_wrong else RIGHT)
        yield Marked(words, tuple(kinds))
    if skipped:
        log(
            f"{path}: {skipped} of {len(blocks)} sentences are left out: an edit is "
            "outside their words."
        )


def _m2_blocks(path: str) -> list[tuple[tuple[str, ...], _Edits]]:
    blocks: list[tuple[tuple[str, ...], _Edits]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        kind, _, rest = line.removesuffix("\r").partition(" ")
        if kind == "S":
            blocks.append((tuple(rest.split(" ")), collections.defaultdict(list)))
        elif line.strip():
            try:
                fields = rest.split("|||")
                first, last = map(int, fields[0].split())
                own = blocks[-1][1][fields[5]] if kind == "A" else None
                if fields[1] != "noop" and first >= 0:
                    own.append((first, last, fields[1] or "error"))
            except (AttributeError, IndexError, ValueError) as error:
                raise UserError(
                    f"{path}, line {number} must be 'S WORDS', or after it 'A FIRST "
                    "LAST|||KIND|||CORRECTION|||REQUIRED|||COMMENT|||ANNOTATOR', got "
                    f"{line[:40]!r}."
                ) from error
    return blocks


def _marks(size: int, spans: Sequence[tuple[int, int, str]]) -> list[str]:
    """Returns the error kind of each word; the first of several kinds wins."""
    kinds = [RIGHT] * size
    for first, last, kind in sorted(spans):
        if first == last:
            first, last = (first, first + 1) if first < size else (size - 1, size)
        for word in range(first, last):
            kinds[word] = kinds[word] or kind
    return kinds


def _columns(path: str) -> Iterator[Marked]:
    """Reads words and labels of the first and last column: c/i or 0/1 (FCE, BEA)."""
    source = SentenceSource(files={"eval": path}, word_column="0", tag_column="-1")
    for sentence in source("eval"):
        unknown = {*sentence.tags} - {"c", "i", "0", "1"}
        if unknown:
            raise UserError(
                f"{path}: the last column must be c or i (or 0 or 1), "
                f"got {min(unknown)!r} in {sentence.id}. M2 files end in .m2."
            )
        kinds = ("error" if tag in ("i", "1") else RIGHT for tag in sentence.tags)
        yield Marked(sentence.words, tuple(kinds))


def read_tagged(path: str) -> list[Sentence]:
    """Reads CoNLL-U with UPOS tags, or columns 0 and 1."""
    is_conllu = path.removesuffix(".gz").endswith(".conllu")
    word, tag = ("FORM", "UPOS") if is_conllu else ("0", "1")
    source = SentenceSource(files={"eval": path}, word_column=word, tag_column=tag)
    return source("eval")

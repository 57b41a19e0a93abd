"""Reads sentences with marked errors: M2, columns, parallel text, minimal pairs.

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


@dataclasses.dataclass(frozen=True)
class Marked:
    """Words with their kinds of error, ``RIGHT`` if correct."""

    words: tuple[str, ...]
    kinds: tuple[str, ...]


def read(spec: str, agreement: float, log: Log) -> list[Marked]:
    """Reads a file: ``.m2``, columns, or parallel files as ``source:reference``.

    Minimal pairs in BLiMP's format (``.jsonl``, or a folder of them) are parallel text:
    the bad sentence is the source, and the paradigm is the error kind.

    ``agreement`` is the minimum fraction of M2's annotators per marked word. Skips and
    logs M2 sentences with an edit beyond their last word, since their tokenization
    differs.

    Raises UserError if a line is malformed or there are no words, OSError if the file
    does not exist.
    """
    source, colon, reference = spec.rpartition(":")
    if colon and not Path(spec).exists():
        found = [_corrected(*pair) for pair in _parallel(source, reference)]
    elif spec.endswith(".jsonl") or Path(spec).is_dir():
        found = [
            _corrected(pair.bad.split(), pair.good.split(), pair.paradigm)
            for pair in read_pairs([spec])
        ]
    elif spec.removesuffix(".gz").endswith(".m2"):
        found = list(_m2(spec, agreement, log))
    else:
        found = list(_columns(spec))
    if not any(sentence.words for sentence in found):
        raise UserError(f"{spec} has no words.")
    return found


# Annotator -> span -> kind of edit.
_Edits = dict[str, dict[tuple[int, int], str]]


def _m2(path: str, agreement: float, log: Log) -> Iterator[Marked]:
    """Yields sentences with the words that enough annotators mark.

    As in the M2 scorer, an annotator without edits in a sentence finds no error there.
    """
    sentences, annotators = _m2_edits(path, log)
    for words, by_annotator in sentences:
        votes: list[list[str]] = [[] for _ in words]
        for own in by_annotator.values():
            kinds = _marks(len(words), own)
            for vote, kind in zip(votes, kinds, strict=True):
                vote += [kind] if kind else []
        least = agreement * len(annotators)
        yield Marked(
            tuple(words),
            tuple(
                collections.Counter(vote).most_common(1)[0][0]
                if vote and len(vote) >= least
                else RIGHT
                for vote in votes
            ),
        )


def _m2_edits(path: str, log: Log) -> tuple[list[tuple[list[str], _Edits]], list[str]]:
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    blocks: list[tuple[list[str], _Edits]] = []
    annotators, beyond = set(), {}
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        if line.startswith("S ") or line == "S":
            blocks.append((line[2:].split(" "), collections.defaultdict(dict)))
        elif line.startswith("A "):
            if not blocks:
                raise UserError(f"{where}: an edit before the first sentence.")
            words, by_annotator = blocks[-1]
            fields = line[2:].split("|||")
            try:
                first, last = map(int, fields[0].split())
                kind, annotator = fields[1], fields[5]
            except (ValueError, IndexError) as error:
                raise UserError(
                    f"{where} is not an edit: expected 'A FIRST LAST|||KIND|||"
                    "CORRECTION|||REQUIRED|||COMMENT|||ANNOTATOR'."
                ) from error
            annotators.add(annotator)
            if kind == "noop" or first < 0:
                continue
            if not first <= last <= len(words):
                beyond.setdefault(len(blocks) - 1, number)
            own = by_annotator[annotator]
            for start, end in own:
                same = (start, end) == (first, last)
                if same or (first < end and start < last):
                    raise UserError(
                        f"{where}: the edits {start} {end} and {first} {last} of "
                        f"annotator {annotator} overlap: remove one."
                    )
            own[first, last] = kind or "error"
        elif line.strip():
            raise UserError(f"{where}: M2 lines begin with S or A, got {line[:40]!r}.")
    if beyond:
        log(
            f"{path}: {len(beyond)} of {len(blocks)} sentences are left out: an edit "
            f"is outside their words, first on line {min(beyond.values())}."
        )
    kept = [each for number, each in enumerate(blocks) if number not in beyond]
    return kept, sorted(annotators)


def _marks(size: int, spans: dict[tuple[int, int], str]) -> list[str]:
    """Returns the error kind of each word; the first of several kinds wins."""
    kinds = [RIGHT] * size
    for (first, last), kind in sorted(spans.items()):
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
                f"got {min(unknown)!r} in {sentence.id}. M2 files end in .m2; name "
                "parallel files as SOURCE:REFERENCE."
            )
        wrong = (tag in ("i", "1") for tag in sentence.tags)
        kinds = tuple("error" if is_wrong else RIGHT for is_wrong in wrong)
        yield Marked(sentence.words, kinds)


def _parallel(source: str, reference: str) -> Iterator[tuple[list[str], list[str]]]:
    texts = [read_text(path).rstrip("\n").split("\n") for path in (source, reference)]
    if len(texts[0]) != len(texts[1]):
        raise UserError(
            f"{source} has {len(texts[0])} lines and {reference} {len(texts[1])}: "
            "their lines must be the same sentences."
        )
    for wrong, right in zip(*texts, strict=True):
        if words := wrong.split():
            yield words, right.split()


def _corrected(words: Sequence[str], target: Sequence[str], kind: str = "") -> Marked:
    spans = {}
    for first, last, begin, end in alignment.edits(words, target):
        name = "replaced" if last > first and end > begin else "missing"
        spans[first, last] = kind or ("unnecessary" if begin == end else name)
    return Marked(tuple(words), tuple(_marks(len(words), spans)))


def read_tagged(path: str) -> list[Sentence]:
    """Reads CoNLL-U with UPOS tags, or columns 0 and 1."""
    is_conllu = path.removesuffix(".gz").endswith(".conllu")
    word, tag = ("FORM", "UPOS") if is_conllu else ("0", "1")
    source = SentenceSource(files={"eval": path}, word_column=word, tag_column=tag)
    return source("eval")

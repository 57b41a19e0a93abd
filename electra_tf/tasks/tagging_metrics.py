"""Spans in tag sequences, and their scores.

A span is (type, first word, word after the last). Tags are O, or a letter and a type:
B-PER. All of IOB1 (B only between neighbors of the same type), IOB2 (every span begins
with B) and BIOES (E ends a span, S is a whole one) are read by one rule, which is also
what conlleval and seqeval do with sequences that break the scheme: a tag begins a span
if its letter is B or S, or if the word before it is in no span of the same type that
goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Span = tuple[str, int, int]
_SPAN_TAG = re.compile(r"O|[BIES](-.*)?", re.DOTALL)


def is_span_tag(tag: str) -> bool:
    """Whether a tag is O, or B, I, E or S with or without a type."""
    return _SPAN_TAG.fullmatch(tag) is not None


def split_tag(tag: str) -> tuple[str, str]:
    """Letter and type; the type may hold hyphens, and may be empty."""
    letter, _, kind = tag.partition("-")
    return letter, kind


def begins(tag: str, before: str) -> bool:
    """Whether a span begins at a tag that follows another one (O at the start)."""
    letter, kind = split_tag(tag)
    letter_before, kind_before = split_tag(before)
    if letter == "O":
        return False
    return letter in "BS" or letter_before in "OES" or kind != kind_before


def spans(tags: Sequence[str | None]) -> list[Span]:
    """Spans of a sentence in their order; None, a word without tag, counts as O."""
    found: list[Span] = []
    before, start = "O", 0
    closed = [tag or "O" for tag in tags] + ["O"]
    for number, tag in enumerate(closed):
        letter, _ = split_tag(tag)
        if split_tag(before)[0] != "O" and (letter == "O" or begins(tag, before)):
            found.append((split_tag(before)[1], start, number))
        if begins(tag, before):
            start = number
        before = tag
    return found


def tags_of(found: Iterable[Span], length: int, scheme: str) -> list[str]:
    """Tags of a sentence from its spans, which must not overlap.

    Args:
        found: The spans.
        length: Number of words.
        scheme: "iob2" or "bioes".
    """
    tags = ["O"] * length
    for kind, start, end in found:
        ending = f"-{kind}" if kind else ""
        letters = ["B"] + ["I"] * (end - start - 1)
        if scheme == "bioes":
            letters[-1] = "E" if len(letters) > 1 else "S"
        tags[start:end] = [letter + ending for letter in letters]
    return tags


def span_scores(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str | None]]
) -> dict[str, float]:
    """Precision, recall and F1 of exact spans over all sentences, in [0, 1].

    A label span with a word that has no prediction is missed. A share of nothing is 0.
    """
    right = labeled = predicted = 0
    for gold, answer in zip(labels, predictions, strict=True):
        wanted, given = set(spans(gold)), set(spans(answer))
        right += len(wanted & given)
        labeled += len(wanted)
        predicted += len(given)
    return {
        "f1": 2 * right / max(labeled + predicted, 1),
        "precision": right / max(predicted, 1),
        "recall": right / max(labeled, 1),
    }


def word_accuracy(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str | None]]
) -> float:
    """Share of words with the right tag; a word without prediction is wrong."""
    pairs = [
        tag == answer
        for gold, answers in zip(labels, predictions, strict=True)
        for tag, answer in zip(gold, answers, strict=True)
    ]
    return sum(pairs) / max(len(pairs), 1)

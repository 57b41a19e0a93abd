"""Formats verdicts and fills for a terminal."""

from __future__ import annotations

import os
import unicodedata
from typing import TextIO

from electra_tf.analysis.inspector import Fills, Verdicts
from electra_tf.runs.samples import verdict_table

_HEADS = ("token", "P(replaced) %")
_INDENT = 15
_RESET = "\x1b[0m"
# Minimum probability of "replaced" -> color.
_LEVELS = ((0.75, "\x1b[1;97;41m"), (0.5, "\x1b[31m"), (0.25, "\x1b[33m"), (0.0, ""))
LEGEND = "* called replaced: the probability is over 50 %"


def has_color(stream: TextIO) -> bool:
    """Whether to color: for terminals, unless NO_COLOR is set or TERM is dumb."""
    return (
        stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def verdicts(answer: Verdicts, *, width: int, use_color: bool) -> str:
    """Formats tokens over P(replaced), with originals and samples if corrupted."""
    if answer.original is not None:
        return verdict_table(
            answer.original,
            answer.tokens,
            probabilities=answer.probabilities,
            is_masked=answer.is_masked,
            width=width - _INDENT,
            use_color=use_color,
        )
    lines: list[list[tuple[str, str]]] = [[]]
    used = _INDENT
    for token, probability in zip(answer.tokens, answer.probabilities, strict=True):
        number = f"{'*' * (probability > 0.5)}{100 * probability:.0f}"
        widest = max(_width(token), len(number))
        if lines[-1] and used + widest + 1 > width:
            lines.append([])
            used = _INDENT
        used += widest + 1
        cells = (_padded(token, widest), _padded(number, widest))
        color = next(color for least, color in _LEVELS if probability >= least)
        if use_color and color:
            cells = tuple(f"{color}{cell}{_RESET}" for cell in cells)
        lines[-1].append(cells)
    return "\n\n".join(
        "\n".join(
            f"{head:>{_INDENT - 2}}  {' '.join(row)}".rstrip()
            for head, row in zip(_HEADS, zip(*line, strict=True), strict=True)
        )
        for line in lines
    )


def fills(answer: Fills, *, use_color: bool) -> str:
    """Formats the text and a table per mask; the best token is bold."""
    lines = [answer.text]
    for number, choices in enumerate(answer.fills, 1):
        name = f"{answer.mask} {number}" if len(answer.fills) > 1 else answer.mask
        widest = max(_width(token) for token, _ in choices)
        for rank, (token, probability) in enumerate(choices):
            cell = _padded(token, widest)
            if use_color and not rank:
                cell = f"\x1b[1m{cell}{_RESET}"
            start = "" if rank else name
            lines.append(f"{start:>{_INDENT - 2}}  {cell}  {probability:7.2%}")
    return "\n".join(lines)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """Terminal columns: 2 for East Asian wide characters, 0 for combining ones."""
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )

"""Verdicts and fills as text, in colour where the terminal has it."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from typing import TextIO

from electra_tf.analysis.course import Course
from electra_tf.analysis.inspector import Fills, Verdicts
from electra_tf.runs.samples import verdict_table

_NAMES = ("token", "P(replaced) %")
_INDENT = 15
_RESET = "\x1b[0m"
# Least probability of "replaced" -> colour.
_LEVELS = ((0.75, "\x1b[1;97;41m"), (0.5, "\x1b[31m"), (0.25, "\x1b[33m"), (0.0, ""))
LEGEND = "* called replaced: the probability is over 50 %"


def has_color(stream: TextIO) -> bool:
    """Whether to colour: a terminal, and neither NO_COLOR nor a dumb one."""
    return (
        stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def verdicts(answer: Verdicts, *, width: int, use_color: bool) -> str:
    """The tokens in columns over the probability of each to have been replaced.

    A corrupted text also shows what was there and what the generator sampled. With or
    without ANSI colours, the numbers are there, in ``width`` columns of the terminal.
    """
    if answer.original is not None:
        return verdict_table(
            answer.original,
            answer.tokens,
            probabilities=answer.probabilities,
            is_masked=answer.is_masked,
            width=width - _INDENT,
            use_color=use_color,
        )
    table = [answer.probabilities]
    return _columns(_NAMES, answer.tokens, table, width=width, use_color=use_color)


def course(answer: Course, *, width: int, use_color: bool) -> str:
    """The tokens in columns over what each discriminator says of them, one a line."""
    heads = [*(["original"] if answer.original else []), "token", *answer.names]
    return _columns(
        heads,
        answer.tokens,
        answer.probabilities,
        above=answer.original,
        width=width,
        use_color=use_color,
    )


def _columns(
    heads: Sequence[str],
    tokens: Sequence[str],
    probabilities: Sequence[Sequence[float]],
    *,
    above: Sequence[str] | None = None,
    width: int,
    use_color: bool,
) -> str:
    indent = max(_INDENT, *(_width(head) + 2 for head in heads))
    lines: list[list[list[str]]] = [[]]
    used = indent
    for at, token in enumerate(tokens):
        values = [row[at] for row in probabilities]
        cells = [f"{'*' if value > 0.5 else ''}{100 * value:.0f}" for value in values]
        cells = [*([above[at]] if above else []), token, *cells]
        widest = max(map(_width, cells))
        if lines[-1] and used + widest + 1 > width:
            lines.append([])
            used = indent
        used += widest + 1
        cells = [_padded(cell, widest) for cell in cells]
        if use_color:
            # A token has the color of the last number under it.
            colors = [_color(values[-1])] * (len(cells) - len(values))
            colors += map(_color, values)
            pairs = zip(colors, cells, strict=True)
            cells = [f"{color}{x}{_RESET}" if color else x for color, x in pairs]
        lines[-1].append(cells)
    return "\n\n".join(
        "\n".join(
            f"{_right(head, indent - 2)}  {' '.join(row)}".rstrip()
            for head, row in zip(heads, zip(*line, strict=True), strict=True)
        )
        for line in lines
    )


def _color(probability: float) -> str:
    return next(color for least, color in _LEVELS if probability >= least)


def fills(answer: Fills, *, use_color: bool) -> str:
    """The text, and a small table for every mask; the best token in bold."""
    lines = [answer.text]
    for number, choices in enumerate(answer.fills, 1):
        name = f"{answer.mask} {number}" if len(answer.fills) > 1 else answer.mask
        widest = max(_width(token) for token, _ in choices)
        for rank, (token, probability) in enumerate(choices):
            shown = _padded(token, widest)
            if use_color and not rank:
                shown = f"\x1b[1m{shown}{_RESET}"
            start = "" if rank else name
            lines.append(f"{start:>{_INDENT - 2}}  {shown}  {probability:7.2%}")
    return "\n".join(lines)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _right(text: str, width: int) -> str:
    return " " * (width - _width(text)) + text


def _width(text: str) -> int:
    """Columns of a terminal: East Asian characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )

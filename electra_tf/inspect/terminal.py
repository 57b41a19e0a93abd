"""Verdicts and fills as text, in colour where the terminal has it."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TextIO

from electra_tf.inspect.inspector import Fills, Verdicts
from electra_tf.training.verdicts import verdict_table

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


def verdicts(found: Verdicts, *, width: int, use_color: bool) -> str:
    """The tokens in columns over the probability of each to have been replaced.

    A corrupted text also shows what was there and what the generator sampled.

    Args:
        found: What the discriminator said.
        width: Columns of the terminal.
        use_color: Whether to add ANSI colours; the numbers are there in any case.
    """
    if found.original is not None:
        return verdict_table(
            found.original,
            found.tokens,
            probabilities=found.probabilities,
            is_masked=found.is_masked,
            width=width - _INDENT,
            use_color=use_color,
        )
    cells = list(zip(found.tokens, found.probabilities, strict=True))
    return "\n\n".join(
        _block(line, use_color) for line in _lines(cells, width - _INDENT)
    )


def fills(found: Fills, *, width: int, use_color: bool) -> str:
    """The text, and a small table for every mask.

    Args:
        found: What the generator said.
        width: Columns of the terminal.
        use_color: Whether to print the best token bold.
    """
    del width
    lines = [found.text]
    for number, choices in enumerate(found.fills, 1):
        name = f"{found.mask} {number}" if len(found.fills) > 1 else found.mask
        for rank, (token, probability) in enumerate(choices):
            shown = _padded(token, max(_width(t) for t, _ in choices))
            if use_color and not rank:
                shown = f"\x1b[1m{shown}{_RESET}"
            start = name if not rank else ""
            lines.append(f"{start:>{_INDENT - 2}}  {shown}  {probability:7.2%}")
    return "\n".join(lines)


def _lines(cells: Sequence[tuple[str, float]], width: int) -> Iterator[list]:
    line, used = [], 0
    for cell in cells:
        size = _cell_width(cell) + 1
        if line and used + size > width:
            yield line
            line, used = [], 0
        line.append(cell)
        used += size
    yield line


def _block(cells, use_color):
    rows = [[], []]
    for cell in cells:
        color = _color(cell[1]) if use_color else ""
        for row, text in zip(rows, (cell[0], _percent(cell[1])), strict=True):
            padded = _padded(text, _cell_width(cell))
            row.append(f"{color}{padded}{_RESET}" if color else padded)
    return "\n".join(
        f"{name:>{_INDENT - 2}}  {' '.join(row)}".rstrip()
        for name, row in zip(_NAMES, rows, strict=True)
    )


def _color(probability):
    return next(color for least, color in _LEVELS if probability >= least)


def _percent(probability):
    return f"{'*' if probability > 0.5 else ''}{100 * probability:.0f}"


def _cell_width(cell):
    return max(_width(cell[0]), len(_percent(cell[1])))


def _padded(text, width):
    return text + " " * (width - _width(text))


def _width(text):
    """Columns of a terminal: East Asian characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )

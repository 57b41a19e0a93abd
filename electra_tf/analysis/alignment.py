"""Word-level Levenshtein alignment.

Letters: M words of the source, N of the target.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Start and end of the source span, then of the target span.
Edit = tuple[int, int, int, int]


def _distances(source: Sequence[str], target: Sequence[str]) -> np.ndarray:
    """Returns the Levenshtein distances of all prefixes, int [M + 1, N + 1]."""
    columns = np.arange(len(target) + 1)
    table = np.empty([len(source) + 1, len(target) + 1], np.int64)
    table[0] = columns
    known: dict[str, int] = {}
    numbers = [known.setdefault(word, len(known)) for word in target]
    for row, word in enumerate(source, 1):
        differs = np.array(numbers, np.int64) != known.get(word, -1)
        above = table[row - 1] + 1
        above[1:] = np.minimum(above[1:], table[row - 1, :-1] + differs)
        # Insertions: the minimum over all columns to the left plus their distance.
        table[row] = np.minimum.accumulate(above - columns) + columns
    return table


def distance(source: Sequence[str], target: Sequence[str]) -> int:
    """Returns the Levenshtein distance in words."""
    return int(_distances(source, target)[-1, -1])


def edits(source: Sequence[str], target: Sequence[str]) -> list[Edit]:
    """Returns a minimal list of edits, in order; each spans at most one word per side.

    Among alignments of equal cost, prefers substitutions, from the end backward.
    """
    table, spans = _distances(source, target), []
    row, column = len(source), len(target)
    while row or column:
        here = table[row, column]
        if row and column:
            differs = source[row - 1] != target[column - 1]
            if table[row - 1, column - 1] + differs == here:
                row, column = row - 1, column - 1
                if differs:
                    spans.append((row, row + 1, column, column + 1))
                continue
        if row and table[row - 1, column] + 1 == here:
            row -= 1
            spans.append((row, row + 1, column, column))
        else:
            column -= 1
            spans.append((row, row, column, column + 1))
    return spans[::-1]

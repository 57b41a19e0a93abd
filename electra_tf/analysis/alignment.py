"""The fewest edits between two sentences, word by word.

Letters: M words of the source, N of the target.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# First and last + 1 word in the source, and in the target.
Edit = tuple[int, int, int, int]


def _distances(source: Sequence[str], target: Sequence[str]) -> np.ndarray:
    """Levenshtein distances of all beginnings, int [M + 1, N + 1]."""
    columns = np.arange(len(target) + 1)
    table = np.empty([len(source) + 1, len(target) + 1], np.int64)
    table[0] = columns
    known: dict[str, int] = {}
    numbers = [known.setdefault(word, len(known)) for word in target]
    for row, word in enumerate(source, 1):
        differs = np.array(numbers, np.int64) != known.get(word, -1)
        above = table[row - 1] + 1
        above[1:] = np.minimum(above[1:], table[row - 1, :-1] + differs)
        # Insertions: the least of what is to the left and its distance from here.
        table[row] = np.minimum.accumulate(above - columns) + columns
    return table


def distance(source: Sequence[str], target: Sequence[str]) -> int:
    """The fewest words to replace, insert and delete from one to the other."""
    return int(_distances(source, target)[-1, -1])


def edits(source: Sequence[str], target: Sequence[str]) -> list[Edit]:
    """The fewest edits, in order; each is of one word, or none, on either side.

    Where several alignments have as few, replacing is preferred from the end on.
    """
    table, found = _distances(source, target), []
    row, column = len(source), len(target)
    while row or column:
        here = table[row, column]
        if row and column:
            differs = source[row - 1] != target[column - 1]
            if table[row - 1, column - 1] + differs == here:
                row, column = row - 1, column - 1
                if differs:
                    found.append((row, row + 1, column, column + 1))
                continue
        if row and table[row - 1, column] + 1 == here:
            row -= 1
            found.append((row, row + 1, column, column))
        else:
            column -= 1
            found.append((row, row, column, column + 1))
    return found[::-1]

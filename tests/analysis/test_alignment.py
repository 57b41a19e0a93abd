"""Word edits against a recursive distance, and applied to the hypothesis."""

import functools

import numpy as np

from electra_tf.analysis import alignment


def recursive(source, target):
    @functools.cache
    def least(row, column):
        if not row or not column:
            return row + column
        same = source[row - 1] == target[column - 1]
        return min(
            least(row - 1, column) + 1,
            least(row, column - 1) + 1,
            least(row - 1, column - 1) + (not same),
        )

    return least(len(source), len(target))


def test_edits_are_minimal_and_make_the_target_of_the_source():
    rng = np.random.default_rng(0)
    for _ in range(200):
        source, target = (
            tuple(rng.choice(list("abc"), rng.integers(0, 9)).tolist())
            for _ in range(2)
        )
        found = alignment.edits(source, target)
        expected = recursive(source, target)
        assert len(found) == alignment.distance(source, target) == expected
        made = list(source)
        for first, last, begin, end in reversed(found):
            assert max(last - first, end - begin) == 1
            made[first:last] = target[begin:end]
        assert tuple(made) == target
        assert found == sorted(found)

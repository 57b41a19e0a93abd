"""Edits and word error rate against recursion and against applying them."""

import functools

import jiwer
import numpy as np
import pytest

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


def pairs(count=200):
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield tuple(
            tuple(rng.choice(list("abc"), rng.integers(0, 9)).tolist())
            for _ in range(2)
        )


def test_distances_are_those_of_the_definition():
    for source, target in pairs():
        assert alignment.distance(source, target) == recursive(source, target)


def test_edits_make_the_target_of_the_source():
    for source, target in pairs():
        found = alignment.edits(source, target)
        assert len(found) == alignment.distance(source, target)
        made = list(source)
        for first, last, begin, end in reversed(found):
            assert max(last - first, end - begin) == 1
            made[first:last] = target[begin:end]
        assert tuple(made) == target
        assert found == sorted(found)


def test_word_error_rate_is_edits_over_words_of_the_references():
    found = alignment.word_error_rate(
        [["a", "b", "c"], [], ["x", "y"]],
        [["a", "c", "d"], ["a"], ["x", "y"]],
    )
    assert found == pytest.approx(3 / 6)
    # jiwer reads texts, and no empty references.
    drawn = [pair for pair in pairs(80) if pair[1]]
    texts = [[" ".join(own) for own in side] for side in zip(*drawn, strict=True)]
    peer = jiwer.wer(reference=texts[1], hypothesis=texts[0])
    found = alignment.word_error_rate(*zip(*drawn, strict=True))
    assert found == pytest.approx(peer, rel=1e-12)
    drawn = list(pairs(50))
    edits = sum(recursive(*pair) for pair in drawn)
    words = sum(len(reference) for _, reference in drawn)
    assert alignment.word_error_rate(*zip(*drawn, strict=True)) == edits / words
    with pytest.raises(ValueError, match="no word error rate"):
        alignment.word_error_rate([["a"]], [[]])

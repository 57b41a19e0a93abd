import itertools
import random

import numpy as np
import pytest

from electra_tf.data.documents import ExampleBuilder, split_carry, split_original

CLS, SEP = 1, 2


class Scripted(random.Random):
    """Returns the given numbers from random() and the given integers from randint()."""

    def __init__(self, numbers=(), integers=()):
        super().__init__(0)
        self.numbers = list(numbers)
        self.integers = list(integers)

    def random(self):
        return self.numbers.pop(0) if self.numbers else 0.99

    def randint(self, low, high):
        assert self.integers[0] in range(low, high + 1)
        return self.integers.pop(0)


def builder(rng, segmenting="original", length=128):
    options = {"cls_id": CLS, "sep_id": SEP, "segmenting": segmenting}
    return ExampleBuilder(length, rng=rng, **options)


def lines_of(*lengths):
    """Returns lines of the given lengths; line n repeats the token 100 + n."""
    return [[100 + number] * length for number, length in enumerate(lengths)]


def runs(tokens):
    """Returns the runs of a segment as (line, number of tokens)."""
    return [(token - 100, len([*run])) for token, run in itertools.groupby(tokens)]


def segments(example):
    example = example.tolist()
    assert example[0] == CLS
    assert example[-1] == SEP
    cut = example.index(SEP)
    return example[1:cut], example[cut + 1 : -1]


def random_documents(rng):
    """Yields documents with consecutive token numbers, to detect order and loss."""
    numbers = itertools.count(1000)
    for _ in range(40):
        sizes = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 30))]
        yield [list(itertools.islice(numbers, size)) for size in sizes]


@pytest.mark.parametrize("segmenting", ["original", "carry"])
def test_a_short_target_is_not_a_length_to_cut_at(segmenting):
    """100 tokens stay whole at a target of 10 (pitfall 1 of docs/fidelity.md)."""
    # First example: two segments (0.5), then a short target of 10 (0.01).
    build = builder(Scripted([0.5, 0.01, 0.5], [10]), segmenting).build
    _, example = build([[[100] * 20], [[101] * 100]])
    assert len(example) == 102


@pytest.mark.parametrize(
    ("lengths", "coins", "first", "second", "carried"),
    [
        # Budget 62: 30 + 30 stays under it, 30 more does not. The coin selects B.
        ([30, 30, 30, 38], [0.7], [(0, 30), (1, 30)], [(2, 30), (3, 35)], None),
        # The coin selects A. A is now over the budget, so a second coin is not drawn.
        ([30, 30, 30, 38], [0.3], [(0, 30), (1, 30), (2, 30)], [(3, 35)], None),
        # Text order is broken: line 2 joins A after line 1 joins B.
        ([30, 40, 20, 38], [0.7], [(0, 30), (2, 20)], [(1, 40), (3, 35)], None),
        # A long line fills A; B gets the rest of 128 - 3.
        ([120, 30], [], [(0, 120)], [(1, 5)], None),
        ([126, 30], [], [(0, 126)], [], None),
        ([200], [], [(0, 126)], [], None),
        # With carry, text order is kept: line 2 follows line 1 in B.
        ([30, 30, 30, 38], [0.7], [(0, 30), (1, 30)], [(2, 30), (3, 35)], [(3, 3)]),
        ([30, 40, 20, 38], [0.7], [(0, 30)], [(1, 40), (2, 20), (3, 35)], [(3, 3)]),
        # A long line is cut into two segments, and the rest is carried over.
        ([200], [], [(0, 62)], [(0, 63)], [(0, 75)]),
        ([126], [], [(0, 126)], [], []),
        ([50, 20], [0.7], [(0, 50)], [(1, 20)], []),
    ],
)
def test_original_rule_by_hand(lengths, coins, first, second, carried):
    """The rest is discarded or carried (pitfalls 2 and 3 of docs/fidelity.md)."""
    split = split_original if carried is None else split_carry
    found = split(lines_of(*lengths), 62, 128, Scripted(coins))
    assert (runs(found[0]), runs(found[1])) == (first, second)
    assert [run for line in found[2] for run in runs(line)] == (carried or [])


# (20 - 3) // 2 = 8: 5 + 2 stays under it, 5 + 3 does not.
@pytest.mark.parametrize(("lengths", "first"), [([5, 2, 13], 7), ([5, 3, 12], 5)])
@pytest.mark.parametrize("segmenting", ["original", "carry"])
def test_budget_of_the_first_segment(segmenting, lengths, first):
    """Half of the target without its specials (pitfall 3 of docs/fidelity.md)."""
    # No coin puts a crossing line into the first segment.
    build = builder(Scripted([0.5, 0.01], [20]), segmenting).build
    _, example = build([[[99]], lines_of(*lengths)])
    assert len(segments(example)[0]) == first


def test_shares_of_segments_in_sentence_like_text():
    """About 10 % single by choice, 83 % with two (pitfall 2 of docs/fidelity.md)."""
    rng = random.Random(0)
    lines = [[9] * max(1, round(rng.gauss(25, 12))) for _ in range(60_000)]
    documents = [lines[i : i + 30] for i in range(0, len(lines), 30)]
    for segmenting in ("original", "carry"):
        examples = list(builder(random.Random(1), segmenting).build(documents))
        pairs = sum((example == SEP).sum() == 2 for example in examples)
        assert 0.8 < pairs / len(examples) < 0.9


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("length", [5, 6, 16, 128])
@pytest.mark.parametrize("segmenting", ["original", "carry"])
def test_lengths_and_separators(segmenting, length, seed):
    """Carry keeps every token, in order (pitfall 3 of docs/fidelity.md)."""
    rng = random.Random(seed)
    documents = list(random_documents(rng))
    found = []
    for example in builder(rng, segmenting, length).build(documents):
        assert len(example) <= length
        first, second = segments(example)
        assert first
        assert (example == SEP).sum() == (2 if second else 1)
        found += first + second
    given = [token for lines in documents for line in lines for token in line]
    assert segmenting == "original" or found == given


def test_the_rest_of_a_long_line_is_not_copied():
    """A line of n tokens gives n / 125 examples, so copies take quadratic time."""
    line = np.arange(400_000)
    rest = [line]
    for _ in range(3):
        _, _, rest = split_carry(rest, 62, 128, random.Random(0))
        assert np.shares_memory(rest[0], line)
    assert len(rest[0]) == len(line) - 3 * 125


@pytest.mark.parametrize("segmenting", ["original", "carry"])
def test_the_end_of_a_document_gives_an_example_however_short(segmenting):
    """Documents are never mixed (pitfall 4 of docs/fidelity.md)."""
    documents = [[], [[7]], [[]], [[8], [9]], [[], []]]
    examples = list(builder(Scripted(), segmenting).build(documents))
    assert [(example == 7).sum() for example in examples] == [1, 0]


def test_errors():
    for arguments in (("x", 128), ("original", 4)):
        with pytest.raises(ValueError, match="got {!r} and {}".format(*arguments)):
            builder(Scripted(), *arguments)

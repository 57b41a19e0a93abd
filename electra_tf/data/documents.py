"""Builds pretraining examples, pairs of adjacent segments, from tokenized lines.

These are the rules of the original's example builder. It queues the lines of a document
until they have as many tokens as the target length; the queue then becomes an example.
The target is the maximum length or, after 5 % of the examples, a random shorter one. It
is not a length to truncate to. 10 % of the examples get a single segment, the others
two, the first of at most about half the target.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from electra_tf.errors import UserError

Line = Sequence[int]
# (queued lines, first segment's budget, max_seq_length, rng) to the two segments and
# the lines that stay queued.
Splitter = Callable[
    [list[Line], int, int, random.Random], tuple[np.ndarray, np.ndarray, list[Line]]
]

SINGLE_SEGMENT_RATE = 0.1
SHORT_TARGET_RATE = 0.05
MIN_TARGET = 5
_UNLIMITED = 100_000


class ExampleBuilder:
    """Builds examples ``[CLS] first [SEP]`` or ``[CLS] first [SEP] second [SEP]``.

    An example is an integer array, of the dtype of the lines, of one document. Pass the
    lines of a document to ``add_line``, then call ``end_document``; both return the
    completed examples.

    Args:
        max_seq_length: longest example, special tokens included; at least 5.
        rng: source of every random choice.
        segmenting: ``"carry"``: segments in text order; no token is lost or repeated,
            the rest starts the next example. ``"original"``: the rule of the original
            code, which can move a short line before an earlier one and discards the
            rest.

    Raises:
        ValueError: if ``segmenting`` is unknown or ``max_seq_length`` too small.

    Examples:
        >>> import random
        >>> builder = et.data.ExampleBuilder(
        ...     16, cls_id=2, sep_id=3, rng=random.Random(0)
        ... )
        >>> document = [np.arange(5, 10), np.arange(10, 14)]  # ids of its lines
        >>> examples = list(builder.build([document]))
        >>> int(examples[0][0]), int(examples[0][-1])
        (2, 3)
    """

    def __init__(
        self,
        max_seq_length: int,
        *,
        cls_id: int,
        sep_id: int,
        rng: random.Random,
        segmenting: str = "carry",
    ):
        if segmenting not in SEGMENTING:
            raise UserError(
                f"segmenting must be one of {sorted(SEGMENTING)}, got {segmenting!r}"
            )
        if max_seq_length < MIN_TARGET:
            raise UserError(
                f"max_seq_length must be at least {MIN_TARGET}, got {max_seq_length}"
            )
        self._max_seq_length = max_seq_length
        self._cls, self._sep = np.array([[cls_id], [sep_id]], np.int32)
        self._rng = rng
        self._split = SEGMENTING[segmenting]
        self._queue: list[Line] = []
        self._queued = 0
        self._target = max_seq_length

    def add_line(self, tokens: Line) -> list[np.ndarray]:
        """Queues the ids of a line; returns the completed examples."""
        if len(tokens):
            self._queue.append(tokens)
            self._queued += len(tokens)
        examples = []
        # More than once: a long line fills several examples.
        while self._queued >= self._target:
            examples.append(self._next_example())
        return examples

    def end_document(self) -> list[np.ndarray]:
        """Returns examples of all queued lines, however short."""
        examples = []
        while self._queue:
            examples.append(self._next_example())
        return examples

    def build(self, documents: Iterable[Iterable[Line]]) -> Iterator[np.ndarray]:
        """Yields the examples of whole documents."""
        for document in documents:
            for line in document:
                yield from self.add_line(line)
            yield from self.end_document()

    def _next_example(self) -> np.ndarray:
        is_single = self._rng.random() < SINGLE_SEGMENT_RATE
        # Three special tokens stand in an example of two segments.
        budget = _UNLIMITED if is_single else (self._target - 3) // 2
        first, second, self._queue = self._split(
            self._queue, budget, self._max_seq_length, self._rng
        )
        self._queued = sum(map(len, self._queue))
        self._target = self._max_seq_length
        if self._rng.random() < SHORT_TARGET_RATE:
            self._target = self._rng.randint(MIN_TARGET, self._max_seq_length)
        example = [self._cls, first, self._sep]
        return np.concatenate([*example, second, self._sep] if len(second) else example)


def split_original(
    lines: list[Line], budget: int, max_seq_length: int, rng: random.Random
) -> tuple[np.ndarray, np.ndarray, list[Line]]:
    """The original's rule: assigns every line to a segment, then cuts both.

    A line goes to the first segment if that is empty, or stays under its budget, or,
    with probability 0.5, if it crosses it while the second is empty. So a line can join
    the first segment after an earlier one went to the second.
    """
    first, second, size = [], [], 0
    for line in lines:
        if (
            not first
            or size + len(line) < budget
            or (not second and size < budget and rng.random() < 0.5)
        ):
            first.append(line)
            size += len(line)
        else:
            second.append(line)
    ids = np.concatenate(first)[: max_seq_length - 2]
    room = max(0, max_seq_length - len(ids) - 3)
    return ids, np.concatenate(second)[:room] if second else ids[:0], []


def split_carry(
    lines: list[Line], budget: int, max_seq_length: int, rng: random.Random
) -> tuple[np.ndarray, np.ndarray, list[Line]]:
    """Segments in text order; the rest stays queued.

    Deviation: the first segment takes the leading lines only (by the original's
    conditions), the second the tokens that follow it, and the rest starts the next
    example. The original reorders lines and discards the rest, which at length 128 is
    12 to 36 % of the text. If the leading lines leave no room for a second segment (a
    long paragraph on one line), they are cut in the middle of the example.
    """
    # A single array, such as the rest of a long line, is not copied and its slices are
    # views: the time is linear in the length of a line.
    tokens = np.asarray(lines[0]) if len(lines) == 1 else np.concatenate(lines)
    # The tokens of the lines that the original would put first before any other.
    wanted = 0
    for line in lines:
        fits = wanted + len(line) < budget
        if wanted and not fits and not (wanted < budget and rng.random() < 0.5):
            break
        wanted += len(line)
    if wanted > max_seq_length - 4 and len(tokens) > max_seq_length - 2:
        wanted = max(budget, (max_seq_length - 3) // 2)
    cut = min(wanted, max_seq_length - 2)
    end = min(len(tokens), max(cut, max_seq_length - 3))
    rest = tokens[end:]
    return tokens[:cut], tokens[cut:end], [rest] if len(rest) else []


SEGMENTING: dict[str, Splitter] = {"carry": split_carry, "original": split_original}

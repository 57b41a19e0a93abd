"""Builds pretraining examples, pairs of adjacent segments, from tokenized lines.

Follows the original: when the queued lines of a document reach the target length, they
become an example, without truncation to the target. The target is the maximum length
or, with probability 0.05, a random shorter length. 10 % of the examples have one
segment. In the others, the first has at most about half the target.
"""

import random
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from electra_tf.errors import UserError

Line = Sequence[int]
# First segment, second segment, lines that stay queued.
Split = tuple[np.ndarray, np.ndarray, list[Line]]

_SINGLE_SEGMENT_RATE = 0.1
_SHORT_TARGET_RATE = 0.05
_MIN_TARGET = 5
_UNLIMITED = 100_000


class ExampleBuilder:
    """Builds examples ``[CLS] first [SEP]`` or ``[CLS] first [SEP] second [SEP]``.

    Examples have the integer dtype of the lines and never cross documents.

    Args:
        max_seq_length: maximum length, special tokens included; at least 5.
        segmenting: ``"carry"`` keeps all tokens in text order and carries the rest over
            to the next example. ``"original"`` can reorder lines and discards the rest.

    Examples:
        >>> import random
        >>> builder = et.data.ExampleBuilder(
        ...     16, cls_id=2, sep_id=3, rng=random.Random(0)
        ... )
        >>> document = [np.arange(5, 10), np.arange(10, 14)]  # ids of its lines
        >>> [int(example[0]) for example in builder.build([document])]
        [2]
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
        if segmenting not in ("carry", "original") or max_seq_length < _MIN_TARGET:
            raise UserError(
                "segmenting must be 'carry' or 'original', max_seq_length at least 5; "
                f"got {segmenting!r} and {max_seq_length}"
            )
        self._max_seq_length = max_seq_length
        self._cls, self._sep = np.array([[cls_id], [sep_id]], np.int32)
        self._rng = rng
        self._split = split_carry if segmenting == "carry" else split_original
        self._target = max_seq_length

    def build(self, documents: Iterable[Iterable[Line]]) -> Iterator[np.ndarray]:
        """Yields the examples of documents, given as the ids of their lines."""
        for document in documents:
            queue: list[Line] = []
            queued = 0  # Tokens.
            for line in document:
                if len(line):
                    queue.append(line)
                    queued += len(line)
                while queued >= self._target:
                    example, queue = self._next_example(queue)
                    queued = sum(map(len, queue))
                    yield example
            # The rest of a document becomes examples, even if it is short.
            while queue:
                example, queue = self._next_example(queue)
                yield example

    def _next_example(self, queue: list[Line]) -> tuple[np.ndarray, list[Line]]:
        is_single = self._rng.random() < _SINGLE_SEGMENT_RATE
        budget = _UNLIMITED if is_single else (self._target - 3) // 2
        first, second, rest = self._split(
            queue, budget, self._max_seq_length, self._rng
        )
        self._target = self._max_seq_length
        if self._rng.random() < _SHORT_TARGET_RATE:
            self._target = self._rng.randint(_MIN_TARGET, self._max_seq_length)
        parts = [self._cls, first, self._sep]
        if len(second):
            parts += [second, self._sep]
        return np.concatenate(parts), rest


def split_original(
    lines: list[Line], budget: int, max_seq_length: int, rng: random.Random
) -> Split:
    """Assigns each line to a segment, then truncates both, as the original does.

    A line joins the first segment if that is empty or stays below its budget. With
    probability 0.5 it also joins if it exceeds the budget while the second segment is
    empty. So a line can join the first segment after an earlier line joined the second.
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
) -> Split:
    """Splits in text order; the rest stays queued.

    Deviation: the original reorders lines and discards the rest, 12 to 36 % of the text
    at length 128. Leading lines that leave no room for a second segment are cut.
    """
    # Slices of a single array are views, so the time is linear in the line's length.
    tokens = np.asarray(lines[0]) if len(lines) == 1 else np.concatenate(lines)
    wanted = 0  # Tokens of the leading lines.
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

"""Batches of R feature rows, bucketed by length to limit padding and compilation."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.features import ENCODER_INPUTS
from electra_tf.tasks.base import Column, Ragged, Rows


def bucket_lengths(
    lengths: np.ndarray, max_seq_length: int, count: int = 5
) -> tuple[int, ...]:
    """Returns the padded lengths of batches, in ascending order.

    Selects at most ``count`` multiples of 8, from 16 to ``max_seq_length``, that
    minimize the padding of rows of these ``lengths``, [R].
    """
    steps = np.arange(16, max(16, np.max(lengths)) + 8, 8)
    steps = np.minimum(steps, max_seq_length).tolist()
    # Number of rows that fit into length 0 and into each step.
    rows = [0, *np.searchsorted(np.sort(lengths), steps, "right").tolist()]
    # Dynamic program over the number of lengths. best[i] covers the rows up to step i:
    # (padded tokens, number of lengths, lengths).
    best = [(0, 0, ()), *[(math.inf, 0, ())] * len(steps)]
    for _ in range(count):
        for last in range(len(steps), 0, -1):
            step, fit = steps[last - 1], rows[last]
            for less, (tokens, number, chosen) in zip(rows[:last], best, strict=False):
                choice = tokens + (fit - less) * step, number + 1, (*chosen, step)
                best[last] = min(best[last], choice)
    return best[-1][-1]


def make_batch(
    rows: Rows, chosen: np.ndarray, length: int
) -> tuple[dict, Any, np.ndarray | None]:
    """Pads the ``chosen`` rows, int64 [B], to ``length`` S.

    Returns inputs, targets (an array or a dictionary) and sample weights, or None.
    """

    def column(values: Column, pad: int = 0) -> np.ndarray:
        if isinstance(values, Ragged):
            return values.pad(chosen, length, pad)
        return values[chosen]

    inputs = {name: column(values) for name, values in rows.inputs.items()}
    inputs["input_ids"] = column(rows.inputs["input_ids"], rows.pad_id)
    real = np.arange(length) < rows.lengths[chosen][:, np.newaxis]
    inputs["input_mask"] = real.astype(np.int32)
    targets: Any = {name: column(values) for name, values in rows.targets.items()}
    if len(targets) < 2:
        targets = next(iter(targets.values()), None)
    return inputs, targets, None if rows.weights is None else column(rows.weights)


@dataclasses.dataclass(frozen=True)
class TrainingOrder:
    """Order of training batches, a function of the seed and of earlier ``updates``.

    Every epoch is shuffled. Batches may span two epochs, so every batch is full. Within
    a window of shuffled rows, at most an eighth of an epoch, batches group rows of
    similar length, in random order. ``lengths`` are numbers of tokens [R],
    ``buckets`` the padded lengths.

    Deviation: the original shuffles once and pads all rows to the full length.
    """

    lengths: np.ndarray
    batch_size: int
    buckets: tuple[int, ...]
    updates: int = 0

    @property
    def steps_per_pass(self) -> int:
        """Batches per epoch, rounded up as in the original code."""
        return math.ceil(len(self.lengths) / self.batch_size)

    @property
    def grouped(self) -> int:
        # With few batches, a larger window would give every batch one length.
        return min(50, max(1, self.steps_per_pass // 8))

    def batches(self, seed: int, steps: int) -> Iterator[tuple[np.ndarray, int]]:
        """Yields (row indices [B], padded length) of each step."""
        random = np.random.default_rng([seed, self.updates])
        stream = np.zeros([0], np.int64)
        while steps > 0:
            count = min(steps, self.grouped)
            while len(stream) < count * self.batch_size:
                stream = np.concatenate([stream, random.permutation(len(self.lengths))])
            window = stream[: count * self.batch_size]
            stream = stream[count * self.batch_size :]
            window = window[np.argsort(self.lengths[window], kind="stable")]
            batches = window.reshape(count, self.batch_size)
            for rows in batches[random.permutation(count)]:
                longest = self.lengths[rows].max()
                yield rows, next(size for size in self.buckets if size >= longest)
            steps -= count


def training_dataset(
    rows: Rows, order: TrainingOrder, *, seed: int, steps: int, first_step: int = 0
) -> tf.data.Dataset:
    """Returns the batches of a run of ``steps``, starting at ``first_step``."""

    def batch(chosen: np.ndarray, length: int) -> Any:
        return keras.utils.pack_x_y_sample_weight(*make_batch(rows, chosen, length))

    def batches() -> Iterator[Any]:
        for each in itertools.islice(order.batches(seed, steps), first_step, None):
            yield batch(*each)

    # The length is dynamic, so that the training step is traced once.
    specs = tf.nest.map_structure(
        lambda x: tf.TensorSpec([order.batch_size, *[None] * (x.ndim - 1)], x.dtype),
        batch(np.zeros([1], np.int64), int(rows.lengths.max())),
    )
    return tf.data.Dataset.from_generator(batches, output_signature=specs).prefetch(4)


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Runs a model's ``inference`` over rows in batches of similar length."""

    model: Any
    batch_size: int

    def __call__(self, rows: Rows) -> list[Any]:
        """Returns one array or dictionary of arrays per row, without batch axis."""
        answers: list[Any] = [None] * len(rows)
        order = np.argsort(rows.lengths, kind="stable")
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            inputs, _, _ = make_batch(rows, chosen, int(rows.lengths[chosen].max()))
            tensors = {name: tf.constant(inputs[name]) for name in ENCODER_INPUTS}
            outputs = tf.nest.map_structure(np.asarray, self.model.inference(tensors))
            for number, row in enumerate(chosen):
                answers[row] = tf.nest.map_structure(lambda a, i=number: a[i], outputs)
        return answers

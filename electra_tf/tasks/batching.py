"""From feature rows to batches: rows of similar length together, few padded lengths.

A short sentence then does not pay for the longest one. All batches of a run have one
size and the lengths are rounded up to a small set, so that little is compiled.

Letters: R rows, B batch, S sequence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.tasks.base import Ragged, Rows


def bucket_lengths(max_seq_length: int) -> tuple[int, ...]:
    """Lengths that batches are padded to, the longest last: 16, 32, 64, 96, 128.

    Fractions of the longest, rounded up to multiples of 8, at least 16. Training
    compiles for every length that occurs, so they are few.
    """
    steps = (max(16, math.ceil(part * max_seq_length / 8) * 8) for part in _PARTS)
    return tuple(sorted({min(max_seq_length, step) for step in steps}))


def make_batch(
    rows: Rows, chosen: np.ndarray, length: int
) -> tuple[dict, Any, np.ndarray | None]:
    """Pads some rows.

    Args:
        rows: All rows.
        chosen: Indices of the rows, int64 [B].
        length: The length S they are padded to.

    Returns:
        inputs, targets (None if unknown) and sample weights (None if equal), as Keras
        takes them.
    """

    def column(values, pad=0):
        if isinstance(values, Ragged):
            return values.pad(chosen, length, pad)
        return values[chosen]

    inputs = {name: column(values) for name, values in rows.inputs.items()}
    inputs["input_ids"] = column(rows.inputs["input_ids"], rows.pad_id)
    real = np.arange(length) < rows.lengths[chosen][:, np.newaxis]
    inputs["input_mask"] = real.astype(np.int32)
    targets = {name: column(values) for name, values in rows.targets.items()}
    weights = None if rows.weights is None else column(rows.weights)
    return inputs, _bare(targets), weights


_PARTS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)


@dataclasses.dataclass(frozen=True)
class TrainingOrder:
    """Which rows form which batch: a function of the seed.

    The rows are shuffled anew in every pass, and the passes follow each other without
    a gap, so every batch is full. Inside of a window of the shuffled rows, batches are
    made of rows of similar length; the order of the batches is random again.

    Deviation: the original shuffles once and pads all rows to the full length.

    Attributes:
        lengths: Tokens of each row, [R].
        batch_size: Rows per batch.
        buckets: Lengths that batches are padded to.
        window: Batches per window; 1 leaves the shuffled order as it is.
    """

    lengths: np.ndarray
    batch_size: int
    buckets: tuple[int, ...]
    window: int = 50

    @property
    def steps_per_pass(self) -> int:
        """Batches per pass, rounded up as in the original code."""
        return math.ceil(len(self.lengths) / self.batch_size)

    def batches(self, seed: int, steps: int) -> Iterator[tuple[np.ndarray, int]]:
        """Yields (row indices [B], padded length) of each step."""
        random = np.random.default_rng([seed, 0])
        stream = np.zeros([0], np.int64)
        while steps > 0:
            count = min(steps, self.window)
            while len(stream) < count * self.batch_size:
                stream = np.concatenate([stream, random.permutation(len(self.lengths))])
            window = stream[: count * self.batch_size]
            stream = stream[count * self.batch_size :]
            window = window[np.argsort(self.lengths[window], kind="stable")]
            batches = window.reshape(count, self.batch_size)
            for index in random.permutation(count):
                yield batches[index], self.padded(self.lengths[batches[index]].max())
            steps -= count

    def padded(self, length: int) -> int:
        """The bucket of a batch whose longest row has this length."""
        return next(bucket for bucket in self.buckets if bucket >= length)


def training_dataset(
    rows: Rows, order: TrainingOrder, *, seed: int, steps: int
) -> tf.data.Dataset:
    """Batches of a whole run, `steps` of them."""

    def generate():
        for chosen, length in order.batches(seed, steps):
            yield _present(make_batch(rows, chosen, length))

    signature = _present(_signature(rows, order.batch_size))
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return dataset.prefetch(4)


def _present(batch):
    return tuple(part for part in batch if part is not None)


def _signature(rows: Rows, batch_size: int | None):
    """Specs of `make_batch`; one dynamic length makes one trace serve all buckets."""

    def spec(column):
        if isinstance(column, Ragged):
            return tf.TensorSpec([batch_size, None], column.values.dtype)
        return tf.TensorSpec([batch_size, *column.shape[1:]], column.dtype)

    inputs = {name: spec(column) for name, column in rows.inputs.items()}
    inputs["input_mask"] = tf.TensorSpec([batch_size, None], tf.int32)
    targets = {name: spec(column) for name, column in rows.targets.items()}
    weights = None if rows.weights is None else spec(rows.weights)
    return inputs, _bare(targets), weights


def _bare(targets: dict[str, Any]) -> Any:
    """What Keras is given: nothing, the single target, or all of them by name."""
    if len(targets) > 1:
        return targets
    return next(iter(targets.values()), None)


class Outputs:
    """Runs a model over rows, batches of similar length, in one trace.

    Args:
        model: What is run; its weights may change between calls.
        batch_size: Rows per batch; no result depends on it.
    """

    def __init__(self, model: Any, batch_size: int):
        self._model = model
        self._batch_size = batch_size
        self._steps: dict[tuple[str, ...], Callable] = {}

    def __call__(
        self, rows: Rows, log: Callable[[int, int], None] = lambda done, total: None
    ) -> list[Any]:
        """What the model says about each row.

        Args:
            rows: The rows.
            log: Told (rows done, rows in all) after each batch.

        Returns:
            One entry per row: an array, or a dictionary of arrays, without the batch
            axis.
        """
        step = self._step_for(rows)
        found: list[Any] = [None] * len(rows)
        order = np.argsort(rows.lengths, kind="stable")
        for start in range(0, len(order), self._batch_size):
            chosen = order[start : start + self._batch_size]
            inputs, _, _ = make_batch(rows, chosen, int(rows.lengths[chosen].max()))
            outputs = step({name: tf.constant(a) for name, a in inputs.items()})
            outputs = tf.nest.map_structure(lambda tensor: tensor.numpy(), outputs)
            for number, row in enumerate(chosen):
                found[row] = tf.nest.map_structure(lambda a, i=number: a[i], outputs)
            log(start + len(chosen), len(order))
        return found

    def _step_for(self, rows: Rows) -> Callable[[dict], Any]:
        columns = tuple(sorted(rows.inputs))
        if columns not in self._steps:
            self._steps[columns] = tf.function(
                lambda inputs: self._model(inputs, training=False),
                input_signature=[_signature(rows, None)[0]],
            )
        return self._steps[columns]

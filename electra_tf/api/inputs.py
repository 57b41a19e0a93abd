"""Preprocessing of texts, labels and weights into batches."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.api.texts import (
    Columns,
    SentenceEncoder,
    batch_count,
    checked_batch_size,
    column_of,
    elements,
    first_element,
    is_batched,
)
from electra_tf.data.tokenizer import string_tensor
from electra_tf.errors import UserError, explained
from electra_tf.features import ENCODER_INPUTS
from electra_tf.tasks.base import Rows
from electra_tf.tasks.batching import make_batch
from electra_tf.tasks.tables import finite


class TextInputs(SentenceEncoder):
    """Part of ``TextModel`` that makes batches of texts, labels and weights."""

    def preprocessor(self, texts: Any) -> dict[str, tf.Tensor]:
        """Returns input_ids, input_mask and segment_ids, int32 [rows, tokens]."""
        columns = self._columns(texts).items()
        tensors = {name: string_tensor(column) for name, column in columns}
        inputs = self._task.serving_inputs(
            self.tokenizer, self.max_seq_length, **tensors
        )
        return {name: inputs[name] for name in ENCODER_INPUTS}

    def preprocess(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
    ) -> tf.data.Dataset:
        """Returns a dataset of batches: inputs, or (inputs, targets[, weights]).

        ``x`` is a list, array or Series of strings, a DataFrame or a dictionary of
        columns. If the model reads several texts, rows of a list are tuples or
        dictionaries. ``x`` may also be a ``tf.data.Dataset``, ``keras.utils.PyDataset``
        or generator of batches with labels. Preprocessed datasets are passed through.

        Raises ValueError if texts or labels are invalid, or the dataset is not batched.
        """
        if not is_batched(x):
            rows = self._rows(x, y, sample_weight)
            return self._dataset_of(rows, batch_size, shuffle=shuffle)
        if y is not None or sample_weight is not None or batch_size is not None:
            raise UserError(
                "Batches have labels and weights: leave out y, sample_weight and "
                "batch_size."
            )
        spec = getattr(x, "element_spec", None)
        inputs = spec[0] if isinstance(spec, tuple) else spec
        if isinstance(inputs, Mapping) and "input_ids" in inputs:
            return x
        first = first_element(x)
        if first is None:
            raise UserError("The dataset has no texts.")
        if isinstance(x, Iterator):
            x = itertools.chain([first], x)

        def batches() -> Iterator[Any]:
            for element in elements(x, shuffle=shuffle):
                rows = self._rows(*element)
                if len(rows):
                    yield self._batch(rows, np.arange(len(rows)))

        # Batches of questions without usable answers are skipped.
        count = batch_count(x) if self._task.kind != "question_answering" else None
        return self._dataset(batches, self._rows(*first), count)

    def _dataset_of(
        self, rows: Rows, batch_size: int | None, *, shuffle: bool = False
    ) -> tf.data.Dataset:
        size = checked_batch_size(batch_size)
        if not len(rows):
            raise UserError("No text can be trained on: every answer lacks tokens.")
        random = np.random.default_rng(self.seed)

        def batches() -> Iterator[Any]:
            order = random.permutation(len(rows)) if shuffle else np.arange(len(rows))
            for start in range(0, len(rows), size):
                yield self._batch(rows, order[start : start + size])

        return self._dataset(batches, rows, -(-len(rows) // size))

    def _dataset(
        self, batches: Callable[[], Iterable[Any]], rows: Rows, count: int | None
    ) -> tf.data.Dataset:
        """Wraps a generator of ``count`` batches with the structure of ``rows``."""
        specs = tf.nest.map_structure(
            lambda array: tf.TensorSpec([None] * array.ndim, array.dtype),
            self._batch(rows, np.arange(min(len(rows), 1))),
        )
        data = tf.data.Dataset.from_generator(batches, output_signature=specs)
        if count is not None:
            data = data.apply(tf.data.experimental.assert_cardinality(count))
        return data.prefetch(2)

    def _rows(self, x: Any, y: Any, sample_weight: Any) -> Rows:
        columns = self._columns(x)
        size = len(columns[self.text_names[0]])
        if not size:
            raise UserError("There are no texts.")
        labels = None if y is None else self._labels_of(y)
        weights = None
        if sample_weight is not None:
            weights = map(finite, column_of(sample_weight, "sample_weight"))
            weights = np.array([*weights], np.float32)
            if not np.all(np.isfinite(weights)):
                raise UserError("sample_weight must be one finite number per text.")
            if labels is None:
                raise UserError("sample_weight needs labels.")
        for name, values in (("labels", labels), ("weights", weights)):
            if values is not None and len(values) != size:
                raise UserError(f"{size} texts, but {len(values)} {name}.")
        rows = self._featurize(columns, labels)
        if weights is None:
            return rows
        own, weights = rows.weights, weights[rows.example]
        if isinstance(own, np.ndarray):
            weights *= own
        elif own is not None:
            # Ragged: one weight per token.
            values = own.values * np.repeat(weights, own.lengths)
            weights = dataclasses.replace(own, values=values)
        return dataclasses.replace(rows, weights=weights)

    def _rows_of(self, examples: Sequence[Any], *, training: bool) -> Rows:
        return self._task.featurize(
            examples, self.tokenizer, self.max_seq_length, training=training
        )

    def _labels_of(self, y: Any) -> list[Any]:
        return column_of(y, "labels")

    def _featurize(self, columns: Columns, labels: list[Any] | None) -> Rows:
        raise NotImplementedError

    def _batch(self, rows: Rows, chosen: np.ndarray) -> Any:
        length = int(rows.lengths[chosen].max(initial=1))
        if rows.targets:
            # Four lengths only: the training step compiles once per length.
            step = -(-self.max_seq_length // 4)
            length = min(-(-length // step) * step, self.max_seq_length)
        return keras.utils.pack_x_y_sample_weight(*make_batch(rows, chosen, length))

    def _one_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, method: str = ""
    ) -> tuple:
        if method and y is None:
            raise UserError(f"{method} needs labels: give y.")
        if isinstance(x, Mapping) and "input_ids" in x:
            return x, y, sample_weight
        rows = self._rows(x, y, sample_weight)
        batch = self._batch(rows, np.arange(len(rows)))
        return keras.utils.unpack_x_y_sample_weight(batch)

    def _weighing(self, class_weight: Mapping[Any, float]) -> Callable[..., tuple]:
        """Returns a function that multiplies the weights of a batch by the class's."""
        if self._task.kind != "classification" or not isinstance(class_weight, Mapping):
            raise UserError(
                "class_weight is a dictionary of weights by label, for classification."
            )
        weights = np.ones([len(self.labels)], np.float32)
        for label, weight in class_weight.items():
            with explained("class_weight", (TypeError, ValueError)):
                weights[self._lookup.index(label, 0)] = weight
        if not np.all(np.isfinite(weights)):
            raise UserError(f"class_weight={class_weight!r:.100}: give finite numbers.")

        def weigh(x: Any, y: Any, own: Any = None) -> tuple:
            return x, y, tf.gather(weights, y) * (1.0 if own is None else own)

        return weigh


def split(rows: Rows, share: float) -> tuple[Rows, Rows]:
    """Splits off a share of the texts, the last ones."""
    size = rows.example.max(initial=-1) + 1
    first = np.searchsorted(rows.example, int(size * (1 - share)))
    if not 0 < first < len(rows):
        raise UserError(f"validation_split={share} of {size} texts leaves no texts.")
    return rows.take(np.arange(first)), rows.take(np.arange(first, len(rows)))


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Raises the error of a generator of batches in place of TensorFlow's around it."""
    try:
        yield
    except tf.errors.OpError as error:
        _, is_own, text = error.message.partition("UserError: ")
        raise UserError(text.partition("\n")[0]) if is_own else error from None


def check_labeled(dataset: tf.data.Dataset, method: str) -> None:
    """Raises ValueError unless the batches of a dataset have labels."""
    if not isinstance(dataset.element_spec, tuple):
        raise UserError(f"{method} needs labels: give y, or batches with labels.")

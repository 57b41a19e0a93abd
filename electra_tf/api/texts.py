"""Sentence embeddings, and batches of encoded texts with labels and weights."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.api.inputs import (
    Columns,
    checked_batch_size,
    column_of,
    columns_of,
    elements,
)
from electra_tf.data.tokenizer import WordPiece, string_tensor
from electra_tf.errors import UserError, explained
from electra_tf.features import ENCODER_INPUTS
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.quantization import modes
from electra_tf.layers.weights import check_choice
from electra_tf.tasks.base import Rows
from electra_tf.tasks.batching import Outputs, make_batch
from electra_tf.tasks.encoding import encode_texts
from electra_tf.tasks.heads import mean_over_tokens
from electra_tf.tasks.tables import finite


class Traced:
    """A function of the encoder's inputs, as the model that ``Outputs`` runs."""

    def __init__(self, infer: Callable[[dict[str, tf.Tensor]], Any]):
        specs = [ENCODER_INPUTS]
        self.inference = tf.function(infer, input_signature=specs, autograph=False)


class SentenceEncoder:
    """Mixin with ``encode`` for models with an encoder and a tokenizer."""

    encoder: TextEncoder
    tokenizer: WordPiece
    max_seq_length: int
    # Names of the model's text inputs.
    text_names: tuple[str, ...] = ("text",)
    # Whether a text may be a list of words.
    reads_words = False

    def encode(
        self,
        texts: Any,
        pooling: str = "mean",
        layer: int | None = None,
        batch_size: int | None = 64,
    ) -> np.ndarray:
        """Computes sentence embeddings, float32 [texts, hidden size].

        Args:
            texts: strings, pairs of strings, or inputs of the model; truncated to
                ``max_seq_length`` tokens, special tokens included.
            pooling: "mean" of all tokens, special tokens included, or "cls", the vector
                of [CLS].
            layer: index of the hidden states: 0 is the input of the first block, k the
                output of block k; negative numbers count from the last. None averages
                all of them, because the last layer of a discriminator is a poor
                sentence embedding (docs/python.md).
            batch_size: number of texts per batch; affects the result by rounding only.
        """
        check_choice("pooling", pooling, ("mean", "cls"))
        blocks = self.encoder.num_layers
        is_number = isinstance(layer, int | np.integer)
        if layer is not None and not (is_number and -blocks - 1 <= layer <= blocks):
            raise UserError(
                f"layer is {layer!r}; the encoder has {blocks} blocks: give an integer "
                f"from {-blocks - 1} to {blocks}, or None for the average."
            )
        batch_size = checked_batch_size(batch_size)
        columns = self._columns_to_encode(texts)
        if not any(columns.values()):
            return np.zeros([0, self.encoder.hidden_size], np.float32)

        def pool(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
            states = self.encoder.states(inputs)
            chosen = states if layer is None else [states[layer]]
            if pooling == "mean":
                vectors = [mean_over_tokens(state, inputs) for state in chosen]
            else:
                vectors = [tf.cast(state[:, 0], tf.float32) for state in chosen]
            return tf.add_n(vectors) / len(vectors)

        traced = self._traced(lambda: Traced(pool), pooling, layer)
        return np.stack(Outputs(traced, batch_size)(self._packed(columns)))

    def _packed(self, columns: Columns) -> Rows:
        texts = list(zip(*columns.values(), strict=True))
        return encode_texts(self.tokenizer, texts, self.max_seq_length)

    def _columns(self, texts: Any) -> Columns:
        names, words = self.text_names, self.reads_words
        if isinstance(texts, tf.data.Dataset):
            batches = [columns_of(x, names, words=words) for x, *_ in elements(texts)]
            return {name: [t for b in batches for t in b[name]] for name in names}
        if isinstance(texts, keras.utils.PyDataset | Iterator):
            raise UserError(
                f"Texts cannot be a {type(texts).__name__}: give a list, or batches as "
                "tf.data.Dataset.from_generator(function, output_signature=...)."
            )
        return columns_of(texts, names, words=words)

    def _columns_to_encode(self, texts: Any) -> Columns:
        """Returns strings or pairs, which any model encodes, or the model's inputs."""
        if isinstance(texts, list | tuple) and texts and not self.reads_words:
            if isinstance(texts[0], str | bytes):
                return columns_of(texts, ("text",))
            is_columns = isinstance(texts, tuple) and len(texts) > 1
            if is_columns or isinstance(texts[0], tuple):
                return columns_of(texts, ("text", "text_pair"))
        return self._columns(texts)

    def _traced(self, build: Callable[[], Any], *key: Any) -> Any:
        """Returns ``build()``, called once for each ``key`` and kind of weights.

        A trace keeps its weights, without new factors of LoRA or new int8 kernels.
        """
        key = (*key, self.encoder.lora_rank, modes(self.encoder))
        if key not in self._traces:
            self._traces[key] = build()
        return self._traces[key]


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
        dictionaries. ``x`` may also be a ``tf.data.Dataset`` of batches with labels.
        Preprocessed datasets are passed through.

        Raises ValueError if texts or labels are invalid, or the dataset is not batched.
        """
        if not isinstance(x, tf.data.Dataset):
            rows = self._rows(x, y, sample_weight)
            return self._dataset_of(rows, batch_size, shuffle=shuffle)
        options = {"y": y, "sample_weight": sample_weight, "batch_size": batch_size}
        options["shuffle"] = shuffle or None
        if given := [name for name, value in options.items() if value is not None]:
            raise UserError(f"x is batches with labels: leave out {', '.join(given)}.")
        inputs, *_ = keras.utils.unpack_x_y_sample_weight(x.element_spec)
        if isinstance(inputs, Mapping) and "input_ids" in inputs:
            return x
        first = next(elements(x), None)
        if first is None:
            raise UserError("The dataset has no texts.")

        def batches() -> Iterator[Any]:
            for element in elements(x):
                rows = self._rows(*element)
                if len(rows):
                    yield self._batch(rows, np.arange(len(rows)))

        # Batches of questions without usable answers are skipped.
        is_known = self._task.kind != "question_answering" and x.cardinality() >= 0
        count = int(x.cardinality()) if is_known else None
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

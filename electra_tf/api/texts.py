"""Normalizes text inputs and computes sentence embeddings."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError
from electra_tf.features import ENCODER_INPUTS
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.quantization import modes
from electra_tf.layers.weights import check_choice
from electra_tf.tasks.base import Rows
from electra_tf.tasks.batching import Outputs
from electra_tf.tasks.encoding import encode_texts
from electra_tf.tasks.heads import mean_over_tokens
from electra_tf.tasks.sentences import split_words

Columns = dict[str, list[str]]


def columns_of(texts: Any, names: Sequence[str], *, words: bool = False) -> Columns:
    """Returns texts as one list of strings per name.

    ``texts`` are rows or columns. Rows are a list, array, tensor or Series of strings,
    tuples in the order of ``names``, or dictionaries. Columns are a tuple in the order
    of ``names``, a dictionary or a DataFrame. With ``words``, a row may be a list of
    words.
    """
    texts = named(texts)
    kinds = str | bytes | (list | tuple | np.ndarray if words else str)
    is_columns = isinstance(texts, tuple) and not (
        len(names) == 1 and all(isinstance(each, kinds) for each in texts)
    )
    if isinstance(texts, Mapping):
        if missing := [name for name in names if name not in texts]:
            raise UserError(
                f"The model needs {' and '.join(names)}, but {', '.join(missing)} is "
                f"missing; the columns are {', '.join(map(str, texts))}."
            )
        texts = [texts[name] for name in names]
    elif not is_columns:
        rows = plain(texts, " and ".join(names))
        if all(isinstance(row, Mapping) for row in rows):
            texts = [[row.get(name) for row in rows] for name in names]
        elif not words and all(isinstance(row, tuple | list) for row in rows):
            # Texts that a row lacks become None, which is refused below.
            texts = list(itertools.zip_longest(*rows))
        else:
            texts = [rows]
    if len(texts) != len(names):
        raise UserError(
            f"The model needs {' and '.join(names)}, but got {len(texts)} column(s)."
        )
    columns = {
        name: _strings(column, name, words)
        for name, column in zip(names, texts, strict=True)
    }
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise UserError(f"The columns have different lengths: {sizes}.")
    return columns


def named(table: Any) -> Any:
    """Converts a DataFrame, or a table of pyarrow or datasets, to a dictionary."""
    for attribute in ("columns", "column_names"):
        names = getattr(table, attribute, None)
        if names is not None and not isinstance(table, Mapping):
            names = [names] if isinstance(names, str) else list(names)
            if names and isinstance(names[0], str | int):
                return {name: table[name] for name in names}
    return table


def plain(values: Any, name: str) -> list[Any]:
    """Converts an array, tensor, Series or sequence to a list; errors have ``name``."""
    if hasattr(values, "columns"):
        # The elements of a DataFrame are the names of its columns.
        raise UserError(f"{name} must be one column of unique name, got a table.")
    for method in ("to_list", "to_pylist", "numpy", "tolist"):
        if hasattr(values, method):
            return plain(getattr(values, method)(), name)
    is_single = isinstance(values, str | bytes | Mapping | Set)
    if is_single or not isinstance(values, Iterable):
        raise UserError(f"{name} must be a list of values. Got {values!r:.100}.")
    return list(values)


def column_of(values: Any, name: str) -> list[Any]:
    """Converts a column, or the only column of a table, to a list."""
    table = named(values)
    if isinstance(table, Mapping) and len(table) == 1:
        (values,) = table.values()
    return plain(values, name)


def is_missing(value: Any) -> bool:
    """Returns True if a value is None, NaN, NaT or pandas.NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def text_of(value: Any, name: str) -> str:
    """Returns a string, decoding UTF-8 bytes; raises ValueError for other types."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "ignore")
    if not isinstance(value, str):
        raise UserError(f"{name} must be strings, got {value!r:.200}.")
    return value


def _strings(column: Any, name: str, words: bool) -> list[str]:
    strings = []
    for row, value in enumerate(plain(column, name)):
        if words and isinstance(value, list | tuple | np.ndarray):
            tokens = [text_of(word, f"words of row {row}") for word in value]
            for token in tokens:
                if split_words(token) != [token]:
                    raise UserError(f"Row {row}: {token!r} is not a single word.")
            value = " ".join(tokens)
        strings.append(text_of(value, f"{name} (row {row})"))
    return strings


def checked_batch_size(given: int | None) -> int:
    """Returns the batch size, 32 for None; raises ValueError if it is not positive."""
    if given is None:
        return 32
    if not isinstance(given, int | np.integer) or given < 1:
        raise UserError(f"batch_size must be a positive integer, got {given!r}.")
    return int(given)


def sliced(columns: Columns, batch_size: int | None) -> Iterator[Columns]:
    """Yields columns of at most ``batch_size`` texts."""
    size = checked_batch_size(batch_size)
    for start in range(0, len(next(iter(columns.values()))), size):
        yield {name: x[start : start + size] for name, x in columns.items()}


def is_batched(source: Any) -> bool:
    """Returns True if ``source`` is a dataset or a generator of batches."""
    return isinstance(source, tf.data.Dataset | keras.utils.PyDataset | Iterator)


def batch_count(source: Any) -> int | None:
    """Returns the number of batches per epoch of a dataset, or None if unknown."""
    if isinstance(source, tf.data.Dataset):
        count = int(source.cardinality())
        return count if count >= 0 else None
    return getattr(source, "num_batches", None)


def elements(source: Any, *, shuffle: bool = False) -> Iterator[tuple]:
    """Yields the batches of one epoch: texts, labels and sample weights, or None."""
    batches, is_py_dataset = source, isinstance(source, keras.utils.PyDataset)
    if isinstance(source, tf.data.Dataset):
        if any(leaf.shape.rank == 0 for leaf in tf.nest.flatten(source.element_spec)):
            raise UserError("The dataset has single texts: give dataset.batch(32).")
        batches = source.as_numpy_iterator()
    elif is_py_dataset:
        source.on_epoch_begin()
        count = source.num_batches
        numbers = itertools.count() if count is None else range(count)
        if shuffle and count is not None:
            numbers = random.sample(numbers, count)
        batches = map(source.__getitem__, numbers)
    for batch in batches:
        # Keras would read a list as a tuple.
        element = batch if isinstance(batch, tuple) else (batch,)
        yield keras.utils.unpack_x_y_sample_weight(element)
    if is_py_dataset:
        source.on_epoch_end()


def first_element(source: Any) -> tuple | None:
    """Returns the first batch, outside of any epoch, or None."""
    if isinstance(source, keras.utils.PyDataset):
        source = iter([] if source.num_batches == 0 else [source[0]])
    return next(elements(source), None)


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
        pool = self._traced(lambda: self._pool(pooling, layer), pooling, layer)
        return np.stack(Outputs(pool, batch_size)(self._packed(columns)))

    def _packed(self, columns: Columns) -> Rows:
        texts = list(zip(*columns.values(), strict=True))
        return encode_texts(self.tokenizer, texts, self.max_seq_length)

    def _columns(self, texts: Any) -> Columns:
        names, words = self.text_names, self.reads_words
        if not is_batched(texts):
            return columns_of(texts, names, words=words)
        batches = [columns_of(x, names, words=words) for x, *_ in elements(texts)]
        return {name: [t for b in batches for t in b[name]] for name in names}

    def _columns_to_encode(self, texts: Any) -> Columns:
        """Returns strings or pairs, which any model encodes, or the model's inputs."""
        if isinstance(texts, list | tuple) and texts and not self.reads_words:
            if isinstance(texts[0], str | bytes):
                return columns_of(texts, ("text",))
            is_columns = isinstance(texts, tuple) and len(texts) > 1
            if is_columns or isinstance(texts[0], tuple):
                return columns_of(texts, ("text", "text_pair"))
        return self._columns(texts)

    def _pool(self, pooling: str, layer: int | None) -> Traced:
        def infer(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
            states = self.encoder.states(inputs)
            chosen = states if layer is None else [states[layer]]
            if pooling == "mean":
                vectors = [mean_over_tokens(state, inputs) for state in chosen]
            else:
                vectors = [tf.cast(state[:, 0], tf.float32) for state in chosen]
            return tf.add_n(vectors) / len(vectors)

        return Traced(infer)

    def _traced(self, build: Callable[[], Any], *key: Any) -> Any:
        """Returns ``build()``, called once for each ``key`` and kind of weights.

        A trace keeps its weights, without new factors of LoRA or new int8 kernels.
        """
        key = (*key, self.encoder.lora_rank, modes(self.encoder))
        if key not in self._traces:
            self._traces[key] = build()
        return self._traces[key]

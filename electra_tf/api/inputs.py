"""Texts as users give them: columns of strings, and batches of them."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.tasks.sentences import split_words

Columns = dict[str, list[str]]


def columns_of(texts: Any, names: Sequence[str], *, words: bool = False) -> Columns:
    """Returns texts as one list of strings per name.

    ``texts`` are rows or columns. Rows are a list, array, tensor or Series of strings,
    tuples in the order of ``names``, or dictionaries. Columns are a tuple in the order
    of ``names``, a dictionary or a DataFrame. With ``words``, a row may be a list.
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
        _check_pair(texts, names)
        texts = [texts[name] for name in names]
    elif not is_columns:
        rows = plain(texts, " and ".join(names))
        if all(isinstance(row, Mapping) for row in rows):
            _check_pair(rows[0] if rows else (), names)
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


def _check_pair(columns: Any, names: Sequence[str]) -> None:
    if "text_pair" in columns and "text_pair" not in names:
        raise UserError(
            "The model reads one text, not text_pair: build it with pair=True, or give "
            "encode tuples."
        )


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


def elements(dataset: tf.data.Dataset) -> Iterator[tuple]:
    """Yields the batches: texts, labels and sample weights, or None."""
    if any(leaf.shape.rank == 0 for leaf in tf.nest.flatten(dataset.element_spec)):
        raise UserError("The dataset has single texts: give dataset.batch(32).")
    for batch in dataset.as_numpy_iterator():
        yield keras.utils.unpack_x_y_sample_weight(batch)

"""Texts as people have them, and vectors of them.

Letters: N texts, B batch, S sequence, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError
from electra_tf.features import ENCODER_INPUTS, tensor_specs
from electra_tf.layers.encoder import TextEncoder
from electra_tf.tasks.base import Rows
from electra_tf.tasks.batching import Outputs
from electra_tf.tasks.encoding import encode_texts
from electra_tf.tasks.heads import POOLINGS

# Poolings that have no weights of their own.
VECTORS = ("cls", "mean")


def columns_of(texts: Any, names: Sequence[str]) -> dict[str, list[str]]:
    """Texts by name, as strings.

    ``texts`` are rows in a list (strings, tuples or dictionaries), or columns: an array
    or tensor of one, a tuple in the order of ``names``, or a dictionary. ValueError:
    they are something else, or a column is missing.
    """
    if isinstance(texts, list):
        if all(isinstance(row, Mapping) for row in texts):
            texts = {name: [row.get(name) for row in texts] for name in names}
        elif texts and all(isinstance(row, tuple | list) for row in texts):
            texts = tuple(zip(*texts, strict=True))
    if isinstance(texts, Mapping):
        if missing := [name for name in names if name not in texts]:
            raise UserError(
                f"The model wants {' and '.join(names)}, but {', '.join(missing)} is "
                f"missing; given are {', '.join(map(str, texts))}."
            )
        texts = tuple(texts[name] for name in names)
    columns = texts if isinstance(texts, tuple) else (texts,)
    if len(columns) != len(names):
        raise UserError(
            f"The model wants {' and '.join(names)}; {len(columns)} column(s) of texts "
            "were given."
        )
    named = zip(names, columns, strict=True)
    return {name: _strings(column, name) for name, column in named}


def plain(values: Any) -> list[Any]:
    """A column of an array, a tensor (also ragged) or a sequence, as a list."""
    for method in ("to_list", "numpy", "tolist"):
        if hasattr(values, method):
            return plain(getattr(values, method)())
    return list(values)


def text_of(value: Any, name: str) -> str:
    """A string, from itself or from UTF-8 bytes; ValueError of anything else."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "ignore")
    if not isinstance(value, str):
        raise UserError(f"{name} must be texts, got {value!r:.200}.")
    return value


def _strings(column: Any, name: str) -> list[str]:
    if isinstance(column, str | bytes):
        raise UserError(f"{name} must be a list of texts; put one into [...].")
    return [text_of(value, name) for value in plain(column)]


class SentenceVectors:
    """One vector of each text, from the states of an encoder.

    ``max_seq_length`` is the most tokens that are read of a text, special ones
    included.

    Examples:
        >>> mini = et.load("mini")
        >>> vectors = SentenceVectors(mini.encoder, mini.tokenizer, max_seq_length=128)
        >>> vectors(["one text", "another one"], pooling="mean", layer=-1).dtype
        dtype('float32')
    """

    def __init__(self, encoder: TextEncoder, tokenizer: WordPiece, max_seq_length: int):
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._length = max_seq_length
        # Traced once for each kind of vector.
        self._traced: dict[tuple[str, int], _Vectors] = {}

    def __call__(
        self, texts: Any, pooling: str = "mean", layer: int = -1, batch_size: int = 64
    ) -> np.ndarray:
        """Vectors of texts, float32 [N, D].

        Args:
            texts: strings; or pairs of them, which are read together.
            pooling: "mean" of all tokens, special ones included, or "cls", the vector
                of [CLS].
            layer: which states: 0 is what goes into the first block, k what comes out
                of the k-th; negative ones count from the last.
            batch_size: texts at a time; no vector depends on it, but for rounding.

        Raises:
            ValueError: an argument is not one of these.
        """
        blocks = self._encoder.num_layers
        if pooling not in VECTORS:
            raise UserError(f"pooling is {pooling!r}; allowed are mean and cls.")
        if not -blocks - 1 <= layer <= blocks:
            raise UserError(
                f"layer is {layer}; the encoder has {blocks} blocks: give 0 (what goes "
                f"into the first) to {blocks}, or a negative one."
            )
        is_pairs = isinstance(texts, tuple) or (
            isinstance(texts, list) and texts and isinstance(texts[0], tuple)
        )
        names = ("text", "text_pair") if is_pairs else ("text",)
        columns = list(columns_of(texts, names).values())
        if not columns[0]:
            return np.zeros([0, self._encoder.hidden_size], np.float32)
        inputs, numbers = encode_texts(self._tokenizer, columns, self._length)
        rows = Rows(inputs, {}, numbers, pad_id=self._tokenizer.vocabulary.pad_id)
        key = pooling, layer % (blocks + 1)
        if key not in self._traced:
            self._traced[key] = _Vectors(self._encoder, *key)
        return np.stack(Outputs(self._traced[key], batch_size)(rows))


class _Vectors:
    """An encoder and a pooling as ``Outputs`` wants a model."""

    def __init__(self, encoder: TextEncoder, pooling: str, layer: int):
        _, pool = POOLINGS[pooling]

        def infer(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
            return tf.cast(pool(encoder.states(inputs)[layer], inputs), tf.float32)

        specs = tensor_specs(ENCODER_INPUTS, {})
        self.inference = tf.function(infer, input_signature=[specs], autograph=False)

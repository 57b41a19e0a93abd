"""The protocol of tasks, and the feature rows that pass between its methods.

Letters: R feature rows, B batch, S sequence, C classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf import files
from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.tasks.heads import TaskModel, Tensors

Scores = dict[str, float]
Examples = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Example:
    """One text, or a pair, with its label (None where it is unknown).

    ``id`` names the example in predictions and submissions.

    Examples:
        >>> et.tasks.Example("7", ("It rained.", "It was wet."), "entailment").texts
        ('It rained.', 'It was wet.')
    """

    id: str
    texts: tuple[str, ...]
    label: Any = None


@dataclasses.dataclass(frozen=True)
class Ragged:
    """R arrays of different lengths, stored as one.

    Row r is ``values[splits[r]:splits[r + 1]]``; splits are int64 [R + 1].

    Examples:
        >>> column = et.tasks.Ragged.of([[2, 7, 3], [2, 3]])
        >>> len(column), column.lengths.tolist()
        (2, [3, 2])
        >>> column.pad(np.array([0, 1]), 4).tolist()
        [[2, 7, 3, 0], [2, 3, 0, 0]]
    """

    values: np.ndarray
    splits: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Any], dtype: str = "int32") -> Ragged:
        """Packs sequences of numbers into one ``Ragged``."""
        splits = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        # The empty array keeps the type where there are no rows.
        parts = [np.zeros([0], dtype), *(np.asarray(row, dtype) for row in rows)]
        return cls(np.concatenate(parts), splits)

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.splits[row] : self.splits[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Number of values of each row, int64 [R]."""
        return np.diff(self.splits)

    def take(self, rows: np.ndarray) -> Ragged:
        """Returns some of the rows, in that order."""
        return Ragged.of([self[row] for row in rows], self.values.dtype)

    def pad(self, rows: np.ndarray, length: int, value: int = 0) -> np.ndarray:
        """Returns rows as one array [len(rows), length], filled up with ``value``."""
        padded = np.full([len(rows), length], value, self.values.dtype)
        for target, values in zip(padded, map(self.__getitem__, rows), strict=True):
            target[: len(values)] = values
        return padded


Column = np.ndarray | Ragged


@dataclasses.dataclass(frozen=True)
class Rows:
    """Feature rows of a list of examples: one or several rows for each of them.

    ``Ragged`` columns hold one value per token and are padded to the length of the
    batch; arrays hold one value (or vector) per row.

    Attributes:
        inputs: what the model reads: input_ids and segment_ids, both ``Ragged``, and
            what the head needs besides. The batches add input_mask.
        targets: what the loss compares with; empty where labels are unknown. A single
            one is handed to Keras bare, several as a dictionary.
        example: int64 [R], index of the example that a row belongs to.
        weights: float32 [R] or ``Ragged``, weight of each row in the loss; or None.
        pad_id: id that pads input_ids.
        notes: what ``Task.decode`` needs to know about the rows and the model does not.

    Examples:
        >>> rows = task.featurize(examples, et.load("mini").tokenizer, 32)
        >>> len(rows), rows.targets["label"].tolist()
        (2, [1, 0])
    """

    inputs: Mapping[str, Column]
    targets: Mapping[str, Column]
    example: np.ndarray
    weights: Column | None = None
    pad_id: int = 0
    notes: Mapping[str, Column] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.example)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row, int64 [R]."""
        return self.inputs["input_ids"].lengths


class Task:
    """A task: how data is read and tokenized, the head, its loss, and the metrics.

    A subclass has ``kind``, ``main_metric`` and the methods ``examples`` (or the
    attribute ``source``), ``featurize``, ``head``, ``loss``, ``decode`` and ``score``.
    ``serving_inputs`` and ``serving_outputs`` are needed for exports; all else has a
    default. A saved model loads once the module of the subclass is imported, if it is
    a dataclass whose fields are in ``to_json``.

    Attributes:
        name: on the command line and in files.
        kind: name of the class in task.json.
        source: reads a split: its name to a list of examples.
        eval_splits: splits with labels; the first one decides.
        test_splits: splits without labels, for ``write``; missing ones are left out.
        main_metric: name of the score that decides.
        max_seq_length: used, as ``epochs``, unless the user asks for another one.
        splits_long: whether examples that are too long become several rows, so that a
            shorter length than the default loses nothing.
        text_names: names of the text inputs in serving signatures.
        counted: what ``distribution`` counts, "examples" or "words".

    Examples:
        >>> isinstance(task, et.tasks.Task), task.main_metric
        (True, 'accuracy')
    """

    name: str
    kind: str
    source: Callable[[str], list[Any]]
    train_split = "train"
    eval_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    main_metric: str
    greater_is_better = True
    max_seq_length = 128
    epochs = 3.0
    splits_long = False
    text_names: tuple[str, ...] = ("text",)
    counted = "examples"

    def examples(self, split: str) -> list[Any]:
        """Reads a split; no TensorFlow.

        Raises:
            ValueError: the data is not what the task expects.
            OSError: it cannot be read; ``FileNotFoundError`` if there is none.
        """
        return self.source(split)

    def prepare(self, train_examples: Examples) -> Task:
        """Returns the task with what only training data tells, such as its labels.

        Raises ValueError: there is nothing to learn from these examples.
        """
        return self

    @property
    def tunes(self) -> bool:
        """Whether ``tune`` wants training examples that nothing was trained on."""
        return False

    def tune(self, answers: Any, examples: Examples) -> Task:
        """Returns the task with what these answers tell, such as a threshold."""
        return self

    def distribution(self, examples: Examples) -> dict[str, int]:
        """Returns how many examples (or words) have each label; empty without any."""
        return {}

    def cut(
        self, examples: Examples, tokenizer: WordPiece, max_seq_length: int
    ) -> list[int]:
        """Returns how many tokens of each example are in no row; empty for none."""
        return []

    def augment(self, examples: Examples) -> list[Any]:
        """Returns examples as they are trained on, such as pairs in both orders."""
        return list(examples)

    def featurize(
        self,
        examples: Examples,
        tokenizer: WordPiece,
        max_seq_length: int,
        *,
        training: bool = False,
    ) -> Rows:
        """Tokenizes examples: at most ``max_seq_length`` tokens, special ones included.

        Raises ValueError: a label is not one of the task's, or the examples do not fit
        into rows of this length.
        """
        raise NotImplementedError

    def head(self, encoder: TextEncoder) -> keras.layers.Layer:
        """Returns the layer on top of an encoder."""
        raise NotImplementedError

    def loss(self, reduction: str = "sum") -> Any:
        """Returns the Keras loss, or a dictionary of losses by output.

        ``reduction`` is "sum" over the batch, as in the original code, or "mean".
        """
        raise NotImplementedError

    def keras_metrics(self) -> dict[str, list[keras.metrics.Metric]]:
        """Returns metrics to watch while training, as arguments of ``compile``."""
        return {}

    def build_model(self, encoder: TextEncoder) -> TaskModel:
        """Returns encoder and head, compiled and ready for ``fit``.

        The optimizer is Keras's AdamW at a constant 1e-4; call ``compile`` again for
        another one, with ``task.loss()``.
        """
        head = self.head(encoder)
        model = TaskModel(encoder, head, name=self.name.replace("-", "_"))
        optimizer = keras.optimizers.AdamW(
            1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
        )
        model.compile(optimizer=optimizer, loss=self.loss(), **self.keras_metrics())
        return model

    def decode(self, outputs: Sequence[Any], rows: Rows, examples: Examples) -> Any:
        """Makes answers, one per example: whatever ``score`` and ``write`` take.

        ``outputs`` are what the model returned for each row, without the batch axis: an
        array, or a dictionary of arrays. Arrays with one value per token are padded to
        the length of some batch.
        """
        raise NotImplementedError

    def score(self, answers: Any, examples: Examples) -> Scores:
        """Returns the official metrics by name, ``main_metric`` among them."""
        raise NotImplementedError

    def baseline(self, train_examples: Examples, examples: Examples) -> Scores:
        """Returns the scores of the majority baseline; empty if there is none."""
        return {}

    def failure(self, answers: Any, scores: Scores, baseline: Scores) -> str:
        """Returns why a training run counts as failed, or ""."""
        return ""

    def details_of(self, answers: Any, examples: Examples) -> dict[str, Any]:
        """Returns what else the answers tell: scores by class, calibration."""
        return {}

    def noise(
        self, answers: Any, examples: Examples, train_examples: Examples
    ) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[float, float]]]:
        """Returns 95 % intervals of the scores, and of their gain over the baseline.

        Both are empty where the task does not know them.
        """
        return {}, {}

    def write(self, answers: Any, examples: Examples, path: str) -> None:
        """Writes answers to ``path``, .tsv, whose suffix the task may replace."""
        with files.open_new(path) as file:
            file.write("id\tprediction\n")
            for number, (example, answer) in enumerate(
                zip(examples, answers, strict=True)
            ):
                name = getattr(example, "id", number)
                file.write(f"{name}\t{' '.join(str(answer).split())}\n")

    def submit(
        self, answers: Any, examples: Examples, split: str, folder: str
    ) -> str | None:
        """Writes the file a benchmark wants; returns its path, or None."""

    def picture(self, answers: Any, examples: Examples, folder: str) -> str | None:
        """Draws what helps to understand the scores; returns the path, or None."""

    def serving_inputs(
        self, tokenizer: WordPiece, max_seq_length: int, **texts: tf.Tensor
    ) -> Tensors:
        """Does ``featurize`` in TensorFlow: ``text_names``, string [B], to inputs."""
        raise NotImplementedError

    def serving_outputs(self, outputs: Any, inputs: Tensors) -> Tensors:
        """Does ``decode`` in TensorFlow: outputs, padded inputs to tensors [B, ...]."""
        raise NotImplementedError

    def serving_id_outputs(self, outputs: Any, inputs: Tensors) -> Tensors:
        """Does ``serving_outputs`` where token ids are known, and the texts are not."""
        return self.serving_outputs(outputs, inputs)

    def comparable(
        self, outputs: Mapping[str, np.ndarray], length: int
    ) -> dict[str, np.ndarray]:
        """Turns what an exported model returned into arrays that rounding moves little.

        ``outputs`` are those of ``serving_id_outputs`` and of the model, for rows of
        ``length`` S.
        """
        floats = (k for k, v in outputs.items() if np.issubdtype(v.dtype, np.floating))
        return {name: outputs[name] for name in floats}

    def to_json(self) -> dict[str, Any]:
        """Returns what must be known to use the model later: written to task.json."""
        names = list(self.text_names)
        return {"task": self.name, "kind": self.kind, "text_names": names}


_REDUCTIONS = {"sum": "sum", "mean": "sum_over_batch_size"}


def keras_reduction(reduction: str) -> str:
    """Returns what Keras calls a reduction; it must be "sum" or "mean"."""
    if reduction not in _REDUCTIONS:
        raise UserError(f"reduction is {reduction!r}; allowed are sum and mean.")
    return _REDUCTIONS[reduction]


def not_above(name: str, scores: Scores, baseline: Scores) -> str:
    """Says so if a score is not above that of the baseline; else empty."""
    if scores[name] > baseline[name]:
        return ""
    return f"{name} {scores[name]:.2f} is not above the baseline {baseline[name]:.2f}"

"""Base class of tasks, and the feature rows that its methods exchange.

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
from electra_tf.tasks import metrics
from electra_tf.tasks.heads import TaskModel, Tensors

# Fields of a training run. A folder's task.json has the length that was used.
_UNSAVED = {"name", "source", "max_seq_length", "epochs", "eval_splits", "test_splits"}
Scores = dict[str, float]
Examples = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Example:
    """A text or a pair of texts, with its label (None if unknown).

    Examples:
        >>> et.tasks.Example("7", ("It rained.", "It was wet."), "entailment").texts
        ('It rained.', 'It was wet.')
    """

    id: str
    texts: tuple[str, ...]
    label: Any = None

    def __post_init__(self) -> None:
        check_strings("texts", self.texts)


@dataclasses.dataclass(frozen=True)
class Ragged:
    """R arrays of different lengths, stored as one array.

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
        # The empty array sets the dtype if there are no rows.
        parts = [np.zeros([0], dtype), *(np.asarray(row, dtype) for row in rows)]
        return cls(np.concatenate(parts), splits)

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.splits[row] : self.splits[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Number of values in each row, int64 [R]."""
        return np.diff(self.splits)

    def take(self, rows: np.ndarray) -> Ragged:
        """Returns the selected rows, in the given order."""
        return Ragged.of([self[row] for row in rows], self.values.dtype)

    def pad(self, rows: np.ndarray, length: int, value: int = 0) -> np.ndarray:
        """Returns rows padded with ``value``: [len(rows), length]."""
        padded = np.full([len(rows), length], value, self.values.dtype)
        for target, values in zip(padded, map(self.__getitem__, rows), strict=True):
            target[: len(values)] = values
        return padded


Column = np.ndarray | Ragged


@dataclasses.dataclass(frozen=True)
class Rows:
    """Feature rows of a list of examples, one or several rows per example.

    ``Ragged`` columns hold one value per token, arrays one value or vector per row.

    Attributes:
        inputs: ``Ragged`` input_ids and segment_ids, and further inputs of the head.
        targets: targets of the loss by output, empty if labels are unknown.
        example: index of each row's example, int64 [R].
        weights: sample weights, float32 [R] or ``Ragged``, or None.
        pad_id: padding id of input_ids.
        notes: columns for ``Task.decode`` that are not model inputs.

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

    def take(self, rows: np.ndarray) -> Rows:
        """Returns the selected rows, in the given order."""

        def take(column: Column | None) -> Column | None:
            if column is None:
                return None
            return column.take(rows) if isinstance(column, Ragged) else column[rows]

        columns = self.inputs, self.targets, self.example, self.weights, self.notes
        inputs, targets, *others, notes = tf.nest.map_structure(take, columns)
        return Rows(inputs, targets, *others, self.pad_id, notes)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens in each row, int64 [R]."""
        return self.inputs["input_ids"].lengths


class Task:
    """A fine-tuning task: data, tokenization, head, loss and metrics.

    Subclasses define ``kind``, ``main_metric`` and the methods ``examples`` (or the
    attribute ``source``), ``featurize``, ``head``, ``loss``, ``decode``, and ``score``
    or ``scorer``. Exports also need ``serving_inputs`` and ``serving_outputs``. Saved
    models need the subclass to be a dataclass with its options as fields.

    Attributes:
        kind: name of the class in task.json.
        source: function from the name of a split to its examples.
        eval_splits: labeled splits; ``main_metric`` of the first selects the model.
        test_splits: unlabeled splits to predict; missing ones are skipped.
        max_seq_length, epochs: defaults of the command.
        splits_long: whether long examples become several rows.
        tunes: whether ``tune`` needs examples held out of training.
        text_names: names of the text inputs in serving signatures.

    Examples:
        >>> isinstance(task, et.tasks.Task), task.main_metric
        (True, 'accuracy')
    """

    name: str
    kind: str
    source: Callable[[str], list[Any]]
    eval_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    main_metric: str
    greater_is_better = True
    max_seq_length = 128
    epochs = 3.0
    splits_long = False
    tunes = False
    text_names: tuple[str, ...] = ("text",)

    def examples(self, split: str) -> list[Any]:
        """Reads a split; raises ValueError if invalid, OSError if unreadable."""
        return self.source(split)

    def prepare(self, train_examples: Examples) -> Task:
        """Returns a copy with the training labels; ValueError if all are equal."""
        return self

    def tune(self, answers: Any, examples: Examples) -> Task:
        """Returns a copy of the task tuned on predictions, such as its threshold."""
        return self

    def augment(self, examples: Examples) -> list[Any]:
        """Returns the training examples with augmentation, such as swapped pairs."""
        return list(examples)

    def featurize(
        self,
        examples: Examples,
        tokenizer: WordPiece,
        max_seq_length: int,
        *,
        training: bool = False,
    ) -> Rows:
        """Tokenizes examples to rows of at most ``max_seq_length`` tokens.

        Raises ValueError if a label is unknown or the length is too short.
        """
        raise NotImplementedError

    def head(self, encoder: TextEncoder) -> keras.layers.Layer:
        """Returns a new head for the encoder."""
        raise NotImplementedError

    def loss(self, reduction: str = "sum") -> Any:
        """Returns a Keras loss, or losses by output, with this Keras ``reduction``."""
        raise NotImplementedError

    def build_model(self, encoder: TextEncoder) -> TaskModel:
        """Returns a model of encoder and head; compile it with ``loss`` to train."""
        return TaskModel(encoder, self.head(encoder), name=self.name.replace("-", "_"))

    def decode(self, outputs: Sequence[Any], rows: Rows, examples: Examples) -> Any:
        """Converts outputs, one array or dictionary per row, to one answer per example.

        Arrays with a value per token may include padding.
        """
        raise NotImplementedError

    def score(self, answers: Any, examples: Examples) -> Scores:
        """Returns the official metrics by name, including ``main_metric``."""
        return self.scorer(answers, examples)(np.arange(len(examples)))

    def scorer(self, answers: Any, examples: Examples) -> metrics.Scorer:
        """Returns a function from indices of examples to their scores."""

        def scores(rows: np.ndarray) -> Scores:
            return self.score([answers[r] for r in rows], [examples[r] for r in rows])

        return scores

    def majority(self, train_examples: Examples, examples: Examples) -> Any:
        """Returns the predictions of the majority baseline, or None."""

    def baseline(self, train_examples: Examples, examples: Examples) -> Scores:
        """Returns the scores of ``majority``, or {}."""
        answers = self.majority(train_examples, examples)
        return {} if answers is None else self.score(answers, examples)

    def failure(self, answers: Any, scores: Scores, baseline: Scores) -> str:
        """Returns a message if the main score does not beat the baseline, else ""."""
        name = self.main_metric
        if name not in baseline:
            return ""
        score, other = scores[name], baseline[name]
        if score > other if self.greater_is_better else score < other:
            return ""
        return f"{name} {score:.2f} is not better than the baseline {other:.2f}"

    def details_of(self, answers: Any, examples: Examples) -> dict[str, Any]:
        """Returns per-class scores and the calibration error."""
        return {}

    def write(self, answers: Any, examples: Examples, path: str) -> None:
        """Writes predictions as TSV to ``path``; tasks may replace its suffix."""
        ids = [getattr(each, "id", number) for number, each in enumerate(examples)]
        write_tsv({"id": ids, "prediction": answers}, path)

    def serving_inputs(
        self, tokenizer: WordPiece, max_seq_length: int, **texts: tf.Tensor
    ) -> Tensors:
        """``featurize`` in TensorFlow: maps strings [B] by name to model inputs."""
        raise NotImplementedError

    def serving_outputs(self, outputs: Any, inputs: Tensors) -> Tensors:
        """``decode`` in TensorFlow: maps outputs and inputs to tensors [B, ...]."""
        raise NotImplementedError

    def serving_id_outputs(self, outputs: Any, inputs: Tensors) -> Tensors:
        """``serving_outputs`` for inputs of token ids instead of texts."""
        return self.serving_outputs(outputs, inputs)

    def comparable(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Selects outputs that are stable under rounding, to verify exported models."""
        return {k: x for k, x in outputs.items() if np.issubdtype(x.dtype, np.floating)}

    def to_json(self) -> dict[str, Any]:
        """Returns the content of task.json, from which the task can be rebuilt."""
        values = {"task": self.name, "kind": self.kind, "text_names": self.text_names}
        fields = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        names = (field.name for field in fields if field.name not in _UNSAVED)
        values |= {name: getattr(self, name) for name in names}
        return {n: list(x) if isinstance(x, tuple) else x for n, x in values.items()}


def write_tsv(columns: Mapping[str, Sequence[Any]], path: str) -> None:
    """Writes a table; replaces white space in cells by spaces."""
    with files.open_new(path) as file:
        for cells in (columns, *zip(*columns.values(), strict=True)):
            line = "\t".join(" ".join(str(cell).split()) for cell in cells)
            file.write(f"{line}\n")


def check_strings(name: str, value: Any) -> None:
    """Raises ValueError if the value is one string, which iterates as letters."""
    if isinstance(value, str):
        raise UserError(f"{name} must be a tuple of strings, got {value[:80]!r}.")

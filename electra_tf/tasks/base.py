"""What a task is: five questions, and the feature rows that pass between them.

Letters: R feature rows, B batch, S sequence, C classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Example:
    """One thing to be answered, as its file has it.

    Attributes:
        id: Name of the example in predictions and submissions.
        texts: One text, or the two of a pair.
        label: What the task makes of it; None where it is unknown.
    """

    id: str
    texts: tuple[str, ...]
    label: Any = None


@dataclasses.dataclass(frozen=True)
class Ragged:
    """R arrays of different lengths, stored as one.

    Attributes:
        values: All of them, one after the other.
        splits: int64 [R + 1]; row r is `values[splits[r]:splits[r + 1]]`.
    """

    values: np.ndarray
    splits: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Any], dtype: str = "int32") -> Ragged:
        """Packs a list of sequences."""
        lengths = [len(row) for row in rows]
        splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        parts = [np.asarray(row, dtype) for row in rows]
        values = np.concatenate(parts) if parts else np.zeros([0], dtype)
        return cls(values, splits.astype(np.int64))

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.splits[row] : self.splits[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """int64 [R]."""
        return np.diff(self.splits)

    def take(self, rows: np.ndarray) -> Ragged:
        """Some of the rows, in that order."""
        return Ragged.of([self[row] for row in rows], self.values.dtype)

    def pad(self, rows: np.ndarray, length: int, value: int = 0) -> np.ndarray:
        """Rows as one array [len(rows), length], filled up with `value`."""
        padded = np.full([len(rows), length], value, self.values.dtype)
        for target, row in zip(padded, rows, strict=True):
            found = self[row]
            target[: len(found)] = found
        return padded


Column = np.ndarray | Ragged


@dataclasses.dataclass(frozen=True)
class Rows:
    """Feature rows of a list of examples: one or several rows for each of them.

    `Ragged` columns hold one value per token and are padded to the length of the
    batch; arrays hold one value (or vector) per row.

    Attributes:
        inputs: What the model reads: input_ids and segment_ids, both `Ragged`, and
            what the head needs besides. The batches add input_mask.
        targets: What the loss compares with; empty where labels are unknown. A single
            one is handed to Keras bare, several as a dictionary.
        example: int64 [R], index of the example that a row belongs to.
        weights: float32 [R] or `Ragged`, weight of each row in the loss; or None.
        pad_id: Id that pads input_ids.
        notes: What `Task.decode` needs to know about the rows and the model does not.
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

    def columns(self) -> dict[str, Column]:
        """All columns under one flat name each, the form in which they are cached."""
        named = {f"inputs.{name}": column for name, column in self.inputs.items()}
        named |= {f"targets.{name}": column for name, column in self.targets.items()}
        named |= {f"notes.{name}": column for name, column in self.notes.items()}
        named["example"] = self.example
        if self.weights is not None:
            named["weights"] = self.weights
        return named

    @classmethod
    def from_columns(cls, columns: Mapping[str, Column], pad_id: int = 0) -> Rows:
        """The inverse of `columns`."""

        def below(prefix):
            return {
                name.removeprefix(prefix): column
                for name, column in columns.items()
                if name.startswith(prefix)
            }

        return cls(
            below("inputs."),
            below("targets."),
            columns["example"],
            columns.get("weights"),
            pad_id,
            below("notes."),
        )


class Task:
    """A task is an object that answers five questions.

    1. `examples`: what is there to answer, and what are the right answers?
    2. `featurize`: how does a network read it?
    3. `build_model`: which network, which loss?
    4. `score`: how good are the answers (after `decode`, which makes answers from
       the outputs of the network)?
    5. `write`: how are they handed in?

    Attributes:
        name: Name on the command line.
        train_split: Split that is trained on.
        eval_splits: Splits with labels; the first one decides.
        test_splits: Splits without labels, for `write`; missing ones are left out.
        main_metric: Name of the score that decides.
        greater_is_better: Whether the best main score is the largest.
        max_seq_length: Length that is used unless the user asks for another one.
        epochs: Number of epochs that are trained unless the user asks otherwise.
        splits_long: Whether examples that are too long become several rows, so that a
            shorter length than the default loses nothing.
        text_names: Names of the text inputs in serving signatures.
    """

    name: str
    train_split = "train"
    eval_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    main_metric: str
    greater_is_better = True
    max_seq_length = 128
    epochs = 3.0
    splits_long = False
    text_names: tuple[str, ...] = ("text",)

    def examples(self, split: str) -> list[Any]:
        """Reads a split; no TensorFlow.

        Raises:
            ValueError: The data is not what the task expects.
            OSError: It cannot be read; `FileNotFoundError` if there is none.
        """
        raise NotImplementedError

    def prepare(self, train_examples: Sequence[Any]) -> Task:
        """The task with what only training data tells, such as the set of labels."""
        del train_examples
        return self

    def augment(self, examples: Sequence[Any]) -> list[Any]:
        """Training examples as they are trained on, such as pairs in both orders."""
        return list(examples)

    def featurize(
        self,
        examples: Sequence[Any],
        tokenizer: Any,
        max_seq_length: int,
        *,
        training: bool = False,
    ) -> Rows:
        """Tokenizes examples.

        Args:
            examples: From `examples`.
            tokenizer: A `WordPiece`.
            max_seq_length: Most tokens of a row, special ones included.
            training: Whether the rows are trained on.
        """
        raise NotImplementedError

    def build_model(self, encoder: Any) -> Any:
        """An ordinary `keras.Model` on top of a `TextEncoder`, compiled with a loss."""
        raise NotImplementedError

    def loss(self, reduction: str) -> Any:
        """The Keras loss (or dictionary of losses).

        Args:
            reduction: "sum" over the batch, as the original code, or "mean".
        """
        raise NotImplementedError

    def decode(
        self, outputs: Sequence[Any], rows: Rows, examples: Sequence[Any]
    ) -> Any:
        """Answers from what the network says.

        Args:
            outputs: For each row what the model returned for it, without the batch
                axis: an array, or a dictionary of arrays. Arrays with one value per
                token are padded to the length of some batch.
            rows: From `featurize`.
            examples: The examples the rows were made from.

        Returns:
            Whatever `score` and `write` of this task take, one entry per example.
        """
        raise NotImplementedError

    def score(self, answers: Any, examples: Sequence[Any]) -> dict[str, float]:
        """Official metrics by name, `main_metric` among them."""
        raise NotImplementedError

    def baseline(
        self, train_examples: Sequence[Any], examples: Sequence[Any]
    ) -> dict[str, float]:
        """Scores of the best answer that does not look at the text."""
        raise NotImplementedError

    def failure(
        self, answers: Any, scores: Mapping[str, float], baseline: Mapping[str, float]
    ) -> str:
        """Says why a training run counts as failed; empty if it does not."""
        raise NotImplementedError

    def write(self, answers: Any, examples: Sequence[Any], path: str) -> None:
        """Writes answers for people and programs to `path`, a .tsv or .jsonl file."""
        raise NotImplementedError

    def submit(self, answers: Any, examples: Sequence[Any], split: str, folder: str):
        """Writes the file a benchmark wants, if there is one; returns its path."""
        del answers, examples, split, folder

    def picture(self, answers: Any, examples: Sequence[Any], folder: str):
        """Draws what helps to understand the scores; returns the path, or None."""
        del answers, examples, folder

    def serving_inputs(self, tokenizer: Any, max_seq_length: int, **texts: Any) -> dict:
        """`featurize` as TensorFlow operations: string tensors [B] to model inputs."""
        raise NotImplementedError

    def serving_outputs(self, outputs: Any, inputs: dict) -> dict:
        """`decode` as TensorFlow operations: model outputs to named tensors [B, ...].

        Args:
            outputs: What the model returned for a batch.
            inputs: What it was given, padded.
        """
        raise NotImplementedError

    def serving_id_outputs(self, outputs: Any, inputs: dict) -> dict:
        """`serving_outputs` where only token ids are known, and not the texts."""
        return self.serving_outputs(outputs, inputs)

    def comparable(self, outputs: dict, length: int) -> dict[str, np.ndarray]:
        """What an exported model returned, so that rounding moves it little.

        Args:
            outputs: Arrays by name, of `serving_id_outputs` and of the model.
            length: The length S of the rows.
        """
        del length
        return {
            name: values
            for name, values in outputs.items()
            if np.issubdtype(values.dtype, np.floating)
        }

    def to_json(self) -> dict[str, Any]:
        """What must be known to use the model later: written to task.json."""
        raise NotImplementedError

    def fingerprint(self) -> dict[str, Any]:
        """All options that change `featurize`; part of the key of cached rows."""
        return self.to_json()

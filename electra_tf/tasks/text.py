"""What tasks on one text or a pair of texts share: reading, tokenizing, serving.

Letters: R rows, B batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from electra_tf.tasks.base import Column, Example, Rows, Task
from electra_tf.tasks.encoding import encode_tensors, encode_texts
from electra_tf.tasks.heads import ClassificationHead, TaskModel

_REDUCTIONS = {"sum": "sum", "mean": "sum_over_batch_size"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """A label for a text or for a pair of texts.

    Attributes:
        name: Name on the command line and in files.
        source: Reads a split: its name to a list of `Example`.
        pair: Whether an example has two texts.
        main_metric: The score that decides.
        max_seq_length: Default length.
        epochs: Default number of epochs.
        eval_splits: Splits with labels; the first one decides.
        test_splits: Splits to predict.
        double_pairs: Whether every pair is trained in both orders.
        dropout: Dropout rate before the linear layer.
        submission: Writes a benchmark's file: (answers as strings, split, folder) to
            a path or None.
    """

    name: str
    source: Callable[[str], list[Example]]
    pair: bool = False
    main_metric: str
    max_seq_length: int = 128
    epochs: float = 3.0
    eval_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    double_pairs: bool = False
    dropout: float = 0.1
    submission: Callable[[Sequence[str], str, str], str | None] | None = None

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the text inputs in serving signatures."""
        return ("text", "text_pair") if self.pair else ("text",)

    @property
    def num_outputs(self) -> int:
        """Width of the linear layer."""
        raise NotImplementedError

    def examples(self, split: str) -> list[Example]:
        """Reads a split; see `Task.examples`."""
        return self.source(split)

    def augment(self, examples: Sequence[Example]) -> list[Example]:
        """Every pair again with the two texts swapped, where the task asks for it."""
        if not (self.pair and self.double_pairs):
            return list(examples)
        swapped = [dataclasses.replace(e, texts=e.texts[::-1]) for e in examples]
        return [*examples, *swapped]

    def featurize(
        self,
        examples: Sequence[Example],
        tokenizer: Any,
        max_seq_length: int,
        *,
        training: bool = False,
    ) -> Rows:
        """One row per example; see `Task.featurize`."""
        columns = list(zip(*(example.texts for example in examples), strict=True))
        labeled = all(example.label is not None for example in examples)
        targets = self.targets(examples) if labeled else None
        return Rows(
            encode_texts(tokenizer, columns, max_seq_length),
            {"label": targets} if labeled else {},
            np.arange(len(examples)),
            self.weights(targets) if training else None,
            tokenizer.vocabulary.pad_id,
        )

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """What the loss compares with, one row per example."""
        raise NotImplementedError

    def weights(self, targets: np.ndarray) -> Column | None:
        """Weight of each row in the loss; None for equal ones."""
        del targets

    def build_model(self, encoder: Any) -> TaskModel:
        """Encoder, dropout, one linear layer on [CLS]: compiled and ready for `fit`.

        The optimizer is Keras's AdamW at a constant 1e-4; call `compile` again for
        another one, with `task.loss()`.
        """
        head = ClassificationHead(
            encoder.hidden_size,
            self.num_outputs,
            dropout=self.dropout,
            dtype=encoder.dtype_policy,
            name="classification_head",
        )
        model = TaskModel(encoder, head, name=self.name.replace("-", "_"))
        model.compile(
            optimizer=keras.optimizers.AdamW(
                1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
            ),
            loss=self.loss(),
            metrics=self.metrics(),
        )
        return model

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        """The Keras loss; `reduction` is "sum" (over the batch) or "mean"."""
        raise NotImplementedError

    def metrics(self) -> list[keras.metrics.Metric]:
        """Keras metrics that are cheap enough to watch while training."""
        return []

    def readable(self, answers: np.ndarray) -> list[str]:
        """Answers as they are written to files."""
        raise NotImplementedError

    def submit(
        self, answers: np.ndarray, examples: Sequence[Example], split: str, folder: str
    ) -> str | None:
        """Writes the benchmark's file; returns its path, None if there is none."""
        del examples
        if self.submission is None:
            return None
        return self.submission(self.readable(answers), split, folder)

    def write(self, answers: np.ndarray, examples: Sequence[Example], path: str):
        """Writes id, label if known, prediction and what `details` adds, as TSV."""
        labeled = all(example.label is not None for example in examples)
        details = self.details(answers)
        header = ["id", *(["label"] if labeled else []), "prediction", *details]
        rows = zip(examples, self.readable(answers), *details.values(), strict=True)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write("\t".join(map(_cell, header)) + "\n")
            for example, answer, *values in rows:
                label = [self.readable_label(example.label)] if labeled else []
                cells = [example.id, *label, answer, *values]
                file.write("\t".join(map(_cell, cells)) + "\n")

    def details(self, answers: np.ndarray) -> dict[str, list[str]]:
        """Further columns of the predictions."""
        del answers
        return {}

    def readable_label(self, label: Any) -> str:
        """A right answer as it is written to files."""
        return str(label)

    def serving_inputs(self, tokenizer: Any, max_seq_length: int, **texts: Any) -> dict:
        """Model inputs from string tensors [B] called as `text_names` says."""
        columns = [texts[name] for name in self.text_names]
        return encode_tensors(tokenizer, columns, max_seq_length)


def keras_reduction(reduction: str) -> str:
    """What Keras calls a reduction.

    Raises:
        ValueError: It is neither "sum" nor "mean".
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; allowed are sum and mean.")
    return _REDUCTIONS[reduction]


def not_above(
    name: str, scores: Mapping[str, float], baseline: Mapping[str, float]
) -> str:
    """Says so if a score is not above that of the baseline; else empty."""
    if scores[name] > baseline[name]:
        return ""
    return f"{name} {scores[name]:.2f} is not above the baseline {baseline[name]:.2f}"


def _cell(value: str) -> str:
    return " ".join(str(value).split())

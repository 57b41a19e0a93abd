"""Text tasks: classification, multi-label classification and regression.

Scores but mse are in percent. Letters: N examples, R rows, B batch, C classes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError, did_you_mean, some_of
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.weights import check_choice
from electra_tf.tasks import metrics
from electra_tf.tasks.base import Example, Rows, Scores, Task, write_tsv
from electra_tf.tasks.encoding import LONG_TEXTS, encode, encode_texts, padded
from electra_tf.tasks.heads import ClassificationHead, Tensors

Examples = Sequence[Example]
SCORES = {
    "accuracy": lambda labels, predictions: float(np.mean(labels == predictions)),
    "matthews": metrics.matthews_correlation,
    # F1 of the second class, in GLUE "paraphrase" and "duplicate".
    "f1": metrics.f1,
    "macro_f1": metrics.macro_f1,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Base class of tasks with one label per text or per ``pair`` of texts.

    ``double_pairs`` trains on every pair in both orders. ``dropout`` and ``pooling``
    are arguments of ``ClassificationHead``. ``long_texts``, for single texts, is "cut"
    or "windows", which averages the logits of several windows.

    Subclasses define ``targets`` of the loss, and ``answers``, predictions [N, ...]
    from logits. ``compare`` scores predictions against ``gold``, ``constant`` is the
    prediction of the majority baseline, and ``readable`` returns strings.
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
    pooling: str = "cls"
    long_texts: str = "cut"

    num_outputs: ClassVar[int]
    score_names: ClassVar[tuple[str, ...]]  # Keys of ``compare``.

    def __post_init__(self) -> None:
        check_choice("long_texts", self.long_texts, LONG_TEXTS)
        check_choice("main_metric", self.main_metric, self.score_names)

    @property
    def text_names(self) -> tuple[str, ...]:
        return ("text", "text_pair") if self.pair else ("text",)

    def augment(self, examples: Examples) -> list[Example]:
        if not (self.pair and self.double_pairs):
            return list(examples)
        swapped = [dataclasses.replace(e, texts=e.texts[::-1]) for e in examples]
        return [*examples, *swapped]

    def featurize(
        self,
        examples: Examples,
        tokenizer: WordPiece,
        max_seq_length: int,
        *,
        training: bool = False,
    ) -> Rows:
        """Tokenizes each example to one row, or to windows that share its weight."""
        labeled = all(example.label is not None for example in examples)
        targets = self.targets(examples) if labeled else None
        texts, names = [example.texts for example in examples], self.text_names
        if {*map(len, texts)} - {len(names)}:
            raise UserError(f"Examples must have the texts {names}: set `pair`.")
        rows = encode_texts(tokenizer, texts, max_seq_length, self.long_texts)
        text, weights = rows.example, None
        if training and self.long_texts == "windows":
            # Also if every text has one window: all batches need the same structure.
            weights = (1 / np.bincount(text))[text].astype(np.float32)
        targets = {"label": targets[text]} if labeled else {}
        return dataclasses.replace(rows, targets=targets, weights=weights)

    def pooled(self, logits: tf.Tensor, example: Any) -> tf.Tensor:
        """Averages logits over the rows of each text; ``example`` is None for ids."""
        if self.long_texts != "windows" or example is None:
            return logits
        return tf.math.segment_mean(logits, example)

    def decode(
        self, outputs: Sequence[np.ndarray], rows: Rows, examples: Examples
    ) -> np.ndarray:
        example = rows.example if self.long_texts == "windows" else None
        return self.answers(self.pooled(tf.stack(outputs), example)).numpy()

    def gold(self, examples: Examples) -> np.ndarray:
        return self.targets(examples)

    def scorer(self, answers: np.ndarray, examples: Examples) -> metrics.Scorer:
        answers, gold = np.asarray(answers), self.gold(examples)
        return lambda rows: self.compare(answers[rows], gold[rows])

    def majority(self, train_examples: Examples, examples: Examples) -> np.ndarray:
        return np.stack([self.constant(train_examples)] * len(examples))

    def head(self, encoder: TextEncoder) -> ClassificationHead:
        return ClassificationHead(
            encoder.hidden_size,
            self.num_outputs,
            dropout=self.dropout,
            pooling=self.pooling,
            num_states=encoder.num_layers + 1,
            dtype=encoder.dtype_policy,
            name="classification_head",
        )

    def write(self, answers: np.ndarray, examples: Examples, path: str) -> None:
        """Writes a TSV of id, label if known, prediction and ``details``."""
        columns = {"id": [example.id for example in examples]}
        if all(example.label is not None for example in examples):
            columns["label"] = [self.readable_label(e.label) for e in examples]
        columns |= {"prediction": self.readable(answers), **self.details(answers)}
        write_tsv(columns, path)

    def readable_label(self, label: Any) -> str:
        return "|".join(label) if isinstance(label, tuple) else str(label)

    def details(self, answers: np.ndarray) -> dict[str, list[str]]:
        """Returns additional columns of ``write`` by name."""
        return {}

    def serving_inputs(
        self, tokenizer: WordPiece, max_seq_length: int, **texts: tf.Tensor
    ) -> Tensors:
        given = [texts[name] for name in self.text_names]
        columns = encode(tokenizer, given, max_seq_length, self.long_texts)
        return padded(columns, input_ids=tokenizer.vocabulary.pad_id)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabeledTask(TextTask):
    """Base class of tasks with ``labels``, in output order; None until ``prepare``."""

    labels: tuple[str, ...] | None = None

    @property
    def num_outputs(self) -> int:
        """Number of classes; raises ValueError before ``prepare``."""
        if self.labels is None:
            raise UserError(f"Task {self.name} has no labels yet: call prepare.")
        return len(self.labels)

    def index(self, label: str, example: Example) -> int:
        """Returns the class index of a label; raises ValueError if unknown."""
        if label not in self.labels:
            raise UserError(
                f"Example {example.id} has the label {label!r}, which the training "
                f"data lacks.{did_you_mean(label, self.labels)} It has "
                f"{some_of(self.labels, 20)}: correct the label or add training "
                "examples."
            )
        return self.labels.index(label)

    def details(self, answers: np.ndarray) -> dict[str, list[str]]:
        return {
            f"p({label})": [f"{value:.6f}" for value in column]
            for label, column in zip(self.labels, np.asarray(answers).T, strict=True)
        }

    def serving_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Returns labels and probabilities, [B, C]."""
        probabilities = self.answers(self.pooled(outputs, inputs.get("example")))
        labels = tf.tile(tf.constant([self.labels]), [tf.shape(probabilities)[0], 1])
        return {"labels": labels, "probabilities": probabilities}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(LabeledTask):
    """Single-label classification.

    Predictions are class probabilities, float32 [C]. ``SCORES`` has ``score_names``.

    Examples:
        >>> task.kind, task.main_metric, task.num_outputs
        ('classification', 'accuracy', 2)
    """

    kind = "classification"
    main_metric: str = "accuracy"
    score_names: tuple[str, ...] = ("accuracy", "macro_f1", "matthews")

    def prepare(self, train_examples: Examples) -> Classification:
        if self.labels is not None:
            return self
        labels = _sorted({example.label for example in train_examples})
        if len(labels) < 2:
            raise UserError(f"All labels are {labels[0]!r}: there is nothing to learn.")
        return dataclasses.replace(self, labels=labels)

    def targets(self, examples: Examples) -> np.ndarray:
        return np.array([self.index(e.label, e) for e in examples], np.int32)

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        cross_entropy = keras.losses.SparseCategoricalCrossentropy
        return cross_entropy(from_logits=True, reduction=reduction)

    def answers(self, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(logits)

    def compare(self, answers: np.ndarray, gold: np.ndarray) -> Scores:
        given = np.argmax(answers, axis=1)
        return {name: 100 * SCORES[name](gold, given) for name in self.score_names}

    def constant(self, train_examples: Examples) -> np.ndarray:
        counts = np.bincount(self.targets(train_examples), minlength=self.num_outputs)
        return counts / counts.sum()

    def details_of(self, answers: np.ndarray, examples: Examples) -> dict[str, Any]:
        labels, given = self.targets(examples), np.argmax(answers, axis=1)
        one_hot = np.eye(self.num_outputs)
        by_class = metrics.per_class(one_hot[labels], one_hot[given])
        error = metrics.calibration_error(labels == given, np.max(answers, axis=1))
        classes = dict(zip(self.labels, by_class, strict=True))
        return {"classes": classes, "calibration_error": error}

    def failure(self, answers: np.ndarray, scores: Scores, baseline: Scores) -> str:
        given = np.unique(np.argmax(answers, axis=1))
        if len(given) == 1:
            return f"answers {self.labels[given[0]]} to every example"
        return super().failure(answers, scores, baseline)

    def readable(self, answers: np.ndarray) -> list[str]:
        return [self.labels[index] for index in np.argmax(answers, axis=1)]

    def serving_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Adds label and probability, [B]."""
        served = super().serving_outputs(outputs, inputs)
        best = tf.argmax(served["probabilities"], axis=1)
        return {
            "label": tf.gather(tf.constant(self.labels), best),
            "probability": tf.reduce_max(served["probabilities"], axis=1),
            **served,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabel(LabeledTask):
    """Multi-label classification; ``Example.label`` is a tuple of labels, maybe empty.

    A prediction is a vector of label probabilities, float32 [C]. Labels with at least
    ``threshold`` are predicted; ``tune_threshold`` makes ``tune`` optimize it.
    ``main_metric`` is micro_f1, macro_f1 or exact_match.

    Examples:
        >>> et.tasks.MultiLabel(name="topics", source=None).main_metric
        'micro_f1'
    """

    kind = "multilabel"
    main_metric: str = "micro_f1"
    threshold: float = 0.5
    tune_threshold: bool = False

    score_names = ("micro_f1", "macro_f1", "exact_match")

    def prepare(self, train_examples: Examples) -> MultiLabel:
        if self.labels is not None:
            return self
        labels = _sorted({label for e in train_examples for label in e.label})
        if not labels:
            raise UserError(f"No training example of {self.name} has any label.")
        return dataclasses.replace(self, labels=labels)

    @property
    def tunes(self) -> bool:
        return self.tune_threshold

    def tune(self, answers: np.ndarray, examples: Examples) -> MultiLabel:
        """Returns the task with the best threshold of 0.05, 0.10, ... 0.95."""
        thresholds = sorted(np.arange(1, 20) / 20, key=lambda x: abs(x - 0.5))
        tasks = [dataclasses.replace(self, threshold=float(x)) for x in thresholds]
        return max(tasks, key=lambda t: t.score(answers, examples)[self.main_metric])

    def details_of(self, answers: np.ndarray, examples: Examples) -> dict[str, Any]:
        labels = self.targets(examples) == 1
        by_class = metrics.per_class(labels, answers >= self.threshold)
        error = metrics.calibration_error(labels, answers)
        classes = dict(zip(self.labels, by_class, strict=True))
        return {"classes": classes, "calibration_error": error}

    def targets(self, examples: Examples) -> np.ndarray:
        targets = np.zeros([len(examples), self.num_outputs], np.float32)
        for row, example in zip(targets, examples, strict=True):
            row[[self.index(label, example) for label in example.label]] = 1
        return targets

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        return keras.losses.BinaryCrossentropy(from_logits=True, reduction=reduction)

    def answers(self, logits: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(logits)

    def compare(self, answers: np.ndarray, gold: np.ndarray) -> Scores:
        labels, given = gold == 1, answers >= self.threshold
        by_class = [row["f1"] for row in metrics.per_class(labels, given)]
        return {
            "micro_f1": 100 * metrics.f1(labels, given),
            "macro_f1": 100 * float(np.mean(by_class)),
            "exact_match": 100 * float(np.mean(np.all(labels == given, axis=1))),
        }

    def constant(self, train_examples: Examples) -> np.ndarray:
        targets = self.targets(train_examples)
        if self.main_metric == "macro_f1":
            return np.ones(targets.shape[1])
        if self.main_metric == "exact_match":
            sets, counts = np.unique(targets, axis=0, return_counts=True)
            return sets[np.argmax(counts)]
        # The best constant for micro F1 is the k most frequent labels, for some k.
        counts = targets.sum(0, dtype=np.float64)
        order = np.argsort(-counts, kind="stable")
        predicted = len(targets) * np.arange(1, len(order) + 1)
        scores = 2 * np.cumsum(counts[order]) / (counts.sum() + predicted)
        constant = np.zeros(len(order))
        constant[order[: np.argmax(scores) + 1]] = 1
        return constant

    def readable(self, answers: np.ndarray) -> list[str]:
        given = np.asarray(answers) >= self.threshold
        return [self.separator.join(np.array(self.labels)[row]) for row in given]

    def readable_label(self, label: Any) -> str:
        return self.separator.join(sorted(label, key=self.labels.index))

    @property
    def separator(self) -> str:
        """The separator of labels in the cells of the training table."""
        return getattr(getattr(self.source, "source", self.source), "separator", "|")

    def serving_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Adds predicted, bool [B, C]."""
        served = super().serving_outputs(outputs, inputs)
        return served | {"predicted": served["probabilities"] >= self.threshold}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression(TextTask):
    """Regression; predictions are on the scale of the labels.

    ``main_metric`` is spearman, pearson or mse, ``label_range`` None until ``prepare``.

    Examples:
        >>> et.tasks.Regression(name="alike", source=None).main_metric
        'spearman'
    """

    kind = "regression"
    main_metric: str = "spearman"
    label_range: tuple[float, float] | None = None

    num_outputs = 1
    score_names = ("pearson", "spearman", "mse")

    @property
    def greater_is_better(self) -> bool:
        return self.main_metric != "mse"

    def prepare(self, train_examples: Examples) -> Regression:
        if self.label_range is not None:
            return self
        labels = [example.label for example in train_examples]
        if min(labels) == max(labels):
            raise UserError(f"All labels are {labels[0]:g}: there is nothing to learn.")
        return dataclasses.replace(self, label_range=(min(labels), max(labels)))

    def targets(self, examples: Examples) -> np.ndarray:
        """Returns labels scaled to [0, 1], float32 [N, 1].

        Deviation: the original divides by the largest label, not by the width of the
        range. Both agree for STS-B, with smallest label 0.
        """
        low, high = self.label_range
        labels = np.array([[example.label] for example in examples], np.float64)
        return ((labels - low) / (high - low)).astype(np.float32)

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        return keras.losses.MeanSquaredError(reduction=reduction)

    def answers(self, logits: tf.Tensor) -> tf.Tensor:
        low, high = self.label_range
        return logits[:, 0] * (high - low) + low

    def gold(self, examples: Examples) -> np.ndarray:
        return np.array([example.label for example in examples], np.float64)

    def compare(self, answers: np.ndarray, gold: np.ndarray) -> Scores:
        return {
            "pearson": 100 * metrics.pearson(gold, answers),
            "spearman": 100 * metrics.spearman(gold, answers),
            "mse": float(np.mean(np.square(gold - answers))),
        }

    def constant(self, train_examples: Examples) -> np.ndarray:
        return np.mean([example.label for example in train_examples])

    def readable(self, answers: np.ndarray) -> list[str]:
        # All digits: rounding would create ties in the rank correlation.
        return [str(value) for value in np.clip(answers, *self.label_range)]

    def serving_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Returns score, on the scale of the labels, float32 [B]."""
        return {"score": self.answers(self.pooled(outputs, inputs.get("example")))}


def _sorted(labels: set[str]) -> tuple[str, ...]:
    if wrong := [label for label in labels if not isinstance(label, str)]:
        raise UserError(f"Labels must be strings, got {wrong[0]!r}.")
    ordered = sorted(labels)
    with contextlib.suppress(ValueError):
        # NaN has no order: the result would depend on the order of the set.
        if not any(math.isnan(float(label)) for label in labels):
            ordered.sort(key=float)
    return tuple(ordered)

"""Classification of texts and pairs.

Scores are in percent, as the papers print them.

Letters: N examples, B batch, C classes.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from electra_tf.tasks import metrics, plots
from electra_tf.tasks.base import Example, Rows
from electra_tf.tasks.text import TextTask, keras_reduction, not_above

SCORES = {
    "accuracy": lambda labels, found, size: metrics.accuracy(labels, found),
    "matthews": lambda labels, found, size: metrics.matthews_correlation(labels, found),
    # Of the second class: in GLUE, "paraphrase" and "duplicate".
    "f1": lambda labels, found, size: metrics.f1(labels, found, positive=1),
    "macro_f1": metrics.macro_f1,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabeledTask(TextTask):
    """A task with a set of labels.

    Attributes:
        labels: The classes in the order of the outputs; None until `prepare` has
            taken them from the training data.
    """

    labels: tuple[str, ...] | None = None

    @property
    def num_outputs(self) -> int:
        """One output per class."""
        if self.labels is None:
            raise ValueError(
                f"Task {self.name} does not know its labels yet: pass labels=, or use "
                "task.prepare(train_examples)."
            )
        return len(self.labels)

    def index(self, label: str, example: Example) -> int:
        """Number of a class.

        Raises:
            ValueError: The class is unknown.
        """
        if label not in self.labels:
            close = difflib.get_close_matches(label, self.labels, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(
                f"Example {example.id} has the label {label!r}{hint}, which the "
                f"training data lacks: it has {_listed(self.labels)}. Correct the "
                "label, or add training examples of it."
            )
        return self.labels.index(label)

    def to_json(self) -> dict[str, Any]:
        """What must be known to use the model later."""
        return {
            "task": self.name,
            "kind": type(self).__name__.lower(),
            "text_names": list(self.text_names),
            "labels": None if self.labels is None else list(self.labels),
        }

    def details(self, answers: np.ndarray) -> dict[str, list[str]]:
        """The probability of every class."""
        columns = np.asarray(answers).T
        return {
            f"p({label})": [f"{value:.6f}" for value in column]
            for label, column in zip(self.labels, columns, strict=True)
        }

    def _tiled_labels(self, probabilities):
        return tf.tile(tf.constant([self.labels]), [tf.shape(probabilities)[0], 1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(LabeledTask):
    """One of several classes.

    An answer is the vector of class probabilities, float32 [C].

    Attributes:
        main_metric: The score that decides; one of `score_names`.
        score_names: Names of scores, from `SCORES`.
        class_weights: "balanced" weights an example by N / (C * examples of its
            class), so that all classes have the same say.
    """

    main_metric: str = "accuracy"
    score_names: tuple[str, ...] = ("accuracy", "macro_f1", "matthews")
    class_weights: Literal["none", "balanced"] = "none"

    def prepare(self, train_examples: Sequence[Example]) -> Classification:
        """The task with the labels that occur, numbers in numerical order.

        Raises:
            ValueError: There is only one label.
        """
        if self.labels is not None:
            return self
        labels = sorted_labels({example.label for example in train_examples})
        if len(labels) < 2:
            raise ValueError(
                f"All {len(train_examples)} training examples of {self.name} have the "
                f"label {labels[0]!r}: there is nothing to learn."
            )
        return dataclasses.replace(self, labels=labels)

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Numbers of the classes, int32 [N]."""
        return np.array([self.index(e.label, e) for e in examples], np.int32)

    def weights(self, targets: np.ndarray) -> np.ndarray | None:
        """float32 [N], with mean 1; None without class weights."""
        if self.class_weights == "none":
            return None
        counts = np.bincount(targets, minlength=self.num_outputs)
        present = np.count_nonzero(counts)
        return (len(targets) / (present * counts[targets])).astype(np.float32)

    def fingerprint(self) -> dict[str, Any]:
        """Labels and weights: all that changes the rows besides the texts."""
        return {**self.to_json(), "class_weights": self.class_weights}

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        """Cross-entropy of the softmax."""
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=keras_reduction(reduction)
        )

    def metrics(self) -> list[keras.metrics.Metric]:
        """Accuracy."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def decode(
        self, outputs: Sequence[np.ndarray], rows: Rows, examples: Sequence[Example]
    ) -> np.ndarray:
        """Probabilities, float32 [N, C]."""
        return tf.nn.softmax(np.stack(outputs)).numpy()

    def score(
        self, answers: np.ndarray, examples: Sequence[Example]
    ) -> dict[str, float]:
        """The scores of `score_names`, in percent."""
        labels, found = self.targets(examples), np.argmax(answers, axis=1)
        return {
            name: 100 * SCORES[name](labels, found, self.num_outputs)
            for name in self.score_names
        }

    def baseline(
        self, train_examples: Sequence[Example], examples: Sequence[Example]
    ) -> dict[str, float]:
        """Scores of the most frequent class of the training data."""
        counts = np.bincount(self.targets(train_examples), minlength=self.num_outputs)
        answers = np.tile(counts / counts.sum(), [len(examples), 1])
        return self.score(answers, examples)

    def failure(self, answers, scores, baseline) -> str:
        """A constant answer, or a main score that is not above the baseline's."""
        found = np.unique(np.argmax(answers, axis=1))
        if len(found) == 1:
            return f"answers {self.labels[found[0]]} to every example"
        return not_above(self.main_metric, scores, baseline)

    def readable(self, answers: np.ndarray) -> list[str]:
        """Names of the most probable classes."""
        return [self.labels[index] for index in np.argmax(answers, axis=1)]

    def picture(self, answers, examples, folder):
        """Draws the confusion matrix."""
        counts = metrics.confusion_matrix(
            self.targets(examples), np.argmax(answers, axis=1), self.num_outputs
        )
        return plots.confusion_matrix(counts, self.labels, folder)

    def serving_outputs(self, outputs: tf.Tensor, inputs: dict) -> dict:
        """Returns label and probability [B], labels and probabilities [B, C]."""
        probabilities = tf.nn.softmax(outputs)
        best = tf.argmax(probabilities, axis=1)
        return {
            "label": tf.gather(tf.constant(self.labels), best),
            "probability": tf.reduce_max(probabilities, axis=1),
            "labels": self._tiled_labels(probabilities),
            "probabilities": probabilities,
        }


def sorted_labels(labels: set[str]) -> tuple[str, ...]:
    """Numbers in numerical order, names in alphabetical order."""
    try:
        return tuple(sorted(labels, key=lambda label: (float(label), label)))
    except ValueError:
        return tuple(sorted(labels))


def nearly_equal(labels: Sequence[str]) -> tuple[str, str] | None:
    """Two labels that differ in case only, or in how a number is written, if any do."""
    seen: dict[Any, str] = {}
    for label in labels:
        try:
            key = float(label)
        except ValueError:
            key = label.casefold()
        if key in seen:
            return seen[key], label
        seen[key] = label
    return None


def _listed(labels: Sequence[str], most: int = 20) -> str:
    more = f", ... ({len(labels)} in all)" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more

"""Multi-label classification: any number of labels for a text or a pair.

Letters: N examples, B batch, C labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.tasks import metrics
from electra_tf.tasks.base import Example, Rows
from electra_tf.tasks.classification import LabeledTask, sorted_labels
from electra_tf.tasks.text import keras_reduction, not_above


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabel(LabeledTask):
    """Any number of labels, none included; `Example.label` is a tuple of them.

    An answer is the vector of label probabilities, float32 [C].

    Attributes:
        main_metric: micro_f1, macro_f1 or exact_match.
        threshold: Probability from which on a label is given.
    """

    main_metric: str = "micro_f1"
    threshold: float = 0.5

    def prepare(self, train_examples: Sequence[Example]) -> MultiLabel:
        """The task with the labels that occur.

        Raises:
            ValueError: There are none.
        """
        if self.labels is not None:
            return self
        labels = sorted_labels({x for e in train_examples for x in e.label})
        if not labels:
            raise ValueError(f"No training example of {self.name} has any label.")
        return dataclasses.replace(self, labels=labels)

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """1 for the labels that an example has, float32 [N, C]."""
        targets = np.zeros([len(examples), self.num_outputs], np.float32)
        for row, example in zip(targets, examples, strict=True):
            row[[self.index(label, example) for label in example.label]] = 1
        return targets

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        """Binary cross-entropy, the mean over the labels."""
        return keras.losses.BinaryCrossentropy(
            from_logits=True, reduction=keras_reduction(reduction)
        )

    def decode(
        self, outputs: Sequence[np.ndarray], rows: Rows, examples: Sequence[Example]
    ) -> np.ndarray:
        """Probabilities, float32 [N, C]."""
        return tf.sigmoid(np.stack(outputs)).numpy()

    def score(
        self, answers: np.ndarray, examples: Sequence[Example]
    ) -> dict[str, float]:
        """Micro and macro F1 and the share of entirely right answers, in percent."""
        labels, found = self.targets(examples) == 1, answers >= self.threshold
        micro, macro = metrics.multilabel_f1(labels, found)
        exact = float(np.mean(np.all(labels == found, axis=1)))
        return {
            "micro_f1": 100 * micro,
            "macro_f1": 100 * macro,
            "exact_match": 100 * exact,
        }

    def baseline(
        self, train_examples: Sequence[Example], examples: Sequence[Example]
    ) -> dict[str, float]:
        """Scores of the constant set of labels that fits the training data best."""
        targets = self.targets(train_examples)
        order = np.argsort(-targets.sum(0), kind="stable")
        constants = np.tril(np.ones([len(order)] * 2))[:, np.argsort(order)]
        scores = [
            metrics.multilabel_f1(targets, np.tile(row, [len(targets), 1]))[0]
            for row in constants
        ]
        best = constants[int(np.argmax(scores))]
        return self.score(np.tile(best, [len(examples), 1]), examples)

    def failure(self, answers, scores, baseline) -> str:
        """A constant answer, or a main score that is not above the baseline's."""
        given = answers >= self.threshold
        if np.all(given == given[0]):
            return f"answers {self.readable(answers[:1])[0] or 'nothing'} every time"
        return not_above(self.main_metric, scores, baseline)

    def readable(self, answers: np.ndarray) -> list[str]:
        """Names of the labels, joined with |."""
        given = np.asarray(answers) >= self.threshold
        return [self.readable_label(np.array(self.labels)[row]) for row in given]

    def readable_label(self, label: Any) -> str:
        """Labels joined with |."""
        return "|".join(label)

    def serving_outputs(self, outputs: tf.Tensor, inputs: dict) -> dict:
        """Returns labels, probabilities and predicted (bool), each [B, C]."""
        probabilities = tf.sigmoid(outputs)
        return {
            "labels": self._tiled_labels(probabilities),
            "probabilities": probabilities,
            "predicted": probabilities >= self.threshold,
        }

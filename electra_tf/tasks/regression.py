"""Regression: a number for a text or a pair.

Letters: N examples, B batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.tasks import metrics, plots
from electra_tf.tasks.base import Example, Rows
from electra_tf.tasks.text import TextTask, keras_reduction, not_above


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression(TextTask):
    """A number.

    An answer is a number on the scale of the labels.

    Attributes:
        main_metric: spearman, pearson or mse.
        label_range: Smallest and largest label; None until `prepare` has taken them
            from the training data.
    """

    main_metric: str = "spearman"
    label_range: tuple[float, float] | None = None

    @property
    def greater_is_better(self) -> bool:
        """False for the mean squared error."""
        return self.main_metric != "mse"

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    def prepare(self, train_examples: Sequence[Example]) -> Regression:
        """The task with the range of the labels.

        Raises:
            ValueError: All labels are the same.
        """
        if self.label_range is not None:
            return self
        labels = [example.label for example in train_examples]
        if min(labels) == max(labels):
            raise ValueError(
                f"All {len(labels)} training examples of {self.name} have the label "
                f"{labels[0]:g}: there is nothing to learn."
            )
        return dataclasses.replace(self, label_range=(min(labels), max(labels)))

    def targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Labels scaled to [0, 1], float32 [N, 1].

        Deviation: the original divides by the largest label, here by the width of the
        range; the same for STS-B, whose smallest label is 0.
        """
        low, high = self.label_range
        labels = np.array([[example.label] for example in examples], np.float64)
        return ((labels - low) / (high - low)).astype(np.float32)

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        """Squared error of the scaled label."""
        return keras.losses.MeanSquaredError(reduction=keras_reduction(reduction))

    def decode(
        self, outputs: Sequence[np.ndarray], rows: Rows, examples: Sequence[Example]
    ) -> np.ndarray:
        """Numbers on the scale of the labels, float32 [N]."""
        low, high = self.label_range
        return np.stack(outputs)[:, 0] * (high - low) + low

    def score(
        self, answers: np.ndarray, examples: Sequence[Example]
    ) -> dict[str, float]:
        """Correlations in percent, and the mean squared error on the label's scale."""
        labels = [example.label for example in examples]
        return {
            "pearson": 100 * metrics.pearson(labels, answers),
            "spearman": 100 * metrics.spearman(labels, answers),
            "mse": metrics.mean_squared_error(labels, answers),
        }

    def baseline(
        self, train_examples: Sequence[Example], examples: Sequence[Example]
    ) -> dict[str, float]:
        """Scores of the mean label of the training data."""
        mean = np.mean([example.label for example in train_examples])
        return self.score(np.full(len(examples), mean), examples)

    def failure(self, answers, scores, baseline) -> str:
        """A constant answer, or a main score that is no better than the baseline's."""
        low, high = self.label_range
        if np.ptp(answers) < 1e-3 * (high - low):
            return f"answers about {np.mean(answers):.3g} to every example"
        if not self.greater_is_better:
            scores, baseline = ({"mse": -x["mse"]} for x in (scores, baseline))
        return not_above(self.main_metric, scores, baseline)

    def readable(self, answers: np.ndarray) -> list[str]:
        """Three decimals, within the range of the labels."""
        return [f"{value:.3f}" for value in np.clip(answers, *self.label_range)]

    def details(self, answers: np.ndarray) -> dict[str, list[str]]:
        """The number as the model gave it."""
        return {"score": [f"{value:.6f}" for value in answers]}

    def picture(self, answers, examples, folder):
        """Draws predictions over labels."""
        labels = [example.label for example in examples]
        return plots.scatter(labels, answers, self.label_range, folder)

    def serving_outputs(self, outputs: tf.Tensor, inputs: dict) -> dict:
        """Score on the scale of the labels, float32 [B]."""
        low, high = self.label_range
        return {"score": outputs[:, 0] * (high - low) + low}

    def to_json(self) -> dict[str, Any]:
        """What must be known to use the model later."""
        return {
            "task": self.name,
            "kind": "regression",
            "text_names": list(self.text_names),
            "label_range": self.label_range and list(self.label_range),
        }

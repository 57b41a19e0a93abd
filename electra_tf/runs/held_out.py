"""Held-out metrics of a pretrained model, with confidence intervals."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.pretraining import PretrainingModel
from electra_tf.tasks import noise

Intervals = dict[str, tuple[float, float]]
# Minimum number of batches for the bootstrap.
_FEWEST_BATCHES = 8


def evaluate(
    model: PretrainingModel, batches: tf.data.Dataset
) -> tuple[dict[str, float], Intervals]:
    """Returns the held-out metrics by name, and their 95 % confidence intervals.

    The bootstrap resamples batches, since metric counts add up over batches. Intervals
    are empty for fewer than 8 batches and on several devices.
    """
    states = _States()
    # Each device has its own counts.
    alone = model.distribute_strategy.num_replicas_in_sync == 1
    more = {"callbacks": [states]} if alone else {}
    logs = model.evaluate(batches, verbose=0, return_dict=True, **more)
    scores = {name: float(np.ravel(value)[0]) for name, value in logs.items()}
    if len(states.totals) < _FEWEST_BATCHES:
        return scores, {}
    variables = model.metrics_variables

    @tf.function(autograph=False)
    def results(*sums: tf.Tensor) -> dict[str, tf.Tensor]:
        for variable, value in zip(variables, sums, strict=True):
            variable.assign(value)
        return {metric.name: metric.result() for metric in model.metrics}

    of_batches = [np.diff(column, axis=0, prepend=0) for column in states.columns()]

    def draw(rows: np.ndarray) -> dict[str, float]:
        sums = (tf.constant(column[rows].sum(0)) for column in of_batches)
        return {name: float(x) for name, x in results(*sums).items()}

    intervals = noise.ends([draw(rows) for rows in noise.draws(len(states.totals))])
    model.reset_metrics()
    return scores, {n: intervals[n] for n in scores if n in intervals}


class _States(keras.callbacks.Callback):
    """Records the metric variables after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: list[list[np.ndarray]] = []

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        self.totals.append([v.numpy() for v in self.model.metrics_variables])

    def columns(self) -> list[np.ndarray]:
        """Returns the totals of each variable, stacked over batches."""
        return [np.stack(column) for column in zip(*self.totals, strict=True)]

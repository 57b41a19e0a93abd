"""Bootstrap intervals of held-out scores against evaluation of each resample."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.runs import report
from electra_tf.tasks import metrics
from tests import tiny

BATCHES = 9


@pytest.mark.slow
def test_intervals_are_those_of_evaluating_each_draw(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 3)
    model = tiny.electra()
    model.compile()
    # Different lengths: a batch with more tokens has more weight.
    rows = [tiny.batch((24, 5 + n, 17, 5), seed=n) for n in range(BATCHES)]

    def dataset(order):
        stacked = {k: tf.stack([rows[n][k] for n in order]) for k in rows[0]}
        return tf.data.Dataset.from_tensor_slices(stacked)

    scores, intervals = report.evaluate(model, dataset(range(BATCHES)))

    def evaluated(order):
        logs = model.evaluate(dataset(order), verbose=0, return_dict=True)
        return {name: float(np.ravel(value)[0]) for name, value in logs.items()}

    assert scores == evaluated(range(BATCHES))
    draws = [evaluated(order) for order in metrics.draws(BATCHES)]
    assert {"discriminator_auc", "generator_loss", "loss"} <= intervals.keys()
    for name, ends in intervals.items():
        values = [draw[name] for draw in draws]
        assert ends == pytest.approx(np.percentile(values, (2.5, 97.5)), rel=2e-4)
    assert intervals["generator_loss"][0] < intervals["generator_loss"][1]
    # Too few batches for an interval.
    _, none = report.evaluate(model, dataset(range(4)))
    assert none == {}

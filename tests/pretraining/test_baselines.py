"""Trivial baselines, by hand and against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import log_loss

from electra_tf.pretraining.baselines import TrivialBaselines, token_counts


def test_counts_and_unigram_scores_by_hand():
    counts = token_counts([np.array([[1, 2, 2]]), np.array([2, 3])], vocab_size=4)
    assert counts.tolist() == [0, 1, 3, 1]
    baselines = TrivialBaselines(counts)
    batch = {
        "masked_lm_ids": np.array([[2, 0, 0], [1, 2, 0]]),
        "masked_lm_weights": np.array([[1.0, 1, 0], [1, 1, 0]]),
    }
    baselines.update(batch)
    probability = {0: 1 / 9, 1: 2 / 9, 2: 4 / 9}
    expected = -np.mean([np.log(probability[t]) for t in (2, 0, 1, 2)])
    scores = baselines.generator()
    assert scores["loss"] == pytest.approx(expected)
    assert scores["accuracy"] == pytest.approx(2 / 4)


def test_discriminator_baseline_is_the_constant_predictor():
    labels = np.array([1] * 7 + [0] * 93)
    scores = TrivialBaselines.discriminator(0.07)
    assert scores["loss"] == pytest.approx(log_loss(labels, np.full(100, 0.07)))
    assert scores["accuracy"] == pytest.approx(0.93)
    assert scores["auc"] == 0.5


def test_no_tokens_is_an_error():
    with pytest.raises(ValueError, match="no token"):
        TrivialBaselines(np.zeros(4, np.int64))

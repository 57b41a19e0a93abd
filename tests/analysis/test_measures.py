"""Rates, bins, AUC and detection against SciPy, scikit-learn and a bootstrap."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as peers

from electra_tf.analysis import measures
from electra_tf.tasks.metrics import wilson


def scores(count=400, seed=0, ties=40):
    rng = np.random.default_rng(seed)
    labels = rng.random(count) < 0.3
    return labels, np.round((rng.normal(size=count) + labels) * ties / 4)


@pytest.mark.parametrize(("right", "count"), [(0, 7), (31, 100), (50, 50)])
def test_independent_tokens_have_wilsons_interval(right, count):
    values = np.arange(count) < right
    (found,) = measures.rates(values, np.zeros(count, int), np.arange(count), ["x"])
    peer = stats.binomtest(right, count).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((peer.low, peer.high))
    assert (found.name, found.count, found.rate) == ("x", count, right / count)
    assert wilson(right / count, count) == pytest.approx((peer.low, peer.high))


def test_intervals_of_dependent_tokens_are_those_of_a_bootstrap_of_sentences():
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 30, 300)
    clusters = np.repeat(np.arange(300), sizes)
    values = rng.random(len(clusters)) < np.repeat(rng.beta(1, 2, 300), sizes)
    (found,) = measures.rates(values, np.zeros_like(clusters), clusters, ["x"])
    right = np.bincount(clusters, values)
    drawn = rng.integers(0, 300, (4000, 300))
    means = right[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    assert found.high - found.low == pytest.approx(high - low, rel=0.08)
    assert found.low == pytest.approx(low, abs=0.01)
    alone = wilson(found.rate, found.count)
    assert found.high - found.low > 2 * (alone[1] - alone[0])


def test_rates_are_by_group():
    groups = np.array([0, 2, 2, -1])
    found = measures.rates(np.array([1, 1, 0, 1]), groups, np.arange(4), "abc")
    assert [(r.name, r.count, r.rate) for r in found] == [("a", 1, 1.0), ("c", 2, 0.5)]


def test_bins_are_named_by_what_is_in_them():
    values = np.array([0, 1, 2, 3, 4, 1000, -1])
    number, names = measures.binned(values, (0, 1, 2, 4))
    assert names == ["0", "1", "2-3", "4+"]
    assert number.tolist() == [0, 1, 2, 2, 3, 3, -1]


@pytest.mark.parametrize("ties", [4, 40, 10**6])
def test_detection_is_scikit_learns(ties):
    labels, values = scores(ties=ties)
    found = measures.detection(labels, values)
    precision, recall, thresholds = peers.precision_recall_curve(labels, values)
    # Theirs rises, has the point (1, 0) at the end and may go on at recall 1.
    size = len(thresholds)
    np.testing.assert_allclose(found.thresholds, thresholds[::-1])
    np.testing.assert_allclose(found.precision, precision[:size][::-1])
    np.testing.assert_allclose(found.recall, recall[:size][::-1])
    expected = peers.average_precision_score(labels, values)
    assert found.average_precision == pytest.approx(expected)
    for beta in (0.5, 2.0):
        for place in (0, size // 2, size - 1):
            called = values >= found.thresholds[place]
            peer = peers.fbeta_score(labels, called, beta=beta, zero_division=0)
            assert found.f_score(beta)[place] == pytest.approx(peer)
    peer = peers.roc_auc_score(labels, values)
    assert measures.roc_auc(labels, values) == pytest.approx(peer)


def test_nothing_to_detect():
    with pytest.raises(ValueError, match="not one word is marked as wrong"):
        measures.detection(np.zeros(3, bool), np.arange(3.0))
    assert np.isnan(measures.roc_auc(np.zeros(3, bool), np.arange(3.0)))

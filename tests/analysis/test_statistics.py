"""Rates, bins and intervals against SciPy and a bootstrap loop."""

import collections

import numpy as np
import pytest
from scipy import stats

from electra_tf.analysis import statistics
from electra_tf.tasks.metrics import wilson

Row = collections.namedtuple("Row", ["group", "count", "rate", "low", "high"])


def rows(*arguments):
    return [Row(*row) for row in statistics.rates(*arguments).itertuples(index=False)]


@pytest.mark.parametrize(("right", "count"), [(0, 7), (31, 100), (50, 50)])
def test_independent_tokens_have_wilsons_interval(right, count):
    values = np.arange(count) < right
    (found,) = rows(values, np.zeros(count, int), np.arange(count), ["x"])
    peer = stats.binomtest(right, count).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((peer.low, peer.high))
    assert (found.group, found.count, found.rate) == ("x", count, right / count)
    assert wilson(right / count, count) == pytest.approx((peer.low, peer.high))


def test_intervals_of_dependent_tokens_are_those_of_a_bootstrap_of_sentences():
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 30, 300)
    clusters = np.repeat(np.arange(300), sizes)
    values = rng.random(len(clusters)) < np.repeat(rng.beta(1, 2, 300), sizes)
    (found,) = rows(values, np.zeros_like(clusters), clusters, ["x"])
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
    found = rows(np.array([1, 1, 0, 1]), groups, np.arange(4), "abc")
    assert [(r.group, r.count, r.rate) for r in found] == [("a", 1, 1.0), ("c", 2, 0.5)]


def test_bins_are_named_by_what_is_in_them():
    values = np.array([0, 1, 2, 3, 4, 1000, -1])
    number, names = statistics.binned(values, (0, 1, 2, 4))
    assert names == ["0", "1", "2-3", "4+"]
    assert number.tolist() == [0, 1, 2, 2, 3, 3, -1]


def test_auc_of_one_class_is_not_a_number():
    assert np.isnan(statistics.roc_auc(np.zeros(3, bool), np.arange(3.0)))
    labels, scores = np.array([0, 1, 1]), np.array([0.1, 0.3, 0.1])
    assert statistics.roc_auc(labels, scores) == 0.75


def test_halves_keep_rows_whole():
    rows = np.repeat(np.arange(11), np.arange(1, 12))
    fitting = statistics.halves(rows, seed=1)
    assert set(rows[fitting]).isdisjoint(rows[~fitting])
    assert len(set(rows[fitting])) == 5
    assert not np.array_equal(fitting, statistics.halves(rows, seed=2))


def test_the_bootstrap_resamples_clusters():
    rng = np.random.default_rng(0)
    clusters = rng.permutation(np.repeat(np.arange(50), 8))
    values = rng.normal(size=50)[clusters]
    low, high = statistics.bootstrap(np.mean, clusters, values, resamples=2000)
    error = 1.96 * values.std() / np.sqrt(50)
    assert high - low == pytest.approx(2 * error, rel=0.1)
    assert low < values.mean() < high
    assert np.isnan(statistics.bootstrap(np.mean, np.zeros(3), np.ones(3))).all()

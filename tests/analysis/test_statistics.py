import numpy as np
import pandas as pd
import pytest
from scipy import stats

from electra_tf.analysis import statistics
from electra_tf.tasks.metrics import wilson


def rates(*arguments):
    return statistics.rates(*arguments).to_dict("records")


@pytest.mark.parametrize(("right", "count"), [(0, 7), (31, 100), (50, 50)])
def test_independent_tokens_have_wilsons_interval(right, count):
    values = np.arange(count) < right
    (found,) = rates(values, np.full(count, "x"), np.arange(count))
    peer = stats.binomtest(right, count).proportion_ci(method="wilson")
    assert (found.pop("low"), found.pop("high")) == pytest.approx([*peer])
    assert found == {"group": "x", "count": count, "rate": right / count}


@pytest.mark.parametrize(("sentences", "words"), [(10, 6), (2, 3), (2, 2)])
def test_sentences_of_equal_rates_count_as_trials(sentences, words):
    """Rounding made their sums differ, and the intervals too narrow."""
    values = np.arange(sentences * words) % words == 0
    clusters = np.repeat(np.arange(sentences), words)
    (found,) = rates(values, np.zeros_like(clusters), clusters)
    expected = wilson(1 / words, sentences)
    assert (found["low"], found["high"]) == pytest.approx([*expected])


def test_nan_values_are_not_left_out():
    values = pd.Series([1.0, np.nan, 0.0])
    (row,) = statistics.rates(values, np.zeros(3), np.arange(3)).itertuples()
    assert np.isnan(row.rate)


def test_intervals_of_dependent_tokens_are_those_of_a_bootstrap_of_sentences():
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 30, 300)
    clusters = np.repeat(np.arange(300), sizes)
    values = rng.random(len(clusters)) < np.repeat(rng.beta(1, 2, 300), sizes)
    (found,) = rates(values, np.zeros_like(clusters), clusters)
    size = found["high"] - found["low"]
    right = np.bincount(clusters, values)
    drawn = rng.integers(0, 300, (4000, 300))
    low, high = np.quantile(right[drawn].sum(1) / sizes[drawn].sum(1), [0.025, 0.975])
    assert size == pytest.approx(high - low, rel=0.08)
    assert found["low"] == pytest.approx(low, abs=0.01)
    alone = wilson(found["rate"], found["count"])
    assert size > 2 * (alone[1] - alone[0])


@pytest.mark.parametrize("sentences", [1, 2, 3, 10])
def test_intervals_of_few_sentences_hold_the_rate(sentences):
    rng, inside = np.random.default_rng(0), []
    clusters = np.repeat(np.arange(sentences), 8)
    for _ in range(400):
        # Intra-cluster correlation 1 / (1 + 1 + 1).
        chances = rng.beta(1, 1, sentences)[clusters]
        values = rng.random(len(clusters)) < chances
        (found,) = rates(values, np.zeros_like(clusters), clusters)
        inside.append(found["low"] <= 0.5 <= found["high"])
    assert np.mean(inside) >= 0.92


def test_halves_keep_rows_whole():
    rows = np.repeat(np.arange(11), np.arange(1, 12))
    fitting = statistics.halves(rows, seed=1)
    assert set(rows[fitting]).isdisjoint(rows[~fitting])
    assert len(set(rows[fitting])) == 5
    assert not np.array_equal(fitting, statistics.halves(rows, seed=2))

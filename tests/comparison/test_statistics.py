import itertools
import math

import numpy as np
import pytest
from scipy import stats

from electra_tf.comparison.statistics import holm, paired_difference, sign_flip_p_value

SYSTEM = [71.0, 70.2, 72.5, 69.9, 71.8, 70.4]
REFERENCE = [70.1, 70.5, 71.0, 69.0, 70.2, 70.6]


def every_sign(values):
    """Returns the share of sign patterns with a mean at least as far from 0."""
    observed = abs(sum(values))
    patterns = list(itertools.product((1, -1), repeat=len(values)))
    sums = (abs(sum(s * v for s, v in zip(p, values, strict=True))) for p in patterns)
    return sum(total >= observed - 1e-12 for total in sums) / len(patterns)


@pytest.mark.parametrize("seed", range(8))
def test_patterns_of_scores_that_count_examples_tie(seed):
    rng = np.random.default_rng(seed)
    right, other = rng.integers(200, 206, (2, 5))
    got = paired_difference(100 * (right / 277), 100 * (other / 277))
    assert got.p_permutation == pytest.approx(every_sign(right - other))


def test_many_pairs_are_sampled_near_the_exact_value():
    values = np.random.default_rng(0).normal(0.4, 1, 15)
    assert sign_flip_p_value(values) == pytest.approx(every_sign(values), abs=0.02)


def test_mean_and_p_values():
    got = paired_difference(SYSTEM, REFERENCE)
    assert got.pairs == 6
    assert got.mean == pytest.approx(np.mean(SYSTEM) - np.mean(REFERENCE))
    every = every_sign(np.subtract(SYSTEM, REFERENCE))
    assert got.p_permutation == pytest.approx(every)
    assert got.p_t == pytest.approx(stats.ttest_rel(SYSTEM, REFERENCE).pvalue)


def test_interval_of_many_pairs_is_that_of_the_normal_distribution():
    rng = np.random.default_rng(1)
    shared, apart = rng.normal(70, 5, 400), rng.normal(0.5, 1, 400)
    got = paired_difference(shared + apart, shared)
    expected = stats.norm.interval(0.95, apart.mean(), stats.sem(apart))
    assert (got.low, got.high) == pytest.approx(expected, abs=0.01)


def test_two_pairs_equal_scores_and_a_constant_difference():
    got = paired_difference([1.0, 3.0], [0.5, 1.0])
    assert got.low <= got.mean <= got.high
    assert got.p_permutation == every_sign([0.5, 2.0])
    same = paired_difference([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    assert (same.p_permutation, same.p_t) == (1, 1)
    shifted = paired_difference([2.0, 3.0], [1.0, 2.0])
    assert (shifted.low, shifted.high) == (1, 1)


@pytest.mark.parametrize("pairs", [0, 1])
def test_too_few_pairs_say_nothing(pairs):
    got = paired_difference(SYSTEM[:pairs], REFERENCE[:pairs])
    assert got.pairs == pairs
    assert math.isnan(got.low)
    assert math.isnan(got.p_permutation)
    assert math.isnan(got.mean) == (pairs == 0)


def test_holm_hand_worked():
    # 0.01 * 4; 0.02 * 3; max with 0.03 * 2; 0.2 * 1.
    assert holm([0.03, 0.01, 0.2, 0.02]) == pytest.approx([0.06, 0.04, 0.2, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    # NaN was not tested.
    got = holm([0.02, math.nan, 0.03])
    assert got == pytest.approx([0.04, math.nan, 0.04], nan_ok=True)

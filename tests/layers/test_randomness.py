import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from electra_tf.layers import randomness
from electra_tf.layers.randomness import at_row, keep_mask, split_seed, uniform

SEED = tf.constant([3, 7], tf.int32)
draw = tf.function(keep_mask)


def kept(seed, count, rate=0.5):
    return draw(tf.constant(seed), [count], rate).numpy()


def test_split_seeds_are_distinct_and_repeatable():
    seeds = np.stack(split_seed(SEED, 50))
    assert np.unique(seeds, axis=0).shape == (50, 2)
    np.testing.assert_array_equal(seeds, np.stack(split_seed(SEED, 50)))


@pytest.mark.parametrize("rate", [0.001, 0.1])
def test_drop_counts_are_binomial(rate):
    """Many seeds reveal a bad seed as well as a wrong threshold."""
    counts = [4096 - kept([s, 11 * s], 4096, rate).sum() for s in range(300)]
    spread = np.var(counts) * 299 / (4096 * rate * (1 - rate))
    assert stats.binomtest(int(np.sum(counts)), 300 * 4096, rate).pvalue > 1e-3
    assert 1e-3 < stats.chi2.cdf(spread, 299) < 1 - 1e-3


def test_neighbors_are_independent():
    bits = kept([5, 9], 1 << 20).astype(bool)
    for lag in (1, 2, 3, 4, 7, 16, 64, 128, 256, 1000, 1024, 1 << 16):
        agreement = np.mean(bits[lag:] == bits[:-lag])
        assert abs(agreement - 0.5) < 4 * 0.5 / np.sqrt(bits.size - lag)


@pytest.mark.parametrize("other", [[6, 9], [5, 10], [4, 9], [9, 5], [-5, 9]])
def test_similar_seeds_are_independent(other):
    agreement = np.mean(kept([5, 9], 1 << 18) == kept(other, 1 << 18))
    assert abs(agreement - 0.5) < 4 * 0.5 / 512


def test_patterns_of_eight_are_uniform():
    bits = kept([1, 2], 1 << 20).reshape(-1, 8)
    patterns = np.bincount(bits @ (1 << np.arange(8)), minlength=256)
    assert 1e-3 < stats.chisquare(patterns).pvalue < 1 - 1e-3


def test_mask_follows_the_flat_index():
    flat = keep_mask(SEED, [24], 0.5).numpy()
    cube = keep_mask(SEED, [2, 3, 4], 0.5)
    np.testing.assert_array_equal(cube, flat.reshape(2, 3, 4))
    masks = tf.function(
        lambda rows: keep_mask(SEED, [rows, 4], 0.5),
        input_signature=[tf.TensorSpec([], tf.int32)],
    )
    np.testing.assert_array_equal(masks(6), flat.reshape(6, 4))
    assert abs(randomness.keep_scale(0.1) * 0.9 - 1) < 1e-9


@pytest.mark.parametrize("shape", [[6, 3, 5], [6]])
@pytest.mark.parametrize("draw", ["mask", "float32", "float64"])
def test_rows_draw_the_same_in_every_cut(draw, shape):
    """Odd sizes, too, where a row begins inside a block of the generator."""
    draws = {
        "mask": lambda *args: keep_mask(*args, 0.5),
        "float32": uniform,
        "float64": lambda *args: uniform(*args, tf.float64),
    }[draw]
    whole = draws(SEED, shape).numpy()
    for first, last in ((0, 6), (0, 1), (1, 3), (3, 4), (5, 6)):
        piece = draws(at_row(SEED, first), [last - first, *shape[1:]])
        np.testing.assert_array_equal(piece, whole[first:last])


def test_uniform_numbers_are_those_of_tensorflow():
    expected = tf.random.stateless_uniform([3, 5], SEED, alg="philox")
    np.testing.assert_array_equal(uniform(SEED, [3, 5]), expected)


def test_rows_beyond_two_to_the_32_elements_draw_anew():
    """With 2**20 elements per row, row 4096 starts at element 2**32."""
    first, later = (keep_mask(at_row(SEED, r), [1, 1 << 20], 0.5) for r in (0, 4096))
    assert abs(np.mean(first.numpy() == later.numpy()) - 0.5) < 0.01


def test_the_row_is_no_part_of_compiled_code():
    """The row is a tensor, because a constant would compile once per replica."""
    traces = []

    @tf.function(jit_compile=True)
    def mask(seed):
        traces.append(seed)
        return keep_mask(seed, [2, 3, 4], 0.5)

    for row in range(3):
        seed = at_row(SEED, row)
        np.testing.assert_array_equal(mask(seed), keep_mask(seed, [2, 3, 4], 0.5))
    assert len(traces) == 1

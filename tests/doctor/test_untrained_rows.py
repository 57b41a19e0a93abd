"""Which rows of a position table look as initialised."""

import keras
import numpy as np
import pytest

from electra_tf.doctor.checks import untrained_rows


def truncated(rows, size, seed, stddev=0.02):
    make = keras.initializers.TruncatedNormal(stddev=stddev, seed=seed)
    return np.array(make((rows, size)))


def plain(rows, size, seed):
    return np.random.default_rng(seed).normal(0, 0.02, (rows, size))


def trained(rows, size, seed):
    """Rows that resemble their neighbours, as those of every trained table."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(0, 0.03, (rows, size))
    return np.cumsum(steps, axis=0) * 0.3 + rng.normal(0, 0.02, (rows, size))


SIZES = [(512, 64), (512, 128), (512, 768), (128, 64)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("rows", "size"), SIZES)
@pytest.mark.parametrize("make", [truncated, plain])
def test_fresh_tables_are_fresh(make, rows, size, seed):
    assert untrained_rows(make(rows, size, seed).astype("float32")) <= 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("rows", "size"), SIZES)
def test_trained_tables_are_not(rows, size, seed):
    assert untrained_rows(trained(rows, size, seed).astype("float32")) == rows


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("first", [16, 64, 100])
@pytest.mark.parametrize("decay", [1.0, 0.08])
def test_the_first_untrained_row_is_found(seed, first, decay):
    table = decay * truncated(128, 128, seed)
    table[:first] = trained(first, 128, seed) + decay * table[:first]
    assert untrained_rows(table.astype("float32")) == first


def test_too_few_values_tell_nothing():
    assert untrained_rows(truncated(40, 8, 0)) == 40


def test_damaged_tables_tell_nothing():
    assert untrained_rows(np.full((64, 64), np.nan, "float32")) == 64
    assert untrained_rows(np.zeros((64, 64), "float32")) == 64

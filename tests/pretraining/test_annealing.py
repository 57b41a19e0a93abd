"""Annealed hyperparameters against their formulas."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretraining import CategoricalSampler
from electra_tf.pretraining.annealing import (
    ExponentialDecay,
    LinearChange,
    as_schedule,
)


def values(schedule, steps):
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


def test_linear_change():
    schedule = LinearChange(2.0, 1.0, 4, begin=10)
    found = values(schedule, (0, 10, 11, 12, 14, 1000))
    np.testing.assert_allclose(found, [2.0, 2.0, 1.75, 1.5, 1.0, 1.0])


def test_exponential_decay_is_that_of_fast_electra():
    """T = 1 + (T_0 - 1) exp(-u / tau), u = step / total, tau = 0.1."""
    total, tau, start = 1000, 0.1, 2.0
    schedule = ExponentialDecay(start, 1.0, tau * total)
    steps = (0, 1, 100, 500, 1000)
    expected = [1 + (start - 1) * np.exp(-(step / total) / tau) for step in steps]
    np.testing.assert_allclose(values(schedule, steps), expected, rtol=1e-6)


def test_numbers_are_constant_schedules():
    schedule = as_schedule(0.5)
    assert schedule() == 0.5
    assert as_schedule(schedule) is schedule
    change = LinearChange(0.0, 1.0, 3)
    assert CategoricalSampler(1.0).schedules == {}
    assert CategoricalSampler(change).schedules == {"temperature": change}


def test_bad_values_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        LinearChange(0.0, 1.0, 0)
    with pytest.raises(ValueError, match="must be positive"):
        ExponentialDecay(2.0, 1.0, 0)
    with pytest.raises(ValueError, match="needs the step"):
        LinearChange(0.0, 1.0, 2)(None)

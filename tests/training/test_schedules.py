import functools

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretraining import ExponentialDecay, LinearChange
from electra_tf.training.schedules import FitSchedule, WarmupPolynomialDecay
from tests.reference import optimizer as reference


def values(schedule, steps):
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


def test_hand_worked_product():
    """Warm-up multiplied by decay; 0 at step 0 (pitfall 30 of docs/fidelity.md)."""
    schedule = WarmupPolynomialDecay(1.0, 100, warmup_steps=10)
    rates = values(schedule, (0, 5, 10, 50, 99, 100, 1000))
    np.testing.assert_allclose(rates, [0, 0.475, 0.9, 0.5, 0.01, 0, 0], atol=1e-7)


def test_hand_worked_sequential():
    schedule = WarmupPolynomialDecay(1.0, 110, warmup_steps=10, combine="sequential")
    rates = values(schedule, (0, 5, 10, 60, 110, 111))
    np.testing.assert_allclose(rates, [0, 0.5, 1.0, 0.5, 0, 0], atol=1e-7)


LONG = (1, 9_999, 1_234_567, 3_999_997, 3_999_998, 3_999_999)


@pytest.mark.parametrize(
    ("total", "warmup", "power", "end", "steps"),
    [
        *((40, 7, 1, 0, range(45)), (40, 0, 2, 0.1, range(45))),
        # Float32 is enough for four million steps.
        (4_000_000, 10_000, 1, 0, LONG),
    ],
)
def test_equals_reference(total, warmup, power, end, steps):
    options = {"power": power, "end_learning_rate": end * 3e-4}
    schedule = WarmupPolynomialDecay(3e-4, total, warmup_steps=warmup, **options)
    for step, rate in zip(steps, values(schedule, steps), strict=True):
        expected = reference.learning_rate(step, 3e-4, total, warmup, power, end * 3e-4)
        np.testing.assert_allclose(rate, expected, rtol=1e-6, atol=1e-15)


def test_no_warmup_is_finite_in_a_compiled_function():
    compiled = tf.function(WarmupPolynomialDecay(1.0, 10), jit_compile=True)
    assert float(compiled(tf.constant(0))) == 1.0


def test_linear_change():
    found = values(LinearChange(2.0, 1.0, 4, begin=10), (0, 10, 11, 12, 14, 1000))
    np.testing.assert_allclose(found, [2.0, 2.0, 1.75, 1.5, 1.0, 1.0])


def test_exponential_decay_is_that_of_fast_electra():
    """T = 1 + (T_0 - 1) exp(-u / tau), u = step / total, tau = 0.1."""
    total, tau, start = 1000, 0.1, 2.0
    schedule = ExponentialDecay(start, 1.0, tau * total)
    steps = (0, 1, 100, 500, 1000)
    expected = [1 + (start - 1) * np.exp(-(step / total) / tau) for step in steps]
    np.testing.assert_allclose(values(schedule, steps), expected, rtol=1e-6)


def test_bad_values_are_refused():
    decay = functools.partial(WarmupPolynomialDecay, 1.0)
    sequential = functools.partial(decay, combine="sequential")
    for call, message in (
        (lambda: decay(0), "least 0 and 1"),
        (lambda: decay(5, warmup_steps=-1), "least 0 and 1"),
        (lambda: decay(5, combine="sum"), "product, sequential"),
        (lambda: sequential(5, warmup_steps=5), "least 0 and 6"),
        (lambda: LinearChange(0.0, 1.0, 0), "at least 1"),
        (lambda: ExponentialDecay(2.0, 1.0, 0), "must be positive"),
        (lambda: LinearChange(0.0, 1.0, 2)(None), "needs the step"),
        (lambda: FitSchedule(0.1).assign(-1), "learning_rate is -1; give 0 or more"),
        (lambda: FitSchedule(0.1).assign(np.nan), "learning_rate is nan"),
    ):
        with pytest.raises(ValueError, match=message):
            call()

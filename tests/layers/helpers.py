"""Checks for every layer and model."""

import keras
import numpy as np
import pytest
import tensorflow as tf


def randomize(variables, seed=0, stddev=0.3):
    """Gives all variables distinctive values; initial zeros and ones hide mistakes."""
    rng = np.random.default_rng(seed)
    for variable in variables:
        noise = rng.normal(0, stddev, variable.shape)
        offset = 1.0 if variable.path.endswith("gamma") else 0.0
        variable.assign(noise + offset)


def randomized(layer, shape=None, *, seed=0):
    layer.build(shape)
    randomize(layer.variables, seed)
    return layer


def check_config(layer):
    """Serializes and restores the layer; the configs must be equal."""
    serialized = keras.saving.serialize_keras_object(layer)
    restored = keras.saving.deserialize_keras_object(serialized)
    assert type(restored) is type(layer)
    again = keras.saving.serialize_keras_object(restored)
    assert again["config"] == serialized["config"]
    return restored


def check_slope(loss_at, gradients, *, step, rel):
    """Compares gradients with the slope of ``loss_at(moves)`` in a random direction."""
    rng = np.random.default_rng(0)
    gradients = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
    moves = [rng.normal(size=gradient.shape) for gradient in gradients]
    up, down = (loss_at([sign * step * m for m in moves]) for sign in (1, -1))
    pairs = zip(gradients, moves, strict=True)
    expected = sum(np.sum(g * m, dtype=np.float64) for g, m in pairs)
    assert (up - down) / (2 * step) == pytest.approx(expected, rel=rel)


def check_compiles(function, *arguments):
    """Checks that eager, graph and XLA execution agree."""
    eager = function(*arguments)
    for jit_compile in (False, True):
        compiled = tf.function(function, jit_compile=jit_compile)(*arguments)
        np.testing.assert_allclose(eager, compiled, atol=1e-5, rtol=1e-5)
    return eager

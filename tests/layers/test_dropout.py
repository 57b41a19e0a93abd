import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import Dropout
from tests.layers.helpers import check_compiles, check_config

SEED = tf.constant([3, 7], tf.int32)


@pytest.mark.parametrize("rate", [0.1, 0.15, 0.5])
def test_rate_and_scale_are_exact(rate):
    ones = tf.ones([1000, 2000])
    dropped = Dropout(rate)(ones, training=True, seed=SEED).numpy()
    error = 3 * np.sqrt(rate * (1 - rate) / dropped.size)  # three standard errors
    assert abs((dropped == 0).mean() - rate) < error
    np.testing.assert_allclose(dropped[dropped > 0], 1 / (1 - rate), rtol=1e-6)


def test_mask_is_a_function_of_the_seed():
    inputs = tf.ones([64, 64])
    layer = Dropout(0.5)
    first = layer(inputs, training=True, seed=SEED)
    again = layer(inputs, training=True, seed=SEED)
    other = layer(inputs, training=True, seed=SEED + 1)
    np.testing.assert_array_equal(first, again)
    assert 0.4 < np.mean(first != other) < 0.6


def test_same_mask_in_every_execution_mode():
    layer = Dropout(0.3)
    check_compiles(
        lambda x: layer(x, training=True, seed=SEED), tf.random.normal([3, 5, 7])
    )


def test_inference_is_the_identity():
    inputs = tf.random.normal([3, 4])
    np.testing.assert_array_equal(Dropout(0.5)(inputs), inputs)
    np.testing.assert_array_equal(Dropout(0.0)(inputs, training=True), inputs)


def test_gradient_is_the_mask():
    inputs = tf.Variable(tf.random.normal([8, 8]))
    with tf.GradientTape() as tape:
        outputs = Dropout(0.25)(inputs.value(), training=True, seed=SEED)
    gradient = tape.gradient(outputs, inputs)
    np.testing.assert_allclose(gradient * inputs, outputs, rtol=1e-6)


def test_errors():
    with pytest.raises(ValueError, match=r"\[0, 1\), got 1"):
        Dropout(1)
    with pytest.raises(ValueError, match="needs a seed"):
        Dropout(0.1)(tf.ones([2, 2]), training=True)


def test_config():
    assert check_config(Dropout(0.25, dtype="mixed_bfloat16")).rate == 0.25

"""Straight-through Gumbel-softmax against NumPy: forward hard, backward soft."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import TextEmbedding
from electra_tf.pretraining import CategoricalSampler
from electra_tf.pretraining.relaxation import (
    perturbed_logits,
    put_rows,
    reverse_gradient,
    straight_through,
)

SEED = tf.constant([3, 4])


def random_logits(shape=(2, 3, 7), scale=2.0, seed=0):
    rng = np.random.default_rng(seed)
    return tf.constant(rng.normal(0, scale, shape), tf.float32)


def draw(logits):
    ids = tf.zeros(logits.shape[:2], tf.int32)
    return CategoricalSampler()(logits, ids, SEED)


def test_the_sample_is_the_argmax_and_the_noise_is_gumbel():
    """Noise given the sample, over many samples, is the noise before sampling.

    A Gumbel variable has mean 0.5772 and variance pi^2 / 6, and does not correlate
    with the logits it is added to.
    """
    logits = random_logits((400, 50, 11))
    sampled = draw(logits)
    perturbed = perturbed_logits(logits, sampled, tf.constant([9, 1])).numpy()
    np.testing.assert_array_equal(perturbed.argmax(-1), sampled)
    noise = perturbed - logits.numpy()
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.02)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.04)
    assert abs(np.corrcoef(noise.ravel(), logits.numpy().ravel())[0, 1]) < 0.01
    # Its distribution function is exp(-exp(-x)).
    for point in (-1.0, 0.0, 1.0, 3.0):
        assert (noise < point).mean() == pytest.approx(
            np.exp(-np.exp(-point)), abs=0.005
        )


def test_forward_is_exactly_one_hot_and_backward_is_the_softmax():
    logits, temperature = random_logits(), 0.7
    sampled = draw(logits)
    upstream = random_logits(seed=5)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        perturbed = perturbed_logits(logits, sampled, SEED)
        one_hots = straight_through(perturbed, sampled, temperature)
    found = tape.gradient(one_hots, logits, output_gradients=upstream)
    np.testing.assert_array_equal(one_hots, np.eye(7)[sampled.numpy()])

    z = perturbed.numpy().astype(np.float64) / temperature
    soft = np.exp(z - z.max(-1, keepdims=True))
    soft /= soft.sum(-1, keepdims=True)
    g = upstream.numpy().astype(np.float64)
    expected = soft * (g - (g * soft).sum(-1, keepdims=True)) / temperature
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_forbidden_tokens_have_no_gradient_and_no_nan():
    logits = tf.tensor_scatter_nd_add(random_logits(), [[0, 0, 2]], [-1e9])
    sampled = draw(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        one_hots = straight_through(
            perturbed_logits(logits, sampled, SEED), sampled, 1.0
        )
        value = tf.reduce_sum(one_hots * random_logits(seed=6))
    gradient = tape.gradient(value, logits).numpy()
    assert np.isfinite(gradient).all()
    assert gradient[0, 0, 2] == 0


def test_reversed_gradient():
    values = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(values)
        same = reverse_gradient(values, tf.constant(0.25))
        total = tf.reduce_sum(same * [3.0, 4.0])
    np.testing.assert_array_equal(same, values)
    np.testing.assert_array_equal(tape.gradient(total, values), [-0.75, -1.0])


def test_words_of_one_hots_are_words_and_their_gradient_the_product():
    table = TextEmbedding(7, 5, max_positions=4)
    table.build()
    ids = tf.constant([[2, 6, 0]])
    one_hots = tf.one_hot(ids, 7)
    with tf.GradientTape() as tape:
        tape.watch(one_hots)
        words = table.words_of(one_hots)
        value = tf.reduce_sum(words * random_logits((1, 3, 5), seed=2))
    np.testing.assert_array_equal(words, table.words(ids))
    expected = (
        random_logits((1, 3, 5), seed=2).numpy() @ table.word_embeddings.numpy().T
    )
    np.testing.assert_allclose(tape.gradient(value, one_hots), expected, rtol=1e-5)


def test_rows_go_to_their_positions_and_unused_ones_nowhere():
    into = tf.constant(np.arange(24).reshape(2, 4, 3), tf.float32)
    into *= tf.constant([[1, 0, 1, 0], [1, 1, 1, 0]], tf.float32)[..., tf.newaxis]
    rows = -tf.ones([2, 2, 3])
    positions = tf.constant([[3, 1], [3, 0]])
    used = tf.constant([[True, True], [True, False]])
    found = put_rows(rows, positions, used, into).numpy()
    expected = into.numpy()
    expected[0, 3] = expected[0, 1] = expected[1, 3] = -1
    np.testing.assert_array_equal(found, expected)

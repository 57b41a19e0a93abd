"""Sampling and corruption: pitfalls 13, 14, 16, 17, 18 of docs/fidelity.md."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from electra_tf.layers.randomness import at_row, uniform
from electra_tf.pretraining import CategoricalSampler, LeaveRows
from electra_tf.pretraining.samplers import corrupt, token_at
from electra_tf.training.schedules import LinearChange
from tests import tiny

SEED = tf.constant([3, 4])


def test_corruption_restores_originals_and_never_leaks_mask():
    """Also at visible positions (pitfalls 13 and 14 of docs/fidelity.md)."""
    batch = tiny.batch([24] * 40, mask_rate=0.3)
    out = corrupt(batch, tf.fill(batch["masked_lm_ids"].shape, 50))
    ids = out.inputs["input_ids"].numpy()
    assert tiny.MASK in batch["masked_input_ids"].numpy()
    assert tiny.MASK not in ids
    chosen = out.is_masked.numpy()
    np.testing.assert_array_equal(ids[~chosen], batch["input_ids"].numpy()[~chosen])
    assert chosen.sum() == batch["masked_lm_weights"].numpy().sum()
    assert (ids[chosen] == 50).all()
    visible = chosen & (batch["masked_input_ids"].numpy() != tiny.MASK)
    assert visible.sum() > 10


def test_a_correct_sample_counts_as_real():
    """A correct sample is labeled original (pitfalls 13 and 17 of docs/fidelity.md)."""
    batch = tiny.batch()
    out = corrupt(batch, batch["masked_lm_ids"])
    assert not out.is_replaced.numpy().any()
    assert out.is_masked.numpy().any()


def test_position_zero_is_never_written():
    """Unused slots do not write (pitfall 12 of docs/fidelity.md)."""
    batch = tiny.batch((5, 5, 5, 5))
    out = corrupt(batch, tf.fill(batch["masked_lm_ids"].shape, 50))
    assert (out.inputs["input_ids"].numpy()[:, 0] == tiny.CLS).all()
    assert not out.is_masked.numpy()[:, 0].any()


def test_samples_follow_the_softmax():
    """Chi-square of 200,000 draws (pitfall 16 of docs/fidelity.md)."""
    logits = (np.random.default_rng(0).normal(size=50) * 2).astype(np.float32)
    batched = tf.broadcast_to(logits, [400, 500, 50])
    sampler = CategoricalSampler(temperature=2.0)
    drawn = sampler(batched, tf.zeros([400, 500], tf.int32), SEED).numpy().ravel()
    counts = np.bincount(drawn, minlength=50)
    scaled = logits.astype(np.float64) / 2
    expected = np.exp(scaled) / np.exp(scaled).sum() * drawn.size
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_draws_are_distributed_as_those_of_tf_random_categorical():
    """Chi-square of homogeneity: 200,000 draws each, from 50 tokens."""
    logits = tf.constant(np.random.default_rng(1).normal(size=50) * 2, tf.float32)
    shape = [400, 500]
    batched = tf.broadcast_to(logits, [*shape, 50])
    ours = CategoricalSampler()(batched, tf.zeros(shape, tf.int32), SEED)
    tf.random.set_seed(5)
    theirs = tf.random.categorical(logits[tf.newaxis], 400 * 500)
    counts = [np.bincount(np.ravel(drawn), minlength=50) for drawn in (ours, theirs)]
    counts = np.stack(counts)[:, np.sum(counts, axis=0) > 0]
    assert stats.chi2_contingency(counts).pvalue > 1e-3


@pytest.mark.slow
def test_samples_follow_the_softmax_in_mixed_precision():
    """Sampling stays exact under mixed bfloat16 (pitfall 16 of docs/fidelity.md).

    The generator is its output bias, near 60, where bfloat16 has steps of 0.25.
    The test fails if the logits or the noise are rounded.
    """
    vocab = 50
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = tiny.electra(vocab=vocab)
    head = model.generator.head
    head.gamma.assign(tf.zeros_like(head.gamma))
    bias = np.random.default_rng(0).normal(size=vocab) * 1.5
    head.output_bias.assign(60 + bias)
    batch = tiny.batch([24] * 250, vocab=vocab, mask_rate=0.8)

    @tf.function
    def draw(seed):
        return model.sampler(model.generator(batch), batch["masked_lm_ids"], seed)

    draws = [draw(tf.constant([5, step])).numpy().ravel() for step in range(210)]
    counts = np.bincount(np.concatenate(draws), minlength=vocab)
    assert counts.sum() > 950_000
    expected = np.exp(bias) / np.exp(bias).sum() * counts.sum()
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_low_temperature_is_greedy():
    """Temperature divides the logits (pitfall 18 of docs/fidelity.md)."""
    logits = tf.random.stateless_normal([2, 30, 40], SEED)
    ids = tf.zeros([2, 30], tf.int32)
    for temperature in (1e-4, LinearChange(1.0, 0.0, 2)):
        drawn = CategoricalSampler(temperature)(logits, ids, SEED, step=2)
        np.testing.assert_array_equal(drawn, logits.numpy().argmax(-1))


@pytest.mark.parametrize("temperature", [0.5, 1000.0])
def test_disallow_correct_never_draws_the_original(temperature):
    """Not even with nearly all the mass (pitfall 18 of docs/fidelity.md)."""
    ids = tf.random.stateless_uniform([100, 1000], SEED, 0, 20, tf.int32)
    logits = 12.0 * tf.one_hot(ids, 20)
    drawn = CategoricalSampler(temperature, True)(logits, ids, SEED)
    assert not np.any(drawn.numpy() == ids.numpy())
    counts = np.bincount((drawn.numpy() - ids.numpy()).ravel() % 20, minlength=20)
    assert counts[1:].min() > 0.9 * 100_000 / 19  # the other tokens stay uniform


@pytest.mark.parametrize("size", [1, 97, 256, 512, 700])
def test_tokens_are_those_of_the_inverse_distribution(size):
    """Against NumPy, with a vocabulary below, equal to and above the chunk size."""
    rng = np.random.default_rng(1)
    logits = (rng.normal(size=[2000, size]) * 3).astype(np.float32)
    logits[:, ::3] -= 1e9
    logits[:, size // 2] = 1.0
    draws = rng.random(2000)
    draws[:2] = 0.0, 1 - 2**-53
    found = token_at(tf.constant(logits), tf.constant(draws)).numpy()
    shares = np.exp(logits - logits.max(1, keepdims=True), dtype=np.float64)
    sums = shares.cumsum(1)
    expected = (sums <= (draws * sums[:, -1])[:, None]).sum(1)
    # A few draws depend on the rounding of float32.
    assert np.mean(found == expected) > 0.998
    assert np.take_along_axis(shares, found[:, None], 1).min() > 0


def test_tokens_are_in_the_table_whatever_the_logits():
    bad = (np.nan, np.inf, -np.inf)
    rows = [row for x in bad for row in ([x] * 300, [0.0] * 299 + [x])]
    draws = tf.constant([0.5, 0.999] * 3, tf.float64)
    found = token_at(tf.constant(rows, tf.float32), draws).numpy()
    assert ((found >= 0) & (found < 300)).all()


@pytest.mark.parametrize(
    "sampler", [CategoricalSampler(), LeaveRows(CategoricalSampler(), 0.5)]
)
def test_rows_draw_the_same_in_every_cut(sampler):
    logits = tf.random.stateless_normal([8, 5, 40], SEED)
    ids = tf.zeros([8, 5], tf.int32)
    whole = sampler(logits, ids, SEED).numpy()
    assert len(np.unique(whole)) > 1
    assert np.any(sampler(logits, ids, SEED + 1).numpy() != whole)
    for first, last in ((0, 8), (0, 3), (3, 4), (4, 8)):
        piece = sampler(logits[first:last], ids[first:last], at_row(SEED, first))
        np.testing.assert_array_equal(piece, whole[first:last])


def test_the_choice_of_rows_is_independent_of_what_the_sampler_draws():
    """Both draw one float per row; the sampler has ten tokens."""

    def draw(mlm_logits, masked_lm_ids, seed, step):
        return tf.cast(10 * uniform(seed, masked_lm_ids.shape), tf.int32)

    rows = 20_000
    originals = tf.fill([rows, 1], 10)
    left = LeaveRows(draw, share=0.3)(tf.zeros([rows, 1, 11]), originals, SEED)
    counts = np.bincount(left.numpy().ravel(), minlength=11)
    assert counts[10] / rows == pytest.approx(0.3, abs=0.015)
    assert stats.chisquare(counts[:10]).pvalue > 1e-3

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import Dropout, MaskedLMHead, ReplacedTokenHead, TextEmbedding
from electra_tf.layers.randomness import keep_mask
from tests.layers.helpers import check_compiles, randomize, randomized
from tests.reference import encoder as reference

HIDDEN = tf.constant(np.random.default_rng(5).normal(size=(2, 4, 8)), tf.float32)
POSITIONS = tf.constant([[3, 0, 0], [1, 2, 0]])
SEED = tf.constant([3, 7], tf.int32)


def make_masked_lm(**kwargs):
    head = MaskedLMHead(TextEmbedding(11, 6), **kwargs)
    head.build((None, None, 8))
    randomize([*head.embeddings.variables, *head.variables])
    return head


def make_replaced_token(**kwargs):
    return randomized(ReplacedTokenHead(8, **kwargs))


def test_masked_lm_matches_definition():
    """Generator head against NumPy (pitfall 20 of docs/fidelity.md)."""
    head = make_masked_lm()
    weights = reference.named_weights(head.variables)
    table = head.embeddings.word_embeddings.numpy().astype(np.float64)
    picked = np.take_along_axis(HIDDEN.numpy(), POSITIONS.numpy()[..., None], axis=1)
    dense = reference.gelu(picked @ weights["dense_kernel"] + weights["dense_bias"])
    normal = reference.layer_norm(dense, head.gamma.numpy(), head.beta.numpy())
    expected = normal @ table.T + weights["output_bias"]
    logits = check_compiles(head, HIDDEN, POSITIONS)
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_replaced_token_matches_definition():
    """Discriminator head against NumPy (pitfall 21 of docs/fidelity.md)."""
    head = make_replaced_token()
    weights = reference.named_weights(head.variables)
    dense = HIDDEN.numpy() @ weights["dense_kernel"] + weights["dense_bias"]
    scores = reference.gelu(dense) @ weights["prediction_kernel"]
    expected = scores[..., 0] + weights["prediction_bias"][0]
    for training in (False, True):
        logits = check_compiles(lambda x, on=training: head(x, training=on), HIDDEN)
        np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_logits_are_float32(policy):
    hidden = tf.cast(HIDDEN, policy.removeprefix("mixed_"))
    logits = make_masked_lm(dtype=policy)(hidden, POSITIONS)
    assert logits.dtype == tf.float32
    # The logits have more than the 8 significant bits of bfloat16.
    rounded = tf.cast(tf.cast(logits, tf.bfloat16), tf.float32)
    assert np.mean(logits == rounded) < 0.2
    assert make_replaced_token(dtype=policy)(hidden).dtype == tf.float32


def test_initial_values():
    """Truncated normal, Glorot, biases zero (pitfall 23 of docs/fidelity.md)."""
    head = ReplacedTokenHead(256)
    head.build()
    masked_lm = MaskedLMHead(TextEmbedding(11, 128))
    masked_lm.build((None, None, 256))
    for kernel in (head.dense_kernel, masked_lm.dense_kernel):
        assert 0.035 < np.abs(kernel).max() <= 0.04
        np.testing.assert_allclose(kernel.numpy().std(), 0.02 * 0.8796, rtol=0.02)
    for variable in (*head.variables, *masked_lm.variables):
        if not variable.path.endswith(("kernel", "embeddings")):
            assert (variable.numpy() == variable.path.endswith("gamma")).all()
    bound = np.sqrt(6 / 257)
    assert 0.9 * bound < np.abs(head.prediction_kernel).max() <= bound


def test_dropout():
    """The seed determines the mask in every execution mode, and in the gradient."""
    inputs = tf.Variable(tf.random.stateless_normal([3, 5, 7], SEED))
    layer = Dropout(0.25)
    with tf.GradientTape() as tape:
        outputs = layer(inputs.value(), training=True, seed=SEED)
    scales = keep_mask(SEED, [3, 5, 7], 0.25).numpy() / 0.75
    assert 0.6 < np.mean(scales > 0) < 0.9
    np.testing.assert_allclose(outputs, inputs * scales, rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(outputs, inputs), scales, rtol=1e-6)
    check_compiles(lambda x: layer(x, training=True, seed=SEED), inputs.value())
    np.testing.assert_array_equal(layer(inputs), inputs)
    np.testing.assert_array_equal(Dropout(0.0)(inputs, training=True), inputs)
    with pytest.raises(ValueError, match="needs a seed"):
        layer(inputs, training=True)

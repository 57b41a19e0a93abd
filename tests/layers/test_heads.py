import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import Dropout, MaskedLMHead, ReplacedTokenHead, TextEmbedding
from electra_tf.layers.heads import gather_positions
from tests.layers.helpers import check_compiles, randomize
from tests.reference import encoder as reference

HIDDEN = tf.constant(np.random.default_rng(5).normal(size=(2, 4, 8)), tf.float32)
POSITIONS = tf.constant([[3, 0, 0], [1, 2, 0]])
SEED = tf.constant([3, 7], tf.int32)


def make_masked_lm(**kwargs):
    table = TextEmbedding(11, 6)
    head = MaskedLMHead(table, **kwargs)
    head.build((None, None, 8))
    randomize([*table.variables, *head.variables])
    return head


def make_replaced_token(**kwargs):
    head = ReplacedTokenHead(8, **kwargs)
    head.build()
    randomize(head.variables)
    return head


def test_gather_positions():
    hidden = tf.reshape(tf.range(12), [2, 3, 2])
    gathered = gather_positions(hidden, tf.constant([[2, 0], [1, 1]]))
    np.testing.assert_array_equal(gathered, [[4, 5], [0, 1], [8, 9], [8, 9]])


def test_masked_lm_matches_definition():
    """Generator head against NumPy (pitfall 20 of docs/fidelity.md)."""
    head = make_masked_lm()
    weights = reference.named_weights(head.variables)
    table = head.embeddings.word_embeddings.numpy().astype(np.float64)
    picked = np.take_along_axis(HIDDEN.numpy(), POSITIONS.numpy()[..., None], axis=1)
    dense = reference.gelu(picked @ weights["dense_kernel"] + weights["dense_bias"])
    normal = reference.layer_norm(
        dense, head.gamma.numpy(), head.beta.numpy(), epsilon=1e-12
    )
    expected = normal @ table.T + weights["output_bias"]
    logits = check_compiles(head, HIDDEN, POSITIONS)
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_masked_lm_shares_the_word_table():
    """Embedding width, shared table, token bias (pitfall 20 of docs/fidelity.md)."""
    head = make_masked_lm()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(head(HIDDEN, POSITIONS))
    gradient = tape.gradient(loss, head.embeddings.word_embeddings.value)
    assert np.abs(gradient).max() > 0
    assert head.dense_kernel.shape == (8, 6)
    assert head.output_bias.shape == (11,)


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


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_logits_are_float32(policy):
    hidden = tf.cast(HIDDEN, policy.removeprefix("mixed_"))
    logits = make_masked_lm(dtype=policy)(hidden, POSITIONS)
    assert logits.dtype == tf.float32
    # The logits have more than the 8 significant bits of bfloat16.
    rounded = tf.cast(tf.cast(logits, tf.bfloat16), tf.float32)
    assert np.mean(logits == rounded) < 0.2
    assert make_replaced_token(dtype=policy)(hidden).dtype == tf.float32


@pytest.mark.parametrize(
    ("size", "count"), [(256, 66_049), (768, 591_361), (1024, 1_050_625)]
)
def test_replaced_token_parameter_count(size, count):
    """Discriminator head with a hidden layer (pitfall 21 of docs/fidelity.md)."""
    head = ReplacedTokenHead(size)
    head.build()
    assert head.count_params() == count


@pytest.mark.parametrize(
    ("hidden_size", "embedding_size", "count"),
    [(64, 128, 39_098), (256, 128, 63_674), (256, 768, 229_434), (256, 1024, 295_738)],
)
def test_masked_lm_parameter_count(hidden_size, embedding_size, count):
    """Generator head: dense, LayerNorm, bias (pitfall 20 of docs/fidelity.md)."""
    table = TextEmbedding(30522, embedding_size)
    head = MaskedLMHead(table)
    head.build((None, None, hidden_size))
    assert head.count_params() - table.count_params() == count


def test_initial_values():
    """Heads: hidden layers truncated normal, the last unit Glorot, biases zero.

    (pitfall 23 of docs/fidelity.md)
    """
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
    # Glorot uniform: bound sqrt(6 / (256 + 1)).
    bound = np.sqrt(6 / 257)
    assert 0.9 * bound < np.abs(head.prediction_kernel).max() <= bound


@pytest.mark.parametrize("rate", [0.1, 0.15, 0.5])
def test_dropout_rate_and_scale_are_exact(rate):
    ones = tf.ones([1000, 2000])
    dropped = Dropout(rate)(ones, training=True, seed=SEED).numpy()
    error = 3 * np.sqrt(rate * (1 - rate) / dropped.size)  # three standard errors
    assert abs((dropped == 0).mean() - rate) < error
    np.testing.assert_allclose(dropped[dropped > 0], 1 / (1 - rate), rtol=1e-6)


def test_dropout_mask_is_a_function_of_the_seed():
    inputs = tf.ones([64, 64])
    layer = Dropout(0.5)
    first = layer(inputs, training=True, seed=SEED)
    again = layer(inputs, training=True, seed=SEED)
    other = layer(inputs, training=True, seed=SEED + 1)
    np.testing.assert_array_equal(first, again)
    assert 0.4 < np.mean(first != other) < 0.6


def test_same_dropout_mask_in_every_execution_mode():
    layer = Dropout(0.3)
    check_compiles(
        lambda x: layer(x, training=True, seed=SEED), tf.random.normal([3, 5, 7])
    )


def test_dropout_of_inference_is_the_identity():
    inputs = tf.random.normal([3, 4])
    np.testing.assert_array_equal(Dropout(0.5)(inputs), inputs)
    np.testing.assert_array_equal(Dropout(0.0)(inputs, training=True), inputs)


def test_gradient_of_dropout_is_the_mask():
    inputs = tf.Variable(tf.random.normal([8, 8]))
    with tf.GradientTape() as tape:
        outputs = Dropout(0.25)(inputs.value(), training=True, seed=SEED)
    gradient = tape.gradient(outputs, inputs)
    np.testing.assert_allclose(gradient * inputs, outputs, rtol=1e-6)


def test_dropout_errors():
    with pytest.raises(ValueError, match=r"\[0, 1\), got 1"):
        Dropout(1)
    with pytest.raises(ValueError, match="needs a seed"):
        Dropout(0.1)(tf.ones([2, 2]), training=True)

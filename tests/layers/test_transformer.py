import numpy as np
import pytest
import tensorflow as tf

from electra_tf import layers
from electra_tf.layers import TextEmbedding, TextEncoder, TransformerEncoder
from electra_tf.layers.randomness import split_seed
from tests.layers.helpers import randomize, randomized
from tests.reference import encoder as reference
from tests.reference import two_tower

MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
SEED = tf.constant([1, 2])
HIDDEN = tf.random.stateless_normal([2, 5, 8], SEED)


def make_block(**kwargs):
    return randomized(layers.TransformerEncoderBlock(16, 2, **kwargs), (None, None, 8))


@pytest.mark.parametrize("direction", ["both", "left_to_right", "right_to_left"])
def test_block_matches_definition(direction):
    """Post-norm order and exact GELU, in NumPy (pitfall 22 of docs/fidelity.md)."""
    block = make_block(direction=direction)
    output = block(HIDDEN, MASK).numpy()
    reach = MASK if direction == "both" else two_tower.reach(MASK, direction)
    weights = reference.named_weights(block.variables)
    expected = reference.block(weights, HIDDEN.numpy(), reach, num_heads=2)
    # The one-sided states of padding are arbitrary.
    compared = (MASK > 0) | (direction == "both")
    np.testing.assert_allclose(output[compared], expected[compared], atol=1e-5)


@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left"])
def test_causal_stack_reads_one_side_exactly(direction):
    """Bit-exact through two layers with dropout, also in rows of padding alone."""
    encoder = randomized(TransformerEncoder(2, 8, 2, 16, direction=direction))
    mask = np.array([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    before = encoder(HIDDEN, mask, training=True, seed=SEED).numpy()
    for t in range(5):
        changed = HIDDEN.numpy()
        changed[:, t] += 3.0
        after = encoder(tf.constant(changed), mask, training=True, seed=SEED)
        moved = np.abs(after.numpy() - before).max(-1) > 0
        sees = np.arange(5) >= t if direction == "left_to_right" else np.arange(5) <= t
        np.testing.assert_array_equal(moved[0], sees)
        assert not moved[1][~sees].any()


def test_stack_is_the_composition_of_its_blocks():
    """In training, every block has its own seed."""
    encoder = TransformerEncoder(2, 8, 2, 16, dropout=0.3, attention_dropout=0.2)
    encoder.build()
    first, second = (block.qkv_kernel.numpy() for block in encoder.blocks)
    assert not np.array_equal(first, second)
    randomize(encoder.variables)
    plain = trained = HIDDEN
    for block, seed in zip(encoder.blocks, split_seed(SEED, 2), strict=True):
        plain = block(plain, MASK)
        trained = block(trained, MASK, training=True, seed=seed)
    np.testing.assert_allclose(encoder(HIDDEN, MASK), plain, atol=1e-6)
    found = encoder(HIDDEN, MASK, training=True, seed=SEED)
    np.testing.assert_allclose(found, trained, atol=1e-5)


def test_each_dropout_rate_has_its_place():
    def share(**kwargs):
        block = make_block(**{"dropout": 0.0, "attention_dropout": 0.0, **kwargs})
        output = block(HIDDEN, MASK, training=True, seed=SEED)
        return np.abs(output - block(HIDDEN, MASK)).max()

    assert share() < 1e-5
    assert share(dropout=0.5) > 0.1
    assert share(attention_dropout=0.5) > 0.01


def test_initial_values():
    """Kernels of a block: truncated normal (pitfall 23 of docs/fidelity.md)."""
    block = layers.TransformerEncoderBlock(512, 2)
    block.build((None, None, 128))
    for variable in block.variables:
        values = variable.numpy()
        if variable.path.endswith("kernel"):
            assert np.abs(values).max() <= 0.04
            np.testing.assert_allclose(values.std(), 0.02 * 0.8796, rtol=0.02)
        else:
            assert (values == variable.path.endswith("gamma")).all()


def test_another_activation():
    outputs = [make_block(activation=x)(HIDDEN, MASK) for x in ("gelu", "relu")]
    assert 1e-6 < np.abs(outputs[0] - outputs[1]).max() < 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers must be positive"),
        ({"num_heads": -2}, "num_heads must be positive, got -2"),
        ({"num_heads": 3}, "8 is not divisible by num_heads 3"),
        ({"intermediate_size": 0}, "intermediate_size must be positive"),
        ({"activation": "swish"}, "'swish'; allowed are gelu, gelu_tanh, relu"),
        ({"direction": "up"}, "'up'; allowed are both, left_to_right"),
        ({"attention_dropout": 1}, r"attention_dropout must be in \[0, 1\), got 1"),
    ],
)
def test_errors(options, message):
    sizes = {"num_layers": 1, "hidden_size": 8, "num_heads": 2} | options
    with pytest.raises(ValueError, match=message):
        TextEncoder(TextEmbedding(9, 8), **sizes)


def test_errors_of_a_block():
    with pytest.raises(ValueError, match="8 is not divisible by num_heads 3"):
        layers.TransformerEncoderBlock(16, 3).build((None, None, 8))
    with pytest.raises(ValueError, match="needs a seed"):
        make_block()(HIDDEN, MASK, training=True)

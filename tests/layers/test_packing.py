import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import TextEmbedding
from electra_tf.layers.packing import Packing
from tests import tiny
from tests.layers.helpers import randomize

# Padding after, before and between tokens, and a row of nothing else.
MIXED = np.array(
    [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]], np.int32
)
IDS = np.random.default_rng(0).integers(1, 11, [4, 5])


def make(direction="both", embedding_size=8):
    table = TextEmbedding(11, embedding_size, max_positions=5)
    encoder = tiny.encoder(table, hidden_size=8, direction=direction, dropout=0.1)
    randomize(encoder.trainable_variables)
    return encoder


def inputs(mask):
    rows, length = mask.shape
    return {
        "input_ids": tf.constant(IDS[:rows, :length], tf.int32),
        "input_mask": tf.constant(mask),
        "segment_ids": tf.reshape(tf.range(mask.size), mask.shape) % 2,
    }


@pytest.mark.parametrize("direction", ["both", "left_to_right", "right_to_left"])
def test_equals_the_path_that_computes_on_padding(direction):
    encoder = make(direction)
    for mask in (MIXED, np.ones([2, 5], np.int32), np.zeros([2, 5], np.int32)):
        expected = encoder(inputs(mask)).numpy()
        found = encoder.encode_tokens(inputs(mask)).numpy()
        real = mask > 0
        np.testing.assert_allclose(found[real], expected[real], atol=1e-5)
        # The output of a row without tokens is arbitrary, but finite.
        assert np.isfinite(found).all()
        assert np.isfinite(expected).all()
        assert not found[:, 1:][~real[:, 1:]].any()
        first = encoder.encode_first(inputs(mask)).numpy()
        assert first.shape == (len(mask), 1, 8)
        np.testing.assert_allclose(first, found[:, :1], atol=1e-6)


def test_in_a_graph_of_unknown_sizes():
    encoder = make(embedding_size=6)
    names = ("input_ids", "input_mask", "segment_ids")
    specs = dict.fromkeys(names, tf.TensorSpec([None, None], tf.int32))
    for encode in (encoder.encode_tokens, encoder.encode_first):
        call = tf.function(encode, input_signature=[specs])
        batch = inputs(MIXED)
        np.testing.assert_allclose(call(batch), encode(batch), atol=1e-5)
        empty = {name: tf.zeros([0, 3], tf.int32) for name in specs}
        assert call(empty).shape[0] == 0


def test_no_token_is_padding():
    """Kernels multiply one row per real token, and one for an empty sequence."""
    mask = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]], np.int32)
    packing = Packing.of(tf.constant(mask), num_heads=2)
    np.testing.assert_array_equal(packing.tokens, [0, 2, 3, 4, 8, 9])
    hidden = tf.random.stateless_normal([3, 4, 5], [1, 2])
    listed = packing.pack(hidden)
    np.testing.assert_array_equal(listed, np.reshape(hidden, [12, 5])[packing.tokens])
    kept = np.where(np.reshape(mask, [3, 4, 1]) > 0, hidden, 0)
    kept[1, 0] = hidden[1, 0]
    np.testing.assert_array_equal(packing.unpack(listed), kept)
    np.testing.assert_array_equal(packing.first().keep(listed), hidden[:, 0])

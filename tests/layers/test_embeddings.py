import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import TextEmbedding
from tests.layers.helpers import check_compiles, check_config, randomize
from tests.reference import encoder as reference

IDS = tf.constant([[1, 2, 3, 4], [5, 6, 7, 0]])
SEGMENTS = tf.constant([[0, 0, 1, 1], [0, 1, 1, 0]])
SEED = tf.constant([1, 2])


def make(**kwargs):
    layer = TextEmbedding(11, 6, max_positions=5, **kwargs)
    layer.build()
    randomize(layer.variables)
    return layer


def test_matches_definition():
    layer = make()
    expected = reference.embed(
        reference.named_weights(layer.variables), IDS.numpy(), SEGMENTS.numpy()
    )
    output = check_compiles(layer, IDS, SEGMENTS)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_layer_norm_epsilon_at_the_scale_of_initial_tables():
    """LayerNorm epsilon is 1e-12, not 1e-3 or 1e-6 (pitfall 22 of docs/fidelity.md).

    The variance of a sum of fresh embeddings is about 1e-3, so that either would
    shrink the result visibly.
    """
    layer = TextEmbedding(11, 6)
    layer.build()
    expected = reference.embed(
        reference.named_weights(layer.variables), IDS.numpy(), SEGMENTS.numpy()
    )
    np.testing.assert_allclose(layer(IDS, SEGMENTS), expected, atol=2e-5)


def test_dropout_only_when_training():
    layer = make(dropout=0.5)
    output = layer(IDS, SEGMENTS, training=True, seed=SEED).numpy()
    full = layer(IDS, SEGMENTS).numpy()
    kept = output != 0
    assert 0.2 < kept.mean() < 0.8
    np.testing.assert_allclose(output[kept], 2 * full[kept], rtol=1e-5)


@pytest.mark.parametrize(
    ("size", "count"), [(128, 3_972_864), (768, 23_837_184), (1024, 31_782_912)]
)
def test_parameter_count(size, count):
    layer = TextEmbedding(30522, size)
    layer.build()
    assert layer.count_params() == count


def test_initial_values():
    """Tables: truncated normal, LayerNorm ones and zeros.

    (pitfall 23 of docs/fidelity.md)
    """
    layer = TextEmbedding(5000, 256)
    layer.build()
    words, positions, segments, gamma, beta = (v.numpy() for v in layer.variables)
    # A normal cut at two sigma and not rescaled: 0.8796 of the nominal deviation.
    for table, tolerance in ((words, 0.01), (positions, 0.01), (segments, 0.15)):
        assert 0.03 < np.abs(table).max() <= 0.04
        np.testing.assert_allclose(table.std(), 0.02 * 0.8796, rtol=tolerance)
    assert not np.array_equal(words[:512], positions)
    assert (gamma == 1).all()
    assert (beta == 0).all()


def test_too_long():
    layer = make()
    with pytest.raises(ValueError, match=r"5 rows.*larger max_positions. Got 6 tokens"):
        layer(tf.zeros([1, 6], tf.int32), tf.zeros([1, 6], tf.int32))
    dynamic = tf.function(layer).get_concrete_function(
        tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None], tf.int32)
    )
    assert dynamic(IDS, SEGMENTS).shape == (2, 4, 6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="larger max_positions"):
        dynamic(tf.zeros([1, 6], tf.int32), tf.zeros([1, 6], tf.int32))


def test_dtype_policy():
    layer = make(dtype="mixed_bfloat16")
    assert layer.word_embeddings.dtype == "float32"
    output = layer(IDS, SEGMENTS)
    assert output.dtype == tf.bfloat16
    exact = make()(IDS, SEGMENTS)
    np.testing.assert_allclose(tf.cast(output, tf.float32), exact, rtol=2**-8)


def test_config():
    restored = check_config(
        TextEmbedding(11, 6, max_positions=5, num_segments=3, dropout=0.2, name="words")
    )
    assert restored.num_segments == 3
    assert restored.name == "words"

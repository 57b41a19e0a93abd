import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import DeltaEmbedding, SharedWordEmbedding, TextEmbedding
from electra_tf.layers.embeddings import TABLES
from tests.layers.helpers import check_compiles, randomized
from tests.reference import encoder as reference

IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 0]], np.int32)
SEGMENTS = np.array([[0, 0, 1, 1], [0, 1, 1, 0]], np.int32)
SEED = tf.constant([1, 2])


def make(**kwargs):
    return randomized(TextEmbedding(11, 6, max_positions=5, **kwargs))


def test_matches_definition():
    layer = make(dropout=0.5)
    expected = reference.embed(reference.named_weights(layer.variables), IDS, SEGMENTS)
    output = check_compiles(layer, IDS, SEGMENTS)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    dropped = layer(IDS, SEGMENTS, training=True, seed=SEED).numpy()
    kept = dropped != 0
    assert 0.2 < kept.mean() < 0.8
    np.testing.assert_allclose(dropped[kept], 2 * expected[kept], rtol=1e-4)


def test_layer_norm_epsilon_at_the_scale_of_initial_tables():
    """A variance of 1e-3 shows an epsilon of 1e-6 (pitfall 22 of docs/fidelity.md)."""
    layer = TextEmbedding(11, 6)
    layer.build()
    expected = reference.embed(reference.named_weights(layer.variables), IDS, SEGMENTS)
    np.testing.assert_allclose(layer(IDS, SEGMENTS), expected, atol=2e-5)


def test_initial_values():
    """Truncated normal, LayerNorm ones and zeros (pitfall 23 of docs/fidelity.md)."""
    layer = TextEmbedding(5000, 256)
    layer.build()
    words, positions, segments, gamma, beta = (v.numpy() for v in layer.variables)
    # Truncation at two sigma reduces the standard deviation to 0.8796 of the nominal.
    for table, tolerance in ((words, 0.01), (positions, 0.01), (segments, 0.15)):
        assert 0.03 < np.abs(table).max() <= 0.04
        np.testing.assert_allclose(table.std(), 0.02 * 0.8796, rtol=tolerance)
    assert not np.array_equal(words[:512], positions)
    assert (gamma == 1).all()
    assert (beta == 0).all()


def test_sinusoidal_positions():
    options = {"initializer_range": 0.05, "position_init": "sinusoidal"}
    layer = TextEmbedding(9, 6, max_positions=40, **options)
    layer.build()
    table = layer.position_embeddings.numpy()
    for position in (0, 1, 39):
        for i in range(3):
            angle = position / 10000 ** (i / 3)
            found = table[position, [i, 3 + i]] / (0.05 * np.sqrt(2))
            np.testing.assert_allclose(found, [np.sin(angle), np.cos(angle)], atol=1e-5)
    np.testing.assert_allclose(np.sqrt(np.mean(table**2)), 0.05, rtol=1e-6)
    with pytest.raises(ValueError, match="even number of columns, got 5"):
        TextEmbedding(9, 5, position_init="sinusoidal").build()


def test_bad_arguments():
    with pytest.raises(ValueError, match="num_segments must be positive, got -1"):
        TextEmbedding(9, 6, num_segments=-1)
    with pytest.raises(ValueError, match=r"'rotary'; allowed are truncated_normal, si"):
        TextEmbedding(9, 6, position_init="rotary")


def borrowing(kind):
    lender = make()
    return randomized(kind(lender, name="borrowing"), seed=1), lender


def test_delta_embedding_matches_definition():
    """Sums of shared tables and deltas, initially zero, with a separate LayerNorm."""
    initial = DeltaEmbedding(make(), name="initial")
    initial.build()
    for name in TABLES:
        assert not np.any(getattr(initial, f"{name}_delta"))
    layer, lender = borrowing(DeltaEmbedding)
    shared = reference.named_weights(lender.variables)
    own = reference.named_weights(layer.variables)
    tables = {n: shared[n] + own.pop(f"{n}_delta") for n in TABLES}
    expected = reference.embed({**own, **tables}, IDS, SEGMENTS)
    output = check_compiles(layer, IDS, SEGMENTS)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(layer.word_table(), tables["word_embeddings"], atol=1e-6)
    plain = layer.standalone()
    assert type(plain) is TextEmbedding
    np.testing.assert_allclose(plain(IDS, SEGMENTS), expected, atol=1e-5)
    assert not any(v is w for v in plain.variables for w in lender.variables)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS, SEGMENTS) ** 3)
        loss += tf.reduce_sum(layer.word_table())
    variables = [*layer.trainable_variables, *lender.trainable_variables]
    assert len({v.path for v in variables}) == 10
    found = tape.gradient(loss, [v.value for v in variables])
    assert all(np.any(tf.convert_to_tensor(g)) for g in found[:5])
    assert found[5:] == [None] * 5


def test_shared_word_embedding_has_one_word_table_and_the_rest_of_its_own():
    layer, lender = borrowing(SharedWordEmbedding)
    assert layer.word_embeddings is lender.word_embeddings
    assert layer.position_embeddings is not lender.position_embeddings
    assert layer.gamma is not lender.gamma
    assert len(layer.trainable_variables) == 5
    expected = reference.embed(reference.named_weights(layer.variables), IDS, SEGMENTS)
    np.testing.assert_allclose(layer(IDS, SEGMENTS), expected, atol=1e-5)
    plain = layer.standalone()
    assert plain.word_embeddings is not lender.word_embeddings
    np.testing.assert_allclose(plain(IDS, SEGMENTS), expected, atol=1e-5)
    assert lender.standalone() is lender


def test_too_long():
    layer, long = make(), tf.zeros([1, 6], tf.int32)
    with pytest.raises(ValueError, match=r"5 rows.*larger max_positions. Got 6 tokens"):
        layer(long, long)
    specs = [tf.TensorSpec([None, None], tf.int32)] * 2
    dynamic = tf.function(layer).get_concrete_function(*specs)
    assert dynamic(IDS, SEGMENTS).shape == (2, 4, 6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="larger max_positions"):
        dynamic(long, long)

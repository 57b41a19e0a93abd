import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import TextEmbedding
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.replicas import rows_before
from tests import tiny
from tests.layers.helpers import check_compiles, randomize
from tests.reference import encoder as reference
from tests.strategy import two_cpus

IDS = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]], np.int32)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
SEGMENTS = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], np.int32)
INPUTS = {"input_ids": IDS, "input_mask": MASK, "segment_ids": SEGMENTS}
SEED = tf.constant([1, 2])


def make(hidden_size=8, size=6, **kwargs):
    table = TextEmbedding(11, size, max_positions=9, dropout=0.1)
    kwargs = {"num_layers": 2, "num_heads": 2, "name": "discriminator", **kwargs}
    encoder = TextEncoder(table, hidden_size=hidden_size, **kwargs)
    randomize(encoder.trainable_variables)
    return encoder


@pytest.fixture(scope="module")
def encoder():
    return make()


def test_matches_definition(encoder):
    weights = [reference.named_weights(group) for group in encoder.variables_by_depth()]
    expected = reference.states(weights, INPUTS, MASK, num_heads=2)
    output = check_compiles(encoder, INPUTS)
    np.testing.assert_allclose(output, expected[-1], atol=2e-5)
    for found, state in zip(encoder.states(INPUTS), expected, strict=True):
        np.testing.assert_allclose(found, state, atol=2e-5)


@pytest.mark.parametrize(
    "names",
    ["input_ids attention_mask token_type_ids", "token_ids padding_mask segment_ids"],
    ids=["hugging_face", "keras_hub"],
)
def test_names_of_other_libraries(encoder, names):
    values = map(tf.constant, (IDS.astype(int), MASK == 1, SEGMENTS.astype(int)))
    inputs = dict(zip(names.split(), values, strict=True))
    expected = encoder(INPUTS)
    np.testing.assert_array_equal(encoder(inputs), expected)
    packed = encoder.encode_tokens(INPUTS)
    np.testing.assert_array_equal(encoder.encode_tokens(inputs), packed)
    symbolic = {n: keras.Input([None], dtype="int32", name=n) for n in inputs}
    model = keras.Model(symbolic, encoder(symbolic))
    np.testing.assert_allclose(model(inputs), expected, atol=1e-6)


def test_ids_alone(encoder):
    full = {"input_mask": np.ones_like(IDS), "segment_ids": np.zeros_like(IDS)}
    expected = encoder({"input_ids": IDS, **full})
    np.testing.assert_array_equal(encoder({"input_ids": IDS}), expected)
    np.testing.assert_array_equal(encoder(tf.constant(IDS)), expected)
    symbolic = keras.Input([None], dtype="int32")
    model = keras.Model(symbolic, encoder(symbolic))
    np.testing.assert_allclose(model(IDS), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"ids": IDS}, "input_ids is missing; the inputs are ids"),
        ({**INPUTS, "position_ids": IDS}, "cannot read position_ids"),
        ({**INPUTS, "attention_mask": MASK}, "attention_mask is another name"),
        ({"input_ids": IDS[0]}, r"of shape \[batch, length\], got \(5,\)"),
    ],
)
def test_inputs_that_cannot_be_read_are_named(encoder, inputs, message):
    with pytest.raises(ValueError, match=message):
        encoder(inputs)


def test_variables_by_depth_holds_each_variable_once():
    encoder = make()
    groups = encoder.variables_by_depth()
    assert [len(group) for group in groups] == [7, 12, 12]
    assert all("layer_1/" in variable.path for variable in groups[2])
    # Equal widths need no projection.
    assert len(make(hidden_size=8, size=8).variables_by_depth()[0]) == 5
    flat = [id(variable) for group in groups for variable in group]
    assert sorted(flat) == sorted(map(id, encoder.trainable_variables))
    encoder.embeddings.trainable = False
    assert [len(group) for group in encoder.variables_by_depth()] == [2, 12, 12]
    encoder.trainable = False
    assert encoder.variables_by_depth() == [[], [], []]


def test_frozen_blocks_stay_frozen(tmp_path):
    encoder = make()
    encoder.transformer.blocks[0].trainable = False
    copy = tiny.reloaded(encoder, tmp_path)
    assert [block.trainable for block in copy.transformer.blocks] == [False, True]
    copy.enable_lora(2)
    copy.transformer.blocks[1].trainable = False
    again = TextEncoder.from_config(copy.get_config())
    assert [block.trainable for block in again.transformer.blocks] == [True, False]
    again.trainable = False
    assert "frozen_blocks" not in again.get_config()
    again.transformer.blocks[1].trainable = True
    again = TextEncoder.from_config(again.get_config())
    assert [block.trainable for block in again.transformer.blocks] == [False, True]
    encoder.trainable = False
    encoder.transformer.blocks[1].trainable = True
    copy = tiny.reloaded(encoder, tmp_path)
    for each in (encoder, copy):
        trained = [v.path for v in each.variables if v.trainable]
        assert len(trained) == 12
        assert all("/layer_1/" in path for path in trained)
    encoder = make()
    encoder.trainable = False
    encoder.embeddings.trainable = True
    copy = TextEncoder.from_config(encoder.get_config())
    for each in (encoder, copy):
        assert sum(v.trainable for v in each.variables) == 5
    assert not any(v.trainable for v in make(trainable=False).variables)


def test_projection_is_glorot_uniform():
    """Unlike other kernels, not truncated normal (pitfall 23 of docs/fidelity.md)."""
    encoder = tiny.encoder(TextEmbedding(11, 64), hidden_size=192, num_layers=1)
    kernel = encoder.projection[0].numpy()
    bound = np.sqrt(6 / (64 + 192))
    assert 0.99 * bound < np.abs(kernel).max() <= bound


def test_masks_follow_the_seed():
    encoder = make()
    first = encoder(INPUTS, training=True, seed=SEED)
    np.testing.assert_array_equal(first, encoder(INPUTS, training=True, seed=SEED))
    other = encoder(INPUTS, training=True, seed=SEED + 1)
    assert np.abs(first - other).max() > 0.1
    # Without a seed, every call draws new masks; a copy draws the same ones.
    step = tf.function(lambda: encoder(INPUTS, training=True))
    expected, again = step(), make()
    assert np.abs(step() - expected).max() > 0.1
    np.testing.assert_allclose(again(INPUTS, training=True), expected, atol=1e-5)


def count_products(nodes, library):
    """Number of matrix products in the nodes and in the functions that they call."""
    bodies = {f.signature.name: f.node_def for f in library.function}
    called = [bodies[node.attr["f"].func.name] for node in nodes if "f" in node.attr]
    here = sum(node.op == "MatMul" for node in nodes)
    return here + sum(count_products(body, library) for body in called)


def test_remat_runs_blocks_again_and_changes_no_bit():
    plain, again = (make(remat=remat) for remat in (False, True))
    again.set_weights(plain.get_weights())
    again.embeddings.set_weights(plain.embeddings.get_weights())

    def gradients(encoder):
        @tf.function
        def run():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(encoder(INPUTS, training=True, seed=SEED) ** 3)
            variables = [v.value for v in encoder.trainable_variables]
            return [loss, *tape.gradient(loss, variables)]

        graph = run.get_concrete_function().graph.as_graph_def()
        values = [tf.convert_to_tensor(value) for value in run()]
        return count_products(graph.node, graph.library), values

    kept, expected = gradients(plain)
    repeated, actual = gradients(again)
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(one, other)
    # Each block's four forward weight products run once more.
    assert repeated == kept + 2 * 4


def test_replicas_draw_different_masks():
    strategy = two_cpus()
    with strategy.scope():
        encoder = make(num_layers=1)
    run = tf.function(lambda: strategy.run(lambda: encoder(INPUTS, training=True)))
    first, second = strategy.experimental_local_results(run())
    assert np.abs(first - second).max() > 0.1


def test_rows_are_numbered_over_replicas_of_unequal_sizes():
    """The sizes are unknown to the graph, as of a last batch: 3 rows, then 2."""
    strategy = two_cpus()

    def replica_fn():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        rows = tf.zeros([3 - number])
        return rows_before(tf.compat.v1.placeholder_with_default(rows, [None]))

    found = tf.function(lambda: strategy.run(replica_fn))()
    assert [int(x) for x in strategy.experimental_local_results(found)] == [0, 3]


def test_export_serves_every_shape(encoder, tmp_path):
    encoder.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    for columns in (5, 3):
        inputs = {k: tf.constant(v[:, :columns]) for k, v in INPUTS.items()}
        np.testing.assert_allclose(served.serve(inputs), encoder(inputs), atol=1e-6)
    graph = str(served.signatures["serving_default"].graph.as_graph_def())
    assert "Random" not in graph
    assert "_XlaMustCompile" not in graph

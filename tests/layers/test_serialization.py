import json

import keras
import numpy as np
import tensorflow as tf

from electra_tf.layers import TextEmbedding
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.serialization import Serializable
from tests import tiny


class Lazy(Serializable, keras.layers.Layer):
    built_with = None

    def build(self, shape):
        self.built_with = shape


def test_clones_and_files_of_functional_models(tmp_path):
    """Clones share no variable with the original; files keep ties between layers."""
    table = TextEmbedding(11, 6, dropout=0.0)
    sizes = {"num_layers": 1, "hidden_size": 8, "num_heads": 2}
    encoders = [TextEncoder(table, **sizes, name=name) for name in ("first", "second")]
    ids = keras.Input([None], dtype="int32", name="input_ids")
    vectors = [encoder({"input_ids": ids})[:, 0] for encoder in encoders]
    joined = keras.layers.Concatenate()([*vectors, vectors[0]])
    model = keras.Model({"input_ids": ids}, keras.layers.Dense(1)(joined))
    inputs = {"input_ids": np.array([[1, 2, 3]], np.int32)}
    expected = model(inputs)
    for copy in (
        keras.models.clone_model(model),
        type(model).from_config(model.get_config()),
    ):
        assert not {id(v) for v in copy.variables} & {id(v) for v in model.variables}
        for variable in copy.trainable_variables:
            variable.assign_add(tf.ones_like(variable))
        assert np.abs(copy(inputs) - expected).max() > 0.1
    np.testing.assert_array_equal(model(inputs), expected)
    loaded = tiny.reloaded(model, tmp_path)
    first, second = loaded.get_layer("first"), loaded.get_layer("second")
    assert first.embeddings is second.embeddings
    np.testing.assert_array_equal(loaded(inputs), expected)


def test_clones_of_pretraining_models_keep_their_ties():
    model = tiny.electra(tied=True, num_layers=1)
    copy = keras.models.clone_model(model)
    table = copy.generator.encoder.embeddings
    assert table is copy.discriminator.embeddings
    assert table is not model.discriminator.embeddings
    assert len(copy.variables) == len(model.variables)
    # Equal objects have equal configs, which contain no memory addresses.
    one, other = (json.dumps(each.get_config()) for each in (model, copy))
    assert one == other


def test_variables_of_the_constructor_are_not_created_again():
    layer = Lazy()
    layer.build_from_config({"input_shape": (1, 2)})
    assert layer.built_with == (1, 2)
    layer.build_from_config({"input_shape": (3, 4)})
    assert layer.built_with == (1, 2)

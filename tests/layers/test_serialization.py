"""Keras configs and clones; test_surface has an object of each class."""

import json

import keras
import numpy as np
import pytest

from electra_tf.layers import TextEmbedding
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.serialization import Serializable
from tests import tiny


@keras.saving.register_keras_serializable(package="electra_tf_tests")
class Part(Serializable):
    def __init__(self, number):
        self.number = number


@keras.saving.register_keras_serializable(package="electra_tf_tests")
class Base(Serializable, keras.layers.Layer):
    def __init__(self, part, *, sizes=(1,), **kwargs):
        super().__init__(**kwargs)
        self.part = part
        self.sizes = tuple(sizes)


@keras.saving.register_keras_serializable(package="electra_tf_tests")
class Derived(Base):
    def __init__(self, part, extra, **kwargs):
        super().__init__(part, **kwargs)
        self.extra = extra


@keras.saving.register_keras_serializable(package="electra_tf_tests")
class Fixed(Base):
    """Passes no arguments on, so the arguments of its base are not its own."""

    def __init__(self, extra):
        super().__init__(Part(extra), name="fixed")
        self.extra = extra


class Lazy(Serializable, keras.layers.Layer):
    built_with = None

    def build(self, shape):
        self.built_with = shape


def own(config):
    return {k: v for k, v in config.items() if k not in ("name", "trainable", "dtype")}


def test_arguments_of_all_constructors_are_in_the_config():
    part = Part(3)
    config = own(Derived(part, 5, sizes=(2, 4)).get_config())
    assert config.pop("part")["config"] == {"number": 3}
    assert config == {"sizes": [2, 4], "extra": 5}
    assert own(Fixed(5).get_config()) == {"extra": 5}
    assert part.get_config() == {"number": 3}


def test_clones_have_parts_of_their_own():
    layer = Derived(Part(3), 5, sizes=(2, 4))
    serialized = keras.saving.serialize_keras_object(layer)
    for copy in (
        Derived.from_config(layer.get_config()),
        keras.saving.deserialize_keras_object(serialized),
    ):
        assert copy.part is not layer.part
        assert (copy.part.number, copy.sizes, copy.extra) == (3, (2, 4), 5)
    # Parts may also be given as objects.
    part = Part(4)
    assert Derived.from_config({**layer.get_config(), "part": part}).part is part


@keras.saving.register_keras_serializable(package="electra_tf_tests")
class Both(Serializable):
    def __init__(self, first, second):
        self.first, self.second = first, second


def test_ties_are_kept_inside_of_one_object():
    part = Part(3)
    inner = Both(part, Part(4))
    config = json.loads(json.dumps(Both(inner, part).get_config()))
    copy = Both.from_config(config)
    assert copy.first.first is copy.second
    assert copy.first.second is not copy.second
    assert copy.second is not part
    # Equal objects have equal configs, which contain no memory addresses.
    other = Part(3)
    assert Both(Both(other, Part(4)), other).get_config() == config


INPUTS = {"input_ids": np.array([[1, 2, 3]], np.int32)}


def functional():
    """A functional model of the [CLS] vectors of two encoders with one table."""
    table = TextEmbedding(11, 6, dropout=0.0)
    sizes = {"num_layers": 1, "hidden_size": 8, "num_heads": 2}
    encoders = [TextEncoder(table, **sizes, name=name) for name in ("first", "second")]
    ids = keras.Input([None], dtype="int32", name="input_ids")
    vectors = [encoder({"input_ids": ids})[:, 0] for encoder in encoders]
    joined = keras.layers.Concatenate()([*vectors, vectors[0]])
    return keras.Model({"input_ids": ids}, keras.layers.Dense(1)(joined))


@pytest.mark.slow
def test_training_the_clone_of_a_functional_model_leaves_the_original_alone():
    model = functional()
    before, values = model.predict(INPUTS, verbose=0), model.get_weights()
    for copy in (
        keras.models.clone_model(model),
        type(model).from_config(model.get_config()),
    ):
        assert not {id(v) for v in copy.variables} & {id(v) for v in model.variables}
        copy.compile("sgd", "mse")
        copy.fit(INPUTS, np.array([[9.0]]), epochs=2, verbose=0)
        assert np.abs(copy.predict(INPUTS, verbose=0) - before).max() > 0.1
    np.testing.assert_array_equal(model.predict(INPUTS, verbose=0), before)
    np.testing.assert_equal(model.get_weights(), values)


def test_files_of_functional_models_keep_ties_between_layers(tmp_path):
    model = functional()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    first, second = loaded.get_layer("first"), loaded.get_layer("second")
    assert first.embeddings is second.embeddings
    np.testing.assert_array_equal(model(INPUTS), loaded(INPUTS))


def test_clones_of_pretraining_models_keep_their_ties():
    model = tiny.electra(tied=True)
    copy = keras.models.clone_model(model)
    table = copy.generator.encoder.embeddings
    assert table is copy.discriminator.embeddings
    assert table is not model.discriminator.embeddings
    assert len(copy.variables) == len(model.variables)


def test_variables_of_the_constructor_are_not_created_again():
    layer = Lazy()
    layer.build_from_config({"input_shape": (1, 2)})
    assert layer.built_with == (1, 2)
    layer.build_from_config({"input_shape": (3, 4)})
    assert layer.built_with == (1, 2)

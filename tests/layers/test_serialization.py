"""The mixin that says once how objects are saved; each class is in test_surface."""

import keras
import tensorflow as tf

from electra_tf.layers.serialization import Serializable


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
    """Hands on nothing, so that the arguments of its base are none of its own."""

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
    layer = Derived(part, 5, sizes=(2, 4))
    assert own(layer.get_config()) == {"part": part, "sizes": [2, 4], "extra": 5}
    assert own(Fixed(5).get_config()) == {"extra": 5}
    assert part.get_config() == {"number": 3}


def test_clones_keep_live_parts_and_files_bring_parts_back():
    layer = Derived(Part(3), 5, sizes=(2, 4))
    assert Derived.from_config(layer.get_config()).part is layer.part
    restored = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)
    )
    assert (restored.part.number, restored.sizes, restored.extra) == (3, (2, 4), 5)


def test_variables_of_the_constructor_are_not_created_again():
    layer = Lazy()
    layer.build_from_config({"input_shape": (1, 2)})
    assert layer.built_with == (1, 2)
    layer.build_from_config({"input_shape": (3, 4)})
    assert layer.built_with == (1, 2)


def test_a_schedule_of_keras_has_no_arguments_of_its_own():
    class Rate(Serializable, keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, rate):
            self.rate = rate

        def __call__(self, step):
            return tf.constant(self.rate)

    assert Rate(0.5).get_config() == {"rate": 0.5}
    assert Rate.from_config({"rate": 0.5}).rate == 0.5

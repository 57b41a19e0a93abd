import keras
import numpy as np
import tensorflow as tf

from electra_tf.layers.compilation import compiled, traced_for_all
from tests.strategy import two_cpus


def names(function, *arguments):
    """Names of the functions that a graph calls; its library has no other functions."""
    concrete = tf.function(function).get_concrete_function(*arguments)
    definition = concrete.graph.as_graph_def()
    called = [n.attr["f"].func.name for n in definition.node if "f" in n.attr]
    assert {f.signature.name for f in definition.library.function} == set(called)
    return called


def scaled():
    @compiled
    def scale(inputs, *, factor, terms=()):
        return inputs * factor, [inputs + term for term in terms]

    return scale


def test_names_follow_the_content_and_not_the_process():
    row = tf.ones([3])
    first = names(lambda x: scaled()(x, factor=2.0), row)
    for number in range(7):
        tf.constant(number)
    assert first == names(lambda x: scaled()(x, factor=2.0), row)
    others = [
        names(lambda x: scaled()(x, factor=3.0), row),
        names(lambda x: scaled()(x, factor=2.0), tf.ones([4])),
        names(lambda x: scaled()(x, factor=2.0, terms=(x,)), row),
        names(compiled(lambda x: x * 2.0 + 1.0), row),
    ]
    assert len({*first, *(name for called in others for name in called)}) == 5
    scale = scaled()
    twice = names(lambda x: scale(scale(x, factor=2.0)[0], factor=2.0), row)
    assert twice == first * 2


class Counted(keras.layers.Layer):
    """A matrix product with its own weights; counts the calls of its Python code."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, inputs, *, factor):
        self.calls += 1
        return tf.tanh(factor * tf.matmul(inputs, self.kernel.value))


# Calls a layer without a shared trace.
apart = Counted.__call__


def stack():
    layers = [Counted() for _ in range(3)]
    for number, layer in enumerate(layers):
        layer.build((None, 4))
        layer.kernel.assign(np.random.default_rng(number).normal(size=(4, 4)))
    return layers, tf.constant(np.random.default_rng(9).normal(size=(2, 4)), tf.float32)


def loss_and_gradients(call, layers, inputs):
    with tf.GradientTape() as tape:
        hidden = inputs
        for layer in layers:
            hidden = call(layer, hidden, factor=0.5)
        loss = tf.reduce_sum(hidden**2)
    return [loss, *tape.gradient(loss, [layer.kernel.value for layer in layers])]


def test_a_stack_is_traced_once_with_the_weights_of_every_layer():
    layers, inputs = stack()

    def train(call):
        return tf.function(lambda: loss_and_gradients(call, layers, inputs))()

    expected = train(apart)
    counts = [layer.calls for layer in layers]
    for one, other in zip(train(traced_for_all(layers[0])), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [layer.calls for layer in layers] == [counts[0] + 1, *counts[1:]]


def test_replicas_have_the_gradients_of_their_own_rows():
    """Compares a shared trace with separate ones, for every layer and replica."""
    strategy = two_cpus()
    with strategy.scope():
        layers, inputs = stack()

    def gradients(call):
        def of_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            moved = inputs + tf.cast(replica, tf.float32)
            return loss_and_gradients(call, layers, moved)[1:]

        values = tf.function(lambda: strategy.run(of_replica))()
        return [strategy.experimental_local_results(value) for value in values]

    expected = gradients(apart)
    np.testing.assert_array_equal(gradients(traced_for_all(layers[0])), expected)
    assert np.abs(expected[0][0] - expected[0][1]).max() > 0

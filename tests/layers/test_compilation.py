import numpy as np
import tensorflow as tf

from electra_tf.layers.compilation import compiled


def names(function, *arguments):
    """What the graph of a function calls, and what it can be saved with."""
    graph = tf.function(function).get_concrete_function(*arguments).graph
    found = graph.as_graph_def()
    called = [node.attr["f"].func.name for node in found.node if "f" in node.attr]
    assert {f.signature.name for f in found.library.function} == set(called)
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
    assert len({*first, *(name for found in others for name in found)}) == 5


def test_a_signature_is_one_function():
    scale = scaled()
    called = names(lambda x: scale(scale(x, factor=2.0)[0], factor=2.0), tf.ones([3]))
    assert len(called) == 2
    assert len(set(called)) == 1


def test_structures_shapes_and_values_are_those_of_the_function():
    scale = scaled()

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def call(x):
        product, sums = scale(x, factor=3.0, terms=(x, 1.0))
        assert product.shape.as_list() == [None, 2]
        return product, sums

    row = np.array([[1.0, 2.0]], np.float32)
    eager = scale(tf.constant(row), factor=3.0, terms=(row, 1.0))
    for product, sums in (call(row), eager):
        np.testing.assert_array_equal(product, 3 * row)
        np.testing.assert_array_equal(sums[0], 2 * row)
        np.testing.assert_array_equal(sums[1], row + 1)

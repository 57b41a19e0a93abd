"""Chunked cross-entropy against the plain one and against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers.chunked import chunked_cross_entropy

N, V, E = 11, 7, 5
WEIGHTS = tf.constant(np.random.default_rng(9).normal(size=N), tf.float32)


def tensors(seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((N, E), (V, E), (V,))
    rows, table, bias = (tf.constant(rng.normal(size=s), tf.float32) for s in shapes)
    return rows, table, bias, tf.constant(rng.integers(0, V, N), tf.int32)


def value_and_gradients(function, rows, table, bias, ids):
    with tf.GradientTape() as tape:
        tape.watch((rows, table, bias))
        values = function(rows, table, bias, ids)
        loss = tf.reduce_sum(values * WEIGHTS)
    return [values, *tape.gradient(loss, (rows, table, bias))]


def plain(rows, table, bias, ids):
    logits = tf.matmul(rows, table, transpose_b=True) + bias
    return tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
@pytest.mark.parametrize("chunk_rows", [1, 4, 11, 64])
def test_equals_plain_with_its_gradients(chunk_rows, mode):
    def chunked(*arguments):
        return chunked_cross_entropy(*arguments, chunk_rows=chunk_rows)[0]

    def run(*arguments):
        return value_and_gradients(chunked, *arguments)

    if mode != "eager":
        run = tf.function(run, jit_compile=mode == "jit")
    expected = value_and_gradients(plain, *tensors())
    for ours, theirs in zip(run(*tensors()), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_values_and_best_ids_against_numpy():
    rows, table, bias, ids = (x.numpy() for x in tensors(seed=4))
    values, is_best = chunked_cross_entropy(*tensors(seed=4), chunk_rows=3)
    for index in range(N):
        logits = [float(table[word] @ rows[index] + bias[word]) for word in range(V)]
        expected = np.log(np.sum(np.exp(logits))) - logits[ids[index]]
        assert float(values[index]) == pytest.approx(expected, rel=1e-5)
        assert bool(is_best[index]) == (np.argmax(logits) == ids[index])


def test_dynamic_number_of_positions():
    spec = tf.TensorSpec([None, E], tf.float32)
    _, table, bias, _ = tensors()

    @tf.function(input_signature=[spec, tf.TensorSpec([None], tf.int32)])
    def run(rows, ids):
        return chunked_cross_entropy(rows, table, bias, ids, chunk_rows=4)[0]

    rows, _, _, ids = tensors()
    for size in (1, 8, 11):
        expected = plain(rows[:size], table, bias, ids[:size])
        np.testing.assert_allclose(run(rows[:size], ids[:size]), expected, atol=2e-6)


def graphs(graph):
    """The graph and those of all functions and loop bodies in it."""
    yield graph
    for function in graph._functions.values():
        yield from graphs(getattr(function, "graph", function))


def largest_tensor(function, *arguments):
    return max(
        tensor.shape.num_elements() or 0
        for graph in graphs(
            tf.function(function).get_concrete_function(*arguments).graph
        )
        for operation in graph.get_operations()
        for tensor in operation.outputs
        if tensor.shape.rank is not None
    )


def test_all_logits_never_exist_at_once():
    """No tensor of the graph, forward or backward, holds N * V numbers."""
    n, v, chunk = 4096, 512, 64
    arguments = (
        tf.zeros([n, 8]),
        tf.zeros([v, 8]),
        tf.zeros([v]),
        tf.zeros([n], tf.int32),
    )

    def gradients(function, rows, table, bias, ids):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            values = function(rows, table, bias, ids)
        return tape.gradient(values, rows)

    def chunked(*tensors):
        return chunked_cross_entropy(*tensors, chunk_rows=chunk)[0]

    assert largest_tensor(lambda *x: gradients(plain, *x), *arguments) == n * v
    assert largest_tensor(lambda *x: gradients(chunked, *x), *arguments) == chunk * v

"""The chunked log-normalizer and cross-entropy against plain TensorFlow and NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import chunked

ROWS, VOCAB, SIZE = 23, 50, 6


@pytest.fixture
def chunk(monkeypatch):
    """Sets the number of rows per chunk; None keeps the default."""

    def rows_per_chunk(size):
        if size:
            monkeypatch.setattr(chunked, "CHUNK_LOGITS", size * VOCAB)

    return rows_per_chunk


def values(seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((ROWS, SIZE), (VOCAB, SIZE), (VOCAB,))
    return [tf.constant(rng.normal(size=s) * 2, tf.float32) for s in shapes]


def unchunked(rows, table, bias):
    logits = tf.matmul(rows, table, transpose_b=True) + bias
    return tf.reduce_logsumexp(logits, axis=-1)


def with_gradients(function, tensors):
    slope = tf.constant(np.random.default_rng(1).normal(size=ROWS), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = function(*tensors)
    return result, *tape.gradient(result, tensors, slope)


@pytest.mark.parametrize("jit_compile", [None, False, True])
@pytest.mark.parametrize("chunk_size", [1, 4, ROWS, 1000, None])
def test_result_and_gradients_equal_the_unchunked_ones(chunk, chunk_size, jit_compile):
    chunk(chunk_size)

    def function(*tensors):
        return with_gradients(lambda *t: chunked.log_normalizer(*t)[0], tensors)

    if jit_compile is not None:
        function = tf.function(function, jit_compile=jit_compile)
    for got, expected in zip(
        function(*values()), with_gradients(unchunked, values()), strict=True
    ):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_result_and_gradients_equal_numpy(chunk):
    chunk(5)
    tensors = values()
    rows, table, bias = (t.numpy().astype(np.float64) for t in tensors)
    slope = np.random.default_rng(1).normal(size=ROWS)
    logits = rows @ table.T + bias
    exponents = np.exp(logits)
    slopes = exponents / exponents.sum(1, keepdims=True) * slope[:, None]
    expected = (
        np.log(exponents.sum(1)),
        slopes @ table,
        slopes.T @ rows,
        slopes.sum(0),
    )
    actual = with_gradients(lambda *t: chunked.log_normalizer(*t)[0], tensors)
    for got, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    best = chunked.log_normalizer(*tensors)[1]
    np.testing.assert_array_equal(best, logits.argmax(1))


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 4, ROWS, None])
def test_cross_entropy_equals_the_plain_one_with_its_gradients(
    chunk, chunk_size, jit_compile
):
    chunk(chunk_size)
    ids = tf.constant(np.random.default_rng(2).integers(0, VOCAB, ROWS), tf.int32)

    def plain(rows, table, bias):
        logits = tf.matmul(rows, table, transpose_b=True) + bias
        return tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)

    @tf.function(jit_compile=jit_compile)
    def run(*tensors):
        return with_gradients(lambda *t: chunked.cross_entropy(*t, ids)[0], tensors)

    expected = with_gradients(plain, values())
    for got, wanted in zip(run(*values()), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_which_ids_are_the_best(chunk):
    chunk(5)
    rows, table, bias = values()
    best = (rows.numpy() @ table.numpy().T + bias.numpy()).argmax(1)
    ids = np.where(np.arange(ROWS) % 2, best, (best + 1) % VOCAB)
    _, is_best = chunked.cross_entropy(rows, table, bias, tf.constant(ids, tf.int32))
    np.testing.assert_array_equal(is_best, np.arange(ROWS) % 2 == 1)


def test_rows_of_unknown_number(chunk):
    chunk(4)
    function = tf.function(chunked.log_normalizer)
    rows, table, bias = values()
    concrete = function.get_concrete_function(
        tf.TensorSpec([None, SIZE]), tf.TensorSpec(table.shape), tf.TensorSpec([VOCAB])
    )
    np.testing.assert_allclose(
        concrete(rows, table, bias)[0], unchunked(rows, table, bias), rtol=1e-5
    )


def largest_tensor(graph):
    """Number of elements of the largest tensor of a graph and its functions."""
    sizes = [
        output.shape.num_elements() or 0
        for each in (graph, *(f.graph for f in functions_of(graph)))
        for operation in each.get_operations()
        for output in operation.outputs
        if output.shape.rank is not None
    ]
    return max(sizes)


def functions_of(graph):
    """Bodies of loops and other functions inside a graph."""
    for function in graph._functions.values():
        if hasattr(function, "graph"):
            yield function
            yield from functions_of(function.graph)


def test_no_tensor_holds_all_logits(chunk):
    """Forward and backward: the largest tensor is one chunk of logits."""
    chunk(8)
    rows, table, bias = values()

    def sizes_of(function):
        traced = tf.function(lambda *t: with_gradients(function, t))
        return largest_tensor(traced.get_concrete_function(rows, table, bias).graph)

    assert sizes_of(unchunked) == ROWS * VOCAB, "this measure sees all logits"
    largest = sizes_of(lambda *t: chunked.log_normalizer(*t)[0])
    assert 8 * VOCAB <= largest < ROWS * VOCAB / 2

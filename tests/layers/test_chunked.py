import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import chunked

ROWS, VOCAB, SIZE = 23, 50, 6


def values():
    rng = np.random.default_rng(0)
    shapes = ((ROWS, SIZE), (VOCAB, SIZE), (VOCAB,))
    return [tf.constant(rng.normal(size=s) * 2, tf.float32) for s in shapes]


def with_gradients(function, tensors):
    slope = tf.constant(np.random.default_rng(1).normal(size=ROWS), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = function(*tensors)
    return result, *tape.gradient(result, tensors, slope)


def expected_results(ids=None):
    """Log-normalizer, or cross-entropy of ids, with its gradients, in float64."""
    rows, table, bias = (t.numpy().astype(np.float64) for t in values())
    logits = rows @ table.T + bias
    exponents = np.exp(logits)
    result = np.log(exponents.sum(1))
    slopes = exponents / exponents.sum(1, keepdims=True)
    if ids is not None:
        result -= logits[np.arange(ROWS), ids]
        slopes -= np.eye(VOCAB)[ids]
    slopes *= np.random.default_rng(1).normal(size=ROWS)[:, None]
    return result, slopes @ table, slopes.T @ rows, slopes.sum(0)


@pytest.mark.parametrize(
    ("chunk_size", "jit_compile"), [(1, False), (4, False), (4, True), (ROWS, False)]
)
def test_results_and_gradients_equal_numpy(monkeypatch, chunk_size, jit_compile):
    """Half of the ids are the most probable ones."""
    monkeypatch.setattr(chunked, "CHUNK_LOGITS", chunk_size * VOCAB)
    rows, table, bias = (t.numpy() for t in values())
    best = (rows @ table.T + bias).argmax(1)
    ids = np.where(np.arange(ROWS) % 2, best, (best + 1) % VOCAB).astype(np.int32)

    @tf.function(jit_compile=jit_compile)
    def run(*tensors):
        return (
            with_gradients(lambda *t: chunked.log_normalizer(*t)[0], tensors),
            with_gradients(lambda *t: chunked.cross_entropy(*t, ids)[0], tensors),
            chunked.log_normalizer(*tensors)[1],
            chunked.cross_entropy(*tensors, ids)[1],
        )

    normalizers, entropies, found, is_best = run(*values())
    for actual, wanted in ((normalizers, None), (entropies, ids)):
        for one, expected in zip(actual, expected_results(wanted), strict=True):
            assert one.shape == expected.shape
            np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found, best)
    np.testing.assert_array_equal(is_best, np.arange(ROWS) % 2 == 1)


def test_rows_of_unknown_number(monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK_LOGITS", 4 * VOCAB)
    rows, table, bias = values()
    concrete = tf.function(chunked.log_normalizer).get_concrete_function(
        tf.TensorSpec([None, SIZE]), tf.TensorSpec(table.shape), tf.TensorSpec([VOCAB])
    )
    found = concrete(rows, table, bias)[0]
    np.testing.assert_allclose(found, expected_results()[0], rtol=1e-5)
    for run in (concrete, chunked.log_normalizer):
        assert [x.shape for x in run(rows[:0], table, bias)] == [[0], [0]]


def functions_of(graph):
    yield graph
    for function in graph._functions.values():
        if hasattr(function, "graph"):
            yield from functions_of(function.graph)


def test_no_tensor_holds_all_logits(monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK_LOGITS", 8 * VOCAB)

    @tf.function
    def run(*tensors):
        return with_gradients(lambda *t: chunked.log_normalizer(*t)[0], tensors)

    sizes = [
        output.shape.num_elements() or 0
        for graph in functions_of(run.get_concrete_function(*values()).graph)
        for operation in graph.get_operations()
        for output in operation.outputs
        if output.shape.rank is not None
    ]
    assert 8 * VOCAB <= max(sizes) < ROWS * VOCAB / 2

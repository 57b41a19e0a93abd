"""Cross-entropy over a large vocabulary at many positions, in little memory.

Logits of all positions would be [N, V] several times over: 2 GB a copy at 128 rows of
128 tokens and 30,522 words. Here they exist for one chunk of positions at a time, in
the backward pass once more.

Letters: N positions, V vocabulary, E embedding size.
"""

import tensorflow as tf

from electra_tf import losses
from electra_tf.layers.randomness import known_shape

# 1,024 rows of 30,522 float32 logits are 125 MB.
CHUNK_ROWS = 1024


def chunked_cross_entropy(rows, table, bias, ids, *, chunk_rows=CHUNK_ROWS):
    """Negative log-likelihood of each id under softmax(rows @ table^T + bias).

    Args:
        rows: float32 [N, E].
        table: float32 [V, E].
        bias: float32 [V].
        ids: int32 [N], each in [0, V).
        chunk_rows: Positions whose logits exist at the same time.

    Returns:
        The values, float32 [N], in nats, and whether each id is the most probable one,
        bool [N]. Gradients reach `rows`, `table` and `bias` through the values.
    """
    size = known_shape(rows)[0]
    if isinstance(size, int):
        chunk_rows = max(1, min(chunk_rows, size))
    ids = _in_chunks(ids, chunk_rows)

    @tf.custom_gradient
    def run(rows, table, bias):
        chunks = _in_chunks(rows, chunk_rows)
        values, is_best = tf.map_fn(
            lambda chunk: _chunk(chunk[0], table, bias, chunk[1]),
            (chunks, ids),
            fn_output_signature=(
                tf.TensorSpec([chunk_rows], tf.float32),
                tf.TensorSpec([chunk_rows], tf.float32),
            ),
            parallel_iterations=1,
        )

        def gradient(values_upstream, is_best_upstream):
            del is_best_upstream
            upstream = _in_chunks(values_upstream, chunk_rows)
            return _gradients(chunks, table, bias, ids, upstream, size)

        outputs = [tf.reshape(x, [-1])[:size] for x in (values, is_best)]
        return outputs, gradient

    values, is_best = run(*map(tf.convert_to_tensor, (rows, table, bias)))
    return values, tf.stop_gradient(is_best) > 0


def _in_chunks(tensor, chunk_rows):
    """[N, ...] to [chunks, chunk_rows, ...], filled up with zeros."""
    size, *rest = known_shape(tensor)
    filled = tf.pad(tensor, [[0, -size % chunk_rows], *([[0, 0]] * len(rest))])
    return tf.reshape(filled, [-1, chunk_rows, *rest])


def _chunk(rows, table, bias, ids):
    logits = tf.matmul(rows, table, transpose_b=True) + bias
    best = tf.argmax(logits, axis=-1, output_type=ids.dtype)
    is_best = tf.cast(best == ids, tf.float32)
    return losses.token_cross_entropy(logits, ids), is_best


def _gradients(chunks, table, bias, ids, upstream, size):
    """Gradients of rows, table and bias; the logits are computed once more."""
    count, chunk_rows, width = known_shape(chunks)

    def add_chunk(index, slopes, *sums):
        inputs = (chunks[index], table, bias)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            values, _ = _chunk(*inputs, ids[index])
        found = tape.gradient(values, inputs, upstream[index])
        slopes = slopes.write(index, found[0])
        return index + 1, slopes, *(a + b for a, b in zip(sums, found[1:], strict=True))

    slopes = tf.TensorArray(tf.float32, size=count, element_shape=[chunk_rows, width])
    state = (tf.constant(0), slopes, tf.zeros_like(table), tf.zeros_like(bias))
    _, slopes, *sums = tf.while_loop(
        lambda index, *_: index < count,
        add_chunk,
        state,
        maximum_iterations=count,
        parallel_iterations=1,
    )
    return tf.reshape(slopes.stack(), [-1, width])[:size], *sums

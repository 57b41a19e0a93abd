"""Softmax over a vocabulary at many positions, in little memory.

What predicts every token of a batch needs it at all of them: at 128 x 128 tokens and
30,522 words the logits would be 2 GB, their gradient as much again. Here the logits of
some rows exist at a time, and the backward pass computes them once more.

Letters: R rows, C rows of a chunk, V vocabulary, E embedding size.
"""

import tensorflow as tf

from electra_tf.layers.randomness import known_shape

# Logits that exist at once: 64 MiB of float32.
CHUNK_LOGITS = 1 << 24


def cross_entropy(rows, table, bias, ids, *, chunk_size=None):
    """Negative log-likelihood of one id per row under softmax(rows @ table^T + bias).

    Args:
        rows: Float tensor [R, E].
        table: Float tensor [V, E].
        bias: Float tensor [V].
        ids: int32 [R].
        chunk_size: As of `log_normalizer`.

    Returns:
        float32 [R], in nats, with gradients to `rows`, `table` and `bias`, and bool
        [R], whether the id is the most probable one.
    """
    normalizer, best = log_normalizer(rows, table, bias, chunk_size=chunk_size)
    return normalizer - token_logits(rows, table, bias, ids), best == ids


def token_logits(rows, table, bias, ids):
    """Logits of one id per row, float32 [R]; arguments as of `cross_entropy`."""
    tensors = (rows, tf.gather(table, ids), tf.gather(bias, ids))
    rows, vectors, biases = (tf.cast(tensor, tf.float32) for tensor in tensors)
    return tf.reduce_sum(rows * vectors, axis=-1) + biases


def log_normalizer(rows, table, bias, *, chunk_size=None):
    """Log of the sum of exp of all logits `rows @ table^T + bias`.

    Args:
        rows: Float tensor [R, E].
        table: Float tensor [V, E].
        bias: Float tensor [V].
        chunk_size: Rows at a time at most; by default as many as have 2**24 logits.

    Returns:
        float32 [R], with gradients to `rows`, `table` and `bias`, and int32 [R], the id
        of the largest logit.
    """
    limit = chunk_size or max(1, CHUNK_LOGITS // table.shape[0])
    count = known_shape(rows)[0]
    # As even as possible: what fills up the last chunk is computed for nothing.
    number = -(-count // limit)
    size = -(-count // number)

    @tf.custom_gradient
    def run(rows, table, bias):
        normalizers, best = _forward(_cut(rows, size), table, bias)

        def gradient(upstream, _):
            row_slopes, table_slope, bias_slope = _backward(
                _cut(rows, size), normalizers, _cut(upstream, size), table, bias
            )
            return _join(row_slopes, count), table_slope, bias_slope

        return (_join(normalizers, count), _join(best, count)), gradient

    tensors = map(tf.convert_to_tensor, (rows, table, bias))
    return run(*(tf.cast(tensor, tf.float32) for tensor in tensors))


def _cut(values, size):
    """[R, ...] to [number of chunks, C, ...], zeros at the end."""
    missing = -known_shape(values)[0] % size
    padding = [[0, missing], *([0, 0] for _ in values.shape[1:])]
    return tf.reshape(tf.pad(values, padding), [-1, size, *values.shape[1:]])


def _join(chunks, count):
    """Undoes `_cut`."""
    return tf.reshape(chunks, [-1, *chunks.shape[2:]])[:count]


def _logits(rows, table, bias):
    return tf.matmul(rows, table, transpose_b=True) + bias


def _forward(chunks, table, bias):
    def one(rows):
        logits = _logits(rows, table, bias)
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return tf.reduce_logsumexp(logits, axis=-1), best

    return tf.map_fn(
        one, chunks, fn_output_signature=(tf.float32, tf.int32), parallel_iterations=1
    )


def _backward(chunks, normalizers, slopes, table, bias):
    """Gradients of the rows (in chunks), the table and the bias.

    The slope of a row's normalizer along a logit is the probability of that word.
    """
    number = known_shape(chunks)[0]

    def one(index, row_slopes, table_slope, bias_slope):
        rows = chunks[index]
        normalizer = normalizers[index][:, tf.newaxis]
        probabilities = tf.exp(_logits(rows, table, bias) - normalizer)
        logit_slopes = probabilities * slopes[index][:, tf.newaxis]
        return (
            index + 1,
            row_slopes.write(index, tf.matmul(logit_slopes, table)),
            table_slope + tf.matmul(logit_slopes, rows, transpose_a=True),
            bias_slope + tf.reduce_sum(logit_slopes, axis=0),
        )

    empty = tf.TensorArray(tf.float32, size=number, element_shape=chunks.shape[1:])
    _, row_slopes, table_slope, bias_slope = tf.while_loop(
        lambda index, *_: index < number,
        one,
        (tf.constant(0), empty, tf.zeros_like(table), tf.zeros_like(bias)),
        parallel_iterations=1,
    )
    return row_slopes.stack(), table_slope, bias_slope

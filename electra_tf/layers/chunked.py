"""Softmax over a vocabulary at many positions, computed in chunks.

Only one chunk of rows has logits at a time: 128 x 128 tokens and 30,522 words would
take 2 GB, twice with the gradient. The backward pass recomputes the logits.

Letters: R rows, C rows of a chunk, V vocabulary, E embedding size.
"""

from collections.abc import Callable

import tensorflow as tf

from electra_tf.layers.randomness import known_shape

# Maximum number of logits in memory: 64 MiB of float32, 549 rows of 30,522 words.
CHUNK_LOGITS = 1 << 24


def cross_entropy(
    rows: tf.Tensor, table: tf.Tensor, bias: tf.Tensor, ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Negative log-likelihood of one id per row under softmax(rows @ table^T + bias).

    ``ids`` are int32 [R]; other arguments as in ``log_normalizer``. Returns float32 [R]
    in nats, with gradients to ``rows``, ``table``, ``bias``, and bool [R], if correct.
    """
    normalizer, best = log_normalizer(rows, table, bias)
    return normalizer - token_logits(rows, table, bias, ids), best == ids


def token_logits(
    rows: tf.Tensor, table: tf.Tensor, bias: tf.Tensor, ids: tf.Tensor
) -> tf.Tensor:
    """Returns the logit of one id per row, float32 [R]; see ``cross_entropy``."""
    tensors = (rows, tf.gather(table, ids), tf.gather(bias, ids))
    rows, vectors, biases = (tf.cast(tensor, tf.float32) for tensor in tensors)
    return tf.reduce_sum(rows * vectors, axis=-1) + biases


def log_normalizer(
    rows: tf.Tensor, table: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes logsumexp of the logits ``rows @ table^T + bias`` of each row.

    Rows are float [R, E], the table [V, E], the bias [V]. Returns float32 [R], with
    gradients to ``rows``, ``table`` and ``bias``, and the argmax, int32 [R].
    """
    # Custom gradients cannot capture variables.
    tensors = map(tf.convert_to_tensor, (rows, table, bias))
    rows, table, bias = (tf.cast(tensor, tf.float32) for tensor in tensors)
    limit = max(1, CHUNK_LOGITS // table.shape[0])
    count = known_shape(rows)[0]
    # A replica may get no row of a last batch, but a loop needs a chunk.
    least = max(1, count) if isinstance(count, int) else tf.maximum(1, count)
    # Even chunks minimize the padding of the last one.
    number = -(-least // limit)
    size = -(-least // number)
    padded = tf.pad(rows, [[0, number * size - count], [0, 0]])
    chunks = tf.reshape(padded, [number, size, rows.shape[1]])

    def one(chunk: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return _of_chunk(chunk, table, bias)

    # The loop's gradient adds up those of table and bias. By default the loop would
    # hold the logits of 10 chunks, in parallel.
    types = (tf.float32, tf.int32)
    normalizers, best = tf.map_fn(
        one, chunks, fn_output_signature=types, parallel_iterations=1
    )
    return tf.reshape(normalizers, [-1])[:count], tf.reshape(best, [-1])[:count]


@tf.custom_gradient
def _of_chunk(
    rows: tf.Tensor, table: tf.Tensor, bias: tf.Tensor
) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable]:
    """Computes ``log_normalizer`` of one chunk; the gradient computes logits again."""
    logits = tf.matmul(rows, table, transpose_b=True) + bias
    normalizers = tf.reduce_logsumexp(logits, axis=-1)

    def gradient(upstream: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor]:
        logits = tf.matmul(rows, table, transpose_b=True) + bias
        probabilities = tf.exp(logits - normalizers[:, tf.newaxis])
        slopes = probabilities * upstream[:, tf.newaxis]
        return [
            tf.matmul(slopes, table),
            tf.matmul(slopes, rows, transpose_a=True),
            tf.reduce_sum(slopes, axis=0),
        ]

    best = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return (normalizers, best), gradient

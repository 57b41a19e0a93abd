"""Softmax over a vocabulary at many positions, computed in chunks.

Only one chunk of rows has logits at a time: 128 x 128 tokens and 30,522 words would
take 2 GB, twice with the gradient. The backward pass recomputes the logits.

Letters: R rows, C rows of a chunk, V vocabulary, E embedding size.
"""

from collections.abc import Sequence

import tensorflow as tf

from electra_tf.layers.randomness import known_shape

# Maximum number of logits in memory: 64 MiB of float32, 549 rows of 30,522 words.
_CHUNK_LOGITS = 1 << 24


def cross_entropy(
    rows: tf.Tensor, table: tf.Tensor, bias: tf.Tensor, ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Negative log-likelihood of one id per row under softmax(rows @ table^T + bias).

    ``ids`` are int32 [R]; other arguments as in ``log_normalizer``. Returns float32 [R]
    in nats, with gradients to ``rows``, ``table`` and ``bias``, and bool [R], whether
    the id is the most probable one.
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
    limit = max(1, _CHUNK_LOGITS // table.shape[0])
    count = known_shape(rows)[0]
    # A replica may get no row of a last batch, but a loop needs a chunk.
    least = max(1, count) if isinstance(count, int) else tf.maximum(1, count)
    # Even chunks minimize the padding of the last one.
    number = -(-least // limit)
    size = -(-least // number)

    def cut(values: tf.Tensor) -> tf.Tensor:
        """Splits [R, ...] into [number, C, ...], padded with zeros."""
        padding = [[0, number * size - count], *([0, 0] for _ in values.shape[1:])]
        return tf.reshape(tf.pad(values, padding), [-1, size, *values.shape[1:]])

    def join(chunks: tf.Tensor) -> tf.Tensor:
        return tf.reshape(chunks, [-1, *chunks.shape[2:]])[:count]

    @tf.custom_gradient
    def run(
        rows: tf.Tensor, table: tf.Tensor, bias: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], object]:
        def one(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            logits = tf.matmul(rows, table, transpose_b=True) + bias
            best = tf.argmax(logits, axis=-1, output_type=tf.int32)
            return tf.reduce_logsumexp(logits, axis=-1), best

        types = (tf.float32, tf.int32)
        # By default the loop would hold the logits of 10 chunks, in parallel.
        normalizers, best = tf.map_fn(
            one, cut(rows), fn_output_signature=types, parallel_iterations=1
        )

        def gradient(upstream: tf.Tensor, _: object) -> Sequence[tf.Tensor]:
            chunks, slopes = cut(rows), cut(upstream)

            def add(
                index: tf.Tensor,
                row_slopes: tf.TensorArray,
                table_slope: tf.Tensor,
                bias_slope: tf.Tensor,
            ) -> tuple:
                chunk = chunks[index]
                logits = tf.matmul(chunk, table, transpose_b=True) + bias
                probabilities = tf.exp(logits - normalizers[index][:, tf.newaxis])
                logit_slopes = probabilities * slopes[index][:, tf.newaxis]
                return (
                    index + 1,
                    row_slopes.write(index, tf.matmul(logit_slopes, table)),
                    table_slope + tf.matmul(logit_slopes, chunk, transpose_a=True),
                    bias_slope + tf.reduce_sum(logit_slopes, axis=0),
                )

            # Sums the gradients of table and bias; map_fn would keep one per chunk.
            empty = tf.TensorArray(tf.float32, number, element_shape=chunks.shape[1:])
            _, row_slopes, table_slope, bias_slope = tf.while_loop(
                lambda index, *_: index < number,
                add,
                (tf.constant(0), empty, tf.zeros_like(table), tf.zeros_like(bias)),
                parallel_iterations=1,
            )
            return join(row_slopes.stack()), table_slope, bias_slope

        return (join(normalizers), join(best)), gradient

    # Custom gradients cannot capture variables.
    tensors = map(tf.convert_to_tensor, (rows, table, bias))
    return run(*(tf.cast(tensor, tf.float32) for tensor in tensors))

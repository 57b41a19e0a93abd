"""What a training step must know about ``tf.distribute``, and what Keras gets wrong.

``DistributedFit`` is mixed into models so that plain ``fit`` and ``evaluate`` work
under every ``tf.distribute`` strategy of this library; each repair says which
behavior of Keras 3 it answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from electra_tf.layers.randomness import at_row, fold_in


def all_replicas_sum(value: tf.Tensor) -> tf.Tensor:
    """Sums a tensor over the replicas of the current strategy; each gets the sum.

    Must be called outside of ``tf.while_loop`` and ``tf.cond`` when there is more than
    one replica: TensorFlow cannot synchronize replicas inside of them.

    Examples:
        >>> float(et.losses.all_replicas_sum(tf.constant(2.0)))  # without a strategy
        2.0
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return value
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)


def rows_before(batch: tf.Tensor) -> tf.Tensor | int:
    """Returns how many rows of the global batch are on replicas before this one.

    ``batch``, [B, ...], has the rows of this replica; strategies give each replica the
    rows that follow those of the one before. To be called where ``all_replicas_sum``
    may be.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return 0
    number, rows = replica.replica_id_in_sync_group, batch.shape[0]
    # The size is static where a strategy deals all replicas the same.
    if rows is not None:
        return number * rows
    rows = tf.cast(tf.shape(batch)[0], tf.int64)
    # int64, because int32 lives in the memory of the host even on a GPU.
    own = tf.one_hot(number, replica.num_replicas_in_sync, rows, dtype=tf.int64)
    counts = all_replicas_sum(own)
    return tf.reduce_sum(counts[:number])


def seed_of_rows(seed: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    """Returns the seed, int32 [3], of a step for the rows of ``batch`` on this replica.

    ``seed``, int32 [2], is the same on all replicas. To be called where ``rows_before``
    may be.
    """
    # 0 was the number of the only replica of older runs, which resume to the bit.
    return at_row(fold_in(seed, 0), rows_before(batch))


class DistributedFit:
    """Repairs for ``keras.Model.fit`` under ``tf.distribute``.

    Mix in before ``keras.Model``. The model must create its variables in its
    constructor.
    """

    def _maybe_symbolic_build(
        self, iterator: Iterator | None = None, data_batch: Any = None
    ) -> None:
        """Builds the optimizer, and a compiled loss from one replica's batch.

        Keras averages the first batch over the replicas to learn its shape, which
        fails for batches of unequal size and under MultiWorkerMirroredStrategy. Our
        models are built already; only the optimizer's slots are missing, and the
        means that Keras keeps of several losses.
        """
        with self.distribute_strategy.scope():
            if self.optimizer is not None and not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)
            if self._distribute_strategy is not None and self._compile_loss is not None:
                if data_batch is None:
                    data_batch = next(next(iter(iterator))[-1])
                local = self.distribute_strategy.experimental_local_results
                self._symbolic_build(
                    data_batch=keras.tree.map_structure(
                        lambda value: local(value)[0], data_batch
                    )
                )

    def metric_logs(self) -> dict[str, tf.Tensor]:
        """Results of all metrics, as ``train_step`` and ``test_step`` return them.

        Several workers concatenate logs on axis 0, so scalars need one there.
        """
        logs = {metric.name: metric.result() for metric in self.metrics}
        workers = tf.distribute.MultiWorkerMirroredStrategy
        if isinstance(self.distribute_strategy, workers):
            logs = {name: tf.reshape(value, [1]) for name, value in logs.items()}
        return logs

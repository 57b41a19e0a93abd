"""Training under ``tf.distribute``: sums over replicas, seeds, repairs of Keras 3."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.layers.randomness import at_row, fold_in


def all_replicas_sum(value: tf.Tensor) -> tf.Tensor:
    """Sums a tensor over the replicas of the current strategy.

    Call it outside of ``tf.while_loop`` and ``tf.cond`` if there are several replicas.

    Examples:
        >>> float(et.losses.all_replicas_sum(tf.constant(2.0)))  # without a strategy
        2.0
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return value
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)


def rows_before(batch: tf.Tensor) -> tf.Tensor | int:
    """Returns the number of global rows on replicas before this one.

    ``batch``, [B, ...], holds this replica's rows. Strategies deal shares of rows to
    the hosts in turn. Restricted like ``all_replicas_sum``.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return 0
    extended = tf.distribute.get_strategy().extended
    hosts = getattr(extended, "_num_workers", getattr(extended, "num_hosts", 1)) or 1
    local = replica.num_replicas_in_sync // hosts
    number = replica.replica_id_in_sync_group
    number = number % local * hosts + number // local
    rows = batch.shape[0]
    # Static if all replicas have equally many rows.
    if rows is not None:
        return number * rows
    rows = tf.cast(tf.shape(batch)[0], tf.int64)
    # int64: TensorFlow keeps int32 tensors in host memory, even on a GPU.
    own = tf.one_hot(number, replica.num_replicas_in_sync, rows, dtype=tf.int64)
    return tf.reduce_sum(all_replicas_sum(own)[:number])


def seed_of_rows(seed: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    """Returns a step's seed for this replica's rows, int32 [3], from int32 [2]."""
    # Folding in 0 keeps single-replica runs of older versions bit-identical.
    return at_row(fold_in(seed, 0), rows_before(batch))


class DistributedFit:
    """Mixin: repairs ``keras.Model.fit`` of models with variables from ``__init__``."""

    def _maybe_symbolic_build(
        self, iterator: Iterator | None = None, data_batch: Any = None
    ) -> None:
        """Builds the optimizer and a compiled loss.

        Keras averages the first batch over replicas to infer shapes, which fails for
        unequal batches and under MultiWorkerMirroredStrategy.
        """
        scales = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        if scales and self.distribute_strategy.num_replicas_in_sync > 1:
            raise UserError(
                "float16 works on one device only: Keras's loss scaling looks for "
                "overflow in the gradients of one replica. Use mixed_bfloat16."
            )
        with self.distribute_strategy.scope():
            if self.optimizer is not None and not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)
            if self._distribute_strategy is None or self._compile_loss is None:
                return
            if data_batch is None:
                dataset = iterator.data_adapter.get_tf_dataset()
                if isinstance(dataset, tf.distribute.DistributedDataset):
                    local = self.distribute_strategy.experimental_local_results
                    data_batch = keras.tree.map_structure(
                        lambda value: local(value)[0], next(iter(dataset))
                    )
                else:
                    # Not a real batch, which a generator yields only once.
                    data_batch = keras.tree.map_structure(
                        lambda x: tf.zeros([n or 2 for n in x.shape], x.dtype),
                        dataset.element_spec,
                    )
            self._symbolic_build(data_batch=data_batch)

    def metric_logs(self) -> dict[str, tf.Tensor]:
        """Returns the results of all metrics as logs of a step.

        Several workers concatenate logs on axis 0, so scalars need that axis.
        """
        logs = {metric.name: metric.result() for metric in self.metrics}
        workers = tf.distribute.MultiWorkerMirroredStrategy
        if isinstance(self.distribute_strategy, workers):
            logs = {name: tf.reshape(value, [1]) for name, value in logs.items()}
        return logs

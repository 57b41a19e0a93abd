"""Distribution strategies by name."""

import contextlib
import functools
import os
from collections.abc import Iterator

import tensorflow as tf

from electra_tf import cli, files
from electra_tf.errors import UserError, explained
from electra_tf.layers.replicas import all_replicas_sum


def _multi_worker() -> tf.distribute.Strategy:
    # Without TF_CONFIG, TensorFlow silently trains on this machine alone.
    text = os.environ.get("TF_CONFIG") or "{}"
    if not files.parse_json(text, "TF_CONFIG", dict).get("cluster"):
        raise UserError(
            "--distribution=multi_worker needs TF_CONFIG on every worker, such as "
            '{"cluster": {"worker": ["host1:12345", "host2:12345"]}, '
            '"task": {"type": "worker", "index": 0}}.'
        )
    with explained("TF_CONFIG cannot be used", (ValueError, KeyError, TypeError)):
        return tf.distribute.MultiWorkerMirroredStrategy()


def _tpu() -> tf.distribute.Strategy:
    # Untested: no TPU was available.
    tpu = os.environ.get("TPU_NAME", "local")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError) as error:
        raise UserError(
            f"No TPU at {tpu!r} ({error}). Set TPU_NAME to its name or address, "
            "or use --distribution=none."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


@functools.cache
def mirrored() -> tf.distribute.Strategy:
    """Returns one object: TensorFlow does not mix variables of two strategies."""
    # Of this machine; the default is all devices of the TF_CONFIG cluster.
    devices = tf.config.list_logical_devices("GPU")
    devices = devices or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy(tuple(each.name for each in devices))


def strategy_for(name: str) -> tf.distribute.Strategy:
    """Returns the strategy of a value of ``--distribution``.

    Create ``multi_worker`` before any other use of TensorFlow's runtime.
    """
    if name == "multi_worker":
        return _multi_worker()
    if name == "tpu":
        return _tpu()
    if name == "mirrored":
        return mirrored()
    return tf.distribute.get_strategy()


def check_same_start(
    strategy: tf.distribute.Strategy, step: int, records_sha256: str
) -> None:
    """Raises UserError if the workers of a job differ in first step or records."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return
    # In the function: some strategies do not multiply a tensor that replicas share.
    records = int(records_sha256[:12], 16)
    sums = strategy.run(
        lambda: all_replicas_sum(tf.constant([step, records], tf.int64))
    )
    totals = strategy.experimental_local_results(sums)[0].numpy()
    if totals[1] != records * strategy.num_replicas_in_sync:
        raise UserError("this worker reads other --records: share one folder.")
    if totals[0] != step * strategy.num_replicas_in_sync:
        raise UserError(
            f"this worker begins after step {step}, and others do not: --model_dir "
            "must be one folder that all workers see."
        )


# Errors of the other workers after one has stopped.
_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


@contextlib.contextmanager
def naming_lost_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Raises ConnectionError with a remedy if another worker has stopped."""
    try:
        yield
    except _LOST as error:
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise
        raise ConnectionError(
            f"another worker of this job has stopped ({cli.reason(error)}). Run the "
            "same command on all workers again to resume."
        ) from error

import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.layers.replicas import DistributedFit, rows_before
from electra_tf.training import AdamW, distribution
from tests.strategy import two_cpus


def test_mirrored_takes_all_devices_of_this_machine(monkeypatch):
    taken = []
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", taken.append)
    distribution.mirrored.cache_clear()
    distribution.strategy_for("mirrored")
    distribution.strategy_for("mirrored")
    distribution.mirrored.cache_clear()
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices()
    # One object for all parts of a run.
    assert taken == [tuple(device.name for device in devices)]
    assert distribution.strategy_for("none") is tf.distribute.get_strategy()


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"cluster": {}}), "{"])
def test_workers_need_a_cluster(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UserError, match="TF_CONFIG"):
        distribution.strategy_for("multi_worker")


def test_workers_begin_after_one_step(monkeypatch):
    """Two devices stand for two workers; one of them lacks the checkpoint."""
    strategy, workers = two_cpus(), "MultiWorkerMirroredStrategy"
    monkeypatch.setattr(tf.distribute, workers, type(strategy))
    distribution.check_same_start(strategy, 3, "ab" * 32)
    for sums, message in (
        ([3, 2 * 0xABABABABABAB], "begins after step 3, and others do not"),
        ([6, 0xABABABABABAB], "reads other --records"),
    ):
        other = tf.constant(sums, tf.int64)
        monkeypatch.setattr(
            distribution, "all_replicas_sum", lambda _, sums=other: sums
        )
        with pytest.raises(ValueError, match=message):
            distribution.check_same_start(strategy, 3, "ab" * 32)


def test_a_lost_worker_is_named(monkeypatch):
    strategy, workers = two_cpus(), "MultiWorkerMirroredStrategy"
    lost = tf.errors.UnavailableError(None, None, "socket closed")
    named = distribution.naming_lost_workers
    with pytest.raises(tf.errors.UnavailableError), named(strategy):
        raise lost
    monkeypatch.setattr(tf.distribute, workers, type(strategy))
    with pytest.raises(ConnectionError, match=r"another worker .*"), named(strategy):
        raise lost


class Line(DistributedFit, keras.Model):
    def __init__(self):
        super().__init__()
        self.slope = self.add_weight(name="slope", initializer="zeros")
        self.built = True

    def call(self, inputs):
        return self.slope * inputs


def test_a_compiled_loss_takes_unequal_shares():
    """Two rows on the first device, one on the second."""
    with two_cpus().scope():
        model = Line()
        model.compile(keras.optimizers.SGD(0.5, momentum=0.5), loss="mse")
    inputs, labels = np.ones([3, 1], np.float32), np.full([3, 1], 2, np.float32)
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(3)
    model.fit(data, shuffle=False, verbose=0)
    # The gradient is the mean of the devices, each -4.
    assert float(model.slope.numpy()) == 2


def test_a_compiled_loss_takes_a_distributed_dataset():
    with two_cpus().scope():
        model = Line()
        model.compile(keras.optimizers.SGD(0.5), loss="mse")
    inputs, labels = np.ones([4, 1], np.float32), np.full([4, 1], 2, np.float32)
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(4)
    data = model.distribute_strategy.experimental_distribute_dataset(data)
    model.fit(data, shuffle=False, verbose=0)
    assert float(model.slope.numpy()) == 2


def test_a_generator_that_is_read_once_loses_no_batch():
    with two_cpus().scope():
        model = Line()
        model.compile(AdamW(0.1), loss="mse")
    read = []

    def batches():
        for _ in range(10 - len(read)):
            read.append(1)
            yield np.ones([2, 1], np.float32), np.ones([2, 1], np.float32)

    spec = tf.TensorSpec([None, 1], tf.float32)
    data = tf.data.Dataset.from_generator(batches, output_signature=(spec, spec))
    model.fit(data, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 10


def test_shares_are_dealt_to_the_hosts_in_turn(monkeypatch):
    """TensorFlow deals rows 0 to 7 of two hosts with two devices each in this order."""
    host_0, host_1 = [[0, 1], [4, 5]], [[2, 3], [6, 7]]
    context = types.SimpleNamespace(num_replicas_in_sync=4)
    extended = types.SimpleNamespace(_num_workers=2)
    strategy = types.SimpleNamespace(extended=extended)
    monkeypatch.setattr(tf.distribute, "get_replica_context", lambda: context)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: strategy)
    for number, rows in enumerate([*host_0, *host_1]):
        context.replica_id_in_sync_group = number
        assert rows_before(tf.constant(rows)) == rows[0]

"""Strategies by name, and errors of jobs with several workers."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers.replicas import DistributedFit
from electra_tf.training import distribution
from tests.strategy import two_cpus


def test_mirrored_takes_all_devices_of_this_machine(monkeypatch):
    taken = []
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", taken.append)
    distribution.strategy_for("mirrored")
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices()
    assert taken == [[device.name for device in devices]]
    assert distribution.strategy_for("none") is tf.distribute.get_strategy()


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"cluster": {}}), "{"])
def test_workers_need_a_cluster(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="TF_CONFIG"):
        distribution.strategy_for("multi_worker")


def test_workers_begin_after_one_step(monkeypatch):
    """Two devices stand for two workers; one of them lacks the checkpoint."""
    strategy, workers = two_cpus(), "MultiWorkerMirroredStrategy"
    monkeypatch.setattr(tf.distribute, workers, type(strategy))
    distribution.check_same_step(strategy, 3)
    # The sum of 3 and 0.
    monkeypatch.setattr(distribution, "all_replicas_sum", lambda step: step)
    with pytest.raises(ValueError, match="begins after step 3, and others do not"):
        distribution.check_same_step(strategy, 3)


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

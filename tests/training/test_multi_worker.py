"""Two real worker processes: the joint clip, and who writes the checkpoint."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.strategy import free_ports

ROOT = pathlib.Path(__file__).parents[2]

WORKER = """
import json, sys
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import keras
from electra_tf.training.checkpoints import CheckpointStore
from electra_tf.training.optimizers import AdamW

with strategy.scope():
    variable = keras.Variable([0.0, 0.0], name="kernel")
    optimizer = AdamW(1.0, weight_decay=0.0)
    optimizer.build([variable])

@tf.function
def step():
    def update():
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        gradients = tf.constant([[10.0, 0.0], [0.0, 10.0]])
        optimizer.apply([gradients[index]], [variable])
    strategy.run(update)

@tf.function
def wait_for_all():
    def add():
        one = tf.ones([])
        return tf.distribute.get_replica_context().all_reduce("SUM", one)
    strategy.run(add)

step()
store = CheckpointStore(sys.argv[1], {"kernel": variable})
store.save(1)
# Only the chief has written what both are about to read.
wait_for_all()
variable.assign([9.0, 9.0])
restored = store.restore_latest()
print(json.dumps({
    "norm": float(optimizer.gradient_norm.numpy()),
    "kernel": variable.numpy().tolist(),
    "restored": restored,
}))
"""


def start(index, workers, folder):
    task = {"type": "worker", "index": index}
    config = {"cluster": {"worker": workers}, "task": task}
    environment = {
        **os.environ,
        "TF_CONFIG": json.dumps(config),
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.distributed
def test_two_workers(tmp_path):
    workers = [f"localhost:{port}" for port in free_ports(2)]
    processes = [start(index, workers, tmp_path) for index in range(2)]
    outputs = [process.communicate(timeout=300) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-2000:]
    for text, _ in outputs:
        result = json.loads(text.splitlines()[-1])
        np.testing.assert_allclose(result["norm"], 200**0.5, rtol=1e-6)
        # m / sqrt(v) of a first update is 0.1 / sqrt(0.001), whatever the clip.
        np.testing.assert_allclose(result["kernel"], -(10**0.5), rtol=1e-3)
        assert result["restored"] == 1
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint", "ckpt-1.data-00000-of-00001", "ckpt-1.index"]

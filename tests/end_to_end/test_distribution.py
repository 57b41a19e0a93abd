"""``run_pretraining.py`` on several devices and in several processes."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.end_to_end.test_pretraining import ROOT, command, final_weights, run

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

# The same numbers need the same samples and no dropout on one replica and on two.
GREEDY = """
import runpy, sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * {devices})
from electra_tf.systems import build
from electra_tf.pretraining import GreedySampler
assert build.CategoricalSampler
build.CategoricalSampler = lambda *_: GreedySampler()
sys.argv = ["run_pretraining.py", *sys.argv[1:]]
runpy.run_path("run_pretraining.py", run_name="__main__")
"""
QUIET = ["--dropout=0", "--attention_dropout=0", "--num_train_steps=6"]


def greedy(text, model_dir, *flags, devices=1, environment=None):
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            GREEDY.format(devices=devices),
            *command(text, model_dir, *QUIET, *flags)[2:],
        ],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process):
    output = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, output[-3000:]
    return output


def assert_close(first, second):
    assert first.keys() == second.keys()
    for name in first:
        # The norm of the last gradient sums in another order.
        np.testing.assert_allclose(
            first[name], second[name], rtol=1e-4, atol=2e-6, err_msg=name
        )


@pytest.fixture(scope="module")
def one_device(text, tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("one")
    finish(greedy(text, model_dir))
    return model_dir


def test_mirrored_over_two_devices_equals_one(text, one_device, tmp_path):
    flags = ["--distribution=mirrored", "--eval_steps=3", "--log_steps=2"]
    output = finish(greedy(text, tmp_path, *flags, devices=2))
    assert "generator loss" in output
    assert_close(final_weights(one_device, 6), final_weights(tmp_path, 6))
    rows = [json.loads(x) for x in (tmp_path / "metrics.jsonl").open()]
    assert {row["step"] for row in rows if "eval_loss" in row} == {3, 6}


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.mark.parametrize("sharding", [[], ["--file_sharding"]])
def test_two_workers_equal_one_device(text, one_device, tmp_path, sharding):
    """Two processes on this machine; only the chief writes.

    With one file, both workers read it, and each gives its rows of every batch.
    """
    hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
    workers = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": hosts}, "task": task}
        flags = [
            "--distribution=multi_worker",
            f"--records={text / 'data' / 'train-*.tfrecord'}",
            *sharding,
        ]
        environment = {"TF_CONFIG": json.dumps(config)}
        workers.append(greedy(text, tmp_path, *flags, environment=environment))
    outputs = [finish(worker) for worker in workers]
    assert_close(final_weights(one_device, 6), final_weights(tmp_path, 6))
    assert (tmp_path / "encoder.keras").exists()
    assert "run_finetuning.py" in outputs[0]


def test_accumulation_on_the_command_line_equals_the_big_batch(
    text, one_device, tmp_path
):
    finish(greedy(text, tmp_path, "--gradient_accumulation_steps=4"))
    assert_close(final_weights(one_device, 6), final_weights(tmp_path, 6))


def test_bfloat16_and_xla_run(text, tmp_path):
    output = run(
        text,
        tmp_path,
        "--mixed_precision=bfloat16",
        "--jit_compile",
        "--steps_per_execution=2",
        "--num_train_steps=4",
    )
    assert "generator loss" in output


def test_float16_runs_on_one_device(text, tmp_path):
    output = run(text, tmp_path, "--mixed_precision=float16", "--num_train_steps=4")
    assert "generator loss" in output

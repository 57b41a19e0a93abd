"""With dropout and sampling, whose random numbers depend on the row alone."""

import json
import os
import shutil
import signal

import keras
import numpy as np
import pytest

from electra_tf.__main__ import main
from electra_tf.runs import pretraining
from electra_tf.training.callbacks import NonFiniteGuard
from tests.end_to_end.in_process import rows
from tests.end_to_end.test_pretraining import final_weights, flags_of, run_here
from tests.forked import Process
from tests.strategy import free_ports, two_cpus

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

SHORT = ["--num_train_steps=6", "--save_checkpoint_steps=3"]
LOGGED = ["--eval_steps=3", "--log_steps=2"]
LAST = shutil.ignore_patterns("ckpt-6.*")


def records(text):
    return f"--records={text / 'data' / 'train-*.tfrecord'}"


def pretrain(flags, killed_after):
    """Runs in a process that kills itself after a step."""

    def after_step(guard, step, logs):
        if step == killed_after:
            os.kill(os.getpid(), signal.SIGKILL)

    NonFiniteGuard.after_step = after_step
    return main(["pretrain", *flags])


def start_workers(text, model_dirs, *, victim=None, has_chief=False):
    """Starts a worker per folder; ``victim`` kills itself at step 4.

    ``has_chief`` makes the first one the task "chief" of the cluster.
    """
    hosts = [f"127.0.0.1:{port}" for port in free_ports(len(model_dirs))]
    cluster = {"worker": hosts}
    if has_chief:
        cluster = {"chief": hosts[:1], "worker": hosts[1:]}
    tasks = [{"type": t, "index": i} for t, h in cluster.items() for i in range(len(h))]
    more = [*SHORT, "--distribution=multi_worker", records(text)]
    return [
        Process(
            f"{__name__}:pretrain",
            {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})},
            flags=flags_of(text, model_dir, *more),
            killed_after=4 if index == victim else None,
        )
        for index, (model_dir, task) in enumerate(zip(model_dirs, tasks, strict=True))
    ]


def run_workers(text, model_dirs, **options):
    """Returns the output of the first one."""
    outputs = []
    for worker in start_workers(text, model_dirs, **options):
        code, output = worker.communicate(timeout=300)
        assert code == 0, output[-3000:]
        outputs.append(output)
    return outputs[0]


def assert_close(first, second):
    assert first.keys() == second.keys()
    # The order of summation over rows differs.
    tolerance = {"rtol": 2e-4, "atol": 1e-5}
    for name in first:
        np.testing.assert_allclose(first[name], second[name], **tolerance, err_msg=name)


@pytest.fixture(scope="module")
def one_device(text, tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("one")
    run_here(text, model_dir, *SHORT, *LOGGED)
    return model_dir


@pytest.fixture(scope="module")
def two_workers(text, one_device, tmp_path_factory):
    """Folders of the chief and of the other worker, trained on one device's records."""
    del one_device
    folders = [tmp_path_factory.mktemp(f"worker_{index}") for index in range(2)]
    assert "electra_tf finetune" in run_workers(text, folders)
    return folders


def test_workers_equal_one_device_and_the_chief_alone_writes(one_device, two_workers):
    chief, other = two_workers
    assert_close(final_weights(one_device, 6), final_weights(chief, 6))
    assert (chief / "encoder.keras").exists()
    assert list(other.iterdir()) == []


def test_a_checkpoint_of_two_workers_goes_on_in_one(
    text, one_device, two_workers, tmp_path
):
    folder = shutil.copytree(two_workers[0], tmp_path / "run", ignore=LAST)
    assert "resuming after step 3" in run_here(text, folder, *SHORT, records(text))
    assert_close(final_weights(one_device, 6), final_weights(folder, 6))


def test_workers_of_two_folders_do_not_resume(text, two_workers, tmp_path):
    folders = [tmp_path / "one", tmp_path / "other"]
    shutil.copytree(two_workers[0], folders[0], ignore=LAST)
    for worker in start_workers(text, folders):
        code, output = worker.communicate(timeout=300)
        assert "error: this worker begins after step" in output
        assert code == 1


@pytest.mark.parametrize("victim", ["chief", "other"])
def test_a_killed_worker_stops_the_job_and_nothing_is_lost(
    text, two_workers, victim, tmp_path
):
    one = tmp_path / "one"
    index = ("chief", "other").index(victim)
    workers = start_workers(text, [one] * 2, victim=index)
    assert workers[index].communicate(timeout=300)[0] == -signal.SIGKILL
    code, output = workers[1 - index].communicate(timeout=60)
    assert code == 1, output[-3000:]
    assert "Traceback" not in output
    said = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert "another worker of this job has stopped" in said[0]
    assert "Run the same command on all workers again" in said[0]
    assert not (one / "encoder.keras").exists()
    if victim == "chief":
        output = run_workers(text, [one] * 2, has_chief=True)
        assert "resuming after step 3" in output
        np.testing.assert_equal(final_weights(one, 6), final_weights(two_workers[0], 6))


def test_mirrored_over_two_devices_equals_one(text, one_device, tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining, "strategy_for", lambda name: two_cpus())
    run_here(text, tmp_path, *SHORT, *LOGGED, "--distribution=mirrored")
    assert_close(final_weights(one_device, 6), final_weights(tmp_path, 6))
    found = rows(tmp_path)
    assert {row["step"] for row in found if "eval_loss" in row} == {3, 6}
    for one, two in zip(rows(one_device), found, strict=True):
        name = "loss" if "loss" in one else "eval_loss"
        assert two["step"] == one["step"]
        assert two[name] == pytest.approx(one[name], rel=1e-4)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_other_precisions_run(text, tmp_path, precision):
    flags = (f"--mixed_precision={precision}", "--num_train_steps=4")
    assert "generator_loss" in run_here(text, tmp_path, *flags)
    assert keras.config.dtype_policy().name == "float32"

import signal
import time

import keras
import pytest

from electra_tf import cli, files
from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.runs import finetuning
from tests.forked import Process
from tests.runs import common as runs
from tests.runs.common import table
from tests.runs.test_trainer import Killed, logged
from tests.tasks import common


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    encoder = common.save_pretrained(folder / "encoder", layers=1)
    values = {"seeds": 2, "epochs": 2.5, "learning_rate": 3e-3}
    return runs.moods(folder, encoder, log_steps=1, **values)


def run(values, folder, **others):
    return runs.run(folder, **{**values, **others})


@pytest.fixture(scope="module")
def whole(values, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(values, folder)[0]


@pytest.mark.slow
def test_a_run_killed_after_a_seed_goes_on_and_ends_the_same(
    values, whole, tmp_path, monkeypatch
):
    folder = tmp_path / "killed"
    save = finetuning.CheckpointStore.save

    def killed(store, step):
        save(store, step)
        # The weights exist, but the file that marks the seed as done does not.
        if store.directory.name == "weights-1":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(finetuning.CheckpointStore, "save", killed)
        # The last seed is the best one, so that the model of every seed is saved.
        patched.setattr(finetuning, "first_best", lambda scores, **_: len(scores) - 1)
        with pytest.raises(Killed):
            run(values, folder)
    assert (folder / "checkpoints" / "done-0.json").exists()

    message = r"config\.learning_rate: was 0\.003, now 0\.1"
    with pytest.raises(ValueError, match=message):
        run(values, folder, learning_rate=0.1)
    other = table(tmp_path / "other.csv", common.sentiment(30))
    with pytest.raises(ValueError, match=r"data\.train: was .*\n.*another folder"):
        run(values, folder, train=other)
    with pytest.raises(ValueError, match=r"config\.frozen: was False, now True"):
        run(values, folder, frozen=True, train_batch_size=32)
    report, said = run(values, folder, log_steps=1)
    assert "1 of 2 seeds are done" in said
    assert not [line for line in said if line.startswith("seed 0  ")]
    assert report == whole[1]
    assert_same_runs(folder, whole[0])


def assert_same_runs(one, other):
    for name in ("predictions.tsv", "results.json", "labels.txt", "task.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert logged(one) == logged(other)
    assert not (one / "checkpoints").exists()
    models = (keras.saving.load_model(x / "model.keras") for x in (one, other))
    common.assert_same_weights(*models)


def test_checkpoints_of_a_finished_run_go(tmp_path):
    folder = FinetuningFolder(tmp_path)
    files.write_json(tmp_path / "task.json", {"task": "cola"})
    files.write_json(tmp_path / "results.json", {})
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="finished run"):
        folder.check("cola", overwrite=False)
    assert not (tmp_path / "checkpoints").exists()


# -- Signals from outside --------------------------------------------------------------


def killed_once(values, folder, until, number):
    """Sends a signal once `until()` is true; returns the exit code."""
    flags = [f"--{n}={v}" for n, v in values.items() if n != "export_saved_model"]
    flags += ["--noexport_saved_model", f"--output_dir={folder}"]
    process = Process("electra_tf.__main__:main", arguments=["finetune", *flags])
    deadline = time.monotonic() + 200
    while not until() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(number)
    code, output = process.communicate(timeout=120)
    assert "Traceback" not in output, output
    return code


@pytest.mark.slow
def test_killed_at_several_places_ends_as_undisturbed(values, whole, tmp_path):
    """Kills within and between two seeds and in the export."""
    folder = tmp_path / "killed"
    state = folder / "checkpoints"
    places = [
        (lambda: (state / "seed-0" / "ckpt-4.index").exists(), signal.SIGKILL),
        (lambda: (state / "done-0.json").exists(), signal.SIGTERM),
        (lambda: (state / "seed-1" / "ckpt-8.index").exists(), signal.SIGKILL),
        (lambda: (folder / "model.keras").exists(), signal.SIGKILL),
    ]
    codes = [killed_once(values, folder, *place) for place in places]
    assert codes.count(-signal.SIGKILL) >= 2
    assert {*codes} <= {-signal.SIGKILL, -signal.SIGTERM, cli.STOPPED}
    _, said = run(values, folder)
    assert "2 of 2 seeds are done" in said
    assert_same_runs(folder, whole[0])

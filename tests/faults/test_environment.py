import shutil
import signal
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from electra_tf import cli
from electra_tf.__main__ import main
from electra_tf.folders import models
from electra_tf.runs import finetuning, pretraining
from tests.end_to_end import in_process
from tests.interop.models import GOLDEN
from tests.runs.common import config, moods
from tests.tasks import common


def said_by(command, *arguments):
    """Runs a command that fails; returns its one-line error."""
    with pytest.raises(SystemExit) as ended, cli.clear_errors():
        command(*arguments)
    said = str(ended.value.code)
    assert said.startswith("error: ")
    assert "\n" not in said
    return said


def test_a_run_whose_folder_became_read_only(text, read_only, tmp_path):
    disk, lock = read_only
    config = in_process.config_of(text, tmp_path / "run", "--num_train_steps=1")
    with pretraining.prepare(config, lambda line: None).lock:
        folder = Path(shutil.copytree(tmp_path / "run", disk / "run"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    lock()
    said = said_by(in_process.run, text, folder, "--num_train_steps=1")
    assert "Read-only file system" in said
    assert str(folder) in said
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after == before


def tuned(folder, encoder, output, **values):
    options = {"train": 8, "dev": 4, "output_dir": str(output)}
    return config(**moods(folder, encoder, **options) | values)


def test_commands_in_a_read_only_folder(text, pretrained, read_only, tmp_path):
    folder, lock = read_only
    lock()
    corpus, records = f"--corpus={text / 'text.txt'}", f"--output_dir={folder / 'r'}"
    for command, *arguments in (
        (in_process.run, text, folder / "run"),
        (finetuning.main, tuned(tmp_path, pretrained, folder / "task")),
        (main, ["convert", f"--from={GOLDEN / 'projected'}", f"--to={folder / 'out'}"]),
        (main, ["records", corpus, records]),
    ):
        said = said_by(command, *arguments)
        assert "Read-only file system" in said
        assert str(folder) in said


@pytest.mark.slow
def test_the_clock_jumps(text, tmp_path, monkeypatch):
    """Jumps by -1, +10 and -30 years: rates use a monotonic clock."""
    jumps = iter([0, -3e7, 3e8, -1e9, 0, 1e9] * 10_000)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    code, _ = in_process.run(text, tmp_path, "--num_train_steps=3")
    assert code == cli.OK
    rows = in_process.rows(tmp_path)
    speeds = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
    assert speeds
    assert all(0 < speed < 1e7 for speed in speeds)
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3]
    assert (tmp_path / "encoder.keras").exists()


def test_a_clock_that_was_never_set(tmp_path, monkeypatch):
    """The date is 1970, which a zip archive cannot store."""
    monkeypatch.setattr(time, "time", lambda: 60.0)
    with pytest.raises(ValueError, match=r"encoder\.keras cannot be .* before 1980"):
        models.save(common.encoder(), tmp_path / "encoder.keras")
    assert list(tmp_path.iterdir()) == []


def test_progress_of_a_clock_that_stands_still_or_runs_back(monkeypatch):
    """A rate is positive or unknown even if the monotonic clock is not monotonic."""
    times = iter([5.0, 5.0, 5.0, 3.0, 2.0, 1e12, 1e12, 1e12, 1e12])
    said = []
    monkeypatch.setattr(time, "monotonic", lambda: next(times, 1e12))
    progress = cli.Progress(10, seconds=-1e18, log=said.append)
    for step in (1, 2, 3):
        progress.update(step, "")
    assert len(said) == 3
    assert not [line for line in said if "-" in line.split("eta")[1].split("  ")[0]]


class Breaks(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3:
            weight = self.model.trainable_variables[0]
            weight.assign(np.full(weight.shape, np.inf, "float32"))


@pytest.mark.slow
def test_weights_that_are_not_finite(text, tmp_path):
    """The error names the checkpoint before the step, which stays intact."""
    config = in_process.config_of(text, tmp_path, f"--callback={__name__}:Breaks")
    ready = pretraining.prepare(config, lambda line: None)
    before = signal.getsignal(signal.SIGTERM)
    with ready.lock, pytest.raises(FloatingPointError) as caught:
        pretraining.train(ready)
    assert signal.getsignal(signal.SIGTERM) is before
    said = str(caught.value)
    assert said.startswith("step 4: not finite: ")
    assert "the checkpoint of step 2 " in said
    assert str(tmp_path) in said
    assert "\n" not in said
    assert ready.store.steps() == [2]
    again = pretraining.prepare(in_process.config_of(text, tmp_path), lambda line: None)
    with again.lock:
        assert again.first_step == 2
        for variable in again.model.trainable_variables:
            assert np.isfinite(variable.numpy()).all(), variable.path


def test_an_encoder_that_is_not_finite(pretrained, tmp_path):
    encoder = keras.saving.load_model(pretrained)
    encoder.weights[3].assign(np.full(encoder.weights[3].shape, np.inf, "float32"))
    shutil.copytree(Path(pretrained).parent, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "encoder.keras"
    encoder.save(path)
    said = said_by(finetuning.main, tuned(tmp_path, path, tmp_path / "task"))
    assert str(path) in said
    assert not (tmp_path / "task" / "model.keras").exists()


@pytest.mark.parametrize("bad", ["nan", "1e400"])
def test_labels_that_are_not_finite(pretrained, tmp_path, bad):
    config = tuned(tmp_path, pretrained, tmp_path / "task", task="regression")
    (tmp_path / "train.csv").write_text(f"text,label\none,1.5\ntwo,{bad}\n")
    assert f"train.csv, line 3: the label '{bad}'" in said_by(finetuning.main, config)


class Notice(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_a_preempted_run_has_saved_the_step_it_was_in(text, tmp_path):
    folder = tmp_path / "run"
    # In the first of two stages.
    flags = """--num_train_steps=9 --save_checkpoint_steps=1000 --training=two_stage
    --generator_steps=6 --generator_hidden_size=1 --generator_layers=1 --sharing=nes"""
    flags = (*flags.split(), f"--callback={__name__}:Notice")
    config = in_process.config_of(text, folder, *flags)
    said = []
    assert pretraining.run(config, said.append) == cli.STOPPED
    assert said[-1].startswith("SIGINT: saved and stopped; run the same")
    names = {path.name for path in (folder / "checkpoints").glob("*.index")}
    assert names == {"ckpt-4.index"}
    assert in_process.rows(folder)[-1]["step"] == 4

"""Interrupted fine-tuning resumes from its last epoch, bit-exactly."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from electra_tf import cli, files
from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.runs import finetuning
from electra_tf.runs.trainer import Trainer
from electra_tf.tasks import Classification
from electra_tf.tasks.batching import TrainingOrder
from electra_tf.training import AdamW, WarmupPolynomialDecay
from electra_tf.training.callbacks import GracefulStop
from tests.runs.test_finetuning import table, watch, weights
from tests.tasks import common

ROOT = Path(__file__).parents[2]
STEPS, SEED = 11, 4


class Killed(BaseException):
    """Ends a run immediately, as a signal does."""


# -- Within a seed ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def trainer():
    """A trainer with dropout; epochs have three steps, the last one two."""
    task = Classification(name="mood", source=None, labels=("neg", "pos"))
    rows = task.featurize(common.sentiment(24), common.tokenizer(), 16, training=True)
    model = task.build_model(common.encoder(dropout=0.2))
    model.compile(
        optimizer=AdamW(WarmupPolynomialDecay(1e-2, STEPS)), loss=task.loss("sum")
    )
    return Trainer(
        model, rows, TrainingOrder(rows.lengths, 8, (16,)), total_steps=STEPS
    )


def watched(trainer, folder, *, killed_at=None, **values):
    """Returns a watch that keeps the best epoch, its folder, and evaluated steps."""
    scores = {1: 50.0, 2: 70.0, 3: 60.0, 4: 65.0}
    home = FinetuningFolder(folder)
    folder.mkdir(exist_ok=True)
    seen = []

    def record(row):
        home.record(row)
        if row.get("step") == killed_at and "step" in row:
            raise Killed

    def evaluate():
        # A function of the step, not of the number of evaluations.
        step = int(trainer.model.optimizer.iterations.numpy())
        seen.append(step)
        score = scores[-(-step // 3)]
        return score, {"accuracy": score}

    options = {
        "evaluate": evaluate,
        "keep_best": True,
        "record": record,
        "log_steps": 1,
    }
    return watch(**{**options, **values}), home, seen


def without_speed(folder):
    rows = files.read_json_lines(folder / "metrics.jsonl")
    return [{n: v for n, v in r.items() if n != "examples_per_second"} for r in rows]


@pytest.fixture(scope="module")
def undisturbed(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    watching, home, seen = watched(trainer, folder)
    trainer.train(SEED, watching, home)
    assert seen == [3, 6, 9, 11]
    return weights(trainer), without_speed(folder)


@pytest.mark.parametrize(
    "killed_at",
    [5, 11, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 4, 7, 10))],
)
def test_a_killed_run_repeats_its_epoch(trainer, undisturbed, tmp_path, killed_at):
    watching, home, _ = watched(trainer, tmp_path, killed_at=killed_at)
    with pytest.raises(Killed):
        trainer.train(SEED, watching, home)
    # State of another seed must not persist.
    trainer.reset(9)
    watching, home, seen = watched(trainer, tmp_path)
    trainer.train(SEED, watching, home)
    finished = (killed_at - 1) // 3
    assert seen == [3, 6, 9, 11][finished:]
    np.testing.assert_array_equal(weights(trainer), undisturbed[0])
    assert without_speed(tmp_path) == undisturbed[1]


def test_a_seed_that_had_stopped_early_trains_no_step(trainer, tmp_path):
    first, home, seen = watched(trainer, tmp_path, patience=1)
    trainer.train(SEED, first, home)
    assert seen == [3, 6, 9]
    kept = weights(trainer)
    trainer.reset(9)
    again, home, seen = watched(trainer, tmp_path, patience=1)
    trainer.train(SEED, again, home)
    assert seen == []
    np.testing.assert_array_equal(weights(trainer), kept)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_stops_within_a_step(trainer, undisturbed, tmp_path, number):
    home = FinetuningFolder(tmp_path)

    def record(row):
        home.record(row)
        if row.get("step") == 4:
            signal.raise_signal(number)

    first, _, seen = watched(trainer, tmp_path, record=record)
    with GracefulStop() as stop:
        trainer.train(SEED, first, home, stop)
    assert stop.requested == number.name
    assert seen == [3]
    assert int(trainer.model.optimizer.iterations.numpy()) == 4
    again, home, _ = watched(trainer, tmp_path)
    trainer.train(SEED, again, home)
    np.testing.assert_array_equal(weights(trainer), undisturbed[0])
    assert without_speed(tmp_path) == undisturbed[1]


# -- Whole runs ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    return {
        "task": "classification",
        "encoder": str(common.save_pretrained(folder / "encoder", dropout=0.1)),
        "train": table(folder / "train.csv", common.sentiment(32)),
        "eval": table(folder / "eval.csv", common.sentiment(12, offset=32)),
        "seeds": 3,
        "epochs": 2.5,
        "learning_rate": 3e-3,
        "keep": "best",
        "max_seq_length": 16,
        "train_batch_size": 8,
        "log_steps": 1,
        "export_saved_model": False,
    }


def run(values, folder, **others):
    said = []
    chosen = {**values, **others, "output_dir": str(folder)}
    report = finetuning.run(fields.from_flat(chosen, FinetuneConfig), said.append)
    return report, said


@pytest.mark.slow
def test_a_run_killed_after_a_seed_goes_on_and_ends_the_same(
    values, tmp_path, monkeypatch
):
    whole, _ = run(values, tmp_path / "whole")
    folder = tmp_path / "killed"
    save, scored = finetuning.CheckpointStore.save, finetuning._scored
    better = iter([10.0, 20.0, 30.0])

    def killed(store, step):
        save(store, step)
        # The weights exist, but the file that marks the seed as done does not.
        if store.directory.name == "weights-1":
            raise Killed

    def rising(*arguments):
        result, answers = scored(*arguments)
        result.scores["eval"]["accuracy"] = next(better)
        return result, answers

    with monkeypatch.context() as patched:
        patched.setattr(finetuning.CheckpointStore, "save", killed)
        # Scores increase with the seed, so that the best model is saved for every seed.
        patched.setattr(finetuning, "_scored", rising)
        with pytest.raises(Killed):
            run(values, folder)
    done = folder / "checkpoints" / "done-0.json"
    assert done.exists()
    # Replaces the artificial scores by the real scores.
    row = json.loads(done.read_text())
    row["scores"] = whole["seeds"][0]["scores"]
    done.write_text(json.dumps(row))

    with pytest.raises(
        ValueError, match=r"config\.learning_rate: was 0\.003, now 0\.1"
    ):
        run(values, folder, learning_rate=0.1)
    other = table(tmp_path / "other.csv", common.sentiment(30))
    with pytest.raises(ValueError, match=r"data\.train: was .*\n.*another folder"):
        run(values, folder, train=other)
    with pytest.raises(ValueError, match=r"config\.frozen: was False, now True"):
        run(values, folder, frozen=True, keep="last", train_batch_size=32)
    report, said = run(values, folder, log_steps=1)
    assert "1 of 3 seeds are done" in said
    assert not [line for line in said if line.startswith("seed 0  ")]
    assert report == whole
    assert without_speed(folder) == without_speed(tmp_path / "whole")
    assert not (folder / "checkpoints").exists()
    same = ("predictions.tsv", "results.json", "labels.txt", "task.json")
    for name in same:
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert_same_models(folder, tmp_path / "whole")


def assert_same_models(one, other):
    first, second = (
        keras.saving.load_model(folder / "model.keras").get_weights()
        for folder in (one, other)
    )
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_checkpoints_of_a_finished_run_go(tmp_path):
    folder = FinetuningFolder(tmp_path)
    files.write_json(tmp_path / "task.json", {"task": "cola"})
    files.write_json(tmp_path / "results.json", {})
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="finished run"):
        folder.check("cola", overwrite=False)
    assert not (tmp_path / "checkpoints").exists()


# -- Signals from outside --------------------------------------------------------------


def command(values, folder):
    return [
        sys.executable,
        str(ROOT / "run_finetuning.py"),
        *(f"--{n}={v}" for n, v in values.items() if n != "export_saved_model"),
        f"--output_dir={folder}",
    ]


def start(values, folder, until, number):
    """Sends a signal once `until()` is true; returns exit code and output."""
    with subprocess.Popen(
        command(values, folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        deadline = time.monotonic() + 200
        while not until() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(number)
        output = process.communicate(timeout=120)[0].decode()
    assert "Traceback" not in output, output
    return process.returncode, output


def assert_ended(done):
    """After so few updates every seed may fail; the exit code is then 1."""
    failed = "every seed failed" in done.stdout.decode()
    assert done.returncode == (cli.ERROR if failed else cli.OK), done.stderr


@pytest.mark.slow
def test_killed_at_several_places_ends_as_undisturbed(values, tmp_path):
    """Kills within and between two seeds and in the export."""
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    values = {**values, "seeds": 2}
    done = subprocess.run(command(values, whole), capture_output=True, check=False)
    assert_ended(done)
    state = folder / "checkpoints"
    places = [
        (lambda: (state / "seed-0" / "ckpt-4.index").exists(), signal.SIGKILL),
        (lambda: (state / "done-0.json").exists(), signal.SIGTERM),
        (lambda: (state / "seed-1" / "ckpt-8.index").exists(), signal.SIGKILL),
        (lambda: (folder / "model.keras").exists(), signal.SIGKILL),
    ]
    codes = [start(values, folder, *place)[0] for place in places]
    assert codes.count(-signal.SIGKILL) >= 2
    assert {*codes} <= {-signal.SIGKILL, -signal.SIGTERM, cli.STOPPED}
    done = subprocess.run(command(values, folder), capture_output=True, check=False)
    assert_ended(done)
    assert "2 of 2 seeds are done" in done.stdout.decode()
    for name in ("results.json", "predictions.tsv"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    assert without_speed(folder) == without_speed(whole)
    assert_same_models(folder, whole)
    assert not state.exists()

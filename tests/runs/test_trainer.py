import dataclasses
import functools
import re
import signal
from unittest import mock

import keras
import numpy as np
import pytest

from electra_tf import files
from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.runs.trainer import Stopped, Trainer
from electra_tf.tasks import Classification
from electra_tf.tasks.batching import TrainingOrder
from electra_tf.training import AdamW, WarmupPolynomialDecay
from tests.tasks import common

STEPS, SEED = 8, 4


class Killed(BaseException):
    """Ends a run immediately, as a signal does."""


OPTIONS = {"log": lambda line: None, "record": lambda values: None, "log_steps": 2}


@pytest.fixture(scope="module")
def shared():
    """One trainer for all tests: compiling is slow, and `reset` isolates tests.

    Epochs have three steps, the last one two.
    """
    return new_trainer()


@pytest.fixture
def trainer(shared):
    yield set_up(shared)
    set_up(shared)


def set_up(trainer, **options):
    """Sets the options of a trainer, the others to their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(Trainer)[3:]}
    for name, value in {**defaults, "total_steps": STEPS, **OPTIONS, **options}.items():
        setattr(trainer, name, value)
    trainer.every = trainer.log_steps
    return trainer


def new_trainer(**options):
    task = Classification(name="mood", source=None, labels=("neg", "pos"))
    rows = task.featurize(common.sentiment(24), common.tokenizer(), 16, training=True)
    model = task.build_model(common.encoder(layers=1, dropout=0.2))
    optimizer = AdamW(WarmupPolynomialDecay(1e-2, STEPS))
    model.compile(optimizer=optimizer, loss=task.loss("sum"))
    order = TrainingOrder(rows.lengths, 8, (16,))
    return Trainer(model, rows, order, total_steps=STEPS, **OPTIONS, **options)


def weights(trainer):
    return np.concatenate([w.ravel() for w in trainer.model.get_weights()])


def test_seeds_share_one_trace_and_do_not_see_each_other(trainer, monkeypatch):
    call = mock.Mock(wraps=trainer.model.call)
    monkeypatch.setattr(trainer.model, "call", call)
    trainer.train(0)
    first = weights(trainer)
    trainer.train(1)
    assert not np.allclose(weights(trainer), first)
    trainer.train(0)
    np.testing.assert_array_equal(weights(trainer), first)
    # Python code of the model runs during tracing only.
    assert call.call_count <= 1
    assert int(trainer.model.optimizer.iterations.numpy()) == STEPS


def test_reset_restores_the_encoder_or_draws_a_new_one(trainer):
    start = common.encoder(layers=1)
    # The trainer's weights are those of an earlier test.
    trainer.reset(3)
    common.assert_same_weights(trainer.model.encoder, start)
    drawn = new_trainer(random_encoder=True)
    drawn.reset(3)
    first = weights(drawn)
    assert not np.allclose(drawn.model.encoder.get_weights()[0], start.get_weights()[0])
    drawn.reset(4)
    assert not np.allclose(weights(drawn), first)
    drawn.reset(3)
    np.testing.assert_array_equal(weights(drawn), first)


def test_early_stopping_of_keras_restores_the_best_epoch(trainer):
    seen, scores = [], iter([70.0, 60.0])

    def evaluate():
        seen.append(weights(trainer))
        return {"accuracy": next(scores)}

    options = {"mode": "max", "patience": 1, "restore_best_weights": True}
    stop = functools.partial(keras.callbacks.EarlyStopping, "val_accuracy", **options)
    set_up(trainer, evaluate=evaluate, callbacks=[stop]).train(0)
    assert len(seen) == 2
    np.testing.assert_array_equal(weights(trainer), seen[0])


@pytest.mark.parametrize(("log_steps", "step"), [(2, 2), (50, 3)])
def test_a_loss_that_is_not_finite_ends_the_seed(
    trainer, monkeypatch, tmp_path, log_steps, step
):
    """At the next line of the log or end of an epoch, before its checkpoint."""
    bad = [np.full_like(w, np.nan) for w in trainer.pretrained]
    monkeypatch.setattr(trainer, "pretrained", bad)
    home = FinetuningFolder(tmp_path)
    failure = set_up(trainer, log_steps=log_steps).train(0, home)
    assert failure == f"the loss is nan at step {step}"
    assert not [*home.state(0).glob("*.index")]


def test_progress_and_callbacks(trainer):
    said, recorded, seen, evaluations = [], [], [], iter(range(3))

    class Logs(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            seen.append((epoch, logs["val_accuracy"], logs["loss"] > 0))

    set_up(
        trainer,
        log=said.append,
        record=recorded.append,
        evaluate=lambda: {"accuracy": next(evaluations)},
        callbacks=[Logs],
    )
    trainer.train(0)
    assert seen == [(epoch, epoch, True) for epoch in range(3)]
    steps = [line for line in said if "/8 " in line]
    assert steps[0].startswith("1/8 ")
    assert steps[-1].startswith("8/8 100.0%  eta 00:00 ")
    pattern = r"step/s  seed 0  loss \(mean of this epoch\) \d+\.\d{4}$"
    assert re.search(pattern, steps[-1])
    windows = [values for values in recorded if "learning_rate" in values]
    assert [values["step"] for values in windows] == [2, 4, 6, 8]


# -- Resume ----------------------------------------------------------------------------


def watched(trainer, folder, *, killed_at=None, **values):
    """Gives a trainer known scores; returns its folder and evaluated steps."""
    scores = {1: 70.0, 2: 60.0, 3: 65.0}
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
        return {"accuracy": scores[-(-step // 3)]}

    options = {"evaluate": evaluate, "record": record, "log_steps": 1}
    set_up(trainer, **options | values)
    return home, seen


def logged(folder):
    return files.read_json_lines(folder / "metrics.jsonl")


@pytest.fixture(scope="module")
def undisturbed(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    home, seen = watched(shared, folder)
    shared.train(SEED, home)
    assert seen == [3, 6, 8]
    return weights(shared), logged(folder)


@pytest.mark.parametrize(
    "killed_at", [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 8))]
)
def test_a_killed_run_repeats_its_epoch(trainer, undisturbed, tmp_path, killed_at):
    home, _ = watched(trainer, tmp_path, killed_at=killed_at)
    with pytest.raises(Killed):
        trainer.train(SEED, home)
    # State of another seed must not persist.
    trainer.reset(9)
    home, seen = watched(trainer, tmp_path)
    trainer.train(SEED, home)
    finished = (killed_at - 1) // 3
    assert seen == [3, 6, 8][finished:]
    np.testing.assert_array_equal(weights(trainer), undisturbed[0])
    assert logged(tmp_path) == undisturbed[1]


def test_a_signal_stops_within_a_step(trainer, undisturbed, tmp_path):
    home = FinetuningFolder(tmp_path)

    def record(row):
        home.record(row)
        if row.get("step") == 4:
            signal.raise_signal(signal.SIGTERM)

    _, seen = watched(trainer, tmp_path, record=record)
    with pytest.raises(Stopped, match="SIGTERM"):
        trainer.train(SEED, home)
    assert seen == [3]
    assert int(trainer.model.optimizer.iterations.numpy()) == 4
    home, _ = watched(trainer, tmp_path)
    trainer.train(SEED, home)
    np.testing.assert_array_equal(weights(trainer), undisturbed[0])
    assert logged(tmp_path) == undisturbed[1]

import os
import re
import signal
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.training import callbacks as cb
from electra_tf.training.optimizers import AdamW
from electra_tf.training.schedules import WarmupPolynomialDecay


def step_number(y_true, y_pred):
    """Loss with the value of the labels and the gradient of the outputs."""
    return y_true + (y_pred - tf.stop_gradient(y_pred))


def make_model(run_eagerly=True, loss=step_number, **kwargs):
    """Returns a compiled model; without a graph, which none of the callbacks see."""
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1, name="dense")(inputs))
    optimizer = AdamW(WarmupPolynomialDecay(0.1, 100))
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, loss, run_eagerly=run_eagerly, **kwargs)
    return model


def numbered(first, last, rows=2):
    """Dataset of batches whose inputs and labels are the number of the step."""
    values = np.repeat(np.arange(first, last + 1, dtype="float32"), rows)[:, None]
    return tf.data.Dataset.from_tensor_slices((values, values)).batch(rows)


def fit(model, dataset, callbacks, **kwargs):
    model.fit(dataset, callbacks=callbacks, verbose=0, shuffle=False, **kwargs)


def record(rows):
    return lambda step, values: rows.append((step, values))


def losses(rows):
    return [(step, values["loss"]) for step, values in rows if "loss" in values]


def test_windows_are_means_since_the_last_report():
    rows, store = [], Store()
    logger = cb.StepLogger(3, [record(rows)])
    fit(make_model(), numbered(1, 8), [logger, cb.CheckpointEvery(store, 5)])
    assert losses(rows) == [(1, 1.0), (3, 2.5), (6, 5.0), (8, 7.5)]
    assert store.saved == [5, 8]


def test_steps_continue_over_epochs_and_from_first_step():
    rows, store = [], Store()
    logger = cb.StepLogger(4, [record(rows)], first_step=10)
    checkpoints = cb.CheckpointEvery(store, 6, first_step=10)
    fit(make_model(), numbered(1, 5), [logger, checkpoints], epochs=2)
    # Steps 11 to 20; the epoch ends at step 15, where Keras starts a new window.
    assert losses(rows) == [(12, 1.5), (16, 1.0), (20, 3.5)]
    assert store.saved == [12, 18, 20]


def test_optimizer_values_and_speed_are_added():
    rows = []
    logger = cb.StepLogger(2, [record(rows)], tokens_per_step=64)
    fit(make_model(), numbered(1, 4), [logger])
    assert "tokens_per_second" not in rows[0][1]
    for step, values in rows[1:]:
        np.testing.assert_allclose(values["learning_rate"], 0.1 * (1 - step / 100))
        # Gradient of mean(w x + b) at x = step.
        np.testing.assert_allclose(values["gradient_norm"], np.hypot(step, 1))
        assert values["tokens_per_second"] == 64 * values["steps_per_second"] > 0


def test_speed_leaves_out_the_first_execution_and_other_callbacks(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Pass(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            now[0] += 100.0  # Time between executions, such as an evaluation.

    class Train(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            now[0] += 60.0 if batch == 0 else 0.5

    rows = []
    logger = cb.StepLogger(4, [record(rows)])
    fit(make_model(), numbered(1, 8), [Pass(), logger, Train()])
    assert [values.get("steps_per_second") for _, values in rows] == [None, 2.0, 2.0]


def test_a_plain_model_and_optimizer_work():
    rows, model = [], keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    fit(model, numbered(1, 4), [cb.NonFiniteGuard(), cb.StepLogger(2, [record(rows)])])
    assert set(rows[-1][1]) == {"loss", "learning_rate", "steps_per_second"}


def test_evaluation_disturbs_neither_window_nor_step():
    rows = []
    sinks, model = [record(rows)], make_model()
    evaluate = cb.EvaluateEvery(numbered(100, 101), 2, sinks)
    fit(model, numbered(1, 7), [cb.StepLogger(6, sinks), evaluate])
    assert losses(rows) == [(1, 1.0), (6, 4.0), (7, 7.0)]
    held_out = [(s, v["eval_loss"]) for s, v in rows if "eval_loss" in v]
    assert held_out == [(2, 100.5), (4, 100.5), (6, 100.5), (7, 100.5)]
    assert int(model.optimizer.iterations.numpy()) == 7


def test_an_evaluation_ends_an_epoch_of_the_callbacks():
    begun, batches, epochs, ends = [], [], [], []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begun.append(epoch),
        on_train_batch_end=lambda batch, logs: batches.append(batch),
        on_epoch_end=lambda epoch, logs: epochs.append((epoch, {**logs})),
        on_train_end=lambda logs: ends.append(logs),
    )
    options = {"callbacks": [watch], "first_step": 4}
    evaluate = cb.EvaluateEvery(numbered(100, 101), 2, [], **options)
    fit(make_model(), numbered(1, 5), [evaluate])
    rows = [(epoch, logs["loss"], logs["val_loss"]) for epoch, logs in epochs]
    assert rows == [(2, 1.5, 100.5), (3, 2.5, 100.5), (4, 3.0, 100.5)]
    assert (begun, batches, len(ends)) == ([2, 3, 4], [0, 1, 2, 3, 4], 1)


def test_early_stopping_ends_the_run_with_the_best_weights():
    stop = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
    store, rows, model = Store(), [], make_model()
    evaluate = cb.EvaluateEvery(numbered(3, 3), 2, [record(rows)], callbacks=[stop])
    at_save, save = [], store.save
    store.save = lambda step: (at_save.append(model.get_weights()), save(step))
    best = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: (
            batch == 1 and rows.append(("best", model.get_weights()))
        )
    )
    fit(model, numbered(1, 99), [best, evaluate, cb.CheckpointEvery(store, 50)])
    # The held-out loss is constant, so the first evaluation is the best one.
    assert store.saved == [6]
    assert [step for step, _ in rows] == ["best", 2, 4, 6]
    # Saved before the best weights were restored, so that they have the step's number.
    assert at_save[0][0] != model.get_weights()[0]
    np.testing.assert_equal(model.get_weights(), rows[0][1])


def test_weights_restored_at_the_end_are_the_last_checkpoint():
    def restore(logs):
        model.step.assign(2)
        restored.append(True)

    model, restored, saved = make_model(), [], []
    model.step = tf.Variable(0)
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: model.step.assign_add(1),
        on_train_end=restore,
    )
    store = Store()
    store.save = lambda step: saved.append((step, int(model.step), bool(restored)))
    # A phase of a run after four steps of another one.
    checkpoints = cb.CheckpointEvery(store, 3, first_step=4)
    fit(model, numbered(1, 5), [count, checkpoints])
    assert saved == [(6, 2, False), (9, 5, False), (9, 5, True)]


def test_weights_restored_by_a_stop_at_the_last_step_are_its_checkpoint():
    class Stop(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            self.model.step.assign(2)
            self.model.stop_training = True

    model, saved, store = make_model(), [], Store()
    model.step = tf.Variable(0)
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: model.step.assign_add(1)
    )
    store.save = lambda step: saved.append((step, int(model.step)))
    batches = numbered(1, 5)
    callbacks = [count, Stop(), cb.CheckpointEvery(store, 3, first_step=4)]
    model.fit(batches, steps_per_epoch=5, verbose=0, callbacks=callbacks)
    assert saved == [(6, 2), (9, 5), (9, 5)]


class Store:
    def __init__(self):
        self.saved = []
        self.directory = "runs/x"

    def save(self, step):
        self.saved.append(step)

    def steps(self):
        return self.saved


def signal_at(number, step):
    def send(batch, logs):
        if batch == step:
            # As a notice of preemption, to the process.
            os.kill(os.getpid(), number)

    return keras.callbacks.LambdaCallback(on_train_batch_begin=send)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_and_stops_in_order(number):
    before = signal.getsignal(number)
    store, rows = Store(), []
    checkpoints = cb.CheckpointEvery(store, 100)
    logger = cb.StepLogger(100, [record(rows)])
    evaluate = cb.EvaluateEvery(numbered(9, 9), 3, [record(rows)])
    callbacks = [logger, signal_at(number, 3), evaluate, checkpoints]
    with checkpoints.stop:
        fit(make_model(), numbered(1, 9), callbacks)
    # Not at the step of the signal.
    assert [step for step, values in rows if "eval_loss" in values] == [3]
    assert store.saved == [4]
    assert checkpoints.stop.requested == signal.Signals(number).name
    assert losses(rows) == [(1, 1.0), (4, 3.0)]
    assert signal.getsignal(number) is before


@pytest.fixture
def default_interrupt():
    """Restores Python's handler: a shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_interrupt")
def test_second_signal_acts_as_before():
    callbacks = [signal_at(signal.SIGINT, 2), signal_at(signal.SIGINT, 2)]
    store = Store()
    checkpoints = cb.CheckpointEvery(store, 1)
    with pytest.raises(KeyboardInterrupt), checkpoints.stop:
        fit(make_model(), numbered(1, 9), [*callbacks, checkpoints])
    assert store.saved == [1, 2]


def test_signals_are_given_back_after_an_error_too():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(FloatingPointError), cb.GracefulStop() as stop:
        fit(make_model(), with_nan_at(1), [cb.NonFiniteGuard()])
    assert stop.requested is None
    assert signal.getsignal(signal.SIGTERM) is before


def with_nan_at(step, last=6):
    return numbered(1, last).map(lambda x, y: (tf.where(x == step, np.nan, x),) * 2)


def test_guard_names_the_log_and_the_gradient():
    store = Store()
    model = make_model()
    callbacks = [cb.NonFiniteGuard(store=store), cb.CheckpointEvery(store, 2)]
    message = r"step 5: not finite: the log 'loss' and the gradient of dense/kernel"
    message += r"\. Lower the learning rate.*warm-up.*step 4 in runs/x"
    with pytest.raises(FloatingPointError, match=message):
        fit(model, with_nan_at(5), callbacks)
    assert store.saved == [2, 4]
    assert all(np.all(np.isfinite(np.array(w))) for w in model.weights)


def test_guard_catches_a_gradient_behind_a_finite_loss():
    # The derivative of sqrt at 0 is infinite, the value is 0.
    model = make_model(loss=lambda y_true, y_pred: tf.sqrt(y_pred * 0.0))
    message = r"step 1: not finite: the gradient of dense/kernel.*no check"
    with pytest.raises(FloatingPointError, match=message):
        fit(model, numbered(1, 2), [cb.NonFiniteGuard()])


def test_callbacks_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine_to_watch.py").write_text(
        "import keras\n"
        "class Watch(keras.callbacks.Callback): pass\n"
        "class Wants(keras.callbacks.Callback):\n"
        "    def __init__(self, where): super().__init__()\n"
        "def make(): return keras.callbacks.CSVLogger('log.csv')\n"
        "def number(): return 3\n"
        "class NotOne: pass\n"
    )
    names = ["keras.callbacks:TerminateOnNaN", "mine_to_watch:Watch"]
    makers = cb.named_callbacks([*names, "mine_to_watch:make"])
    found = [make() for make in makers]
    kinds = [type(each).__name__ for each in found]
    assert kinds == ["TerminateOnNaN", "Watch", "CSVLogger"]
    assert makers[1]() is not found[1]
    for name, message in {
        "..:X": "cannot be imported",
        "mine_to_watch:None_such": "cannot be imported",
        "mine_to_watch:NotOne": "is not a Keras callback",
        "mine_to_watch:Wants": "missing .*'where'.* Name a function",
    }.items():
        with pytest.raises(UserError, match=f"--callback={re.escape(name)}.*{message}"):
            cb.named_callbacks([name])
    (make,) = cb.named_callbacks(["mine_to_watch:number"])
    with pytest.raises(UserError, match="made 3, not"):
        make()

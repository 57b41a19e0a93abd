"""Keras callbacks for ``fit`` that count steps (optimizer updates), not epochs.

The order in ``fit`` matters:

    callbacks=[NonFiniteGuard(), StepLogger(...), EvaluateEvery(...), CheckpointEvery()]

It prevents logging, evaluating or saving after a step that is not finite, and excludes
evaluations and checkpoints from the training time.

``every`` is the number of steps between actions; ``first_step`` is the number of steps
before this ``fit``. The callbacks need ``steps_per_execution=1``, Keras's default.
"""

import contextlib
import functools
import inspect
import math
import os
import pkgutil
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from electra_tf.errors import UserError, explained
from electra_tf.training.checkpoints import CheckpointStore
from electra_tf.training.sinks import Sink

Logs = Mapping[str, Any]

# Message of a run that ``GracefulStop`` ended, after the name of the signal.
SAVED_AND_STOPPED = "saved and stopped; run the same without --overwrite to resume."


def named_callbacks(
    names: Sequence[str],
) -> list[Callable[[], keras.callbacks.Callback]]:
    """Returns factories of the Keras callbacks "module:Class" or "module:function".

    The current folder is on the import path. A run calls it before replacing files.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    factories = []
    for name in names:
        kinds = (ImportError, AttributeError, ValueError)
        with explained(f"--callback={name} cannot be imported", kinds):
            factory = pkgutil.resolve_name(name)
        is_class = isinstance(factory, type)
        if is_class and not issubclass(factory, keras.callbacks.Callback):
            raise UserError(f"--callback={name} is not a Keras callback.")
        try:
            # Compiled functions may have no signature.
            with contextlib.suppress(ValueError):
                inspect.signature(factory).bind()
        except TypeError as error:
            raise UserError(
                f"--callback={name} cannot be called: {error}. Name a function "
                "without arguments that returns the callback."
            ) from error
        factories.append(functools.partial(_make_callback, name, factory))
    return factories


def _make_callback(name: str, factory: Any) -> keras.callbacks.Callback:
    with explained(f"--callback={name} cannot be called", TypeError):
        callback = factory()
    if not isinstance(callback, keras.callbacks.Callback):
        raise UserError(f"--callback={name} made {callback}, not a Keras callback.")
    return callback


class StepCallback(keras.callbacks.Callback):
    """Base class: counts steps over epochs and calls ``after_step``."""

    def __init__(self, every: int = 1, *, first_step: int = 0):
        super().__init__()
        self.every = every
        self.step = first_step
        self.last = first_step  # The step last reported, evaluated or saved.

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self.step += 1
        self.after_step(self.step, logs or {})

    def after_step(self, step: int, logs: Logs) -> None:
        """Called after each step with the number of steps so far."""

    def is_due(self, step: int) -> bool:
        return step % self.every == 0


class GracefulStop(contextlib.ExitStack):
    """Turns the first SIGTERM or SIGINT into a stop request.

    A second signal goes to the previous handlers. Does nothing outside the main thread.
    """

    requested: str | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                previous = signal.signal(number, self._handle)
                self.callback(signal.signal, number, previous)
        return self

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        self.requested = signal.Signals(number).name
        # A second signal must be able to end a program that hangs.
        self.close()


class StepLogger(StepCallback):
    """Logs metrics to all sinks every ``every`` steps, then resets them.

    A window has the model's logs and metrics over all replicas, ``learning_rate`` of
    the next update, and ``gradient_norm`` of the last one, if the optimizer has it.
    From the second step on, it has ``steps_per_second`` and, if ``tokens_per_step`` is
    given, ``tokens_per_second`` of training only. Step 1 is logged, too.

    Calls a sink's ``tick(step)`` after each step, ``finish()`` after ``fit``, if any.
    """

    def __init__(
        self,
        every: int,
        sinks: Sequence[Sink],
        *,
        first_step: int = 0,
        tokens_per_step: int | None = None,
    ):
        super().__init__(every, first_step=first_step)
        self.sinks = sinks
        self.tokens_per_step = tokens_per_step
        # Time and steps of the window, without the first step, which compiles.
        self._is_warm, self._started = False, 0.0
        self._seconds, self._steps = 0.0, 0
        self._logs: Logs = {}

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        self._started = time.perf_counter()

    def after_step(self, step: int, logs: Logs) -> None:
        self._logs = logs
        is_due = step == 1 or self.is_due(step)
        # Reading metrics waits for the device, so it belongs to the training time.
        values = self._values() if is_due else None
        if self._is_warm:
            self._seconds += time.perf_counter() - self._started
            self._steps += 1
        self._is_warm = True
        if values is not None:
            self._report(step, values)
        for sink in self.sinks:
            if hasattr(sink, "tick"):
                sink.tick(step)

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self.step > self.last:
            self._report(self.step, self._values())
        for sink in self.sinks:
            if hasattr(sink, "finish"):
                sink.finish()

    def _values(self) -> dict[str, float]:
        # Logs average over replicas, metrics over rows: metrics take precedence.
        return _numbers({**self._logs, **self.model.get_metrics_result()})

    def _report(self, step: int, values: dict[str, float]) -> None:
        optimizer = self.model.optimizer
        norm = getattr(unscaled(optimizer), "gradient_norm", None)
        more = {"learning_rate": optimizer.learning_rate, "gradient_norm": norm}
        values |= _numbers({name: v for name, v in more.items() if v is not None})
        if self._steps:
            rate = values["steps_per_second"] = self._steps / self._seconds
            self._seconds, self._steps = 0.0, 0
            if self.tokens_per_step:
                values["tokens_per_second"] = rate * self.tokens_per_step
        self.last = step
        self.model.reset_metrics()
        for sink in self.sinks:
            sink(step, values)


class EvaluateEvery(StepCallback):
    """Evaluates during ``fit`` and logs the results with the prefix ``eval_``.

    Keeps the training metrics of the current window. Also evaluates the last step,
    unless training stopped early. For the Keras ``callbacks``, an evaluation ends an
    epoch: ``on_epoch_end`` receives the results with the prefix ``val_``.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        every: int,
        sinks: Sequence[Sink],
        *,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        first_step: int = 0,
    ):
        super().__init__(every, first_step=first_step)
        self.dataset = dataset
        self.sinks = sinks
        self._callbacks = keras.callbacks.CallbackList(list(callbacks))
        self._logs: Logs = {}

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._callbacks.set_params(self.params)
        self._callbacks.set_model(self.model)
        self._callbacks.on_train_begin(logs)
        self._callbacks.on_epoch_begin(self.step // self.every)

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        self._callbacks.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        self._callbacks.on_train_batch_end(batch, logs)
        super().on_train_batch_end(batch, logs)

    def after_step(self, step: int, logs: Logs) -> None:
        self._logs = logs
        if self.is_due(step):
            epoch = step // self.every
            self._evaluate(step, epoch - 1)
            self._callbacks.on_epoch_begin(epoch)

    def on_train_end(self, logs: Logs | None = None) -> None:
        if self.step > self.last and not self.model.stop_training:
            self._evaluate(self.step, self.step // self.every)
        self._callbacks.on_train_end(logs)

    def _evaluate(self, step: int, epoch: int) -> None:
        self.last = step
        # ``evaluate`` resets the metrics of the current training window.
        window = [(v, v.numpy()) for v in self.model.metrics_variables]
        results = self.model.evaluate(
            self.dataset, callbacks=self._callbacks, verbose=0, return_dict=True
        )
        for variable, value in window:
            variable.assign(value)
        results = _numbers(results)
        for sink in self.sinks:
            sink(step, {f"eval_{name}": value for name, value in results.items()})
        held_out = {f"val_{name}": value for name, value in results.items()}
        self._callbacks.on_epoch_end(epoch, {**_numbers(self._logs), **held_out})


class CheckpointEvery(StepCallback):
    """Saves checkpoints every ``every`` steps, at the end, and on SIGTERM or SIGINT.

    After a signal inside ``with callback.stop:``, the current step finishes, a
    checkpoint is saved, and ``fit`` ends; ``stop.requested`` is the name of the signal.
    With several workers, all must receive the signal within the same step. A
    ``NonFiniteGuard`` before it prevents the saving of a step that is not finite.
    """

    def __init__(self, store: CheckpointStore, every: int, *, first_step: int = 0):
        super().__init__(every, first_step=first_step)
        self.store = store
        self.stop = GracefulStop()
        self._first = first_step
        # Steps before this phase of a run, which its model does not count.
        self._before = 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        if hasattr(self.model, "step"):
            self._before = self.step - int(self.model.step.numpy())

    def after_step(self, step: int, logs: Logs) -> None:
        # Callbacks that stop training may restore the weights of an earlier step.
        if self.stop.requested or self.model.stop_training or self.is_due(step):
            self._save()
        if self.stop.requested:
            self.model.stop_training = True

    def on_train_end(self, logs: Logs | None = None) -> None:
        is_restored = False
        is_complete = self.step == self._first + (self.params.get("steps") or 0)
        is_complete |= not self.model.stop_training
        if hasattr(self.model, "step") and is_complete:
            # A callback may have restored earlier weights, and the count with them.
            count = self.step - self._before
            is_restored = int(self.model.step.numpy()) < count
            self.model.step.assign(count)
        if self.step > self.last or is_restored:
            self._save()

    def _save(self) -> None:
        self.store.save(self.step)
        self.last = self.step


class NonFiniteGuard(StepCallback):
    """Raises FloatingPointError if logs or gradients are not finite.

    The error names the newest checkpoint in ``store``. The check waits for the device.
    """

    def __init__(self, *, first_step: int = 0, store: CheckpointStore | None = None):
        super().__init__(first_step=first_step)
        self.store = store

    def after_step(self, step: int, logs: Logs) -> None:
        name = first_nonfinite(self.model, logs)
        if name is None:
            return
        kept, steps = "no checkpoint", self.store.steps() if self.store else []
        if steps:
            kept = f"the checkpoint of step {steps[-1]} in {self.store.directory}"
        raise FloatingPointError(
            f"step {step}: not finite: {name}. Lower the learning rate (5e-4 is for "
            "small models, 2e-4 for base and large) or lengthen the warm-up, then "
            f"start again; {kept} was kept."
        )


def first_nonfinite(model: keras.Model, logs: Logs) -> str | None:
    """Returns the names of a log and a gradient that are not finite, or None."""
    path = getattr(unscaled(model.optimizer), "nonfinite_variable", lambda: None)()
    bad = [name for name, value in _numbers(logs).items() if not math.isfinite(value)]
    names = [f"the log {name!r}" for name in bad[:1]]
    names += [f"the gradient of {path}"] if path else []
    return " and ".join(names) or None


def unscaled(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns the optimizer inside Keras's loss scaling, which float16 adds."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _numbers(values: Logs) -> dict[str, float]:
    # With several workers a value holds one number per worker (``metric_logs``).
    return {
        name: float(np.mean(value.numpy() if hasattr(value, "numpy") else value))
        for name, value in values.items()
    }

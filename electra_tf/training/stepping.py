"""What the callbacks are built from: counting steps, timing them, stopping in order."""

import signal
import threading
import time
from collections.abc import Mapping, Sequence

import keras


class StepCallback(keras.callbacks.Callback):
    """Counts steps over epochs and calls `after_step(previous, step, logs)`.

    Args:
        every: number of steps between actions of the subclass, at least 1.
        first_step: steps done before the first `fit`.

    Raises:
        ValueError: `every` is below 1.
    """

    def __init__(self, every: int = 1, *, first_step: int = 0):
        super().__init__()
        if every < 1:
            raise ValueError(
                f"{type(self).__name__} has every={every}; the smallest interval is 1 "
                "step. Leave the callback out to switch it off."
            )
        self.every = every
        self.first_step = first_step
        self.step = first_step
        self._last_batch = -1

    def on_epoch_begin(self, epoch, logs=None):
        """Batches are numbered from 0 in each epoch."""
        self._last_batch = -1

    def on_train_batch_end(self, batch, logs=None):
        """Counts the steps since the last call."""
        # Keras reports a last execution as whole, however few steps it had left.
        steps = (self.params or {}).get("steps")
        batch = batch if steps is None else min(batch, steps - 1)
        previous, self.step = self.step, self.step + batch - self._last_batch
        self._last_batch = batch
        self.after_step(previous, self.step, logs or {})

    def after_step(self, previous: int, step: int, logs: Mapping) -> None:
        """Called after each execution with the step count before and after it."""

    def is_due(self, previous: int, step: int) -> bool:
        """Whether a multiple of `every` lies in (previous, step]."""
        return step // self.every > previous // self.every


class TrainingClock:
    """Time inside executions; the first one, which traces and compiles, is left out."""

    def __init__(self):
        self._is_warm = False
        self._started = 0.0
        self._seconds = 0.0
        self._steps = 0

    def start(self) -> None:
        """An execution begins."""
        self._started = time.perf_counter()

    def stop(self, steps: int) -> None:
        """An execution of `steps` steps ended."""
        if self._is_warm:
            self._seconds += time.perf_counter() - self._started
            self._steps += steps
        self._is_warm = True

    def rate_and_restart(self) -> float | None:
        """Steps per second since the last call, None if nothing was timed."""
        rate = self._steps / self._seconds if self._steps else None
        self._seconds, self._steps = 0.0, 0
        return rate


class GracefulStop:
    """Turns the first SIGTERM or SIGINT into a request, leaves the second as it was.

    As a context manager around `fit` it gives the signals back after an error too.

    Args:
        signals: the signals to take over between `install` and `remove`.
    """

    def __init__(
        self,
        signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
    ):
        self.signals = signals
        self.requested = None
        self._previous = {}

    def __enter__(self):
        self.install()
        return self

    def __exit__(self, *error):
        self.remove()

    def install(self) -> None:
        """Takes over the signals; outside Python's main thread nothing happens."""
        if threading.current_thread() is threading.main_thread() and not self._previous:
            for number in self.signals:
                self._previous[number] = signal.signal(number, self._handle)

    def remove(self) -> None:
        """Gives the signals back to their previous handlers."""
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _handle(self, number, frame):
        del frame
        self.requested = signal.Signals(number).name
        self.remove()

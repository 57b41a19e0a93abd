"""Keras callbacks around `fit`, counted in steps (optimizer updates), not epochs.

`StepLogger` reads the metrics of the model once per window, adds what the optimizer and
the clock know, and hands one dict to every sink (`electra_tf.training.sinks`); it alone
resets the metrics, so all sinks see the same window. The order in `fit` matters:

    callbacks=[NonFiniteGuard(), StepLogger(...), EvaluateEvery(...), CheckpointEvery()]

so that nothing is logged, evaluated or saved after a bad step, and the time of
evaluations and checkpoints does not count as training time. All of them accept
`steps_per_execution`, where Keras reports several steps at once, and `first_step`, the
number of steps done before this `fit`.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np

from electra_tf.training.health import HealthWarnings
from electra_tf.training.sinks import (
    MetricsLog,
    Progress,
    TensorBoardScalars,
)
from electra_tf.training.stepping import GracefulStop, StepCallback, TrainingClock

__all__ = [
    "CheckpointEvery",
    "EvaluateEvery",
    "GracefulStop",
    "HealthWarnings",
    "MetricsLog",
    "NonFiniteGuard",
    "Progress",
    "StepCallback",
    "StepLogger",
    "TensorBoardScalars",
]


Sink = Callable[[int, dict[str, float]], None]


class StepLogger(StepCallback):
    """Gives every sink one dict per window of `every` steps, then resets the metrics.

    The dict holds the metrics of the model, over the window and all replicas, and what
    else its logs have; `learning_rate` (of the next update); `gradient_norm` (of the
    last update, if the optimizer has it; `<name>_gradient_norm` of its clip groups);
    from the second execution on `steps_per_second` and `tokens_per_second`, measured
    over training only. A run that starts at step 0 also reports its first execution,
    whose losses are the baselines of an untrained model; an unfinished window is
    reported at the end.

    A sink is a callable `(step, dict)`. If it has a method `tick(step)` this is called
    after each execution, `finish()` at the end of `fit`.

    Args:
        every: steps per window.
        sinks: list of sinks.
        first_step: steps done before the first `fit`.
        tokens_per_step: batch size times sequence length; None reports no tokens.
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
        self._clock = TrainingClock()
        self._logs = {}
        self._reported = first_step

    def on_train_batch_begin(self, batch, logs=None):
        """Lets the clock run."""
        self._clock.start()

    def after_step(self, previous, step, logs):
        """Reports if a window ended."""
        self._logs = logs
        if previous == 0 or self.is_due(previous, step):
            # Reading metrics waits for the device, so it comes before the clock stops.
            values = self._values(logs)
            self._clock.stop(step - previous)
            self._report(step, values)
        else:
            self._clock.stop(step - previous)
        for sink in self.sinks:
            getattr(sink, "tick", _ignore)(step)

    def on_train_end(self, logs=None):
        """Reports the unfinished window and closes the sinks."""
        if self.step > self._reported:
            self._report(self.step, self._values(self._logs))
        for sink in self.sinks:
            getattr(sink, "finish", _ignore)()

    def _values(self, logs):
        # Logs average what each replica computed from its own rows; metrics are read
        # over all replicas, so that a row counts the same wherever it was.
        return _numbers({**logs, **self.model.get_metrics_result()})

    def _report(self, step, values):
        values |= _optimizer_values(self.model.optimizer)
        rate = self._clock.rate_and_restart()
        if rate is not None:
            values["steps_per_second"] = rate
            if self.tokens_per_step:
                values["tokens_per_second"] = rate * self.tokens_per_step
        self._reported = step
        self.model.reset_metrics()
        for sink in self.sinks:
            sink(step, values)


class EvaluateEvery(StepCallback):
    """Evaluates inside `fit` and gives the results to sinks, prefixed `eval_`.

    Neither the running window of training metrics nor the step is touched. The last
    step is evaluated too, unless something stopped the training early.

    Args:
        dataset: dataset of `model.evaluate`, read from its start each time.
        every: steps between evaluations.
        sinks: list of callables `(step, dict)`.
        steps: number of batches; None reads the whole dataset.
        first_step: steps done before the first `fit`.
    """

    def __init__(
        self,
        dataset,
        every: int,
        sinks: Sequence[Sink],
        *,
        steps: int | None = None,
        first_step: int = 0,
    ):
        super().__init__(every, first_step=first_step)
        self.dataset = dataset
        self.sinks = sinks
        self.steps = steps
        self._evaluated = first_step

    def after_step(self, previous, step, logs):
        """Evaluates if it is time."""
        if self.is_due(previous, step):
            self._evaluate(step)

    def on_train_end(self, logs=None):
        """Evaluates the final weights."""
        if self.step > self._evaluated and not self.model.stop_training:
            self._evaluate(self.step)

    def _evaluate(self, step):
        self._evaluated = step
        # `evaluate` resets the metrics it shares with the training window.
        window = [(v, v.numpy()) for v in self.model.metrics_variables]
        results = self.model.evaluate(
            self.dataset, steps=self.steps, verbose=0, return_dict=True
        )
        for variable, value in window:
            variable.assign(value)
        values = {f"eval_{name}": value for name, value in _numbers(results).items()}
        for sink in self.sinks:
            sink(step, values)


class CheckpointEvery(StepCallback):
    """Saves every so many steps, at the end, and before a requested stop.

    SIGTERM or SIGINT lets the running execution finish, saves, and ends `fit` in good
    order; `stopped_by_signal` then holds the name of the signal. A second one acts as
    without this callback. Nothing is saved after a step that was not finite. With
    several workers all of them must get the signal within the same step.

    Args:
        store: a `CheckpointStore`, or anything with `save(step)`.
        every: steps between checkpoints.
        first_step: steps done before the first `fit`.
        stop: the `GracefulStop` to obey; None makes one.
    """

    def __init__(
        self,
        store,
        every: int,
        *,
        first_step: int = 0,
        stop: GracefulStop | None = None,
    ):
        super().__init__(every, first_step=first_step)
        self.store = store
        self.stop = stop or GracefulStop()
        self._saved = first_step

    @property
    def stopped_by_signal(self) -> str | None:
        """Name of the signal that ended `fit`, None if none did."""
        return self.stop.requested

    def on_train_begin(self, logs=None):
        """Takes over the signals."""
        self.stop.install()

    def after_step(self, previous, step, logs):
        """Saves if it is time or a stop was requested."""
        if self.stop.requested or self.is_due(previous, step):
            self._save(step, logs)
        if self.stop.requested:
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        """Saves the final state and gives the signals back."""
        if self.step > self._saved:
            self._save(self.step, {})
        self.stop.remove()

    def _save(self, step, logs):
        if first_nonfinite(self.model, logs) is None:
            self.store.save(step)
            self._saved = step


class NonFiniteGuard(StepCallback):
    """Raises at the first step whose logs or gradients are not finite.

    Args:
        every: steps between looks; each one waits for the device.
        first_step: steps done before the first `fit`.
        store: a `CheckpointStore` whose newest step the error names.

    Raises:
        FloatingPointError: in `fit`, with the step, the name of the first bad value,
            and what to try.
    """

    def __init__(self, every: int = 1, *, first_step: int = 0, store=None):
        super().__init__(every, first_step=first_step)
        self.store = store

    def after_step(self, previous, step, logs):
        """Looks at the logs and at what the optimizer found."""
        name = self.is_due(previous, step) and first_nonfinite(self.model, logs)
        if name:
            raise FloatingPointError(
                f"step {step}: not finite: {name}. Lower the learning rate (5e-4 is "
                "for small models, 2e-4 for base and large) or lengthen the warm-up, "
                f"then start again; {self._kept()}"
            )

    def _kept(self):
        steps = self.store.steps() if self.store else []
        if not steps:
            return "no checkpoint was kept."
        return (
            f"the checkpoint of step {steps[-1]} in {self.store.directory} is from "
            "before this and was kept."
        )


def first_nonfinite(model: keras.Model, logs: Mapping) -> str | None:
    """Name of the first value of the last step that is not finite, None if all are.

    Args:
        model: a compiled model; gradients are checked if its optimizer has
            `nonfinite_variable`.
        logs: dict of scalars.
    """
    path = getattr(_inner(model.optimizer), "nonfinite_variable", _ignore)()
    bad = [name for name, value in _numbers(logs).items() if not math.isfinite(value)]
    names = [f"the log {name!r}" for name in bad[:1]]
    names += [f"the gradient of {path}"] if path else []
    return " and ".join(names) or None


def _inner(optimizer):
    return getattr(optimizer, "inner_optimizer", optimizer)


def _optimizer_values(optimizer):
    found = {
        "learning_rate": optimizer.learning_rate,
        "gradient_norm": getattr(_inner(optimizer), "gradient_norm", None),
    }
    groups = getattr(_inner(optimizer), "group_norms", {})
    found |= {f"{name}_gradient_norm": norm for name, norm in groups.items()}
    return _numbers({name: v for name, v in found.items() if v is not None})


def _numbers(values):
    return {
        name: float(np.mean(value.numpy() if hasattr(value, "numpy") else value))
        for name, value in values.items()
    }


def _ignore(*args):
    del args

"""Trains one model with several seeds, without building or tracing it again."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli
from electra_tf.cli import Log
from electra_tf.tasks.base import Rows
from electra_tf.tasks.batching import Outputs, TrainingOrder, training_dataset
from electra_tf.tasks.heads import TaskModel
from electra_tf.tasks.metrics import rank
from electra_tf.training.callbacks import CheckpointEvery, GracefulStop, StepCallback
from electra_tf.training.checkpoints import CheckpointStore, named_variables


@dataclasses.dataclass(frozen=True)
class Watch:
    """What happens while a seed trains.

    Attributes:
        evaluate: scores the current weights: a main score and all scores; None if
            that happens only at the end.
        patience: epochs without a better main score before stopping; 0: never.
        keep_best: whether the weights of the best epoch are kept, not the last.
        record: receives the rows of metrics.jsonl.
        log_steps: steps between progress lines.
        callbacks: make further Keras callbacks, anew for each seed.
    """

    evaluate: Callable[[], tuple[float, dict[str, float]]] | None
    greater_is_better: bool
    patience: int
    keep_best: bool
    log: Log
    record: Callable[[Mapping[str, Any]], None]
    log_steps: int
    callbacks: Sequence[Callable[[], keras.callbacks.Callback]] = ()


@dataclasses.dataclass(frozen=True)
class Saving:
    """Where the state of a seed is saved, so that it can be resumed to the bit.

    Attributes:
        folder: of the checkpoints; what is there is resumed.
        every: steps between checkpoints; there is one at the end, too.
        stop: a signal to stop after the step that runs.
        forget: drops what was recorded after (step, epoch) of a checkpoint, or (0, 0).
    """

    folder: Path
    every: int
    stop: GracefulStop
    forget: Callable[[int, int], None]


class Trainer:
    """One compiled model and its training rows.

    The same tf.functions run for every seed: before each one the weights, the slots
    and the dropout stream are set, the head is initialized anew, and so is the encoder
    if nothing pretrained is wanted.

    Args:
        model: compiled with a loss and an ``electra_tf.training.AdamW``.
        rows: training rows; ``order`` says which of them form which batch.
        total_steps: updates per seed.
        random_encoder: whether the encoder starts from initial weights.
        start_head: gives the head its first weights, from the encoder's, in place of
            random ones.
    """

    def __init__(
        self,
        model: TaskModel,
        rows: Rows,
        order: TrainingOrder,
        *,
        total_steps: int,
        random_encoder: bool = False,
        start_head: Callable[[TaskModel], None] | None = None,
    ):
        self.model = model
        self._rows = rows
        self._order = order
        self._total_steps = total_steps
        self._random_encoder = random_encoder
        self._start_head = start_head
        # Of a pretrained encoder, which is the same for all seeds.
        self._head: list[np.ndarray] = []
        self._pretrained = model.encoder.get_weights()
        # Slots are there before the first step, so that every seed can start from them.
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
        self._unused = [variable.numpy() for variable in model.optimizer.variables]

    def reset(self, seed: int) -> None:
        """Puts everything back to where a run with this seed starts."""
        fresh = self.model.fresh(seed)
        self.model.head.set_weights(fresh.head.get_weights())
        self.model.encoder.set_weights(
            fresh.encoder.get_weights() if self._random_encoder else self._pretrained
        )
        if self._start_head is not None:
            if self._random_encoder or not self._head:
                self._start_head(self.model)
                self._head = self.model.head.get_weights()
            self.model.head.set_weights(self._head)
        slots = zip(self.model.optimizer.variables, self._unused, strict=True)
        for variable, value in slots:
            variable.assign(value)
        self.model.reset_seed(seed)

    def train(self, seed: int, watch: Watch, saving: Saving | None = None) -> None:
        """Trains with one seed, from the start or the newest checkpoint on.

        FloatingPointError if the loss stops being finite.
        """
        self.reset(seed)
        total = self._total_steps
        per_pass = min(self._order.steps_per_pass, total)
        epochs = math.ceil(total / per_pass)
        ends = [*range(per_pass, total, per_pass), total]
        watching = _Watching(self.model, seed, ends, self._order.batch_size, watch)
        callbacks = [watching, *(make() for make in watch.callbacks)]
        stop = GracefulStop()
        if saving is not None:
            state = named_variables(self.model, self.model.optimizer) | watching.state
            # Two, lest a damaged file costs the whole seed.
            store = CheckpointStore(saving.folder, state, keep=2, log=watch.log)
            first_step, stop = store.restore_latest() or 0, saving.stop
            saving.forget(first_step, int(watching.epoch.numpy()))
            if first_step:
                watch.log(f"seed {seed}  resuming after step {first_step}")
                watching.resume(first_step)
            callbacks.append(
                CheckpointEvery(store, saving.every, first_step=first_step, stop=stop)
            )
        # What is left of an epoch comes first: Keras's epochs end where a pass over the
        # rows does, for the evaluation.
        epoch, done = divmod(watching.step, per_pass)
        parts = [(epoch, epoch + 1, per_pass - done), (epoch + 1, epochs, per_pass)]
        for first, last, steps in parts if done else [(epoch, epochs, per_pass)]:
            if first < last and not (watching.is_done or stop.requested):
                self.model.fit(
                    training_dataset(
                        self._rows,
                        self._order,
                        seed=seed,
                        steps=total,
                        first_step=watching.step,
                    ),
                    initial_epoch=first,
                    epochs=last,
                    steps_per_epoch=steps,
                    verbose=0,
                    shuffle=False,
                    callbacks=callbacks,
                )
        if not stop.requested:
            watching.keep_best()


class Scorer:
    """A float32 copy of a model, for scores and exports.

    Scores are of exactly the network that is exported, whatever the dtype of training.
    ``outputs`` runs the copy, which is not compiled, over rows.
    """

    def __init__(self, model: TaskModel, batch_size: int):
        self.model = model.fresh(0, dtype="float32")
        self.outputs = Outputs(self.model, batch_size)


class _Watching(StepCallback):
    """Does what a ``Watch`` says while one seed trains.

    After ``log_steps`` it shows and records the loss, which is what Keras has: the mean
    over the steps of the epoch so far. After an epoch it evaluates, keeps the best
    weights, and may stop early.

    ``ends`` are the last steps of the epochs. ``state`` is what a checkpoint needs,
    beside model and optimizer, for a run that goes on as if nothing had happened.
    """

    def __init__(
        self,
        model: TaskModel,
        seed: int,
        ends: list[int],
        batch_size: int,
        watch: Watch,
    ):
        super().__init__()
        self._seed = seed
        self._ends = ends
        self._total = ends[-1]
        self._batch_size = batch_size
        self._watch = watch
        self.epoch = tf.Variable(0, dtype=tf.int64)  # Evaluated, as a number from 1.
        self._waited = tf.Variable(0, dtype=tf.int64)
        self._best = tf.Variable(math.nan, dtype=tf.float64)
        loss = next(metric for metric in model.metrics if metric.name == "loss")
        self._loss = loss.variables
        self._weights = model.weights
        self._best_weights: list[tf.Variable] = []
        if watch.keep_best:
            self._best_weights = [tf.Variable(w.numpy()) for w in model.weights]
        self.state = {
            "watch/epoch": self.epoch,
            "watch/waited": self._waited,
            "watch/best": self._best,
            **{f"watch/loss/{n}": v for n, v in enumerate(self._loss)},
            **{f"watch/weights/{n}": v for n, v in enumerate(self._best_weights)},
        }
        self._restored: list[np.ndarray] = []
        self._begin(0)

    def _begin(self, step: int) -> None:
        self.step, self._first = step, step + 1
        self._since = (step, time.monotonic())
        # Told only when a line is due, so it shows whatever it is told.
        self._progress = cli.Progress(
            self._total, done=step, log=self._watch.log, seconds=0
        )

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to train."""
        patience = self._watch.patience
        waited = int(self._waited.numpy())
        return self.step == self._total or bool(patience and waited >= patience)

    def resume(self, step: int) -> None:
        """Continues after a step, whose ``state`` was restored."""
        self._begin(step)
        if step in self._ends:
            # The checkpoint may be older than the evaluation.
            self._end_epoch(self._ends.index(step) + 1)
        else:
            self._restored = [variable.numpy() for variable in self._loss]

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        # Keras has just set it to zero.
        for variable, value in zip(self._loss, self._restored, strict=False):
            variable.assign(value)
        self._restored = []

    def after_step(self, previous: int, step: int, logs: Mapping[str, Any]) -> None:
        if step == self._total:
            # Before Keras asks for more than there is: the last epoch may be shorter.
            self.model.stop_training = True
        if step % self._watch.log_steps == 0 or step == self._total:
            self._report(float(logs["loss"]))
        elif step == self._first:
            # It has compiled: the rate and the time left are counted from here.
            self._progress.update(step, f"seed {self._seed}")

    def _report(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {self.step}")
        step, began = self._since
        examples = (self.step - step) * self._batch_size
        rate = examples / max(time.monotonic() - began, 1e-9)
        self._since = (self.step, time.monotonic())
        self._watch.record(
            {
                "seed": self._seed,
                "step": self.step,
                "loss": loss,
                "learning_rate": float(self.model.optimizer.learning_rate),
                "examples_per_second": rate,
            }
        )
        text = f"seed {self._seed}  loss (mean of this epoch) {loss:.4f}"
        self._progress.update(self.step, f"{text}  {rate:.0f} examples/s")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        # Not where a signal has ended it early.
        if self.step in self._ends:
            self._end_epoch(epoch + 1)
            if self.is_done:
                self.model.stop_training = True

    def _end_epoch(self, epoch: int) -> None:
        if self._watch.evaluate is None or epoch <= int(self.epoch.numpy()):
            return
        main, scores = self._watch.evaluate()
        self._watch.record({"seed": self._seed, "epoch": epoch, **scores})
        self._watch.log(f"seed {self._seed}  epoch {epoch}  {brief(scores)}")
        self.epoch.assign(epoch)
        better, best = self._watch.greater_is_better, float(self._best.numpy())
        ranks = [rank(score, greater_is_better=better) for score in (main, best)]
        if epoch == 1 or ranks[0] > ranks[1]:
            self._best.assign(main)
            self._waited.assign(0)
            for kept, weight in zip(self._best_weights, self._weights, strict=False):
                kept.assign(weight.numpy())
            return
        self._waited.assign_add(1)
        if self._watch.patience and self._waited.numpy() >= self._watch.patience:
            self._watch.log(f"seed {self._seed}  stopped early, best {best:.2f}")

    def keep_best(self) -> None:
        """Puts the best weights into the model, if they are kept."""
        for kept, weight in zip(self._best_weights, self._weights, strict=False):
            weight.assign(kept.numpy())


def brief(scores: Mapping[str, float]) -> str:
    """Returns scores as one line."""
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())

"""Trains one model with several seeds, without building or tracing it again."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from electra_tf import cli
from electra_tf.cli import Log
from electra_tf.tasks.base import Rows
from electra_tf.tasks.batching import Outputs, TrainingOrder, training_dataset
from electra_tf.tasks.heads import TaskModel


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
    """

    evaluate: Callable[[], tuple[float, dict[str, float]]] | None
    greater_is_better: bool
    patience: int
    keep_best: bool
    log: Log
    record: Callable[[Mapping[str, Any]], None]
    log_steps: int


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
    """

    def __init__(
        self,
        model: TaskModel,
        rows: Rows,
        order: TrainingOrder,
        *,
        total_steps: int,
        random_encoder: bool = False,
    ):
        self.model = model
        self._rows = rows
        self._order = order
        self._total_steps = total_steps
        self._random_encoder = random_encoder
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
        slots = zip(self.model.optimizer.variables, self._unused, strict=True)
        for variable, value in slots:
            variable.assign(value)
        self.model.reset_seed(seed)

    def train(self, seed: int, watch: Watch) -> None:
        """Trains from the start with one seed.

        FloatingPointError if the loss stops being finite.
        """
        self.reset(seed)
        per_pass = min(self._order.steps_per_pass, self._total_steps)
        batch_size = self._order.batch_size
        self.model.stop_training = False
        self.model.fit(
            training_dataset(
                self._rows, self._order, seed=seed, steps=self._total_steps
            ),
            # Keras's epochs end where a pass over the rows does, for the evaluation.
            epochs=math.ceil(self._total_steps / per_pass),
            steps_per_epoch=per_pass,
            verbose=0,
            shuffle=False,
            callbacks=[_Watching(seed, self._total_steps, batch_size, watch)],
        )


class Scorer:
    """A float32 copy of a model, for scores and exports.

    Scores are of exactly the network that is exported, whatever the dtype of training.
    ``outputs`` runs the copy, which is not compiled, over rows.
    """

    def __init__(self, model: TaskModel, batch_size: int):
        self.model = model.fresh(0, dtype="float32")
        self.outputs = Outputs(self.model, batch_size)


class _Watching(keras.callbacks.Callback):
    """Does what a ``Watch`` says while one seed trains.

    After ``log_steps`` it shows and records the loss, which is what Keras has: the mean
    over the steps of the epoch so far. After an epoch it evaluates, keeps the best
    weights, and may stop early.
    """

    def __init__(self, seed: int, total_steps: int, batch_size: int, watch: Watch):
        super().__init__()
        self._seed = seed
        self._total = total_steps
        self._batch_size = batch_size
        self._watch = watch
        self._step = 0
        self._since = (0, time.monotonic())
        # Told only when a line is due, so it shows whatever it is told.
        self._progress = cli.Progress(total_steps, log=watch.log, seconds=0)
        self._best: float | None = None
        self._best_weights: list[np.ndarray] = []
        self._waited = 0

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any]) -> None:
        self._step += 1
        if self._step == self._total:
            # Before Keras asks for more than there is: the last epoch may be shorter.
            self.model.stop_training = True
        if self._step % self._watch.log_steps == 0 or self._step == self._total:
            self._report(float(logs["loss"]))
        elif self._step == 1:
            # It has compiled: the rate and the time left are counted from here.
            self._progress.update(1, f"seed {self._seed}")

    def _report(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {self._step}")
        step, began = self._since
        examples = (self._step - step) * self._batch_size
        rate = examples / max(time.monotonic() - began, 1e-9)
        self._since = (self._step, time.monotonic())
        self._watch.record(
            {
                "seed": self._seed,
                "step": self._step,
                "loss": loss,
                "learning_rate": float(self.model.optimizer.learning_rate),
                "examples_per_second": rate,
            }
        )
        text = f"seed {self._seed}  loss (mean of this epoch) {loss:.4f}"
        self._progress.update(self._step, f"{text}  {rate:.0f} examples/s")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self._watch.evaluate is None:
            return
        main, scores = self._watch.evaluate()
        self._watch.record({"seed": self._seed, "epoch": epoch + 1, **scores})
        self._watch.log(f"seed {self._seed}  epoch {epoch + 1}  {brief(scores)}")
        sign = 1 if self._watch.greater_is_better else -1
        if self._best is None or sign * main > sign * self._best:
            self._best, self._waited = main, 0
            if self._watch.keep_best:
                self._best_weights = self.model.get_weights()
            return
        self._waited += 1
        if self._watch.patience and self._waited >= self._watch.patience:
            self._watch.log(f"seed {self._seed}  stopped early, best {self._best:.2f}")
            self.model.stop_training = True

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        if self._best_weights:
            self.model.set_weights(self._best_weights)


def brief(scores: Mapping[str, float]) -> str:
    """Returns scores as one line."""
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())

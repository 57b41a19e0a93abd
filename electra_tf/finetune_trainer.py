"""Trains one model with several seeds, without building or tracing it again."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from electra_tf.tasks.base import Rows
from electra_tf.tasks.batching import TrainingOrder, training_dataset
from electra_tf.tasks.heads import TaskModel

Log = Callable[[str], None]
Record = Callable[[dict], None]


@dataclasses.dataclass(frozen=True)
class Watch:
    """What happens while a seed trains.

    Attributes:
        evaluate: Scores the current weights: a main score and all scores; None if
            that happens only at the end.
        greater_is_better: Whether the best main score is the largest.
        patience: Epochs without a better main score before stopping; 0: never.
        keep_best: Whether the weights of the best epoch are kept, not the last.
        log: Receives progress lines.
        record: Receives what metrics.jsonl holds.
        log_steps: Steps between progress lines.
    """

    evaluate: Callable[[], tuple[float, dict[str, float]]] | None
    greater_is_better: bool
    patience: int
    keep_best: bool
    log: Log
    record: Record
    log_steps: int


class Trainer:
    """One compiled model and its training rows.

    The same tf.functions run for every seed: before each one the weights, the slots
    and the dropout stream are set, the head is initialized anew, and so is the encoder
    if nothing pretrained is wanted.

    Args:
        model: A `TaskModel`, compiled with a loss and an `electra_tf.training.AdamW`.
        rows: Training rows.
        order: Which rows form which batch.
        total_steps: Updates per seed.
        random_encoder: Whether the encoder starts from initial weights.

    Attributes:
        model: The model.
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
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
        self._unused = [variable.numpy() for variable in model.optimizer.variables]

    def reset(self, seed: int) -> None:
        """Puts everything back to where a run with this seed starts."""
        fresh = self.model.fresh(seed)
        self.model.head.set_weights(fresh.head.get_weights())
        encoder = self._pretrained
        if self._random_encoder:
            encoder = fresh.encoder.get_weights()
        self.model.encoder.set_weights(encoder)
        slots = zip(self.model.optimizer.variables, self._unused, strict=True)
        for variable, value in slots:
            variable.assign(value)
        self.model.reset_seed(seed)

    def train(self, seed: int, watch: Watch) -> None:
        """Trains from the start with one seed.

        Raises:
            FloatingPointError: The loss is not finite any more.
        """
        self.reset(seed)
        per_pass = min(self._order.steps_per_pass, self._total_steps)
        dataset = training_dataset(
            self._rows, self._order, seed=seed, steps=self._total_steps
        )
        progress = _Progress(seed, self._total_steps, self._order.batch_size, watch)
        epochs = _Epochs(seed, watch)
        self.model.stop_training = False
        self.model.fit(
            dataset,
            epochs=math.ceil(self._total_steps / per_pass),  # for evaluation
            steps_per_epoch=per_pass,
            verbose=0,
            shuffle=False,
            callbacks=[progress, epochs],
        )


class _Progress(keras.callbacks.Callback):
    """A line per `log_steps`, with rate and time left."""

    def __init__(self, seed, total_steps, batch_size, watch):
        super().__init__()
        self._seed = seed
        self._total = total_steps
        self._batch_size = batch_size
        self._watch = watch
        self._step = 0
        self._since = (0, time.monotonic())

    def on_train_batch_end(self, batch, logs=None):
        self._step += 1
        if self._step == self._total:
            # Before Keras asks for more than there is: the last epoch may be shorter.
            self.model.stop_training = True
        if self._step % self._watch.log_steps and self._step != self._total:
            return
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {self._step}")
        self._report(loss)

    def _report(self, loss):
        step, began = self._since
        elapsed = max(time.monotonic() - began, 1e-9)
        rate = (self._step - step) / elapsed
        self._since = (self._step, time.monotonic())
        left = (self._total - self._step) / rate
        learning_rate = float(self.model.optimizer.learning_rate)
        self._watch.record(
            {
                "seed": self._seed,
                "step": self._step,
                "loss": loss,
                "learning_rate": learning_rate,
                "examples_per_second": rate * self._batch_size,
            }
        )
        self._watch.log(
            f"seed {self._seed}  step {self._step}/{self._total}  loss {loss:.4f}  "
            f"{rate * self._batch_size:.0f} examples/s  ETA {clock(left)}"
        )


class _Epochs(keras.callbacks.Callback):
    """Evaluates after each epoch, keeps the best weights, stops early."""

    def __init__(self, seed, watch):
        super().__init__()
        self._seed = seed
        self._watch = watch
        self._best: float | None = None
        self._best_weights: list[np.ndarray] = []
        self._waited = 0

    def on_epoch_end(self, epoch, logs=None):
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

    def on_train_end(self, logs=None):
        if self._best_weights:
            self.model.set_weights(self._best_weights)


def brief(scores: dict[str, Any]) -> str:
    """Scores as one line."""
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

"""Trains one compiled model with several seeds, without retracing."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from electra_tf import cli
from electra_tf.cli import Log
from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.tasks.base import Rows
from electra_tf.tasks.batching import TrainingOrder, training_dataset
from electra_tf.tasks.heads import TaskModel
from electra_tf.training.callbacks import GracefulStop, StepCallback
from electra_tf.training.checkpoints import CheckpointStore, named_variables


class Stopped(Exception):
    """Raised with a signal that ended training; the same command resumes it."""


@dataclasses.dataclass(eq=False)
class Trainer(StepCallback):
    """Trains a compiled model on rows; seeds share the traced functions.

    As a Keras callback of each ``fit``, it logs, evaluates and saves checkpoints. Other
    callbacks get the scores with the prefix ``val_``.
    """

    compiled: dataclasses.InitVar[TaskModel]
    rows: Rows
    order: TrainingOrder
    _: dataclasses.KW_ONLY
    total_steps: int  # Updates per seed.
    log: Log
    record: Callable[[Mapping[str, Any]], None]  # Receives rows of metrics.jsonl.
    log_steps: int
    random_encoder: bool = False  # Whether each seed initializes a new encoder.
    # Initializes the head from the encoder, in place of random weights.
    start_head: Callable[[TaskModel], None] | None = None
    # Returns the held-out scores by name, after every epoch.
    evaluate: Callable[[], dict[str, float]] | None = None
    # Factories of further Keras callbacks, called for each seed.
    callbacks: Sequence[Callable[[], keras.callbacks.Callback]] = ()

    def __post_init__(self, compiled: TaskModel) -> None:
        super().__init__(self.log_steps)
        self.set_model(compiled)
        # Result of ``start_head``, cached unless the encoder is random.
        self._head: list[np.ndarray] = []
        self.pretrained = compiled.encoder.get_weights()
        # Builds the slots now, so that ``reset`` can restore them.
        with compiled.distribute_strategy.scope():
            compiled.optimizer.build(compiled.trainable_variables)
        self._unused = [variable.numpy() for variable in compiled.optimizer.variables]
        self._steps_per_epoch = min(self.order.steps_per_pass, self.total_steps)
        self._epochs = math.ceil(self.total_steps / self._steps_per_epoch)

    def reset(self, seed: int) -> None:
        model, encoder = self.model, self.model.encoder
        encoder.set_weights(self.pretrained)
        if self.random_encoder or encoder.lora_rank:
            fresh = model.fresh(seed).encoder
            for own, new in zip(encoder.weights, fresh.weights, strict=True):
                if self.random_encoder or own.trainable:
                    own.assign(new)
        model.head.set_weights(model.new_head_weights(seed))
        if self.start_head is not None:
            if self.random_encoder or not self._head:
                self.start_head(model)
                self._head = model.head.get_weights()
            model.head.set_weights(self._head)
        slots = zip(model.optimizer.variables, self._unused, strict=True)
        for variable, value in slots:
            variable.assign(value)
        model.reset_seed(seed)

    def train(self, seed: int, folder: FinetuningFolder | None = None) -> str:
        """Trains one seed, from the start or from its last finished epoch.

        Returns "", or a message if the loss is not finite, which ends the training.
        ``folder`` stores a checkpoint per epoch. A signal ends training after the
        current step and raises ``Stopped``; a resumed run repeats that epoch.
        """
        self.reset(seed)
        self._begin(seed, folder)
        if self.step >= self.total_steps:
            return ""
        steps = {"steps": self.total_steps, "first_step": self.step}
        failure = ""
        with GracefulStop() as self._stop:
            try:
                self.model.fit(
                    training_dataset(self.rows, self.order, seed=seed, **steps),
                    initial_epoch=math.ceil(self.step / self._steps_per_epoch),
                    epochs=self._epochs,
                    steps_per_epoch=self._steps_per_epoch,
                    verbose=0,
                    shuffle=False,
                    callbacks=[self, *(make() for make in self.callbacks)],
                )
            except FloatingPointError as error:
                failure = str(error)
        if self._stop.requested:
            raise Stopped(self._stop.requested)
        return failure

    def _begin(self, seed: int, folder: FinetuningFolder | None) -> None:
        model = self.model
        self._seed, self._store, self.step = seed, None, 0
        if folder is not None:
            state = named_variables(model, model.optimizer)
            # Keeps two, so that one damaged checkpoint does not restart the seed.
            self._store = CheckpointStore(
                folder.state(seed), state, keep=2, log=self.log
            )
            self.step = self._store.restore_latest() or 0
            # Training records the rows after the checkpoint again.
            folder.forget(seed, self.step)
            if self.step:
                self.log(f"seed {seed}  resuming after step {self.step}")
        self._first = self.step + 1
        self._progress = cli.Progress(
            self.total_steps, done=self.step, log=self.log, seconds=0
        )

    def after_step(self, step: int, logs: Mapping[str, Any]) -> None:
        if self.is_due(step) or step == self.total_steps:
            loss = self._finite(logs["loss"])
            rate = float(self.model.optimizer.learning_rate)
            values = {"loss": loss, "learning_rate": rate}
            self.record({"seed": self._seed, "step": step, **values})
            text = f"seed {self._seed}  loss (mean of this epoch) {loss:.4f}"
            self._progress.update(step, text)
        elif step == self._first:
            # Starts timing after compilation.
            self._progress.update(step, f"seed {self._seed}")
        if step == self.total_steps or self._stop.requested:
            # The last epoch may be shorter than Keras expects.
            self.model.stop_training = True

    def _finite(self, loss: Any) -> float:
        loss = float(loss)
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {self.step}")
        return loss

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Evaluates and checkpoints, unless a signal ended the epoch early."""
        if self.step != min((epoch + 1) * self._steps_per_epoch, self.total_steps):
            return
        loss = self._finite(logs["loss"])
        if self.evaluate is not None:
            scores = self.evaluate()
            at = {"seed": self._seed, "epoch": epoch + 1, "step": self.step}
            self.record({**at, **scores})
            self.log(
                f"seed {self._seed}  epoch {epoch + 1}/{self._epochs}  loss "
                f"{loss:.4f}  held-out {brief(scores)}"
            )
            logs |= {f"val_{name}": value for name, value in scores.items()}
        if self._store is not None:
            self._store.save(self.step)


def brief(scores: Mapping[str, float]) -> str:
    """Formats scores as one line."""
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())

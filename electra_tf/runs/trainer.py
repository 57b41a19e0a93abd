"""Trains one compiled model with several seeds, without retracing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli
from electra_tf.cli import Log
from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.tasks.base import Rows
from electra_tf.tasks.batching import TrainingOrder, training_dataset
from electra_tf.tasks.heads import TaskModel
from electra_tf.tasks.metrics import rank
from electra_tf.training.callbacks import GracefulStop, StepCallback
from electra_tf.training.checkpoints import CheckpointStore, named_variables


@dataclasses.dataclass(eq=False)
class Trainer:
    """A compiled model and its training rows; seeds share the traced functions.

    ``start_head`` initializes the head from the encoder, in place of random weights.
    """

    model: TaskModel
    rows: Rows
    order: TrainingOrder
    _: dataclasses.KW_ONLY
    total_steps: int  # Updates per seed.
    random_encoder: bool = False
    start_head: Callable[[TaskModel], None] | None = None

    def __post_init__(self) -> None:
        model = self.model
        # The same for all seeds, unless the encoder is random.
        self._head: list[np.ndarray] = []
        self._pretrained = model.encoder.get_weights()
        # Builds the slots now, so that ``reset`` can restore them.
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
        self._unused = [variable.numpy() for variable in model.optimizer.variables]

    def reset(self, seed: int) -> None:
        model, encoder = self.model, self.model.encoder
        encoder.set_weights(self._pretrained)
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

    def train(
        self,
        seed: int,
        watch: Watch,
        folder: FinetuningFolder | None = None,
        stop: GracefulStop | None = None,
    ) -> None:
        """Trains one seed, from the start or from its last finished epoch.

        ``folder`` stores a checkpoint per epoch until the seed is done. ``stop`` ends
        training after the current step; a resumed run repeats that epoch. Raises
        FloatingPointError if the loss is not finite.
        """
        self.reset(seed)
        watch.begin(self, seed, folder, stop)
        if not watch.is_done:
            self.model.fit(
                training_dataset(
                    self.rows,
                    self.order,
                    seed=seed,
                    steps=self.total_steps,
                    first_step=watch.step,
                ),
                initial_epoch=watch.epoch,
                epochs=watch.epochs,
                steps_per_epoch=watch.steps_per_epoch,
                verbose=0,
                shuffle=False,
                callbacks=[watch, *(make() for make in watch.callbacks)],
            )
        if stop is None or not stop.requested:
            watch.restore_best()


@dataclasses.dataclass(eq=False, kw_only=True)
class Watch(StepCallback):
    """Keras callback that logs, evaluates, saves checkpoints and stops early.

    It serves all seeds of a ``Trainer``, one after the other. Its state is part of the
    checkpoints. Other callbacks get the scores with the prefix ``val_``.
    """

    log: Log
    record: Callable[[Mapping[str, Any]], None]  # Receives rows of metrics.jsonl.
    log_steps: int
    # Returns the main score and all scores by name, after every epoch.
    evaluate: Callable[[], tuple[float, dict[str, float]]] | None = None
    greater_is_better: bool = True
    patience: int = 0  # Epochs without improvement before stopping; 0: never.
    keep_best: bool = False
    # Factories of further Keras callbacks, called for each seed.
    callbacks: Sequence[Callable[[], keras.callbacks.Callback]] = ()

    def __post_init__(self) -> None:
        super().__init__(self.log_steps)

    def begin(
        self,
        trainer: Trainer,
        seed: int,
        folder: FinetuningFolder | None,
        stop: GracefulStop | None,
    ) -> None:
        """Starts a seed, or restores its last finished epoch from ``folder``."""
        model = trainer.model
        self._seed, self._stop, self._total = seed, stop, trainer.total_steps
        self.steps_per_epoch = min(trainer.order.steps_per_pass, self._total)
        self._waited = tf.Variable(0, dtype=tf.int64)
        self._best = tf.Variable(math.nan, dtype=tf.float64)
        # Pairs of a weight and its value in the best epoch.
        weights = model.weights if self.keep_best else ()
        self._kept = [(weight, tf.Variable(weight.numpy())) for weight in weights]
        self._store, self.step = None, 0
        if folder is not None:
            state = named_variables(model, model.optimizer)
            state |= {"watch/waited": self._waited, "watch/best": self._best}
            for number, (_, kept) in enumerate(self._kept):
                state[f"watch/weights/{number}"] = kept
            # Keeps two, so that a damaged file does not cost the whole seed.
            self._store = CheckpointStore(
                folder.state(seed), state, keep=2, log=self.log
            )
            self.step = self._store.restore_latest() or 0
            # Rows after the checkpoint are recorded again.
            folder.forget(seed, self.step, self.epoch)
            if self.step:
                self.log(f"seed {seed}  resuming after step {self.step}")
        self._first = self.step + 1
        self._progress = cli.Progress(
            self._total, done=self.step, log=self.log, seconds=0
        )

    @property
    def epoch(self) -> int:
        """Number of finished epochs; the last one may be shorter."""
        return math.ceil(self.step / self.steps_per_epoch)

    @property
    def epochs(self) -> int:
        return math.ceil(self._total / self.steps_per_epoch)

    @property
    def is_done(self) -> bool:
        return self.step == self._total or self._is_out_of_patience

    @property
    def _is_out_of_patience(self) -> bool:
        return 0 < self.patience <= int(self._waited.numpy())

    def after_step(self, step: int, logs: Mapping[str, Any]) -> None:
        if self.is_due(step) or step == self._total:
            loss = self._finite(logs["loss"])
            rate = float(self.model.optimizer.learning_rate)
            values = {"loss": loss, "learning_rate": rate}
            self.record({"seed": self._seed, "step": step, **values})
            text = f"seed {self._seed}  loss (mean of this epoch) {loss:.4f}"
            self._progress.update(step, text)
        elif step == self._first:
            # Starts timing after compilation.
            self._progress.update(step, f"seed {self._seed}")
        if step == self._total or (self._stop is not None and self._stop.requested):
            # The last epoch may be shorter than Keras expects.
            self.model.stop_training = True

    def _finite(self, loss: Any) -> float:
        loss = float(loss)
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {self.step}")
        return loss

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Evaluates and checkpoints, unless a signal ended the epoch early."""
        if self.step != min((epoch + 1) * self.steps_per_epoch, self._total):
            return
        loss = self._finite(logs["loss"])
        if self.evaluate is not None:
            main, scores = self.evaluate()
            at = {"seed": self._seed, "epoch": epoch + 1, "step": self.step}
            self.record({**at, **scores})
            self.log(
                f"seed {self._seed}  epoch {epoch + 1}/{self.epochs}  loss {loss:.4f}  "
                f"held-out {brief(scores)}"
            )
            logs |= {f"val_{name}": value for name, value in scores.items()}
            self._compare(epoch + 1, main)
        if self._store is not None:
            self._store.save(self.step)
        if self.is_done:
            self.model.stop_training = True

    def _compare(self, epoch: int, main: float) -> None:
        better, best = self.greater_is_better, float(self._best.numpy())
        ranks = [rank(score, greater_is_better=better) for score in (main, best)]
        if epoch == 1 or ranks[0] > ranks[1]:
            self._best.assign(main)
            self._waited.assign(0)
            for weight, kept in self._kept:
                kept.assign(weight.numpy())
            return
        self._waited.assign_add(1)
        if self._is_out_of_patience:
            self.log(f"seed {self._seed}  stopped early, best {best:.2f}")

    def restore_best(self) -> None:
        for weight, kept in self._kept:
            weight.assign(kept.numpy())


def brief(scores: Mapping[str, float]) -> str:
    """Formats scores as one line."""
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())

"""Trains one compiled model with several seeds, without retracing."""

from __future__ import annotations

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


class Trainer:
    """A compiled model and its training rows, shared by all seeds.

    Seeds reuse the traced functions: ``reset`` restores the initial state. ``model`` is
    compiled with an ``electra_tf.training.AdamW``. ``total_steps`` are the updates per
    seed. ``start_head`` initializes the head from the encoder, in place of random
    weights.
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
        self.rows = rows
        self.order = order
        self.total_steps = total_steps
        self._random_encoder = random_encoder
        self._start_head = start_head
        # The same for all seeds, unless the encoder is random.
        self._head: list[np.ndarray] = []
        self._pretrained = model.encoder.get_weights()
        # Builds the slots now, so that ``reset`` can restore them.
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
        self._unused = [variable.numpy() for variable in model.optimizer.variables]

    def reset(self, seed: int) -> None:
        """Restores the initial state of a run with this seed."""
        encoder = self.model.encoder
        encoder.set_weights(self._pretrained)
        if self._random_encoder or encoder.lora_rank:
            fresh = self.model.fresh(seed).encoder
            pairs = zip(encoder.weights, fresh.weights, strict=True)
            for own, new in pairs:
                if self._random_encoder or own.trainable:
                    own.assign(new)
        self.model.head.set_weights(self.model.new_head_weights(seed))
        if self._start_head is not None:
            if self._random_encoder or not self._head:
                self._start_head(self.model)
                self._head = self.model.head.get_weights()
            self.model.head.set_weights(self._head)
        slots = zip(self.model.optimizer.variables, self._unused, strict=True)
        for variable, value in slots:
            variable.assign(value)
        self.model.reset_seed(seed)

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


class Watch(StepCallback):
    """Keras callback that logs, evaluates, saves checkpoints and stops early.

    One callback serves all seeds of a ``Trainer``, one after the other. Its state is
    part of the checkpoints, so that a resumed run keeps its best epoch.

    Args:
        record: receives rows of metrics.jsonl; ``loss`` is the mean of the epoch so
            far.
        evaluate: returns the main score and all scores by name, after every epoch.
            Other callbacks get the scores with the prefix ``val_``.
        patience: epochs without improvement before stopping; 0: never.
        callbacks: factories of further Keras callbacks, called for each seed.
    """

    def __init__(
        self,
        *,
        log: Log,
        record: Callable[[Mapping[str, Any]], None],
        log_steps: int,
        evaluate: Callable[[], tuple[float, dict[str, float]]] | None = None,
        greater_is_better: bool = True,
        patience: int = 0,
        keep_best: bool = False,
        callbacks: Sequence[Callable[[], keras.callbacks.Callback]] = (),
    ):
        super().__init__(log_steps)
        self.callbacks = callbacks
        self._log = log
        self._record = record
        self._evaluate = evaluate
        self._greater_is_better = greater_is_better
        self._patience = patience
        self._keep_best = keep_best

    def begin(
        self,
        trainer: Trainer,
        seed: int,
        folder: FinetuningFolder | None,
        stop: GracefulStop | None,
    ) -> None:
        """Starts a seed, or restores its last finished epoch from ``folder``."""
        model = trainer.model
        self._seed, self._stop = seed, stop
        self._total = trainer.total_steps
        self.steps_per_epoch = min(trainer.order.steps_per_pass, self._total)
        self._weights = model.weights
        self._waited = tf.Variable(0, dtype=tf.int64)
        self._best = tf.Variable(math.nan, dtype=tf.float64)
        self._best_weights: list[tf.Variable] = []
        if self._keep_best:
            self._best_weights = [tf.Variable(w.numpy()) for w in self._weights]
        self._store, self.step = None, 0
        if folder is not None:
            state = named_variables(model, model.optimizer)
            state |= {"watch/waited": self._waited, "watch/best": self._best}
            for number, weight in enumerate(self._best_weights):
                state[f"watch/weights/{number}"] = weight
            # Keeps two, so that a damaged file does not cost the whole seed.
            self._store = CheckpointStore(
                folder.state(seed), state, keep=2, log=self._log
            )
            self.step = self._store.restore_latest() or 0
            # Rows after the checkpoint are recorded again.
            folder.forget(seed, self.step, self.epoch)
            if self.step:
                self._log(f"seed {seed}  resuming after step {self.step}")
        self._first = self.step + 1
        self._progress = cli.Progress(
            self._total, done=self.step, log=self._log, seconds=0
        )

    @property
    def epoch(self) -> int:
        """Number of finished epochs; the last one may be shorter."""
        return math.ceil(self.step / self.steps_per_epoch)

    @property
    def epochs(self) -> int:
        """Number of epochs in all; the last one may be shorter."""
        return math.ceil(self._total / self.steps_per_epoch)

    @property
    def is_done(self) -> bool:
        """True if training is complete or stopped early."""
        waited = int(self._waited.numpy())
        return self.step == self._total or 0 < self._patience <= waited

    def after_step(self, previous: int, step: int, logs: Mapping[str, Any]) -> None:
        """Logs the loss; stops at the last step or after a signal."""
        if self.is_due(previous, step) or step == self._total:
            self._report(float(logs["loss"]))
        elif step == self._first:
            # Starts timing after compilation.
            self._progress.update(step, f"seed {self._seed}")
        if step == self._total or (self._stop is not None and self._stop.requested):
            # The last epoch may be shorter than Keras expects.
            self.model.stop_training = True

    def _report(self, loss: float) -> None:
        self._check(loss)
        rate = float(self.model.optimizer.learning_rate)
        at = {"seed": self._seed, "step": self.step}
        self._record(at | {"loss": loss, "learning_rate": rate})
        text = f"seed {self._seed}  loss (mean of this epoch) {loss:.4f}"
        self._progress.update(self.step, text)

    def _check(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {self.step}")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Evaluates and checkpoints, unless a signal ended the epoch early."""
        if self.step != min((epoch + 1) * self.steps_per_epoch, self._total):
            return
        self._check(logs["loss"])
        if self._evaluate is not None:
            main, scores = self._evaluate()
            at = {"seed": self._seed, "epoch": epoch + 1, "step": self.step}
            self._record({**at, **scores})
            self._log(
                f"seed {self._seed}  epoch {epoch + 1}/{self.epochs}  loss "
                f"{logs['loss']:.4f}  held-out {brief(scores)}"
            )
            logs |= {f"val_{name}": value for name, value in scores.items()}
            self._compare(epoch + 1, main)
        if self._store is not None:
            self._store.save(self.step)
        if self.is_done:
            self.model.stop_training = True

    def _compare(self, epoch: int, main: float) -> None:
        """Keeps the weights if they are the best so far."""
        better, best = self._greater_is_better, float(self._best.numpy())
        ranks = [rank(score, greater_is_better=better) for score in (main, best)]
        if epoch == 1 or ranks[0] > ranks[1]:
            self._best.assign(main)
            self._waited.assign(0)
            for kept, weight in zip(self._best_weights, self._weights, strict=False):
                kept.assign(weight.numpy())
            return
        self._waited.assign_add(1)
        if 0 < self._patience <= int(self._waited.numpy()):
            self._log(f"seed {self._seed}  stopped early, best {best:.2f}")

    def restore_best(self) -> None:
        """Restores the best weights into the model, if they are kept."""
        for kept, weight in zip(self._best_weights, self._weights, strict=False):
            weight.assign(kept.numpy())


def brief(scores: Mapping[str, float]) -> str:
    """Formats scores as one line."""
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())

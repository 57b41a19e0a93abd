"""Base class of the pretraining models, with their training step, and phases.

Joint training has one phase. Two-stage training has two (Clark et al., 2020, section
3.2, "Training Algorithms"): the generator, then the discriminator against it, frozen.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.layers.encoder import ExportsTokenInputs
from electra_tf.layers.randomness import at_row, fold_in, known_shape
from electra_tf.layers.replicas import (
    DistributedFit,
    all_replicas_sum,
    rows_before,
    seed_of_rows,
)
from electra_tf.layers.serialization import Serializable
from electra_tf.layers.weights import check_positive

Batch = Mapping[str, tf.Tensor]

# Ids of the random streams within a step, folded into its seed; all models share them.
GENERATOR, SAMPLER, DISCRIMINATOR, RELAXATION = range(4)


class PretrainingModel(ExportsTokenInputs, Serializable, DistributedFit, keras.Model):
    """A ``keras.Model`` with the losses of ``compute_losses``.

    All randomness in a step is a function of (seed, step, global row, stream). Resumed
    runs are bit-identical, and the split into replicas and micro-batches does not
    matter. Losses are sums over local rows divided by *global* counts, so the sum of
    the replicas' gradients is the gradient of the whole batch.

    Args:
        gradient_accumulation_steps: micro-batches per update; divides the local rows.
        seed: seed of the training step.

    Examples:
        >>> model = et.Electra(generator, discriminator, gradient_accumulation_steps=2)
    """

    def __init__(
        self, *, gradient_accumulation_steps: int = 1, seed: int = 0, **kwargs
    ):
        super().__init__(**kwargs)
        check_positive(gradient_accumulation_steps=gradient_accumulation_steps)
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.seed = seed
        # Unlike the optimizer's counter, it also counts skipped float16 updates.
        self.step = self.add_weight(
            name="step",
            shape=(),
            dtype="int64",
            initializer="zeros",
            trainable=False,
            aggregation="only_first_replica",
        )

    def compute_losses(
        self, batch: Batch, totals: Batch, *, seed: tf.Tensor, training: bool
    ) -> list[tf.Tensor]:
        """Returns the scalar loss terms of a batch and updates the metrics.

        ``batch`` has the tensors of ``features.PRETRAINING``. Each term is a sum over
        its rows divided by one of the global counts ``totals`` (``loss_totals``).
        ``seed``, int32 [3], is for dropout and samples.
        """
        raise NotImplementedError

    def local_counts(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Counts the masked slots, real tokens and rows of this replica (float32)."""
        tokens = tf.cast(batch["input_mask"], tf.float32)
        return {
            "masked": tf.reduce_sum(batch["masked_lm_weights"]),
            "tokens": tf.reduce_sum(tokens),
            # Does not count padding rows of a last batch.
            "rows": tf.reduce_sum(tf.reduce_max(tokens, axis=1)),
        }

    def loss_totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the sums of ``local_counts`` over all replicas."""
        # Deviation: counts over all replicas, where the original divides by each
        # replica's own (plus 1e-6) and averages; unequal rows then weigh unequally.
        counts = self.local_counts(batch)
        sums = all_replicas_sum(tf.stack(list(counts.values())))
        return dict(zip(counts, tf.unstack(sums), strict=True))

    def train_step(self, data: Batch | tuple) -> dict[str, tf.Tensor]:
        batch = _unpack(data)
        seed = tf.stack([tf.constant(self.seed), tf.cast(self.step, tf.int32)])
        seed = seed_of_rows(seed, batch["input_ids"])
        totals = self.loss_totals(batch)
        is_whole = self.gradient_accumulation_steps == 1
        compute = self._gradients if is_whole else self._accumulated_gradients
        gradients = compute(batch, totals, seed)
        # Otherwise the counters would include the failed step at the end of the data.
        with tf.control_dependencies([batch["input_ids"]]):
            self.optimizer.apply(gradients, self.trainable_variables)
            self.step.assign_add(1)
        return self.metric_logs()

    def test_step(self, data: Batch | tuple) -> dict[str, tf.Tensor]:
        """Computes the losses without dropout, independent of the number of devices."""
        batch = _unpack(data)
        totals, seed = self.loss_totals(batch), self.test_seed(batch)
        self.compute_losses(batch, totals, seed=seed, training=False)
        self._check_losses()
        return self.metric_logs()

    def test_seed(self, batch: Batch) -> tf.Tensor:
        """Returns the sampling seed of ``test_step``, int32 [3]."""
        ids = batch["input_ids"]
        # int64: TensorFlow keeps int32 tensors in host memory, even on a GPU.
        fingerprint = all_replicas_sum(tf.reduce_sum(tf.cast(ids, tf.int64)))
        seed = fold_in(tf.constant([self.seed, -1]), tf.cast(fingerprint, tf.int32))
        return at_row(seed, rows_before(ids))

    def _gradients(
        self, batch: Batch, totals: Batch, seed: tf.Tensor
    ) -> list[tf.Tensor | tf.IndexedSlices]:
        with tf.GradientTape() as tape:
            terms = self.compute_losses(batch, totals, seed=seed, training=True)
            self._check_losses()
            loss = self.optimizer.scale_loss(tf.add_n(terms))
        return tape.gradient(loss, self.trainable_variables)

    def _check_losses(self) -> None:
        if self.losses or self.loss is not None or self._compile_metrics:
            raise UserError(
                "Pretraining models have their own losses and metrics, and do not use "
                "compile(loss=, metrics=), regularizers and add_loss: add the term to "
                "the loss of the objective."
            )

    def _accumulated_gradients(
        self, batch: Batch, totals: Batch, seed: tf.Tensor
    ) -> list[tf.Tensor | None]:
        count = self.gradient_accumulation_steps
        rows = batch["input_ids"].shape[0]
        if rows is None or rows % count:
            raise UserError(
                f"gradient_accumulation_steps={count} needs a fixed number of rows "
                f"per replica divisible by it, got {rows}: change the batch size."
            )
        size = rows // count
        micro_batches = {
            name: tf.reshape(value, [count, size, *known_shape(value)[1:]])
            for name, value in batch.items()
        }
        unused: set[int] = set()

        def add_one(
            index: tf.Tensor, sums: list[tf.Tensor]
        ) -> tuple[tf.Tensor, list[tf.Tensor]]:
            micro_batch = {name: value[index] for name, value in micro_batches.items()}
            own = at_row(seed, seed[2] + index * size)
            gradients = self._gradients(micro_batch, totals, own)
            pairs = [*zip(sums, gradients, strict=True)]
            unused.update(i for i, (_, g) in enumerate(pairs) if g is None)
            # Dense, because sparse embedding gradients have no fixed shape.
            return index + 1, [
                s if g is None else s + tf.convert_to_tensor(g) for s, g in pairs
            ]

        zeros = [tf.zeros(v.shape, v.dtype) for v in self.trainable_variables]
        _, sums = tf.while_loop(
            lambda index, _: index < count,
            add_one,
            (tf.constant(0), zeros),
            maximum_iterations=count,
            parallel_iterations=1,
        )
        # As without accumulation: the optimizer leaves these variables alone.
        return [None if i in unused else total for i, total in enumerate(sums)]


def _unpack(data: Batch | tuple) -> Batch:
    batch, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
    if labels is not None or weights is not None:
        raise UserError(
            "The dataset yields labels or sample weights: pretraining takes only a "
            "dictionary of features, as of electra_tf.data.pretraining_dataset."
        )
    return batch


@dataclasses.dataclass(frozen=True)
class Phase:
    """``steps`` updates of a model; its part ``frozen`` is not trained.

    ``name`` is part of the names of the optimizer's variables. ``hand_over`` is called
    before the first step, that is, at ``model.step`` 0.
    """

    name: str
    model: PretrainingModel
    steps: int
    frozen: keras.Model | None = None
    hand_over: Callable[[], None] | None = None

    def set_trainable(self) -> None:
        """Sets the trainable variables of this phase; call before compile and fit."""
        self.model.trainable = True
        if self.frozen is not None:
            self.frozen.trainable = False

    def release(self) -> None:
        """Unfreezes the frozen part, so that saved models are trainable."""
        # Keras does not pass on the attribute of a model that is trainable already.
        if self.frozen is not None:
            self.frozen.trainable = True


def remaining(phases: Sequence[Phase], done: int) -> Iterator[tuple[Phase, int, int]]:
    """Yields (phase, start, end) in updates of the run, after ``done`` updates."""
    end = 0
    for phase in phases:
        begin, end = end, end + phase.steps
        if done < end:
            if phase.hand_over is not None and not phase.model.step.numpy():
                phase.hand_over()
            yield phase, max(begin, done), end


def learned_weights(model: keras.Model) -> list[keras.Variable]:
    """Returns all learned variables, frozen or not, without counters and seeds."""
    return [v for v in model.weights if "float" in str(v.dtype)]

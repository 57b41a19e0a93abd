"""ELECTRA: joint training of a generator and a discriminator.

Clark et al., 2020, section 2. Letters: B batch, S sequence, P predicted positions,
V vocabulary, D hidden size.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.features import check_batch, encoder_inputs
from electra_tf.layers.embeddings import with_embeddings
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.randomness import fold_in
from electra_tf.pretraining.base import (
    DISCRIMINATOR,
    GENERATOR,
    SAMPLER,
    Batch,
    PretrainingModel,
)
from electra_tf.pretraining.masked_lm import MaskedLM, UnigramGenerator
from electra_tf.pretraining.metrics import Derived, Likelihood, TokenMean, total_loss
from electra_tf.pretraining.objectives import (
    Discriminator,
    Objective,
    ReplacedTokenDetection,
)
from electra_tf.pretraining.samplers import CategoricalSampler, Corrupted, corrupt


@keras.saving.register_keras_serializable(package="electra_tf")
class Electra(PretrainingModel):
    """Joint training of generator and discriminator.

    Minimizes ``generator_weight * generator loss + discriminator_weight * objective``;
    no gradient flows through the samples. To tie the embedding tables, pass the same
    ``TextEmbedding`` to both encoders. ``call`` returns the discriminator's logits, by
    default rtd_logits [B, S].

    Args:
        generator: ``MaskedLM``, ``TwoTowerGenerator`` (ELECTRA-TT of the Electric
            paper), ``UnigramGenerator``, or a model with its methods.
        discriminator: an encoder.
        objective: an ``Objective``; default ``ReplacedTokenDetection()``.
        sampler: (mlm_logits, masked_lm_ids, seed, step) -> sampled_ids [B, P]; default
            ``CategoricalSampler()``.
        generator_weight: weight of the generator's loss.
        discriminator_weight: weight of the objective (lambda in the paper, 50).
        sampling_dropout: False samples from a second forward pass of the generator
            without dropout or gradient; the original samples with dropout. Losses on
            the sampling distribution need True.
        special_ids: ids of [CLS], [SEP] and [MASK], which are never masked. The
            "replaceable" metrics exclude them; by default they exclude no token.

    Examples:
        >>> model = et.Electra(generator, discriminator)
        >>> model.compile(optimizer=et.training.AdamW(1e-3))
        >>> _ = et.data.write_shard("pair.tfrecord", [[2, *range(5, 20), 3]] * 8)
        >>> masking = et.data.Masking(100, 4, never_masked=(2, 3), max_seq_length=32)
        >>> batches = et.data.pretraining_dataset(
        ...     "pair.tfrecord", batch_size=4, masking=masking, sep_id=3
        ... )
        >>> history = model.fit(batches, steps_per_epoch=2, shuffle=False, verbose=0)
        >>> model.discriminator is discriminator
        True
    """

    default_objective = ReplacedTokenDetection

    def __init__(
        self,
        generator: MaskedLM | UnigramGenerator,
        discriminator: TextEncoder,
        *,
        objective: Objective | None = None,
        sampler: Callable | None = None,
        generator_weight: float = 1.0,
        discriminator_weight: float = 50.0,
        sampling_dropout: bool = True,
        special_ids: Sequence[int] = (),
        **kwargs,
    ):
        super().__init__(**kwargs)
        objective = objective or self.default_objective(name="objective")
        _check_parts(generator, discriminator, objective)
        self.generator = generator
        self.discriminator = discriminator
        self.objective = objective
        self.sampler = sampler or CategoricalSampler()
        self.generator_weight = generator_weight
        self.discriminator_weight = discriminator_weight
        self.sampling_dropout = sampling_dropout
        self.special_ids = tuple(special_ids)
        objective.check_sampler(self.sampler, sampling_dropout)
        if not objective.built:
            objective.build((None, None, discriminator.hidden_size))
        self._likelihood = Likelihood("generator")
        self._sampled_accuracy = TokenMean(name="sampled_accuracy")
        self._schedule_values = [
            Derived(lambda schedule=schedule: schedule(self.step), name=name)
            for name, schedule in getattr(self.sampler, "schedules", {}).items()
        ]
        self._total_loss = total_loss(
            (self._likelihood.loss, generator_weight),
            (objective.loss_metric, discriminator_weight),
        )
        names = ["loss", "generator_loss", "generator_accuracy", "sampled_accuracy"]
        names += [metric.name for metric in objective.step_metrics]
        twice = {name for name in names if names.count(name) > 1}
        # Two objectives may share the fractions.
        if wrong := twice - {"replaced_fraction", "replaced_masked_fraction"}:
            raise UserError(f"Two metrics are called {min(wrong)}: rename one.")
        self.built = True

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [
            self._total_loss,
            self._likelihood.loss,
            self._likelihood.accuracy,
            self._sampled_accuracy,
            *self.objective.step_metrics,
            *self._schedule_values,
        ]

    def call(
        self, inputs: Batch, training: bool = False, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the objective's logits, float32 [B, S, ...]."""
        inputs = encoder_inputs(inputs)
        hidden = self.discriminator(inputs, training=training, seed=seed)
        return self.objective(hidden, inputs)

    def detector(self) -> Discriminator:
        """Returns the discriminator with its head; shares the weights."""
        return self.objective.as_model(self.discriminator)

    def artifacts(self) -> dict[str, keras.Model]:
        """Returns independent models to save at the end of a run."""
        encoder = with_embeddings(self.discriminator)
        return {
            "encoder": encoder,
            "generator": with_embeddings(self.generator),
            "discriminator": self.objective.as_model(encoder),
        }

    def local_counts(self, batch: Batch) -> dict[str, tf.Tensor]:
        return {**super().local_counts(batch), **self.generator.local_counts(batch)}

    def compute_losses(
        self, batch: Batch, totals: Batch, *, seed: tf.Tensor, training: bool
    ) -> list[tf.Tensor]:
        corrupted = self._corrupt(batch, seed, training)
        hidden = self.discriminator(
            corrupted.inputs, training=training, seed=fold_in(seed, DISCRIMINATOR)
        )
        likelihood = self.generator.loss_of(
            corrupted.predicted, batch, totals, self._likelihood
        )
        objective = self.objective.loss(hidden, corrupted, totals, training=training)
        return [
            self.generator_weight * likelihood,
            self.discriminator_weight * objective,
        ]

    def _corrupt(self, batch: Batch, seed: tf.Tensor, training: bool) -> Corrupted:
        """Checks and corrupts a batch; updates ``sampled_accuracy``."""
        check_batch(batch)
        corrupted = self.corrupt(batch, seed=seed, training=training)
        is_right = corrupted.sampled_ids == batch["masked_lm_ids"]
        self._sampled_accuracy.update_state(is_right, batch["masked_lm_weights"])
        return corrupted

    def corrupt(
        self, batch: Batch, *, seed: tf.Tensor, training: bool = False
    ) -> Corrupted:
        """Replaces the masked tokens of a batch with samples of the generator."""
        predicted = self.generator.predictions(
            batch, training=training, seed=fold_in(seed, GENERATOR)
        )
        logits = predicted.logits
        if not self.sampling_dropout:
            logits = tf.stop_gradient(self.generator(batch))
        sampled_ids = self.sampler(
            logits, batch["masked_lm_ids"], fold_in(seed, SAMPLER), self.step
        )
        return corrupt(batch, sampled_ids, self.special_ids, predicted)

    def examine(self, batch: Batch, *, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """Corrupts a batch and returns the discriminator's predictions, each [B, S]."""
        corrupted = self.corrupt(batch, seed=seed)
        hidden = self.discriminator(corrupted.inputs)
        return {
            "corrupted_ids": corrupted.inputs["input_ids"],
            "is_masked": corrupted.is_masked,
            "is_replaced": self.objective.labels(corrupted),
            "is_replaceable": corrupted.is_replaceable,
            **self.objective.answer(hidden, corrupted),
        }


def _check_parts(generator: Any, discriminator: Any, objective: Any) -> None:
    """Raises ValueError for other classes, and for unequal vocabularies."""
    for value, kind in (discriminator, TextEncoder), (objective, Objective):
        if not isinstance(value, kind):
            raise UserError(f"Electra got {value!r} instead of a {kind.__name__}.")
    if isinstance(generator, TextEncoder):
        raise UserError("The generator is an encoder: pass et.MaskedLM(encoder).")
    own = discriminator.embeddings
    if getattr(objective, "embeddings", own) is not own:
        raise UserError("The objective needs the table of the discriminator.")
    table = getattr(getattr(generator, "head", None), "embeddings", generator)
    theirs, ours = getattr(table, "vocab_size", 0), own.vocab_size
    if theirs and theirs != ours:
        raise UserError(
            f"The generator has {theirs} tokens, the discriminator {ours}: give both "
            "the same vocabulary."
        )

"""ELECTRA: a generator corrupts, a discriminator detects, both train at once.

Clark et al., 2020, section 2. Letters: B batch, S sequence, P predicted positions,
V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.features import PRETRAINING, check_batch
from electra_tf.layers import losses
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.randomness import fold_in
from electra_tf.pretraining.base import (
    DISCRIMINATOR,
    GENERATOR,
    SAMPLER,
    Batch,
    PretrainingModel,
)
from electra_tf.pretraining.masked_lm import ACCURACY_PANEL, MaskedLM, likelihood_cards
from electra_tf.pretraining.metrics import StepValue, TokenMean, TotalLoss
from electra_tf.pretraining.objectives import Discriminator, ReplacedTokenDetection
from electra_tf.pretraining.samplers import CategoricalSampler, Corrupted, corrupt
from electra_tf.training.cards import MetricCard


@keras.saving.register_keras_serializable(package="electra_tf")
class Electra(PretrainingModel):
    """Joint training of generator and discriminator.

    The loss is ``generator_weight * MLM + discriminator_weight * objective``. No
    gradient flows from the discriminator into the generator through the samples; the
    two meet only in what they share, which is visible in the constructor: pass both
    encoders the same ``TextEmbedding`` to tie all embedding tables.

    Called, it is the discriminator: encoder inputs -> what the objective says of them,
    rtd_logits [B, S] by default.

    Example::

        embeddings = et.layers.TextEmbedding(vocab_size=30522, size=128)
        generator = et.MaskedLM(
            et.TextEncoder(embeddings, num_layers=12, hidden_size=64, num_heads=1)
        )
        discriminator = et.TextEncoder(
            embeddings, num_layers=12, hidden_size=256, num_heads=4
        )
        model = et.Electra(generator, discriminator)

    Args:
        objective: default ``ReplacedTokenDetection()``.
        sampler: (mlm_logits, masked_lm_ids, seed, step) -> sampled_ids [B, P]; default
            ``CategoricalSampler()``.
        discriminator_weight: of the discriminator's loss (lambda in the paper, 50).
        sampling_dropout: False draws the samples from a second forward pass of the
            generator, without dropout, which no gradient flows through: one more
            forward pass per step. The original samples with dropout on. Not for
            ``ReinforceElectra``, ``GumbelElectra`` and ``Electric``, whose losses are
            about the distribution that is sampled from: a ValueError.
        special_ids: what the masking never chooses beside padding, [CLS], [SEP] and
            [MASK]: such tokens are told from the others in the metrics.

    Examples:
        >>> table = et.layers.TextEmbedding(100, 16, max_positions=32)
        >>> small = {"num_layers": 1, "num_heads": 1}
        >>> generator = et.MaskedLM(et.TextEncoder(table, hidden_size=16, **small))
        >>> discriminator = et.TextEncoder(table, hidden_size=32, **small)
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

    # Of the generator; those of the objective are the objective's.
    METRICS = (
        *likelihood_cards("generator", "generator", "gen"),
        MetricCard("sampled_accuracy", panel=ACCURACY_PANEL, series="sampled token"),
    )

    # Whether a loss is about the distribution that the samples were drawn from.
    _learns_from_samples = False

    def __init__(
        self,
        generator: MaskedLM,
        discriminator: TextEncoder,
        *,
        objective: keras.layers.Layer | None = None,
        sampler: Callable | None = None,
        generator_weight: float = 1.0,
        discriminator_weight: float = 50.0,
        sampling_dropout: bool = True,
        special_ids: Sequence[int] = (),
        **kwargs,
    ):
        super().__init__(**kwargs)
        if self._learns_from_samples and not sampling_dropout:
            raise UserError(
                f"{type(self).__name__} learns from the forward pass that is sampled "
                "from: sampling_dropout=False would draw from another one. Set the "
                "generator's dropout to 0 instead."
            )
        self.generator = generator
        self.discriminator = discriminator
        self.objective = objective or ReplacedTokenDetection(name="objective")
        self.sampler = sampler or CategoricalSampler()
        self.generator_weight = generator_weight
        self.discriminator_weight = discriminator_weight
        self.sampling_dropout = sampling_dropout
        self.special_ids = tuple(special_ids)
        self._draw_from = self._same if sampling_dropout else self._without_dropout
        if not self.objective.built:
            self.objective.build((None, None, discriminator.hidden_size))
        self._cross_entropy = losses.token_cross_entropy_for(self.compute_dtype)
        self._generator_loss = TokenMean(name="generator_loss")
        self._generator_accuracy = TokenMean(name="generator_accuracy")
        self._sampled_accuracy = TokenMean(name="sampled_accuracy")
        self._total_loss = TotalLoss(
            [
                (self._generator_loss, generator_weight),
                (self.objective.loss_metric, discriminator_weight),
            ]
        )
        self._schedule_values = [
            StepValue(lambda schedule=schedule: schedule(self.step), name=name)
            for name, schedule in getattr(self.sampler, "schedules", {}).items()
        ]
        self.built = True

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Total and generator metrics, the objective's, and what varies by step."""
        means = [self._generator_loss, self._generator_accuracy, self._sampled_accuracy]
        other = [*self.objective.step_metrics, *self._schedule_values]
        return [self._total_loss, *means, *other]

    def call(
        self, inputs: Batch, training: bool = False, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the objective's scores of encoder inputs, float32 [B, S, ...]."""
        hidden = self.discriminator(inputs, training=training, seed=seed)
        return self.objective(hidden, inputs)

    def detector(self) -> Discriminator:
        """The discriminator with its head, as a model of its own, sharing weights."""
        return self.objective.as_model(self.discriminator)

    def artifacts(self) -> dict[str, keras.Model]:
        """What a finished run saves, by file name; each depends on no other network."""
        encoder = self.discriminator.standalone()
        return {
            "encoder": encoder,
            "generator": self.generator.standalone(),
            "discriminator": self.objective.as_model(encoder),
        }

    def compute_losses(
        self, batch: Batch, totals: Batch, *, seed: tf.Tensor, training: bool
    ) -> list[tf.Tensor]:
        """Generator MLM loss and discriminator loss on the generator's samples."""
        check_batch(PRETRAINING, batch)
        mlm_logits, sampled_ids, corrupted = self._corrupt(batch, seed, training)
        hidden = self.discriminator(
            corrupted.inputs, training=training, seed=fold_in(seed, DISCRIMINATOR)
        )
        generator_loss = self._generator_term(batch, mlm_logits, sampled_ids, totals)
        discriminator_loss = self.objective.loss(
            hidden, corrupted, totals, training=training
        )
        weighted = self.discriminator_weight * discriminator_loss
        return [self.generator_weight * generator_loss, weighted]

    def examine(self, batch: Batch, *, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """Corrupts a batch and asks the discriminator, without dropout.

        Returns corrupted_ids int32, is_masked and is_replaced bool, each [B, S], and
        the objective's answer: replaced_probability [B, S] float32 by default.
        """
        _, _, corrupted = self._corrupt(batch, seed, training=False)
        hidden = self.discriminator(corrupted.inputs)
        return {
            "corrupted_ids": corrupted.inputs["input_ids"],
            "is_masked": corrupted.is_masked,
            "is_replaced": corrupted.is_replaced,
            **self.objective.answer(hidden, corrupted),
        }

    def detection_labels(self, batch: Batch) -> dict[str, tf.Tensor]:
        """What the discriminator is to tell of a held-out batch, each [B, S].

        corrupted_ids int32, is_replaced, is_replaceable, and is_asked, the positions of
        the loss, bool; of the samples of ``test_step``. Empty if the objective asks
        for something else.
        """
        _, _, corrupted = self._corrupt(batch, self.test_seed(batch), training=False)
        asked = self.objective.asked(corrupted)
        return (
            {}
            if asked is None
            else {
                "corrupted_ids": corrupted.inputs["input_ids"],
                "is_replaced": corrupted.is_replaced,
                "is_replaceable": corrupted.is_replaceable,
                "is_asked": asked,
            }
        )

    def _corrupt(
        self, batch: Batch, seed: tf.Tensor, training: bool
    ) -> tuple[Any, tf.Tensor, Corrupted]:
        """The generator's prediction, tokens drawn from it, and the text with them."""
        prediction, mlm_logits = self._predict(
            batch, training=training, seed=fold_in(seed, GENERATOR)
        )
        mlm_logits = self._draw_from(mlm_logits, batch)
        sampled_ids = self.sampler(
            mlm_logits, batch["masked_lm_ids"], fold_in(seed, SAMPLER), self.step
        )
        return prediction, sampled_ids, self._corrupted(batch, prediction, sampled_ids)

    def _predict(
        self, batch: Batch, *, training: bool, seed: tf.Tensor
    ) -> tuple[Any, tf.Tensor]:
        """What the generator's loss is taken of, and the logits to draw from."""
        mlm_logits = self.generator(batch, training=training, seed=seed)
        return mlm_logits, mlm_logits

    def _same(self, mlm_logits: tf.Tensor, batch: Batch) -> tf.Tensor:
        return mlm_logits

    def _without_dropout(self, mlm_logits: tf.Tensor, batch: Batch) -> tf.Tensor:
        return tf.stop_gradient(self.generator(batch, training=False))

    def _corrupted(
        self, batch: Batch, prediction: Any, sampled_ids: tf.Tensor
    ) -> Corrupted:
        del prediction
        return corrupt(batch, sampled_ids, self.special_ids)

    def _generator_term(
        self, batch: Batch, mlm_logits: tf.Tensor, sampled_ids: tf.Tensor, totals: Batch
    ) -> tf.Tensor:
        targets, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
        values = self._cross_entropy(mlm_logits, targets)
        predicted = tf.argmax(mlm_logits, axis=-1, output_type=tf.int32)
        self._generator_loss.update_state(values, weights)
        self._generator_accuracy.update_state(predicted == targets, weights)
        self._sampled_accuracy.update_state(sampled_ids == targets, weights)
        return losses.weighted_mean(values, weights, totals["masked"])

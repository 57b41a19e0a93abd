"""Masked language model: BERT's objective, and every generator.

Letters: B batch, S sequence, P predicted positions, V vocabulary.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from electra_tf.features import PRETRAINING, check_batch
from electra_tf.layers import MaskedLMHead, losses
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.weights import copy_own_weights
from electra_tf.pretraining.base import Batch, PretrainingModel
from electra_tf.pretraining.baselines import MOST_COMMON, UNIGRAM
from electra_tf.pretraining.metrics import TokenMean, TotalLoss
from electra_tf.pretraining.samplers import corrupt
from electra_tf.training.cards import MetricCard, Panel

ACCURACY_PANEL = Panel("Generator accuracy", "% of masked tokens", scale=100.0)


def likelihood_cards(name: str, what: str, short: str) -> tuple[MetricCard, MetricCard]:
    """Loss and accuracy at the masked positions, of what people call ``what``."""
    return (
        MetricCard(
            f"{name}_loss",
            column=f"{short} {{:.3f}}",
            label=f"{what} loss (nats)",
            panel=Panel("Generator loss", "nats per masked token"),
            series=what,
            trivial=UNIGRAM,
        ),
        MetricCard(
            f"{name}_accuracy",
            column="acc {:.1%}",
            label=f"{what} accuracy",
            format="{:.2%}",
            panel=ACCURACY_PANEL,
            series="most likely token",
            trivial=MOST_COMMON,
        ),
    )


@keras.saving.register_keras_serializable(package="electra_tf")
class MaskedLM(PretrainingModel):
    """An encoder with a vocabulary head that reads only the masked positions.

    Trained alone it is BERT without next-sentence prediction; inside ``Electra`` it
    is the generator. The output matrix is the encoder's word table.

    Examples:
        >>> table = et.layers.TextEmbedding(100, 16, max_positions=32)
        >>> encoder = et.TextEncoder(table, num_layers=1, hidden_size=32, num_heads=2)
        >>> bert = et.MaskedLM(encoder)
        >>> ids = tf.constant([[2, 4, 9, 3]])  # 4 is [MASK]
        >>> inputs = {
        ...     "masked_input_ids": ids,
        ...     "masked_lm_positions": tf.constant([[1]]),
        ... }
        >>> bert({**inputs, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}).shape
        TensorShape([1, 1, 100])
    """

    METRICS = likelihood_cards("masked_lm", "masked LM", "mlm")

    def __init__(self, encoder: TextEncoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.head = MaskedLMHead(encoder.embeddings, name="masked_lm_head")
        self.head.build((None, None, encoder.hidden_size))
        self._cross_entropy = losses.token_cross_entropy_for(self.compute_dtype)
        self._loss = TokenMean(name="masked_lm_loss")
        self._accuracy = TokenMean(name="masked_lm_accuracy")
        self._total_loss = TotalLoss([(self._loss, 1.0)])
        self.built = True

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """``loss``, ``masked_lm_loss`` (nats) and ``masked_lm_accuracy``."""
        return [self._total_loss, self._loss, self._accuracy]

    def call(
        self, inputs: Batch, training: bool = False, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns mlm_logits [B, P, V] float32 at ``masked_lm_positions`` [B, P].

        The other inputs are masked_input_ids, input_mask and segment_ids [B, S].
        """
        hidden = self.encode(inputs, training=training, seed=seed)
        return self.head(hidden, inputs["masked_lm_positions"])

    def encode(
        self, inputs: Batch, training: bool = False, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns what the head reads, hidden [B, S, D]; arguments as ``call``."""
        shown = {name: inputs[name] for name in ("input_mask", "segment_ids")}
        shown["input_ids"] = inputs["masked_input_ids"]
        return self.encoder(shown, training=training, seed=seed)

    def artifacts(self) -> dict[str, keras.Model]:
        """What a finished run saves, by file name."""
        return {"encoder": self.encoder, "generator": self}

    def standalone(self) -> MaskedLM:
        """This model, or a copy whose embeddings depend on no other network's."""
        encoder = self.encoder.standalone()
        if encoder is self.encoder:
            return self
        copy = type(self).from_config({**self.get_config(), "encoder": encoder})
        copy_own_weights(self.head, copy.head)
        return copy

    def examine(self, batch: Batch, *, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """Fills the masked positions with the most probable tokens.

        Returns corrupted_ids int32, is_masked and is_replaced bool, each [B, S].
        """
        del seed
        predicted = tf.argmax(self(batch), axis=-1, output_type=tf.int32)
        filled = corrupt(batch, predicted)
        return {
            "corrupted_ids": filled.inputs["input_ids"],
            "is_masked": filled.is_masked,
            "is_replaced": filled.is_replaced,
        }

    def compute_losses(
        self, batch: Batch, totals: Batch, *, seed: tf.Tensor, training: bool
    ) -> list[tf.Tensor]:
        """Cross-entropy at the masked positions (section 2 of the paper)."""
        check_batch(PRETRAINING, batch)
        mlm_logits = self(batch, training=training, seed=seed)
        targets, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
        values = self._cross_entropy(mlm_logits, targets)
        predicted = tf.argmax(mlm_logits, axis=-1, output_type=tf.int32)
        self._loss.update_state(values, weights)
        self._accuracy.update_state(predicted == targets, weights)
        return [losses.weighted_mean(values, weights, totals["masked"])]

"""What a discriminator is asked: each objective owns its head, loss and metrics.

Letters: B batch, S sequence, P predicted positions, D hidden size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf

from electra_tf import losses
from electra_tf.encoder import TextEncoder
from electra_tf.layers import ReplacedTokenHead
from electra_tf.pretraining.base import Batch
from electra_tf.pretraining.detectors import Discriminator, ReplacedTokenDetector
from electra_tf.pretraining.metrics import TokenMean
from electra_tf.pretraining.samplers import Corrupted


class Objective(keras.layers.Layer):
    """What ``Electra`` asks of a discriminator's objective.

    A subclass creates its head in ``build(hidden_shape)`` and has two attributes:
    ``loss_metric``, the metric of its loss, and ``step_metrics``, all metrics that
    ``loss`` updates, in the order they are shown.
    """

    def call(
        self, hidden: tf.Tensor, inputs: Batch | None = None, training: bool = False
    ) -> tf.Tensor:
        """Returns the head's scores of hidden [B, S, D], float32 [B, S, ...].

        Args:
            hidden: [B, S, D].
            inputs: the encoder inputs that ``hidden`` came from.
            training: changes the speed, not the result.
        """
        raise NotImplementedError(f"{type(self).__name__} has no scores.")

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        """Returns the local share of the mean loss, and updates the metrics.

        Args:
            hidden: [B, S, D], the discriminator's hidden states.
            corrupted: what it read, and where that came from.
            totals: of ``PretrainingModel.loss_totals``; divide by one of them.
            training: Python bool.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss.")

    def answer(self, hidden: tf.Tensor, corrupted: Corrupted) -> dict[str, tf.Tensor]:
        """What is shown of every token in a text sample; nothing by default."""
        del hidden, corrupted
        return {}

    def as_model(self, encoder: TextEncoder) -> Discriminator:
        """The encoder with this objective's head, as a model of its own."""
        return Discriminator(encoder, self)


@dataclasses.dataclass(frozen=True)
class _Positions:
    """Where a loss is taken: how to pick values [B, S], their weights, their count.

    `rates` names metrics of the share of replaced tokens among those positions, where
    that is another than `replaced_fraction`.
    """

    pick: Callable[[Corrupted, tf.Tensor], tf.Tensor]
    weights: Callable[[Corrupted], tf.Tensor]
    total: str
    rates: tuple[str, ...] = ()


def _all_real(corrupted: Corrupted, values: tf.Tensor) -> tf.Tensor:
    del corrupted
    return values


def _masked_slots(corrupted: Corrupted, values: tf.Tensor) -> tf.Tensor:
    positions = corrupted.batch["masked_lm_positions"]
    return tf.gather(values, positions, batch_dims=1)


_POSITIONS = {
    "all": _Positions(_all_real, lambda c: c.inputs["input_mask"], "tokens"),
    "masked": _Positions(
        _masked_slots,
        lambda c: c.batch["masked_lm_weights"],
        "masked",
        rates=("replaced_masked_fraction",),
    ),
}


@keras.saving.register_keras_serializable(package="electra_tf")
class ReplacedTokenDetection(Objective):
    """Was this token replaced? Binary cross-entropy, a mean over tokens.

    Over all real tokens (section 2 of the paper, and the original code), [CLS] and
    [SEP] included, padding not; or over the masked slots only, the paper's "ELECTRA
    15%" (section 3.5, Table 5), where a position that was drawn twice counts twice, as
    in the generator's loss. The mean is over tokens, not over sequences.

    Args:
        positions: "all" or "masked".
        **kwargs: passed to ``keras.layers.Layer``.

    Raises:
        ValueError: if ``positions`` is neither.
    """

    def __init__(self, positions: str = "all", **kwargs):
        super().__init__(**kwargs)
        if positions not in _POSITIONS:
            raise ValueError(
                f"positions is {positions!r}; allowed are {', '.join(_POSITIONS)}."
            )
        self.positions = positions
        self._where = _POSITIONS[positions]
        self.loss_metric = TokenMean(name="discriminator_loss")
        self._replaced = TokenMean(name="replaced_fraction")
        self._rates = tuple(TokenMean(name=name) for name in self._where.rates)
        self._accuracy = TokenMean(name="discriminator_accuracy")
        self._detection = (
            keras.metrics.Precision(name="discriminator_precision"),
            keras.metrics.Recall(name="discriminator_recall"),
            keras.metrics.AUC(name="discriminator_auc"),
        )

    def build(self, hidden_shape):
        """Creates the head for hidden states of shape [B, S, D]."""
        self.head = ReplacedTokenHead(hidden_shape[-1], name="replaced_token_head")
        self.head.build(hidden_shape)
        self.built = True

    @property
    def step_metrics(self) -> list[keras.metrics.Metric]:
        """The metrics that ``loss`` updates, in the order they are shown.

        ``replaced_fraction`` is a share of all real tokens; the others are taken over
        the same positions as the loss.
        """
        return [
            self.loss_metric,
            self._replaced,
            *self._rates,
            self._accuracy,
            *self._detection,
        ]

    def call(
        self, hidden: tf.Tensor, inputs: Batch | None = None, training: bool = False
    ) -> tf.Tensor:
        """Returns rtd_logits [B, S] float32 of hidden [B, S, D]; > 0 is replaced."""
        del inputs
        return self.head(hidden, training=training)

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        """Returns the local share of the mean loss over the chosen positions."""
        return self.loss_of_logits(self(hidden, training=training), corrupted, totals)

    def loss_of_logits(
        self, rtd_logits: tf.Tensor, corrupted: Corrupted, totals: Batch
    ) -> tf.Tensor:
        """Returns what ``loss`` does, given rtd_logits [B, S]."""
        self._replaced.update_state(
            corrupted.is_replaced, corrupted.inputs["input_mask"]
        )
        where = self._where
        rtd_logits = where.pick(corrupted, rtd_logits)
        labels = where.pick(corrupted, tf.cast(corrupted.is_replaced, tf.float32))
        weights = tf.cast(where.weights(corrupted), tf.float32)
        values = losses.binary_cross_entropy(labels, rtd_logits)
        self._update_metrics(values, labels, rtd_logits, weights)
        return losses.weighted_mean(values, weights, totals[where.total])

    def answer(self, hidden: tf.Tensor, corrupted: Corrupted) -> dict[str, tf.Tensor]:
        """Returns replaced_probability, float32 [B, S]."""
        del corrupted
        return {"replaced_probability": tf.sigmoid(self(hidden))}

    def as_model(self, encoder: TextEncoder) -> ReplacedTokenDetector:
        """The encoder with the detection head, as a model of its own."""
        return ReplacedTokenDetector(encoder, self)

    def _update_metrics(self, values, labels, rtd_logits, weights):
        # Deviation: padding has weight 0 in every metric. The original's AUC takes it
        # for easy negatives, and its loss in evaluation is a mean of means over rows.
        rtd_logits = tf.stop_gradient(rtd_logits)
        self.loss_metric.update_state(values, weights)
        for metric in self._rates:
            metric.update_state(labels, weights)
        self._accuracy.update_state((rtd_logits > 0) == (labels > 0), weights)
        probabilities = tf.sigmoid(rtd_logits)
        for metric in self._detection:
            metric.update_state(labels, probabilities, sample_weight=weights)

    def get_config(self):
        """Returns the constructor's arguments."""
        return {**super().get_config(), "positions": self.positions}

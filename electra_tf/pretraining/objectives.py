"""What a discriminator is asked: each objective owns its head, loss and metrics.

Letters: B batch, S sequence, D hidden size.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from electra_tf import losses
from electra_tf.layers import ReplacedTokenHead
from electra_tf.pretraining.base import Batch
from electra_tf.pretraining.metrics import TokenMean
from electra_tf.pretraining.samplers import Corrupted


@keras.saving.register_keras_serializable(package="electra_tf")
class ReplacedTokenDetection(keras.layers.Layer):
    """Was this token replaced? Binary cross-entropy over all real tokens.

    [CLS] and [SEP] count, padding does not; the mean is over tokens, not over
    sequences (section 2 of the paper, and the original code).

    Args:
        **kwargs: passed to ``keras.layers.Layer``.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.loss_metric = TokenMean(name="discriminator_loss")
        self._replaced = TokenMean(name="replaced_fraction")
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
        """The metrics that ``loss`` updates, in the order they are shown."""
        return [self.loss_metric, self._replaced, self._accuracy, *self._detection]

    def call(self, hidden: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns rtd_logits [B, S] float32 of hidden [B, S, D]; > 0 is replaced."""
        return self.head(hidden, training=training)

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        """Returns the local share of the mean loss over all real tokens."""
        return self.loss_of_logits(self(hidden, training=training), corrupted, totals)

    def loss_of_logits(
        self, rtd_logits: tf.Tensor, corrupted: Corrupted, totals: Batch
    ) -> tf.Tensor:
        """Returns what ``loss`` does, given rtd_logits [B, S]."""
        labels = tf.cast(corrupted.is_replaced, tf.float32)
        weights = tf.cast(corrupted.inputs["input_mask"], tf.float32)
        values = losses.binary_cross_entropy(labels, rtd_logits)
        self._update_metrics(values, labels, rtd_logits, weights)
        return losses.weighted_mean(values, weights, totals["tokens"])

    def _update_metrics(self, values, labels, rtd_logits, weights):
        # Deviation: padding has weight 0 in every metric. The original's AUC takes it
        # for easy negatives, and its loss in evaluation is a mean of means over rows.
        rtd_logits = tf.stop_gradient(rtd_logits)
        self.loss_metric.update_state(values, weights)
        self._replaced.update_state(labels, weights)
        self._accuracy.update_state((rtd_logits > 0) == (labels > 0), weights)
        probabilities = tf.sigmoid(rtd_logits)
        for metric in self._detection:
            metric.update_state(labels, probabilities, sample_weight=weights)

"""Objectives that predict tokens from the corrupted text (section 3.5, Table 5).

They stand between BERT and ELECTRA: the discriminator reads what ELECTRA's reads, and
is asked what BERT is asked.

Letters: B batch, S sequence, R rows (B * S), P predicted positions, V vocabulary,
E embedding size, D hidden size.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from electra_tf import losses
from electra_tf.encoder import TextEncoder
from electra_tf.layers import MaskedLMHead, TextEmbedding, chunked
from electra_tf.layers.heads import restore_embeddings
from electra_tf.layers.randomness import known_shape
from electra_tf.layers.weights import add_dense, copy_own_weights
from electra_tf.pretraining.base import Batch
from electra_tf.pretraining.detectors import Discriminator
from electra_tf.pretraining.metrics import TokenMean
from electra_tf.pretraining.objectives import Objective
from electra_tf.pretraining.samplers import Corrupted


class _TokenObjective(Objective):
    """A vocabulary head tied to the discriminator's own word table.

    Args:
        embeddings: the discriminator's ``TextEmbedding``.
        **kwargs: passed to ``keras.layers.Layer``.
    """

    # Metrics of the share of replaced tokens among the positions of the loss, where
    # those are not all real tokens.
    rates: tuple[str, ...] = ()
    # Name of the predictions in `answer`.
    answers = "predicted_ids"

    def __init__(self, embeddings: TextEmbedding, **kwargs):
        super().__init__(**kwargs)
        self.embeddings = embeddings
        self.loss_metric = TokenMean(name="prediction_loss")
        self._replaced = TokenMean(name="replaced_fraction")
        self._accuracy = TokenMean(name="prediction_accuracy")
        self._corrected = TokenMean(name="corrected_accuracy")
        self._rates = tuple(TokenMean(name=name) for name in self.rates)

    def build(self, hidden_shape):
        """Creates the head for hidden states of shape [B, S, D]."""
        self.head = MaskedLMHead(self.embeddings, name="token_head")
        self.head.build(hidden_shape)
        self.built = True

    @property
    def step_metrics(self) -> list[keras.metrics.Metric]:
        """The metrics that ``loss`` updates, in the order they are shown.

        ``prediction_loss`` and ``prediction_accuracy`` are means over the positions of
        the loss, ``corrected_accuracy`` over the replaced tokens among them, and
        ``replaced_fraction`` is a share of all real tokens.
        """
        means = [self.loss_metric, self._replaced, *self._rates]
        return [*means, self._accuracy, self._corrected]

    def answer(self, hidden: tf.Tensor, corrupted: Corrupted) -> dict[str, tf.Tensor]:
        """Returns the most probable original tokens, int32 [B, S]."""
        shown = tf.reshape(corrupted.inputs["input_ids"], [-1])
        predicted = self._predict(hidden, self._rows(hidden), shown)
        return {self.answers: tf.reshape(predicted, known_shape(hidden)[:2])}

    def as_model(self, encoder: TextEncoder) -> Discriminator:
        """The encoder with this head, tied to its table, as a model of its own."""
        head = self.head.with_embeddings(encoder.embeddings)
        if head is self.head:
            return Discriminator(encoder, self)
        config = {**self.get_config(), "embeddings": encoder.embeddings}
        copy = type(self).from_config(config)
        copy.build((None, None, encoder.hidden_size))
        copy_own_weights(self, copy)
        copy_own_weights(self.head, copy.head)
        return Discriminator(encoder, copy)

    def _rows(self, hidden):
        """Hidden [B, S, D] to float32 rows [R, E] of the table's space."""
        return self.head.transform(tf.reshape(hidden, [-1, hidden.shape[-1]]))

    def _normalizer(self, rows):
        return chunked.log_normalizer(
            rows, self.embeddings.word_table(), self.head.output_bias
        )

    def _predict(self, hidden, rows, shown):
        """Most probable token of each row; `shown` is what the text has there."""
        raise NotImplementedError

    def _update_metrics(self, corrupted, values, weights, is_right, is_replaced):
        self._replaced.update_state(
            corrupted.is_replaced, corrupted.inputs["input_mask"]
        )
        self.loss_metric.update_state(values, weights)
        for metric in self._rates:
            metric.update_state(is_replaced, weights)
        self._accuracy.update_state(is_right, weights)
        weights = tf.cast(weights, tf.float32)
        self._corrected.update_state(
            is_right, weights * tf.cast(is_replaced, tf.float32)
        )

    def get_config(self):
        """Returns the constructor's arguments, the embeddings live."""
        return {**super().get_config(), "embeddings": self.embeddings}

    @classmethod
    def from_config(cls, config):
        """Rebuilds the layer from ``get_config``, before or after serialization."""
        return cls(**restore_embeddings(config))


@keras.saving.register_keras_serializable(package="electra_tf")
class TokenPrediction(_TokenObjective):
    """Which token was here? Cross-entropy at the masked positions.

    "Replace MLM" of the paper (section 3.5, Table 5): BERT's loss, but the masked
    tokens are replaced by the generator's samples instead of [MASK], so that what is
    read in pretraining looks like what is read in fine-tuning. Weighted and averaged
    over the masked slots as the generator's loss is.

    Args:
        embeddings: the discriminator's ``TextEmbedding``.
        **kwargs: passed to ``keras.layers.Layer``.
    """

    rates = ("replaced_masked_fraction",)
    answers = "predicted_masked_ids"

    def call(
        self, hidden: tf.Tensor, inputs: Batch | None = None, training: bool = False
    ) -> tf.Tensor:
        """Returns token logits, float32 [B, S, V], of hidden [B, S, D]."""
        del inputs, training
        batch, length = known_shape(hidden)[:2]
        positions = tf.tile(tf.range(length)[tf.newaxis], [batch, 1])
        return self.head(hidden, positions)

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        """Returns the local share of the mean cross-entropy over the masked slots."""
        del training
        positions = corrupted.batch["masked_lm_positions"]
        targets = corrupted.batch["masked_lm_ids"]
        weights = corrupted.batch["masked_lm_weights"]
        logits = self.head(hidden, positions)
        values = losses.token_cross_entropy(logits, targets)
        self._update_metrics(
            corrupted,
            values,
            weights,
            tf.argmax(logits, axis=-1, output_type=tf.int32) == targets,
            tf.gather(corrupted.is_replaced, positions, batch_dims=1),
        )
        return losses.weighted_mean(values, weights, totals["masked"])

    def _predict(self, hidden, rows, shown):
        del hidden, shown
        return self._normalizer(rows)[1]


@keras.saving.register_keras_serializable(package="electra_tf")
class CopyingTokenPrediction(_TokenObjective):
    """Which token was here, at every token? A mixture of copying and predicting.

    "All-Tokens MLM" of the paper (section 3.5, Table 5). A sigmoid unit on the hidden
    state gives the probability D of copying the token that is read:

        p(x_t = w) = D_t * [w is the token read at t] + (1 - D_t) * softmax_t(w)

    and the loss is the negative log-likelihood of the original token, a mean over all
    real tokens, [CLS] and [SEP] included. The logits of all tokens never exist at once
    (``layers/chunked.py``).

    Args:
        embeddings: the discriminator's ``TextEmbedding``.
        **kwargs: passed to ``keras.layers.Layer``.
    """

    def __init__(self, embeddings: TextEmbedding, **kwargs):
        super().__init__(embeddings, **kwargs)
        self._copy_auc = keras.metrics.AUC(name="copy_auc")

    def build(self, hidden_shape):
        """Creates the head and the copy gate for hidden states [B, S, D]."""
        super().build(hidden_shape)
        self.gate_kernel, self.gate_bias = add_dense(
            self, "copy", (hidden_shape[-1], 1), keras.initializers.GlorotUniform()
        )

    @property
    def step_metrics(self) -> list[keras.metrics.Metric]:
        """Adds ``copy_auc``: how well a low gate tells the replaced tokens."""
        return [*super().step_metrics, self._copy_auc]

    def call(
        self, hidden: tf.Tensor, inputs: Batch, training: bool = False
    ) -> tf.Tensor:
        """Returns log p of every token, float32 [B, S, V]; all logits exist at once."""
        del training
        shown = tf.reshape(inputs["input_ids"], [-1])
        logits = self.head.logits(self._rows(hidden))
        size = self.embeddings.vocab_size
        is_shown = tf.one_hot(shown, size, on_value=True, off_value=False)
        gate = self._gate(hidden)[:, tf.newaxis]
        scores = _log_mixture(gate, tf.nn.log_softmax(logits), is_shown)
        return tf.reshape(scores, [*known_shape(hidden)[:2], size])

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        """Returns the local share of the mean loss over all real tokens."""
        del training
        original = tf.reshape(corrupted.batch["input_ids"], [-1])
        shown = tf.reshape(corrupted.inputs["input_ids"], [-1])
        weights = tf.reshape(corrupted.inputs["input_mask"], [-1])
        rows, gate = self._rows(hidden), self._gate(hidden)
        normalizer, best = self._normalizer(rows)
        log_softmax = self._logit(rows, original) - normalizer
        values = -_log_mixture(gate, log_softmax, original == shown)
        predicted = self._mode(rows, gate, normalizer, best, shown)
        is_replaced = tf.reshape(corrupted.is_replaced, [-1])
        self._update_metrics(
            corrupted, values, weights, predicted == original, is_replaced
        )
        self._copy_auc.update_state(
            is_replaced, tf.sigmoid(-tf.stop_gradient(gate)), sample_weight=weights
        )
        return losses.weighted_mean(values, weights, totals["tokens"])

    def _gate(self, hidden):
        """Logits [R] of copying."""
        rows = tf.reshape(hidden, [-1, hidden.shape[-1]])
        rows = tf.cast(rows, tf.float32)
        logits = tf.matmul(rows, tf.cast(self.gate_kernel, tf.float32))
        return tf.squeeze(logits + tf.cast(self.gate_bias, tf.float32), axis=-1)

    def _logit(self, rows, ids):
        """Logits [R] of one token per row."""
        table = self.embeddings.word_table()
        return chunked.token_logits(rows, table, self.head.output_bias, ids)

    def _mode(self, rows, gate, normalizer, best, shown):
        """The most probable token: the one shown, or the best of the vocabulary."""
        copied = _log_mixture(gate, self._logit(rows, shown) - normalizer, True)
        predicted = _log_mixture(gate, self._logit(rows, best) - normalizer, False)
        return tf.where(copied >= predicted, shown, best)

    def _predict(self, hidden, rows, shown):
        normalizer, best = self._normalizer(rows)
        return self._mode(rows, self._gate(hidden), normalizer, best, shown)


def _log_mixture(gate, log_softmax, is_shown):
    """Log of D * is_shown + (1 - D) * softmax, with D = sigmoid(gate); never log 0."""
    # log(D + (1 - D) q) = log D + log(1 + exp(log q - gate)), as (1 - D) / D is
    # exp(-gate).
    copied = tf.math.log_sigmoid(gate) + tf.math.softplus(log_softmax - gate)
    predicted = tf.math.log_sigmoid(-gate) + log_softmax
    return tf.where(is_shown, copied, predicted)

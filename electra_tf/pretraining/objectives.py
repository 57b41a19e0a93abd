"""Discriminator objectives: head, loss and metrics.

Letters: B batch, S sequence, R rows (B * S), P predicted positions, V vocabulary, E
embedding size, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from electra_tf.features import encoder_inputs
from electra_tf.layers import (
    MaskedLMHead,
    ReplacedTokenHead,
    TextEmbedding,
    chunked,
    losses,
)
from electra_tf.layers.embeddings import with_embeddings
from electra_tf.layers.encoder import ExportsTokenInputs, TextEncoder
from electra_tf.layers.randomness import known_shape
from electra_tf.layers.serialization import Serializable
from electra_tf.layers.weights import add_dense, check_choice, linear
from electra_tf.pretraining.base import Batch
from electra_tf.pretraining.metrics import LogitAUC, TokenMean, total_loss
from electra_tf.pretraining.samplers import Corrupted


@keras.saving.register_keras_serializable(package="electra_tf")
class Discriminator(ExportsTokenInputs, Serializable, keras.Model):
    """An encoder with a trained objective, which owns the head.

    Examples:
        >>> objective = et.ReplacedTokenDetection()
        >>> model = pretraining.Discriminator(discriminator, objective)
        >>> model({"input_ids": tf.constant([[2, 7, 9, 3]])}).shape
        TensorShape([1, 4])
    """

    def __init__(self, encoder: TextEncoder, objective: keras.layers.Layer, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.objective = objective
        if not objective.built:
            objective.build((None, None, encoder.hidden_size))
        self.built = True

    def call(
        self, inputs: Batch, training: bool = False, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the objective's logits, float32 [B, S, ...]."""
        inputs = encoder_inputs(inputs)
        hidden = self.encoder(inputs, training=training, seed=seed)
        return self.objective(hidden, inputs)


@keras.saving.register_keras_serializable(package="electra_tf")
class ReplacedTokenDetector(Discriminator):
    """A trained ``ReplacedTokenDetection``; its logits [B, S] are > 0 if replaced.

    Examples:
        >>> detector = et.Electra(generator, discriminator).detector()
    """


class Objective(Serializable, keras.layers.Layer):
    """Base class of the discriminator objectives of ``Electra``.

    A subclass creates its head in ``build(hidden_shape)`` and defines ``call`` and
    ``loss``. ``loss_metric`` is the metric of its loss; ``step_metrics`` lists all
    metrics that ``loss`` updates, in display order. ``as_model`` gives ``model_class``.

    Examples:
        >>> issubclass(et.ReplacedTokenDetection, pretraining.Objective)
        True
    """

    model_class = Discriminator

    def call(
        self, hidden: tf.Tensor, inputs: Batch | None = None, training: bool = False
    ) -> tf.Tensor:
        """Returns the head's logits of hidden [B, S, D], float32 [B, S, ...].

        ``inputs`` are the encoder inputs. ``training`` changes only the speed.
        """
        raise NotImplementedError

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        """Returns this replica's part of the mean loss, and updates the metrics.

        It is a sum over the local rows, divided by one of the global counts ``totals``
        ("masked", "tokens" or "rows").
        """
        raise NotImplementedError

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """None for Keras, whose models would show metrics that they do not update."""
        return []

    def check_sampler(self, sampler: Callable, sampling_dropout: bool) -> None:
        """Raises ValueError if the loss does not fit the samples."""

    def labels(self, corrupted: Corrupted) -> tf.Tensor:
        """Returns the replaced-token labels, bool [B, S]."""
        return corrupted.is_replaced

    def answer(self, hidden: tf.Tensor, corrupted: Corrupted) -> dict[str, tf.Tensor]:
        """Returns ``replaced_probability`` [B, S] for text samples, if there is one."""
        return {}

    def as_model(self, encoder: TextEncoder) -> Discriminator:
        """Returns a ``Discriminator`` of the encoder and this objective's head."""
        return self.model_class(encoder, self)


@keras.saving.register_keras_serializable(package="electra_tf")
class ReplacedTokenDetection(Objective):
    """Replaced token detection: binary cross-entropy, a mean over tokens.

    "all" positions are the real tokens, [CLS] and [SEP] included (section 2 of the
    paper, and the original code). "masked" positions are the masked slots, the paper's
    "ELECTRA 15%" (section 3.5, Table 5). As in the generator's loss, a position that
    was masked twice then counts twice. Raises ValueError for other ``positions``.

    The "replaceable" metrics exclude [CLS] and [SEP], which inflate the AUC.

    Examples:
        >>> objective = et.ReplacedTokenDetection("masked")  # Table 5, "ELECTRA 15%"
        >>> model = et.Electra(generator, discriminator, objective=objective)
    """

    model_class = ReplacedTokenDetector

    def __init__(self, positions: str = "all", **kwargs):
        super().__init__(**kwargs)
        check_choice("positions", positions, ("all", "masked"))
        self.positions = positions
        self.loss_metric = TokenMean(name="discriminator_loss")
        # Of all tokens; other metrics are of the loss's positions.
        self._replaced = TokenMean(name="replaced_fraction")
        self._replaced_masked = TokenMean(name="replaced_masked_fraction")
        self._accuracy = TokenMean(name="discriminator_accuracy")
        self._detection = (
            keras.metrics.Precision(name="discriminator_precision"),
            keras.metrics.Recall(name="discriminator_recall"),
        )
        self._auc = LogitAUC(name="discriminator_auc")
        self._replaceable = (
            TokenMean(name="replaceable_loss"),
            TokenMean(name="replaced_replaceable_fraction"),
            LogitAUC(name="replaceable_auc"),
        )
        masked = [self._replaced_masked] if positions == "masked" else []
        scores = [self._accuracy, *self._detection, self._auc, *self._replaceable]
        self.step_metrics = [self.loss_metric, self._replaced, *masked, *scores]

    def build(self, hidden_shape: tuple[int | None, ...]) -> None:
        self.head = ReplacedTokenHead(
            hidden_shape[-1], dtype=self.dtype_policy, name="replaced_token_head"
        )
        self.head.build(hidden_shape)

    def call(
        self, hidden: tf.Tensor, inputs: Batch | None = None, training: bool = False
    ) -> tf.Tensor:
        """Returns rtd_logits [B, S] float32 of hidden [B, S, D]; > 0 is replaced."""
        return self.head(hidden, training=training)

    def logits(
        self, hidden: tf.Tensor, corrupted: Corrupted, training: bool = False
    ) -> tf.Tensor:
        """Returns the logits [B, S] that the loss compares with the labels."""
        return self(hidden, training=training)

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        logits = self.logits(hidden, corrupted, training=training)
        return self.loss_of_logits(logits, corrupted, totals)

    def loss_of_logits(
        self, rtd_logits: tf.Tensor, corrupted: Corrupted, totals: Batch
    ) -> tf.Tensor:
        is_replaced = self.labels(corrupted)
        weights = corrupted.inputs["input_mask"]
        self._replaced.update_state(is_replaced, weights)
        labels = tf.cast(is_replaced, tf.float32)
        is_replaceable, total = corrupted.is_replaceable, totals["tokens"]
        if self.positions == "masked":
            batch = corrupted.batch
            rtd_logits, labels, is_replaceable = (
                tf.gather(values, batch["masked_lm_positions"], batch_dims=1)
                for values in (rtd_logits, labels, is_replaceable)
            )
            weights, total = batch["masked_lm_weights"], totals["masked"]
            self._replaced_masked.update_state(labels, weights)
        weights = tf.cast(weights, tf.float32)
        values = losses.binary_cross_entropy(labels, rtd_logits)
        # Deviation: padding has weight 0 in every metric. The original's AUC counts it
        # as easy negatives, and its evaluation loss averages means of rows.
        self.loss_metric.update_state(values, weights)
        scores = tf.stop_gradient(rtd_logits)
        self._accuracy.update_state((scores > 0) == (labels > 0), weights)
        probabilities = tf.sigmoid(scores)
        for metric in self._detection:
            metric.update_state(labels, probabilities, sample_weight=weights)
        self._auc.update_state(labels, scores, weights)
        replaceable = weights * tf.cast(is_replaceable, tf.float32)
        loss, rate, auc = self._replaceable
        loss.update_state(values, replaceable)
        rate.update_state(labels, replaceable)
        auc.update_state(labels, scores, replaceable)
        return losses.weighted_mean(values, weights, total)

    def answer(self, hidden: tf.Tensor, corrupted: Corrupted) -> dict[str, tf.Tensor]:
        return {"replaced_probability": tf.sigmoid(self.logits(hidden, corrupted))}


@keras.saving.register_keras_serializable(package="electra_tf")
class SentenceDetection(Objective):
    """Sentence-level detection: binary cross-entropy, a mean over rows.

    One linear unit on the hidden state of [CLS] predicts whether any token of the row
    was replaced by a different one. Padding rows do not count.

    Examples:
        >>> objective = pretraining.SentenceDetection()
        >>> objective(tf.zeros([2, 4, 32])).shape  # a logit per row
        TensorShape([2])
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.loss_metric = TokenMean(name="sentence_loss")
        self._accuracy = TokenMean(name="sentence_accuracy")
        self._corrupted = TokenMean(name="corrupted_fraction")
        self.step_metrics = [self.loss_metric, self._accuracy, self._corrupted]

    def build(self, hidden_shape: tuple[int | None, ...]) -> None:
        self.kernel, self.bias = add_dense(self, "sentence", (hidden_shape[-1], 1))

    def call(
        self, hidden: tf.Tensor, inputs: Batch | None = None, training: bool = False
    ) -> tf.Tensor:
        """Returns sentence_logits [B] float32 of hidden [B, S, D]; > 0 is corrupted."""
        return linear(hidden[:, 0], self.kernel, self.bias)[..., 0]

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        logits = self(hidden, corrupted.inputs, training=training)
        labels = tf.reduce_any(corrupted.is_replaced, axis=1)
        weights = tf.reduce_max(corrupted.inputs["input_mask"], axis=1)
        values = losses.binary_cross_entropy(labels, logits)
        self.loss_metric.update_state(values, weights)
        self._accuracy.update_state((logits > 0) == labels, weights)
        self._corrupted.update_state(labels, weights)
        return losses.weighted_mean(values, weights, totals["rows"])


@keras.saving.register_keras_serializable(package="electra_tf")
class JointObjective(Objective):
    """Sum of an objective and a weighted second one; predictions are the first's.

    Examples:
        >>> both = pretraining.JointObjective(
        ...     et.ReplacedTokenDetection(), pretraining.SentenceDetection(), weight=0.5
        ... )
        >>> model = et.Electra(generator, discriminator, objective=both)
    """

    def __init__(
        self, first: Objective, second: Objective, weight: float = 1.0, **kwargs
    ):
        super().__init__(**kwargs)
        self.first = first
        self.second = second
        self.weight = weight
        self.loss_metric = total_loss(
            (first.loss_metric, 1.0), (second.loss_metric, weight), name="joint_loss"
        )
        self.step_metrics = [*first.step_metrics, *second.step_metrics]

    def build(self, hidden_shape: tuple[int | None, ...]) -> None:
        for part in (self.first, self.second):
            if not part.built:
                part.build(hidden_shape)

    def check_sampler(self, sampler: Callable, sampling_dropout: bool) -> None:
        self.first.check_sampler(sampler, sampling_dropout)
        self.second.check_sampler(sampler, sampling_dropout)

    def call(
        self, hidden: tf.Tensor, inputs: Batch | None = None, training: bool = False
    ) -> tf.Tensor:
        return self.first(hidden, inputs, training=training)

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        first = self.first.loss(hidden, corrupted, totals, training=training)
        second = self.second.loss(hidden, corrupted, totals, training=training)
        return first + self.weight * second

    def labels(self, corrupted: Corrupted) -> tf.Tensor:
        return self.first.labels(corrupted)

    def answer(self, hidden: tf.Tensor, corrupted: Corrupted) -> dict[str, tf.Tensor]:
        return self.first.answer(hidden, corrupted)

    def as_model(self, encoder: TextEncoder) -> Discriminator:
        return self.first.as_model(encoder)


class _TokenObjective(Objective):
    """Predicts tokens by a vocabulary head tied to the discriminator's embeddings."""

    def __init__(self, embeddings: TextEmbedding, **kwargs):
        super().__init__(**kwargs)
        self.embeddings = embeddings
        self.loss_metric = TokenMean(name="prediction_loss")
        self._replaced = TokenMean(name="replaced_fraction")
        self._accuracy = TokenMean(name="prediction_accuracy")
        self._corrected = TokenMean(name="corrected_accuracy")
        scores = [self._accuracy, self._corrected]
        self.step_metrics = [self.loss_metric, self._replaced, *scores]

    def build(self, hidden_shape: tuple[int | None, ...]) -> None:
        self.head = MaskedLMHead(
            self.embeddings, dtype=self.dtype_policy, name="token_head"
        )
        self.head.build(hidden_shape)

    def as_model(self, encoder: TextEncoder) -> Discriminator:
        """Returns a model of the encoder and this head, tied to the encoder's table."""
        return Discriminator(encoder, with_embeddings(self, encoder.embeddings))

    def _rows(self, hidden: tf.Tensor) -> tf.Tensor:
        """Maps hidden [B, S, D] to float32 rows [R, E] in the table's space."""
        return self.head.transform(tf.reshape(hidden, [-1, hidden.shape[-1]]))

    def _update_metrics(
        self,
        corrupted: Corrupted,
        values: tf.Tensor,
        weights: tf.Tensor,
        is_right: tf.Tensor,
        is_replaced: tf.Tensor,
    ) -> None:
        real = corrupted.inputs["input_mask"]
        self._replaced.update_state(corrupted.is_replaced, real)
        self.loss_metric.update_state(values, weights)
        self._accuracy.update_state(is_right, weights)
        weights = tf.cast(weights, tf.float32) * tf.cast(is_replaced, tf.float32)
        self._corrected.update_state(is_right, weights)


@keras.saving.register_keras_serializable(package="electra_tf")
class TokenPrediction(_TokenObjective):
    """Token prediction: cross-entropy at the masked positions.

    "Replace MLM" of the paper (section 3.5, Table 5): BERT's loss with the generator's
    samples in place of [MASK]. The mean is over the masked slots.

    Examples:
        >>> objective = pretraining.TokenPrediction(table)
        >>> model = et.Electra(generator, discriminator, objective=objective)
    """

    def __init__(self, embeddings: TextEmbedding, **kwargs):
        super().__init__(embeddings, **kwargs)
        self._replaced_masked = TokenMean(name="replaced_masked_fraction")
        self.step_metrics.insert(2, self._replaced_masked)

    def call(
        self, hidden: tf.Tensor, inputs: Batch | None = None, training: bool = False
    ) -> tf.Tensor:
        """Returns token logits, float32 [B, S, V], of hidden [B, S, D]."""
        logits = self.head.logits(self._rows(hidden))
        return tf.reshape(logits, [*known_shape(hidden)[:2], logits.shape[-1]])

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        batch = corrupted.batch
        positions, targets = batch["masked_lm_positions"], batch["masked_lm_ids"]
        weights = batch["masked_lm_weights"]
        logits = self.head(hidden, positions)
        values = losses.token_cross_entropy(logits, targets)
        is_right = tf.argmax(logits, axis=-1, output_type=tf.int32) == targets
        is_replaced = tf.gather(corrupted.is_replaced, positions, batch_dims=1)
        self._update_metrics(corrupted, values, weights, is_right, is_replaced)
        self._replaced_masked.update_state(is_replaced, weights)
        return losses.weighted_mean(values, weights, totals["masked"])


@keras.saving.register_keras_serializable(package="electra_tf")
class CopyingTokenPrediction(_TokenObjective):
    """Token prediction at every position by a mixture of copying and predicting.

    "All-Tokens MLM" of the paper (section 3.5, Table 5). A sigmoid unit on the hidden
    state gives the probability D of copying the input token:

        p(x_t = w) = D_t * [w is the input token at t] + (1 - D_t) * softmax_t(w)

    The loss is the mean negative log-likelihood of the original over all real tokens,
    [CLS] and [SEP] included. It computes the logits in chunks (``layers/chunked.py``).

    Examples:
        >>> objective = pretraining.CopyingTokenPrediction(table)  # "All-Tokens MLM"
        >>> model = et.Electra(generator, discriminator, objective=objective)
    """

    def __init__(self, embeddings: TextEmbedding, **kwargs):
        super().__init__(embeddings, **kwargs)
        # Of the gate, for replaced tokens.
        self._copy_auc = LogitAUC(name="copy_auc")
        self.step_metrics.append(self._copy_auc)

    def build(self, hidden_shape: tuple[int | None, ...]) -> None:
        super().build(hidden_shape)
        shape = (hidden_shape[-1], 1)
        self.gate_kernel, self.gate_bias = add_dense(self, "copy", shape)

    def call(
        self, hidden: tf.Tensor, inputs: Batch, training: bool = False
    ) -> tf.Tensor:
        """Returns log p of every token, float32 [B, S, V], without chunking."""
        logits = self.head.logits(self._rows(hidden))
        shown = tf.reshape(inputs["input_ids"], [-1])
        is_shown = tf.one_hot(shown, logits.shape[-1], on_value=True, off_value=False)
        gate = self._gate(hidden)[:, tf.newaxis]
        scores = _log_mixture(gate, tf.nn.log_softmax(logits), is_shown)
        return tf.reshape(scores, [*known_shape(hidden)[:2], logits.shape[-1]])

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        original = tf.reshape(corrupted.batch["input_ids"], [-1])
        shown = tf.reshape(corrupted.inputs["input_ids"], [-1])
        weights = tf.reshape(corrupted.inputs["input_mask"], [-1])
        rows, gate = self._rows(hidden), self._gate(hidden)
        normalizer, best = chunked.log_normalizer(
            rows, self.embeddings.word_table(), self.head.output_bias
        )

        def log_likelihood(ids: tf.Tensor, is_shown: tf.Tensor | bool) -> tf.Tensor:
            table, bias = self.embeddings.word_table(), self.head.output_bias
            logits = chunked.token_logits(rows, table, bias, ids)
            return _log_mixture(gate, logits - normalizer, is_shown)

        values = -log_likelihood(original, original == shown)
        # The most probable token is the input token or the vocabulary's best.
        copied, predicted = log_likelihood(shown, True), log_likelihood(best, False)
        is_right = tf.where(copied >= predicted, shown, best) == original
        is_replaced = tf.reshape(corrupted.is_replaced, [-1])
        self._update_metrics(corrupted, values, weights, is_right, is_replaced)
        self._copy_auc.update_state(is_replaced, -tf.stop_gradient(gate), weights)
        return losses.weighted_mean(values, weights, totals["tokens"])

    def _gate(self, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the logits [R] of copying."""
        rows = tf.reshape(hidden, [-1, hidden.shape[-1]])
        return linear(rows, self.gate_kernel, self.gate_bias)[..., 0]


def _log_mixture(
    gate: tf.Tensor, log_softmax: tf.Tensor, is_shown: tf.Tensor | bool
) -> tf.Tensor:
    """Returns log(D * is_shown + (1 - D) * softmax) with D = sigmoid(gate), finite."""
    # log(D + (1 - D) q) = log D + log(1 + exp(log q - gate)); (1 - D) / D = exp(-gate).
    copied = tf.math.log_sigmoid(gate) + tf.math.softplus(log_softmax - gate)
    predicted = tf.math.log_sigmoid(-gate) + log_softmax
    return tf.where(is_shown, copied, predicted)

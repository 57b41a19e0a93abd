"""Span head of question answering as in XLNet, its losses and its beam decoding.

Letters: B batch, R rows (windows), S sequence; D hidden, H hidden layer, K beam size.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.layers.plain import gelu
from electra_tf.layers.randomness import known_shape
from electra_tf.layers.serialization import Serializable
from electra_tf.layers.weights import add_dense, linear
from electra_tf.tasks.heads import Tensors

# Added to logits of positions that cannot be answers, as in the original code.
FORBIDDEN = -1000.0


@keras.saving.register_keras_serializable(package="electra_tf")
class SpanHead(Serializable, keras.layers.Layer):
    """Predicts the start, the end given the start, and answerability.

    In training, the end is predicted given the true start. Otherwise, it is predicted
    given each of the ``beam_size`` most probable starts. Answers lie in the second
    segment, or at [CLS] for no answer.

    Deviation: the original tiles the start vectors over all positions, [B, K, S, 2D].
    Here the hidden layer's kernel is split into halves for start and end. Starts are
    processed one by one, so no tensor exceeds [B, S, H]. The result is the same.

    ``hidden_size`` is D and ``dense_size`` H. ``answerability`` adds null_logits.

    Examples:
        >>> head = et.tasks.SpanHead(hidden_size=256, beam_size=5)
        >>> model = et.tasks.TaskModel(et.load("mini").encoder, head)
        >>> model({"input_ids": tf.constant([[2, 7, 3, 8, 9, 3]])})["start_index"].shape
        TensorShape([1, 5])
    """

    reads = "tokens"

    def __init__(
        self,
        hidden_size: int,
        *,
        dense_size: int = 512,
        beam_size: int = 20,
        answerability: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.dense_size = dense_size
        self.beam_size = beam_size
        self.answerability = answerability

    def build(self, hidden_shape: Any = None) -> None:
        self.start = add_dense(self, "start", (self.hidden_size, 1))
        self._build_end()
        if self.answerability:
            self.null_hidden, self.null = self._add_two("null")

    def _build_end(self) -> None:
        self.end_hidden, self.end = self._add_two("end")

    def _add_two(self, name: str) -> tuple[Any, Any]:
        shape = (2 * self.hidden_size, self.dense_size)
        hidden = add_dense(self, f"{name}_hidden", shape)
        return hidden, add_dense(self, name, (self.dense_size, 1))

    def call(
        self,
        hidden: tf.Tensor,
        inputs: Tensors,
        *,
        training: bool = False,
        seed: tf.Tensor | None = None,
    ) -> Tensors:
        """Takes hidden [B, S, D], input_mask and segment_ids, int32 [B, S].

        Training adds start_positions, int32 [B]. ``training`` and ``seed`` are unused.

        Returns float32 start_logits and end_logits [B, S] if start_positions is given.
        Otherwise returns start_index [B, K] and end_index [B, K, K], int32, best first,
        and their log-probabilities start_log_probs and end_log_probs. With
        ``answerability``, also returns null_logits [B], positive for no answer.
        """
        hidden = tf.cast(hidden, tf.float32)
        allowed = tf.cast(inputs["input_mask"] * inputs["segment_ids"], tf.float32)
        allowed = tf.concat([tf.ones_like(allowed[:, :1]), allowed[:, 1:]], axis=1)
        forbidden = FORBIDDEN * (1.0 - allowed)  # [B, S]
        start_logits = linear(hidden, *self.start)[..., 0] + forbidden
        outputs = {}
        if self.answerability:
            expected = tf.einsum("bs,bsd->bd", tf.nn.softmax(start_logits), hidden)
            vector = tf.concat([hidden[:, 0], expected], axis=-1)
            null_logits = linear(gelu(linear(vector, *self.null_hidden)), *self.null)
            outputs["null_logits"] = null_logits[..., 0]
        if "start_positions" in inputs:
            starts = inputs["start_positions"][:, tf.newaxis]
            end_logits = self.end_logits(hidden, starts)[:, 0] + forbidden
            return {"start_logits": start_logits, "end_logits": end_logits, **outputs}
        beam = tf.minimum(self.beam_size, known_shape(hidden)[1])
        start_log_probs = tf.nn.log_softmax(start_logits)
        start_log_probs, start_index = tf.math.top_k(start_log_probs, beam)
        end_logits = self.end_logits(hidden, start_index) + forbidden[:, tf.newaxis]
        end_log_probs, end_index = tf.math.top_k(tf.nn.log_softmax(end_logits), beam)
        return {
            "start_index": start_index,
            "start_log_probs": start_log_probs,
            "end_index": end_index,
            "end_log_probs": end_log_probs,
            **outputs,
        }

    def end_logits(self, hidden: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
        """Maps hidden [B, S, D] and starts, int32 [B, K], to end logits [B, K, S]."""
        kernel, bias = self.end_hidden
        start_kernel, end_kernel = tf.split(tf.cast(kernel, tf.float32), 2)
        start_hidden = tf.gather(hidden, starts, batch_dims=1)
        start_part = tf.tensordot(start_hidden, start_kernel, 1)
        end_part = linear(hidden, end_kernel, bias)  # [B, S, H]

        # Not tf.map_fn: LiteRT lacks lists of tensors. If the number of starts is
        # dynamic, the loop repeats the last one up to the beam size.
        last = known_shape(starts)[1] - 1
        logits = []
        for number in range(starts.shape[1] or self.beam_size):
            start = tf.gather(start_part, tf.minimum(number, last), axis=1)  # [B, H]
            # Sequential, so that memory holds only one hidden activation.
            with tf.control_dependencies(logits[-1:]):
                inner = gelu(tf.expand_dims(start, 1) + end_part)
            logits.append(linear(inner, *self.end)[..., 0])
        return tf.stack(logits, axis=1)[:, : last + 1]


@keras.saving.register_keras_serializable(package="electra_tf")
class IndependentSpanHead(SpanHead):
    """Span head of BERT and ``transformers``: separate linear start and end layers."""

    def _build_end(self) -> None:
        self.end = add_dense(self, "end", (self.hidden_size, 1))

    def end_logits(self, hidden: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
        logits = linear(hidden, *self.end)[:, tf.newaxis, :, 0]
        return tf.tile(logits, [1, known_shape(starts)[1], 1])


@keras.saving.register_keras_serializable(package="electra_tf")
class PositionLoss(Serializable, keras.losses.Loss):
    """Weighted cross-entropy of one position: logits [B, S], losses [B]."""

    def __init__(self, weight: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.weight = weight

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return self.weight * tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.cast(y_true, tf.int32), logits=y_pred
        )


@keras.saving.register_keras_serializable(package="electra_tf")
class AnswerabilityLoss(PositionLoss):
    """Weighted binary cross-entropy, [B]."""

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return self.weight * tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(y_true, tf.float32), logits=y_pred
        )


def best_span(outputs: Tensors, inputs: Tensors, max_answer_length: int) -> Tensors:
    """Returns the most probable answer over all windows of each question.

    Valid answers lie in the paragraph, have at most ``max_answer_length`` word pieces,
    and start in the window with the most context. ``inputs`` are char_start, char_end
    and max_context [R, S], and sorted example, int64 [R]. Returns start and end in
    characters, int32 [B], -1 for none, and score, their probability.
    """
    rows, starts, ends = tf.unstack(tf.shape(outputs["end_index"]))
    shape = [rows, starts * ends]
    start = tf.repeat(outputs["start_index"], ends, axis=1)
    end = tf.reshape(outputs["end_index"], shape)
    score = tf.repeat(outputs["start_log_probs"], ends, axis=1)
    score += tf.reshape(outputs["end_log_probs"], shape)
    begins = tf.gather(inputs["char_start"], start, batch_dims=1)
    ends = tf.gather(inputs["char_end"], end, batch_dims=1)
    shows_most = tf.gather(inputs["max_context"], start, batch_dims=1) == 1
    allowed = (begins >= 0) & (ends >= 0) & shows_most & (end >= start)
    # The comparison with -inf excludes NaN.
    allowed &= (end - start < max_answer_length) & (score > -np.inf)
    score = tf.where(allowed, score, -np.inf)
    best, example = tf.argmax(score, axis=1), inputs["example"]  # [R]
    row_score = tf.reduce_max(score, axis=1)
    highest = tf.math.segment_max(row_score, example)  # [B]
    rows = tf.range(tf.size(example, tf.int64))
    wins = row_score == tf.gather(highest, example)
    first = tf.math.segment_min(tf.where(wins, rows, tf.int64.max), example)

    def chosen(values: tf.Tensor) -> tf.Tensor:
        by_row = tf.gather(values, best, batch_dims=1)
        return tf.where(highest > -np.inf, tf.gather(by_row, first), -1)

    return {"start": chosen(begins), "end": chosen(ends), "score": tf.exp(highest)}

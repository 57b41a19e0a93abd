"""The span head: where an answer starts, where it ends given that, and if there is one.

XLNet's, as the original code has it. Letters: B batch, S sequence, D hidden size, H
width of the hidden layers, K beam.
"""

import keras
import tensorflow as tf

from electra_tf.layers.plain import gelu
from electra_tf.layers.randomness import known_shape
from electra_tf.layers.weights import add_dense

# Added to logits of positions that cannot be answers, as in the original code.
FORBIDDEN = -1000.0


@keras.saving.register_keras_serializable(package="electra_tf")
class SpanHead(keras.layers.Layer):
    """Start, end given the start, and whether there is no answer.

    In training, rows bring `start_positions`, and the end is predicted given the right
    start. Without it, the end is predicted given each of the `beam_size` most probable
    starts. Answers may lie in the second segment, and at [CLS], which stands for none.

    Deviation: the original tiles the start vectors over all positions, [B, K, S, 2D].
    Here the kernel of the hidden layer is applied in two halves, one to the starts and
    one to the positions, and the starts take turns: nothing is larger than [B, S, H].
    The result is the same.

    Args:
        hidden_size: Width D of the encoder.
        dense_size: Width H of the hidden layers.
        beam_size: How many starts, and ends of each, are kept.
        answerability: Whether null_logits are predicted.
        **kwargs: Passed to `keras.layers.Layer`.
    """

    def __init__(
        self,
        hidden_size,
        *,
        dense_size=512,
        beam_size=20,
        answerability=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.dense_size = dense_size
        self.beam_size = beam_size
        self.answerability = answerability

    def build(self, hidden_shape=None):
        """Creates the variables."""
        self.start = self._add("start", self.hidden_size, 1)
        self.end_hidden = self._add("end_hidden", 2 * self.hidden_size, self.dense_size)
        self.end = self._add("end", self.dense_size, 1)
        if self.answerability:
            self.null_hidden = self._add(
                "null_hidden", 2 * self.hidden_size, self.dense_size
            )
            self.null = self._add("null", self.dense_size, 1)

    def _add(self, name, inputs, outputs):
        # A new initializer each time: one instance would give equal kernels.
        glorot = keras.initializers.GlorotUniform()
        return add_dense(self, name, (inputs, outputs), glorot)

    def call(self, hidden, inputs, *, training=False, seed=None):
        """Predicts.

        Args:
            hidden: [B, S, D].
            inputs: input_mask and segment_ids, int32 [B, S]; for training also
                start_positions, int32 [B].
            training: Not used: there is no dropout in this head.
            seed: Not used.

        Returns:
            float32 start_logits and end_logits [B, S], given start_positions. Without:
            start_index [B, K], end_index [B, K, K] (int32), best first, and their
            log-probabilities start_log_probs and end_log_probs. Both: null_logits [B],
            above 0 where no answer is more probable, if asked for.
        """
        hidden = tf.cast(hidden, tf.float32)
        allowed = tf.cast(inputs["input_mask"] * inputs["segment_ids"], tf.float32)
        allowed = tf.concat([tf.ones_like(allowed[:, :1]), allowed[:, 1:]], axis=1)
        forbidden = FORBIDDEN * (1.0 - allowed)  # [B, S]
        start_logits = _dense(hidden, self.start)[..., 0] + forbidden
        outputs = {}
        if self.answerability:
            outputs["null_logits"] = self._null_logits(hidden, start_logits)
        if "start_positions" in inputs:
            starts = inputs["start_positions"][:, tf.newaxis]
            end_logits = self.end_logits(hidden, starts)[:, 0] + forbidden
            return {"start_logits": start_logits, "end_logits": end_logits, **outputs}
        beam = tf.minimum(self.beam_size, known_shape(hidden)[1])
        start_log_probs, start_index = tf.math.top_k(
            tf.nn.log_softmax(start_logits), beam
        )
        end_logits = self.end_logits(hidden, start_index) + forbidden[:, tf.newaxis]
        end_log_probs, end_index = tf.math.top_k(tf.nn.log_softmax(end_logits), beam)
        return {
            "start_index": start_index,
            "start_log_probs": start_log_probs,
            "end_index": end_index,
            "end_log_probs": end_log_probs,
            **outputs,
        }

    def end_logits(self, hidden, starts):
        """Scores of all ends given starts: [B, S, D] and int32 [B, K] to [B, K, S]."""
        kernel, bias = self.end_hidden
        start_kernel, end_kernel = tf.split(tf.convert_to_tensor(kernel), 2)
        start_part = tf.tensordot(
            tf.gather(hidden, starts, batch_dims=1), start_kernel, 1
        )
        end_part = tf.tensordot(hidden, end_kernel, 1) + bias  # [B, S, H]

        # Not tf.map_fn: LiteRT has no lists of tensors. How many starts there are may
        # be known at run time only; the last one then fills up to the whole beam.
        last = known_shape(starts)[1] - 1
        found = []
        for number in range(starts.shape[1] or self.beam_size):
            start = tf.gather(start_part, tf.minimum(number, last), axis=1)  # [B, H]
            # One after the other, or all hidden layers would be in memory at once.
            with tf.control_dependencies(found[-1:]):
                inner = gelu(tf.expand_dims(start, 1) + end_part)
            found.append(_dense(inner, self.end)[..., 0])
        return tf.stack(found, axis=1)[:, : last + 1]

    def _null_logits(self, hidden, start_logits):
        expected = tf.einsum("bs,bsd->bd", tf.nn.softmax(start_logits), hidden)
        vector = tf.concat([hidden[:, 0], expected], axis=-1)
        return _dense(gelu(_dense(vector, self.null_hidden)), self.null)[..., 0]

    def compute_output_spec(self, hidden, inputs, *, training=False, seed=None):
        """Returns the shapes of the result of `call`."""
        batch, length = hidden.shape[:2]

        def spec(*shape, dtype="float32"):
            return keras.KerasTensor(shape, dtype=dtype)

        outputs = {"null_logits": spec(batch)} if self.answerability else {}
        if "start_positions" in inputs:
            names = ("start_logits", "end_logits")
            return {**dict.fromkeys(names, spec(batch, length)), **outputs}
        return {
            "start_index": spec(batch, None, dtype="int32"),
            "start_log_probs": spec(batch, None),
            "end_index": spec(batch, None, None, dtype="int32"),
            "end_log_probs": spec(batch, None, None),
            **outputs,
        }

    def get_config(self):
        """Returns the constructor arguments."""
        return {
            **super().get_config(),
            "hidden_size": self.hidden_size,
            "dense_size": self.dense_size,
            "beam_size": self.beam_size,
            "answerability": self.answerability,
        }


def _dense(inputs, weights):
    kernel, bias = weights
    return tf.tensordot(inputs, tf.convert_to_tensor(kernel), 1) + bias


@keras.saving.register_keras_serializable(package="electra_tf")
class PositionLoss(keras.losses.Loss):
    """Cross-entropy of one position, times a weight.

    Args:
        weight: The weight.
        **kwargs: Passed to `keras.losses.Loss`.
    """

    def __init__(self, weight=1.0, **kwargs):
        super().__init__(**kwargs)
        self.weight = weight

    def call(self, y_true, y_pred):
        """Returns [B] from int [B] and logits [B, S]."""
        return self.weight * tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.cast(y_true, tf.int32), logits=y_pred
        )

    def get_config(self):
        """Returns the constructor arguments."""
        return {**super().get_config(), "weight": self.weight}


@keras.saving.register_keras_serializable(package="electra_tf")
class AnswerabilityLoss(PositionLoss):
    """Cross-entropy of yes or no, times a weight; arguments as its parent's."""

    def call(self, y_true, y_pred):
        """Returns [B] from 0 or 1 and logits, both [B]."""
        return self.weight * tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(y_true, tf.float32), logits=y_pred
        )

"""Prediction heads of the masked LM and of replaced token detection, and dropout.

Letters: B batch, S sequence, P predicted positions, V vocabulary, E embedding size,
D hidden size.
"""

import keras
import tensorflow as tf

from electra_tf.layers import fused, plain, weights
from electra_tf.layers.embeddings import TextEmbedding
from electra_tf.layers.randomness import check_rate, check_seed, known_shape
from electra_tf.layers.serialization import Serializable


def gather_positions(hidden: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Gathers hidden [B, S, D] at int32 ``positions`` [B, P] in [0, S): [B * P, D]."""
    batch, length, size = known_shape(hidden)
    offsets = tf.range(batch, dtype=positions.dtype) * length
    rows = tf.reshape(positions + offsets[:, tf.newaxis], [-1])
    return tf.gather(tf.reshape(hidden, [-1, size]), rows)


@keras.saving.register_keras_serializable(package="electra_tf")
class Dropout(Serializable, keras.layers.Layer):
    """Dropout with a mask that is a pure function of the seed of the call.

    Examples:
        >>> dropout, seed = et.layers.Dropout(0.5), tf.constant([1, 2])
        >>> dropout(tf.ones([1, 4]), seed=seed, training=True).shape
        TensorShape([1, 4])
    """

    def __init__(self, rate: float, **kwargs):
        super().__init__(**kwargs)
        self.rate = check_rate(rate, "rate")
        # Keras quantizes a model only if all layers are built.
        self.built = True

    def call(
        self,
        inputs: tf.Tensor,
        *,
        training: bool = False,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Drops elements in training, which needs a seed, int32 [2]."""
        if not training or not self.rate:
            return inputs
        return fused.drop(inputs, seed=check_seed(seed), rate=self.rate)


@keras.saving.register_keras_serializable(package="electra_tf")
class MaskedLMHead(Serializable, keras.layers.Layer):
    """Predicts tokens at given positions with the tied word table.

    Gather, dense to the embedding width, exact GELU, LayerNorm, product with the
    transposed word table of ``embeddings``, bias. The logits are always float32.

    Examples:
        >>> table = et.layers.TextEmbedding(vocab_size=100, size=16)
        >>> head = et.layers.MaskedLMHead(table)
        >>> hidden, positions = tf.zeros([1, 5, 32]), tf.constant([[1, 3]])
        >>> head(hidden, positions).shape
        TensorShape([1, 2, 100])
    """

    def __init__(
        self,
        embeddings: TextEmbedding,
        *,
        initializer_range: float = 0.02,
        layer_norm_epsilon: float = 1e-12,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.embeddings = embeddings
        self.initializer_range = initializer_range
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, hidden_shape: tuple[int | None, ...]) -> None:
        if not self.embeddings.built:
            self.embeddings.build()
        width, size = hidden_shape[-1], self.embeddings.size
        self.dense_kernel, self.dense_bias = weights.add_dense(
            self, "dense", (width, size), self.initializer_range
        )
        self.gamma, self.beta = weights.add_layer_norm(self, "layer_norm", size)
        shape = (self.embeddings.vocab_size,)
        self.output_bias = weights.add_weight(self, "output_bias", shape)

    def call(self, hidden: tf.Tensor, masked_lm_positions: tf.Tensor) -> tf.Tensor:
        """Predicts tokens of hidden [B, S, D]: mlm_logits, float32 [B, P, V].

        ``masked_lm_positions`` are int32 [B, P], each in [0, S).
        """
        batch, count = known_shape(masked_lm_positions)
        rows = self.transform(gather_positions(hidden, masked_lm_positions))
        return tf.reshape(self.logits(rows), [batch, count, self.embeddings.vocab_size])

    def transform(self, rows: tf.Tensor) -> tf.Tensor:
        """Maps hidden rows [R, D] to float32 rows [R, E] in the table's space."""
        rows = tf.cast(weights.matmul(rows, self.dense_kernel), tf.float32)
        rows = plain.bias_activation(rows, self.dense_bias, activation=plain.gelu)
        return plain.layer_norm(
            rows, self.gamma, self.beta, epsilon=self.layer_norm_epsilon
        )

    def logits(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the logits of all tokens, float32 [R, V], from transformed rows."""
        logits = tf.matmul(rows, self.embeddings.word_table(), transpose_b=True)
        return logits + tf.cast(self.output_bias, tf.float32)


@keras.saving.register_keras_serializable(package="electra_tf")
class ReplacedTokenHead(Serializable, keras.layers.Layer):
    """Scores each token as original (negative) or replaced (positive).

    Dense to the hidden width, exact GELU, dense to one unit, as in the original code;
    the paper's formula has only the last layer. ``initializer_range`` is the standard
    deviation of the first kernel; the second is Glorot uniform, as in the original.

    Examples:
        >>> head = et.layers.ReplacedTokenHead(hidden_size=32)
        >>> head(tf.zeros([1, 5, 32])).shape  # a logit per token
        TensorShape([1, 5])
    """

    def __init__(self, hidden_size: int, *, initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.initializer_range = initializer_range

    def build(self, hidden_shape: tuple[int | None, ...] | None = None) -> None:
        size = self.hidden_size
        self.dense_kernel, self.dense_bias = weights.add_dense(
            self, "dense", (size, size), self.initializer_range
        )
        self.prediction_kernel, self.prediction_bias = weights.add_dense(
            self, "prediction", (size, 1)
        )

    def call(self, hidden: tf.Tensor, *, training: bool = False) -> tf.Tensor:
        """Scores all tokens of hidden [B, S, D]: rtd_logits, float32 [B, S]."""
        ops = fused if training else plain
        batch, length, size = known_shape(hidden)
        rows = weights.matmul(tf.reshape(hidden, [-1, size]), self.dense_kernel)
        rows = ops.bias_activation(rows, self.dense_bias, activation=plain.gelu)
        logits = weights.matmul(tf.cast(rows, tf.float32), self.prediction_kernel)
        logits += tf.cast(self.prediction_bias, tf.float32)
        return tf.reshape(logits, [batch, length])

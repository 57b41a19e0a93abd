"""Prediction heads: the original token at masked positions, and replaced or not.

Letters: B batch, S sequence, P predicted positions, V vocabulary, E embedding size,
D hidden size.
"""

import keras
import tensorflow as tf

from electra_tf.layers import fused, plain
from electra_tf.layers.embeddings import TextEmbedding
from electra_tf.layers.randomness import known_shape
from electra_tf.layers.weights import (
    add_dense,
    add_layer_norm,
    copy_own_weights,
    matmul,
    truncated_normal,
)


def gather_positions(hidden, positions):
    """Picks hidden states by position, as one gather over flattened rows.

    Args:
        hidden: [B, S, D].
        positions: int32 [B, P], each in [0, S).

    Returns:
        [B * P, D].
    """
    batch, length, size = known_shape(hidden)
    offsets = tf.range(batch, dtype=positions.dtype) * length
    rows = tf.reshape(positions + offsets[:, tf.newaxis], [-1])
    return tf.gather(tf.reshape(hidden, [-1, size]), rows)


@keras.saving.register_keras_serializable(package="electra_tf")
class MaskedLMHead(keras.layers.Layer):
    """Predicts tokens at given positions with the tied word table.

    Gather, dense to the embedding width, exact GELU, LayerNorm, product with the
    transposed word table, output bias. The product and the logits are float32
    whatever the dtype policy: they are sampled from.

    Args:
        embeddings: The `TextEmbedding` whose word table is shared.
        initializer_range: Standard deviation of the truncated normal initializer.
        layer_norm_epsilon: Added to the variance in LayerNorm.
        **kwargs: Passed to `keras.layers.Layer`.
    """

    def __init__(
        self, embeddings, *, initializer_range=0.02, layer_norm_epsilon=1e-12, **kwargs
    ):
        super().__init__(**kwargs)
        self.embeddings = embeddings
        self.initializer_range = initializer_range
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, hidden_shape):
        """Creates the variables."""
        if not self.embeddings.built:
            self.embeddings.build()
        size = self.embeddings.size
        self.dense_kernel, self.dense_bias = add_dense(
            self,
            "dense",
            (hidden_shape[-1], size),
            truncated_normal(self.initializer_range),
        )
        self.gamma, self.beta = add_layer_norm(self, "layer_norm", size)
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=(self.embeddings.vocab_size,),
            initializer="zeros",
            autocast=False,
        )

    def call(self, hidden, masked_lm_positions):
        """Predicts the tokens at some positions.

        Args:
            hidden: [B, S, D].
            masked_lm_positions: int32 [B, P], each in [0, S).

        Returns:
            mlm_logits, float32 [B, P, V].
        """
        batch, count = known_shape(masked_lm_positions)
        rows = self.transform(gather_positions(hidden, masked_lm_positions))
        logits = self.logits(rows)
        return tf.reshape(logits, [batch, count, self.embeddings.vocab_size])

    def transform(self, rows):
        """Turns hidden rows [R, D] into float32 rows [R, E] of the table's space."""
        rows = tf.cast(matmul(rows, self.dense_kernel), tf.float32)
        rows = plain.bias_activation(rows, self.dense_bias, activation=plain.gelu)
        return plain.layer_norm(
            rows, self.gamma, self.beta, epsilon=self.layer_norm_epsilon
        )

    def logits(self, rows):
        """Scores of all tokens: rows [R, E] of `transform` to float32 [R, V]."""
        logits = tf.matmul(rows, self.embeddings.word_table(), transpose_b=True)
        return logits + tf.cast(self.output_bias, tf.float32)

    def with_embeddings(self, embeddings):
        """Returns this head, or a copy of it, on the word table of `embeddings`."""
        if embeddings is self.embeddings:
            return self
        copy = type(self).from_config({**self.get_config(), "embeddings": embeddings})
        copy.build((None, None, self.dense_kernel.shape[0]))
        copy_own_weights(self, copy)
        return copy

    def compute_output_spec(self, hidden, masked_lm_positions):
        """Returns the shape of the result of `call`."""
        shape = (*masked_lm_positions.shape, self.embeddings.vocab_size)
        return keras.KerasTensor(shape, dtype="float32")

    def get_config(self):
        """Returns the constructor arguments."""
        # The live object, not its serialized form: Keras then keeps the tie on reload.
        return {
            **super().get_config(),
            "embeddings": self.embeddings,
            "initializer_range": self.initializer_range,
            "layer_norm_epsilon": self.layer_norm_epsilon,
        }

    @classmethod
    def from_config(cls, config):
        """Builds the layer from `get_config`, before or after serialization."""
        return cls(**restore_embeddings(config))


def restore_embeddings(config):
    """Returns `config` with its "embeddings" entry as an object."""
    embeddings = config["embeddings"]
    if not isinstance(embeddings, TextEmbedding):
        embeddings = keras.saving.deserialize_keras_object(embeddings)
    return {**config, "embeddings": embeddings}


@keras.saving.register_keras_serializable(package="electra_tf")
class ReplacedTokenHead(keras.layers.Layer):
    """Scores each token as original (negative) or replaced (positive).

    Dense to the hidden width, exact GELU, dense to one unit. The paper's formula has
    the last layer only; the code behind its results has both.

    Args:
        hidden_size: Width of the hidden states.
        initializer_range: Standard deviation of the truncated normal initializer of
            the first kernel; the second is Glorot uniform, as in the original code.
        **kwargs: Passed to `keras.layers.Layer`.
    """

    def __init__(self, hidden_size, *, initializer_range=0.02, **kwargs):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.initializer_range = initializer_range

    def build(self, hidden_shape=None):
        """Creates the variables."""
        self.dense_kernel, self.dense_bias = add_dense(
            self,
            "dense",
            (self.hidden_size, self.hidden_size),
            truncated_normal(self.initializer_range),
        )
        self.prediction_kernel, self.prediction_bias = add_dense(
            self,
            "prediction",
            (self.hidden_size, 1),
            keras.initializers.GlorotUniform(),
        )

    def call(self, hidden, *, training=False):
        """Scores all tokens.

        Args:
            hidden: [B, S, D].
            training: Python bool; changes the speed, not the result.

        Returns:
            rtd_logits, float32 [B, S].
        """
        ops = fused if training else plain
        batch, length, size = known_shape(hidden)
        rows = matmul(tf.reshape(hidden, [-1, size]), self.dense_kernel)
        rows = ops.bias_activation(rows, self.dense_bias, activation=plain.gelu)
        logits = tf.matmul(
            tf.cast(rows, tf.float32), tf.cast(self.prediction_kernel, tf.float32)
        )
        logits += tf.cast(self.prediction_bias, tf.float32)
        return tf.reshape(logits, [batch, length])

    def compute_output_spec(self, hidden, training=False):
        """Returns the shape of the result of `call`."""
        return keras.KerasTensor(hidden.shape[:-1], dtype="float32")

    def get_config(self):
        """Returns the constructor arguments."""
        return {
            **super().get_config(),
            "hidden_size": self.hidden_size,
            "initializer_range": self.initializer_range,
        }

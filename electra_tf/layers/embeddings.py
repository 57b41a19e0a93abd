"""Token embeddings: words, positions and segments, normalized.

One object passed to two encoders ties all four tables between them, which is the
default sharing of the paper (Section 3.2) and of the original code.

Letters: B batch, S sequence, V vocabulary, E embedding size.
"""

import keras
import tensorflow as tf

from electra_tf.layers import fused, plain
from electra_tf.layers.randomness import check_rate, check_seed, known_shape
from electra_tf.layers.weights import add_layer_norm, truncated_normal


@keras.saving.register_keras_serializable(package="electra_tf")
class TextEmbedding(keras.layers.Layer):
    """Sum of word, segment and position embeddings, LayerNorm, dropout.

    Args:
        vocab_size: Number of rows of the word table.
        size: Width of all tables.
        max_positions: Longest sequence.
        num_segments: Number of segment ids.
        dropout: Dropout rate of the output.
        initializer_range: Standard deviation of the truncated normal initializers.
        layer_norm_epsilon: Added to the variance in LayerNorm.
        name: Name of the layer.
        **kwargs: Passed to `keras.layers.Layer`.

    Attributes:
        word_embeddings: Variable [V, E]; `MaskedLMHead` multiplies by it.
        position_embeddings: Variable [max_positions, E].
        segment_embeddings: Variable [num_segments, E].
    """

    def __init__(
        self,
        vocab_size,
        size,
        *,
        max_positions=512,
        num_segments=2,
        dropout=0.1,
        initializer_range=0.02,
        layer_norm_epsilon=1e-12,
        name="embeddings",
        **kwargs,
    ):
        super().__init__(name=name, **kwargs)
        self.vocab_size = vocab_size
        self.size = size
        self.max_positions = max_positions
        self.num_segments = num_segments
        self.dropout = check_rate(dropout, "dropout")
        self.initializer_range = initializer_range
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, input_shape=None):
        """Creates the variables."""
        self.word_embeddings = self._add_table("word_embeddings", self.vocab_size)
        self.position_embeddings = self._add_table(
            "position_embeddings", self.max_positions
        )
        self.segment_embeddings = self._add_table(
            "segment_embeddings", self.num_segments
        )
        self.gamma, self.beta = add_layer_norm(self, "layer_norm", self.size)

    def _add_table(self, name, rows):
        return self.add_weight(
            name=name,
            shape=(rows, self.size),
            initializer=truncated_normal(self.initializer_range),
            autocast=False,
        )

    def call(self, input_ids, segment_ids, *, training=False, seed=None):
        """Embeds tokens.

        Args:
            input_ids: int32 [B, S].
            segment_ids: int32 [B, S].
            training: Python bool; True turns dropout on.
            seed: int32 [2], needed when training with dropout.

        Returns:
            [B, S, E] in the compute dtype.

        Raises:
            ValueError: When S is above `max_positions`.
        """
        words = self.words(input_ids)
        return self.compose(words, segment_ids, training=training, seed=seed)

    def words(self, input_ids):
        """Looks up the rows of the word table: float32 [B, S, E] of int32 [B, S]."""
        return _lookup(self.word_embeddings, input_ids)

    def words_of(self, one_hots):
        """Multiplies rows of weights over the vocabulary by the word table.

        The row of a one-hot is the row that `words` looks up, exactly, and gradients
        reach the weights: the way into the embeddings for relaxed samples.

        Args:
            one_hots: float32 [..., V].

        Returns:
            float32 [..., E].
        """
        table = tf.cast(self.word_embeddings, tf.float32)
        rows = tf.matmul(tf.reshape(one_hots, [-1, self.vocab_size]), table)
        return tf.reshape(rows, [*known_shape(one_hots)[:-1], self.size])

    def compose(self, words, segment_ids, *, training=False, seed=None):
        """Adds segments and positions to rows of the word table; LayerNorm, dropout.

        Args:
            words: float32 [B, S, E], as of `words`.
            segment_ids: int32 [B, S].
            training: Python bool; True turns dropout on.
            seed: int32 [2], needed when training with dropout.

        Returns:
            [B, S, E] in the compute dtype, as the call.
        """
        length = known_shape(words)[1]
        self._check_length(length)
        total = (
            words
            + _lookup(self.segment_embeddings, segment_ids)
            + tf.cast(self.position_embeddings, tf.float32)[:length]
        )
        ops, rate = (fused, self.dropout) if training else (plain, 0.0)
        return ops.norm_drop(
            total,
            self.gamma,
            self.beta,
            seed=check_seed(seed) if rate else None,
            rate=rate,
            epsilon=self.layer_norm_epsilon,
            dtype=self.compute_dtype,
        )

    def _check_length(self, length):
        message = (
            f"The sequence is longer than the position table of {self.max_positions} "
            "rows: shorten the input or build the embeddings with a larger "
            "max_positions."
        )
        if not isinstance(length, int):
            tf.debugging.assert_less_equal(length, self.max_positions, message)
        elif length > self.max_positions:
            raise ValueError(f"{message} Got {length} tokens.")

    def compute_output_shape(self, input_shape):
        """Returns the shape of the result of `call`."""
        return (*input_shape, self.size)

    def get_config(self):
        """Returns the constructor arguments."""
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "size": self.size,
            "max_positions": self.max_positions,
            "num_segments": self.num_segments,
            "dropout": self.dropout,
            "initializer_range": self.initializer_range,
            "layer_norm_epsilon": self.layer_norm_epsilon,
        }


def _lookup(table, ids):
    return tf.cast(tf.gather(table, ids), tf.float32)

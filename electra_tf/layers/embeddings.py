"""Token embeddings: words, positions and segments, normalized.

One object passed to two encoders ties its three tables and their LayerNorm between
them, which is the default sharing of the paper (Section 3.2) and of the original code.
The other classes take another embedding and share part of it.

Letters: B batch, S sequence, V vocabulary, E embedding size.
"""

import keras
import tensorflow as tf

from electra_tf.layers import fused, plain
from electra_tf.layers.randomness import check_rate, check_seed, known_shape
from electra_tf.layers.weights import (
    POSITION_INITIALIZERS,
    add_layer_norm,
    truncated_normal,
)

# The tables in the order of creation, and the arguments that give their shapes.
TABLES = ("word_embeddings", "position_embeddings", "segment_embeddings")
_TAKEN_OVER = (
    "vocab_size",
    "size",
    "max_positions",
    "num_segments",
    "initializer_range",
    "position_init",
)


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
        position_init: "truncated_normal", or "sinusoidal", a start at which positions
            already tell how far they are apart.
        layer_norm_epsilon: Added to the variance in LayerNorm.
        name: Name of the layer.
        **kwargs: Passed to `keras.layers.Layer`.

    Raises:
        ValueError: For another `position_init`.

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
        position_init="truncated_normal",
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
        if position_init not in POSITION_INITIALIZERS:
            raise ValueError(
                f"position_init is {position_init!r}; allowed are "
                f"{', '.join(POSITION_INITIALIZERS)}."
            )
        self.position_init = position_init
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, input_shape=None):
        """Creates the variables."""
        rows = (self.vocab_size, self.max_positions, self.num_segments)
        for name, count in zip(TABLES, rows, strict=True):
            self._add_table(name, count)
        self.gamma, self.beta = add_layer_norm(self, "layer_norm", self.size)

    def _add_table(self, name, rows):
        table = self.add_weight(
            name=name,
            shape=(rows, self.size),
            initializer=self._initializer(name)(self.initializer_range),
            autocast=False,
        )
        setattr(self, name, table)

    def _initializer(self, name):
        if name == "position_embeddings":
            return POSITION_INITIALIZERS[self.position_init]
        return truncated_normal

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
        return self._pick("word_embeddings", lambda table: tf.gather(table, input_ids))

    def words_of(self, one_hots):
        """Multiplies rows of weights over the vocabulary by the word table.

        The row of a one-hot is the row that `words` looks up, exactly, and gradients
        reach the weights: the way into the embeddings for relaxed samples.

        Args:
            one_hots: float32 [..., V].

        Returns:
            float32 [..., E].
        """
        rows = tf.reshape(one_hots, [-1, self.vocab_size])
        rows = tf.matmul(rows, self.word_table())
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
        length = self._checked_length(known_shape(words)[1])
        total = (
            words
            + self._pick(
                "segment_embeddings", lambda table: tf.gather(table, segment_ids)
            )
            + self._pick("position_embeddings", lambda table: table[:length])
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

    def _pick(self, name, rows):
        """Applies `rows` to the table of that name; the result is float32."""
        return tf.cast(rows(tf.convert_to_tensor(getattr(self, name))), tf.float32)

    def word_table(self):
        """Returns the word table, float32 [V, E], with its gradients; for heads."""
        return self._pick("word_embeddings", tf.identity)

    def standalone(self):
        """Returns a `TextEmbedding` with these tables that depends on no other one."""
        return self

    def take_over(self, source):
        """Sets tables and LayerNorm to the values of another embedding's.

        Args:
            source: A `TextEmbedding` of the same sizes.
        """
        for name in TABLES:
            self._set_table(name, source._pick(name, tf.identity))
        self.gamma.assign(source.gamma)
        self.beta.assign(source.beta)

    def _set_table(self, name, values):
        getattr(self, name).assign(values)

    def _checked_length(self, length):
        message = (
            f"The sequence is longer than the position table of {self.max_positions} "
            "rows: shorten the input or build the embeddings with a larger "
            "max_positions."
        )
        if not isinstance(length, int):
            check = tf.debugging.assert_less_equal(length, self.max_positions, message)
            # What uses the length waits for the check: else the addition of two shapes
            # may be the first to fail, and says nothing of the cause.
            with tf.control_dependencies([check]):
                return tf.identity(length)
        if length > self.max_positions:
            raise ValueError(f"{message} Got {length} tokens.")
        return length

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
            "position_init": self.position_init,
            "layer_norm_epsilon": self.layer_norm_epsilon,
        }


class _BorrowingEmbedding(TextEmbedding):
    """Tables that take something from those of another `TextEmbedding`.

    Args:
        lender: The `TextEmbedding` to borrow from; its sizes and start are taken over.
        name: Name of the layer.
        **kwargs: Further arguments of `TextEmbedding`.
    """

    def __init__(self, lender, *, name, **kwargs):
        sizes = {key: getattr(lender, key) for key in _TAKEN_OVER}
        super().__init__(**{**sizes, **kwargs}, name=name)
        # Here and not in build, which opens a name scope: the tables are the lender's.
        if not lender.built:
            lender.build()
        # Keras must not take the lender for a part of this layer, whose variables
        # would then be trained and counted here; a closure it does not look into.
        self._lender = lambda: lender

    @property
    def lender(self):
        """The `TextEmbedding` borrowed from: saved with this layer, no part of it."""
        return self._lender()

    def standalone(self):
        """Returns a `TextEmbedding` with these tables that depends on no other one."""
        config = super().get_config()
        config["name"] = self.lender.name
        plain = TextEmbedding.from_config(config)
        plain.build()
        plain.take_over(self)
        return plain

    def get_config(self):
        """Returns the constructor arguments."""
        # The live object, not its serialized form: Keras then keeps the tie on reload.
        config = super().get_config()
        return {**config, "lender": self.lender}

    @classmethod
    def from_config(cls, config):
        """Builds the layer from `get_config`, before or after serialization."""
        lender = config["lender"]
        if not isinstance(lender, TextEmbedding):
            lender = keras.saving.deserialize_keras_object(lender)
        return cls(**{**config, "lender": lender})


@keras.saving.register_keras_serializable(package="electra_tf")
class SharedWordEmbedding(_BorrowingEmbedding):
    """The word table of another embedding, and the rest of its own.

    The one word table is trained from both sides. This is what most re-implementations
    share, where the original code shares all tables and the LayerNorm.

    Args:
        lender: The `TextEmbedding` whose word table is shared.
        name: Name of the layer.
        **kwargs: Further arguments of `TextEmbedding`.
    """

    def _add_table(self, name, rows):
        if name == "word_embeddings":
            self.word_embeddings = self.lender.word_embeddings
        else:
            super()._add_table(name, rows)


@keras.saving.register_keras_serializable(package="electra_tf")
class DeltaEmbedding(_BorrowingEmbedding):
    """Gradient-disentangled sharing: stop_gradient(table of another) + an own delta.

    DeBERTaV3 (He et al., 2021), section 3.3: the discriminator reads
    E_D = sg(E_G) + E_delta with E_delta zero at first, so that its loss trains the
    delta and never pulls at the generator's table. Word, position and segment tables
    have deltas; the LayerNorm is this layer's own, as in the code of that paper.

    The deltas are decayed like tables, that is, towards the shared values.

    Args:
        lender: The `TextEmbedding` of the generator.
        name: Name of the layer.
        **kwargs: Further arguments of `TextEmbedding`.
    """

    def _add_table(self, name, rows):
        delta = self.add_weight(
            name=f"{name}_delta",
            shape=(rows, self.size),
            initializer="zeros",
            autocast=False,
        )
        setattr(self, f"{name}_delta", delta)

    def _pick(self, name, rows):
        shared = tf.stop_gradient(self.lender._pick(name, rows))
        return shared + super()._pick(f"{name}_delta", rows)

    def _set_table(self, name, values):
        # The delta alone: the lender's tables are not this layer's to change.
        shared = self.lender._pick(name, tf.identity)
        getattr(self, f"{name}_delta").assign(values - shared)

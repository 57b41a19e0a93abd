"""`TextEncoder`: from token ids to hidden states; generator and discriminator alike.

Letters: B batch, S sequence, E embedding size, D hidden size.
"""

import keras
import tensorflow as tf

from electra_tf.layers import TransformerEncoder
from electra_tf.layers.heads import restore_embeddings
from electra_tf.layers.randomness import known_shape, split_seed
from electra_tf.layers.weights import add_dense, copy_own_weights, matmul
from electra_tf.replicas import fold_in, replica_id


@keras.saving.register_keras_serializable(package="electra_tf")
class TextEncoder(keras.Model):
    """Embeddings, a projection where the widths differ, and a Transformer encoder.

    All variables exist after construction. Two encoders given the same embeddings
    object share it, also after saving and loading a model that holds both.

    Args:
        embeddings: A `TextEmbedding`.
        num_layers: Number of Transformer blocks.
        hidden_size: Width of the hidden states.
        num_heads: Number of attention heads; must divide `hidden_size`.
        intermediate_size: Width of the feed-forward networks; None is 4 * hidden_size.
        dropout: Dropout rate of the sub-layer outputs.
        attention_dropout: Dropout rate of the attention probabilities.
        direction: What a position attends to: "both", "left_to_right" or
            "right_to_left", where the last two include the position itself.
        layer_norm_epsilon: Added to the variance in LayerNorm.
        initializer_range: Standard deviation of the truncated normal initializers.
        seed: Start of the dropout stream of training calls that bring no seed.
        name: Name of the model.
        **kwargs: Passed to `keras.Model`.

    Raises:
        ValueError: When the heads do not divide the hidden size, or the sequence is
            longer than the position table.

    Example:
        >>> table = TextEmbedding(vocab_size=30522, size=128)
        >>> encoder = TextEncoder(table, num_layers=12, hidden_size=256, num_heads=4)
        >>> encoder({"input_ids": tf.constant([[2, 7, 3]])}).shape
        TensorShape([1, 3, 256])
    """

    def __init__(
        self,
        embeddings,
        *,
        num_layers,
        hidden_size,
        num_heads,
        intermediate_size=None,
        dropout=0.1,
        attention_dropout=0.1,
        direction="both",
        layer_norm_epsilon=1e-12,
        initializer_range=0.02,
        seed=0,
        name=None,
        **kwargs,
    ):
        super().__init__(name=name, **kwargs)
        self.embeddings = embeddings
        self.num_layers = num_layers
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.intermediate_size = intermediate_size or 4 * hidden_size
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.direction = direction
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(
            seed, name=f"{self.name}_dropout"
        )
        self.transformer = TransformerEncoder(
            num_layers,
            hidden_size,
            num_heads,
            self.intermediate_size,
            dropout=dropout,
            attention_dropout=attention_dropout,
            direction=direction,
            layer_norm_epsilon=layer_norm_epsilon,
            initializer_range=initializer_range,
            dtype=self.dtype_policy,
            name="transformer",
        )
        # Before the own build opens a name scope: a shared table belongs to no encoder.
        if not embeddings.built:
            embeddings.build()
        self.build()

    def build(self, input_shape=None):
        """Creates the variables."""
        self.projection = ()
        if self.embeddings.size != self.hidden_size:
            self.projection = add_dense(
                self,
                "embeddings_projection",
                (self.embeddings.size, self.hidden_size),
                keras.initializers.GlorotUniform(),
            )
        self.transformer.build()

    def build_from_config(self, config):
        """Does nothing: the constructor has created the variables."""

    def call(self, inputs, training=False, seed=None):
        """Encodes tokens.

        Args:
            inputs: Dictionary with input_ids (int32 [B, S]) and, optionally, input_mask
                (int32 [B, S], 1 for real tokens; default all ones) and segment_ids
                (int32 [B, S]; default all zeros).
            training: Python bool; True turns dropout on.
            seed: int32 [2] or None. With a seed the result is a pure function of
                weights, inputs and seed. Without one, training draws the next seed of
                an own stream, different on every replica.

        Returns:
            hidden, [B, S, D] in the compute dtype.
        """
        return self._encode(
            self._embed_ids, inputs["input_ids"], inputs, training, seed
        )

    def encode_words(self, words, inputs, training=False, seed=None):
        """Encodes vectors in the place of the word table's rows.

        With `words = embeddings.words(input_ids)` this is the call itself, also bit by
        bit; the vectors may as well come from relaxed samples.

        Args:
            words: float32 [B, S, E].
            inputs: Dictionary of the call; its input_ids are not read.
            training: As in the call.
            seed: As in the call.

        Returns:
            hidden, [B, S, D] in the compute dtype.
        """
        return self._encode(self.embeddings.compose, words, inputs, training, seed)

    def _embed_ids(self, input_ids, segment_ids, **options):
        return self.embeddings(input_ids, segment_ids, **options)

    def _encode(self, embed, tokens, inputs, training, seed):
        shape = known_shape(tokens)[:2]
        input_mask = inputs.get("input_mask")
        segment_ids = inputs.get("segment_ids")
        if input_mask is None:
            input_mask = tf.ones(shape, tf.int32)
        if segment_ids is None:
            segment_ids = tf.zeros(shape, tf.int32)
        seeds = [None, None]
        if training:
            seeds = split_seed(self._next_seed() if seed is None else seed, 2)
        embedded = embed(tokens, segment_ids, training=training, seed=seeds[0])
        hidden = self._project(tf.cast(embedded, self.compute_dtype))
        return self.transformer(hidden, input_mask, training=training, seed=seeds[1])

    def _project(self, embedded):
        if not self.projection:
            return embedded
        kernel, bias = self.projection
        rows = matmul(tf.reshape(embedded, [-1, self.embeddings.size]), kernel)
        rows += tf.cast(bias, rows.dtype)
        return tf.reshape(rows, [*known_shape(embedded)[:2], self.hidden_size])

    def _next_seed(self):
        """Draws from the own stream, and folds in the replica: masks must differ."""
        seed = tf.math.floormod(self.seed_generator.next(), tf.int32.max)
        return fold_in(tf.cast(seed, tf.int32), replica_id())

    def variables_by_depth(self):
        """Returns the variables in groups, from the input to the output.

        The first group holds the embeddings and the projection, each following one
        the variables of one block: `num_layers + 1` groups.
        """
        bottom = [*self.embeddings.trainable_variables, *self.projection]
        return [
            bottom,
            *(block.trainable_variables for block in self.transformer.blocks),
        ]

    def standalone(self):
        """Returns this encoder, or a copy whose embeddings depend on no other ones.

        Embeddings that borrow from another network's, as a `DeltaEmbedding`, become a
        plain `TextEmbedding` with the same values: what one saves and fine-tunes.
        """
        return self.with_embeddings(self.embeddings.standalone())

    def with_embeddings(self, embeddings):
        """Returns this encoder, or a copy of it, on other embeddings of its size."""
        if embeddings is self.embeddings:
            return self
        copy = type(self).from_config({**self.get_config(), "embeddings": embeddings})
        copy._take_over_layers(self)
        return copy

    def take_over(self, source):
        """Sets all weights, the embeddings' included, to the values of another encoder.

        Args:
            source: A `TextEncoder` of the same sizes; the two may share embeddings, or
                share them in part.
        """
        self.embeddings.take_over(source.embeddings)
        self._take_over_layers(source)

    def _take_over_layers(self, source):
        copy_own_weights(source, self)
        self.transformer.set_weights(source.transformer.get_weights())

    def compute_output_spec(self, inputs, training=False, seed=None):
        """Returns the shape of the result of `call`."""
        shape = (*inputs["input_ids"].shape, self.hidden_size)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        """Returns the constructor arguments."""
        # The live object, not its serialized form: Keras then keeps the tie on reload.
        return {
            **super().get_config(),
            "embeddings": self.embeddings,
            "num_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "num_heads": self.num_heads,
            "intermediate_size": self.intermediate_size,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "direction": self.direction,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config):
        """Builds the layer from `get_config`, before or after serialization."""
        return cls(**restore_embeddings(config))

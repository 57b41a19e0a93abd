"""The Transformer encoder of BERT and ELECTRA: post-LayerNorm blocks in a stack.

Activations are two-dimensional between the matrix products, the query, key and value
projections are one product, and everything between two products is one operation of
`plain` (inference) or `fused` (training).

Letters: B batch, S sequence, R rows (B * S), D hidden size, N heads, H head size,
F feed-forward size.
"""

import keras
import tensorflow as tf

from electra_tf.layers import fused, plain
from electra_tf.layers.randomness import (
    check_rate,
    check_seed,
    known_shape,
    split_seed,
)
from electra_tf.layers.weights import (
    add_dense,
    add_layer_norm,
    matmul,
    truncated_normal,
)


def check_heads(hidden_size, num_heads):
    """Raises ValueError unless the heads divide the hidden size."""
    if hidden_size % num_heads:
        raise ValueError(
            f"hidden_size {hidden_size} is not divisible by num_heads {num_heads}: "
            "choose num_heads among the divisors of hidden_size."
        )


@keras.saving.register_keras_serializable(package="electra_tf")
class TransformerEncoderBlock(keras.layers.Layer):
    """Self-attention and a feed-forward network, each with residual and LayerNorm.

    Args:
        intermediate_size: Width of the feed-forward network.
        num_heads: Number of attention heads; must divide the hidden size.
        dropout: Dropout rate of both sub-layer outputs.
        attention_dropout: Dropout rate of the attention probabilities.
        activation: Name of the feed-forward activation, "gelu" is the exact one.
        direction: What a position attends to: "both" (everything), "left_to_right"
            (itself and what is before it) or "right_to_left" (itself and what is
            after it).
        layer_norm_epsilon: Added to the variance in LayerNorm.
        initializer_range: Standard deviation of the truncated normal initializers.
        **kwargs: Passed to `keras.layers.Layer`.

    Raises:
        ValueError: In build, when the heads do not divide the hidden size.
    """

    def __init__(
        self,
        intermediate_size,
        num_heads,
        *,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu",
        direction="both",
        layer_norm_epsilon=1e-12,
        initializer_range=0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_size = intermediate_size
        self.num_heads = num_heads
        self.dropout = check_rate(dropout, "dropout")
        self.attention_dropout = check_rate(attention_dropout, "attention_dropout")
        self.activation = activation
        self.direction = direction
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range
        self._activate = plain.get_activation(activation)
        self._score_penalty = plain.get_direction(direction)

    def build(self, hidden_shape):
        """Creates the variables."""
        size = hidden_shape[-1]
        check_heads(size, self.num_heads)
        self.qkv_kernel, self.qkv_bias = self._add_dense("qkv", (size, 3 * size))
        self.attention_output_kernel, self.attention_output_bias = self._add_dense(
            "attention_output", (size, size)
        )
        self.attention_gamma, self.attention_beta = add_layer_norm(
            self, "attention_layer_norm", size
        )
        self.intermediate_kernel, self.intermediate_bias = self._add_dense(
            "intermediate", (size, self.intermediate_size)
        )
        self.output_kernel, self.output_bias = self._add_dense(
            "output", (self.intermediate_size, size)
        )
        self.output_gamma, self.output_beta = add_layer_norm(
            self, "output_layer_norm", size
        )

    def _add_dense(self, name, shape):
        return add_dense(self, name, shape, truncated_normal(self.initializer_range))

    def call(self, hidden, input_mask, *, training=False, seed=None):
        """Applies the block.

        Args:
            hidden: [B, S, D].
            input_mask: [B, S], 1 where a position may be attended to, 0 elsewhere.
            training: Python bool; True turns dropout on.
            seed: int32 [2], needed when training with dropout.

        Returns:
            [B, S, D] in the compute dtype.
        """
        ops = fused if training else plain
        size = hidden.shape[-1]
        seeds, attention_rate, rate = self._dropout_sites(training, seed)
        norm = {"rate": rate, "epsilon": self.layer_norm_epsilon}
        rows = tf.reshape(hidden, [-1, size])
        context = ops.attention(
            matmul(rows, self.qkv_kernel),
            self.qkv_bias,
            mask=input_mask,
            num_heads=self.num_heads,
            seed=seeds[0],
            rate=attention_rate,
            score_penalty=self._score_penalty,
        )
        rows = ops.bias_drop_add_norm(
            matmul(context, self.attention_output_kernel),
            self.attention_output_bias,
            rows,
            self.attention_gamma,
            self.attention_beta,
            seed=seeds[1],
            **norm,
        )
        wide = ops.bias_activation(
            matmul(rows, self.intermediate_kernel),
            self.intermediate_bias,
            activation=self._activate,
        )
        rows = ops.bias_drop_add_norm(
            matmul(wide, self.output_kernel),
            self.output_bias,
            rows,
            self.output_gamma,
            self.output_beta,
            seed=seeds[2],
            **norm,
        )
        return tf.reshape(rows, known_shape(hidden))

    def _dropout_sites(self, training, seed):
        """Returns three seeds, the attention dropout rate and the dropout rate."""
        if not training or not (self.dropout or self.attention_dropout):
            return [None] * 3, 0.0, 0.0
        seeds = split_seed(check_seed(seed), 3)
        return seeds, self.attention_dropout, self.dropout

    def compute_output_shape(self, hidden_shape):
        """Returns the shape of the result of `call`."""
        return hidden_shape

    def get_config(self):
        """Returns the constructor arguments."""
        return {
            **super().get_config(),
            "intermediate_size": self.intermediate_size,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": self.activation,
            "direction": self.direction,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
        }


@keras.saving.register_keras_serializable(package="electra_tf")
class TransformerEncoder(keras.layers.Layer):
    """A stack of `TransformerEncoderBlock`s.

    Args:
        num_layers: Number of blocks.
        hidden_size: Width of the hidden states.
        num_heads: Number of attention heads; must divide `hidden_size`.
        intermediate_size: Width of the feed-forward networks.
        dropout: Dropout rate of the sub-layer outputs.
        attention_dropout: Dropout rate of the attention probabilities.
        activation: Name of the feed-forward activation, "gelu" is the exact one.
        direction: What a position attends to: "both" (everything), "left_to_right"
            (itself and what is before it) or "right_to_left" (itself and what is
            after it).
        layer_norm_epsilon: Added to the variance in LayerNorm.
        initializer_range: Standard deviation of the truncated normal initializers.
        **kwargs: Passed to `keras.layers.Layer`.

    Attributes:
        blocks: The blocks, from the input to the output.

    Raises:
        ValueError: When the heads do not divide the hidden size.
    """

    def __init__(
        self,
        num_layers,
        hidden_size,
        num_heads,
        intermediate_size,
        *,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu",
        direction="both",
        layer_norm_epsilon=1e-12,
        initializer_range=0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_heads(hidden_size, num_heads)
        self.num_layers = num_layers
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.intermediate_size = intermediate_size
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = activation
        self.direction = direction
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range
        self.blocks = [
            TransformerEncoderBlock(
                intermediate_size,
                num_heads,
                dropout=dropout,
                attention_dropout=attention_dropout,
                activation=activation,
                direction=direction,
                layer_norm_epsilon=layer_norm_epsilon,
                initializer_range=initializer_range,
                dtype=self.dtype_policy,
                name=f"layer_{index}",
            )
            for index in range(num_layers)
        ]

    def build(self, hidden_shape=None):
        """Creates the variables."""
        for block in self.blocks:
            block.build((None, None, self.hidden_size))

    def call(self, hidden, input_mask, *, training=False, seed=None):
        """Applies all blocks.

        Args:
            hidden: [B, S, D].
            input_mask: [B, S], 1 where a position may be attended to, 0 elsewhere.
            training: Python bool; True turns dropout on.
            seed: int32 [2], needed when training with dropout.

        Returns:
            [B, S, D] in the compute dtype.
        """
        seeds = [None] * self.num_layers
        if training and seed is not None:
            seeds = split_seed(seed, self.num_layers)
        for block, block_seed in zip(self.blocks, seeds, strict=True):
            hidden = block(hidden, input_mask, training=training, seed=block_seed)
        return hidden

    def compute_output_shape(self, hidden_shape):
        """Returns the shape of the result of `call`."""
        return hidden_shape

    def get_config(self):
        """Returns the constructor arguments."""
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "num_heads": self.num_heads,
            "intermediate_size": self.intermediate_size,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": self.activation,
            "direction": self.direction,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
        }

"""The Transformer encoder of BERT and ELECTRA: a stack of post-LayerNorm blocks.

Query, key and value share one product. All operations between two products are a single
function: of ``fused`` in training, else of ``plain``. ``packing`` skips padding.

Letters: B batch, S sequence, R rows (B * S), D hidden size, N heads, H head size,
F feed-forward size. In every call, ``training`` turns dropout on, which needs
``seed``, int32 [2] or [3] (``randomness``).
"""

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from electra_tf.layers import fused, plain, weights
from electra_tf.layers.compilation import traced_for_all
from electra_tf.layers.lora import is_factor
from electra_tf.layers.packing import Packing
from electra_tf.layers.quantization import QuantizableLayer, QuantizationInConfig
from electra_tf.layers.randomness import (
    check_rate,
    check_seed,
    known_shape,
    per_row,
    split_seed,
)
from electra_tf.layers.serialization import Serializable, argument_names


class BlockOptions(QuantizationInConfig, Serializable):
    """Arguments shared by a block, a stack of blocks and an encoder.

    Args:
        dropout: dropout rate of both sub-layer outputs.
        attention_dropout: dropout rate of the attention probabilities.
        activation: feed-forward activation: "gelu" (exact), "gelu_tanh" or "relu".
        direction: positions to attend to: "both" (all), "left_to_right" (up to the
            position itself) or "right_to_left" (from the position itself).
        layer_norm_epsilon: added to the variance in LayerNorm.
        initializer_range: standard deviation of the normal initializers, of which
            truncation at two deviations leaves 0.88, as in BERT.
    """

    def __init__(
        self,
        *,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        activation: str = "gelu",
        direction: str = "both",
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.dropout = check_rate(dropout, "dropout")
        self.attention_dropout = check_rate(attention_dropout, "attention_dropout")
        self.activation = activation
        self.direction = direction
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range

    @keras.layers.Layer.trainable.setter
    def trainable(self, value: bool) -> None:
        keras.layers.Layer.trainable.fset(self, value)
        # Keras sets all variables; under LoRA, only the factors are trained.
        if any(hasattr(variable, "lora") for variable in self.weights):
            for variable in self.weights:
                variable.trainable = value and is_factor(variable)

    def block_options(self) -> dict[str, Any]:
        """Returns these arguments and the dtype policy, for a sublayer."""
        options = {name: getattr(self, name) for name in argument_names(BlockOptions)}
        return {**options, "dtype": self.dtype_policy}


@keras.saving.register_keras_serializable(package="electra_tf")
class TransformerEncoderBlock(QuantizableLayer, BlockOptions, keras.layers.Layer):
    """Self-attention and a feed-forward network, each with residual and LayerNorm.

    Args:
        intermediate_size: width of the feed-forward network.
        num_heads: number of attention heads; must divide the hidden size, else build
            raises ValueError.
        **kwargs: arguments of ``BlockOptions`` and ``keras.layers.Layer``.

    Examples:
        >>> block = et.layers.TransformerEncoderBlock(intermediate_size=64, num_heads=2)
        >>> block(tf.zeros([1, 5, 32]), tf.ones([1, 5])).shape
        TensorShape([1, 5, 32])
    """

    int8_weights = (
        "qkv_kernel",
        "attention_output_kernel",
        "intermediate_kernel",
        "output_kernel",
    )

    def __init__(self, intermediate_size: int, num_heads: int, **kwargs: Any):
        super().__init__(**kwargs)
        weights.check_positive(intermediate_size=intermediate_size, num_heads=num_heads)
        self.intermediate_size = intermediate_size
        self.num_heads = num_heads
        weights.check_choice("activation", self.activation, plain.ACTIVATIONS)
        weights.check_choice("direction", self.direction, plain.DIRECTIONS)
        self._activate = plain.ACTIVATIONS[self.activation]

    def build(self, hidden_shape: tuple[int | None, ...]) -> None:
        size = hidden_shape[-1]
        if size % self.num_heads:
            raise ValueError(
                f"hidden_size {size} is not divisible by num_heads {self.num_heads}."
            )
        add = functools.partial(weights.add_dense, self, stddev=self.initializer_range)
        self.qkv_kernel, self.qkv_bias = add("qkv", (size, 3 * size))
        self.attention_output_kernel, self.attention_output_bias = add(
            "attention_output", (size, size)
        )
        self.attention_gamma, self.attention_beta = weights.add_layer_norm(
            self, "attention_layer_norm", size
        )
        wide = self.intermediate_size
        self.intermediate_kernel, self.intermediate_bias = add(
            "intermediate", (size, wide)
        )
        self.output_kernel, self.output_bias = add("output", (wide, size))
        self.output_gamma, self.output_beta = weights.add_layer_norm(
            self, "output_layer_norm", size
        )
        if self.quantization_mode:
            self._make_int8()

    def call(
        self,
        hidden: tf.Tensor,
        input_mask: tf.Tensor,
        *,
        training: bool = False,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Maps hidden [B, S, D] to the same shape in the compute dtype.

        ``input_mask`` [B, S] is 1 for positions that may be attended to, else 0.
        """
        ops = fused if training else plain
        size = hidden.shape[-1]
        seeds, attention_rate, rate = [None] * 3, 0.0, 0.0
        if training and (self.dropout or self.attention_dropout):
            seeds = split_seed(check_seed(seed), 3)
            attention_rate, rate = self.attention_dropout, self.dropout
        rows = tf.reshape(hidden, [-1, size])
        context = ops.attention(
            weights.matmul(rows, self.qkv_kernel),
            self.qkv_bias,
            mask=input_mask,
            num_heads=self.num_heads,
            seed=seeds[0],
            rate=attention_rate,
            direction=self.direction,
        )
        # The first axis of [R, D] has S entries per row.
        length = known_shape(hidden)[1]
        later = [per_row(seed, length) for seed in seeds[1:]]
        rows = self._after_attention(context, rows, ops, later, rate)
        return tf.reshape(rows, known_shape(hidden))

    def infer(self, tokens: tf.Tensor, packing: Packing) -> tf.Tensor:
        """Computes ``call`` without dropout for packed tokens, [T, D] to [K, D]."""
        qkv = weights.matmul(tokens, self.qkv_kernel)
        context = packing.attention(qkv, self.qkv_bias, self.direction)
        kept = packing.keep(tokens)
        return self._after_attention(context, kept, plain, [None, None], 0.0)

    def _after_attention(
        self,
        context: tf.Tensor,
        rows: tf.Tensor,
        ops: ModuleType,
        seeds: Sequence[tf.Tensor | None],
        rate: float,
    ) -> tf.Tensor:
        """Applies the rest of the block to attention's result and the input, [R, D]."""
        norm = {"rate": rate, "epsilon": self.layer_norm_epsilon}
        rows = ops.bias_drop_add_norm(
            weights.matmul(context, self.attention_output_kernel),
            self.attention_output_bias,
            rows,
            self.attention_gamma,
            self.attention_beta,
            seed=seeds[0],
            **norm,
        )
        wide = ops.bias_activation(
            weights.matmul(rows, self.intermediate_kernel),
            self.intermediate_bias,
            activation=self._activate,
        )
        return ops.bias_drop_add_norm(
            weights.matmul(wide, self.output_kernel),
            self.output_bias,
            rows,
            self.output_gamma,
            self.output_beta,
            seed=seeds[1],
            **norm,
        )


@keras.saving.register_keras_serializable(package="electra_tf")
class TransformerEncoder(BlockOptions, keras.layers.Layer):
    """A stack of ``TransformerEncoderBlock``s, which take the same arguments.

    ``blocks`` are ordered from input to output. With ``remat``, training stores only
    the input of each block and recomputes the block in the backward pass (gradient
    checkpointing; Chen et al., 2016), with the same results.

    Examples:
        >>> stack = et.layers.TransformerEncoder(
        ...     num_layers=2, hidden_size=32, num_heads=2, intermediate_size=64
        ... )
        >>> stack(tf.zeros([1, 5, 32]), tf.ones([1, 5])).shape
        TensorShape([1, 5, 32])
    """

    def __init__(
        self,
        num_layers: int,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        *,
        remat: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        weights.check_positive(num_layers=num_layers, hidden_size=hidden_size)
        self.num_layers = num_layers
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.intermediate_size = intermediate_size
        self.remat = remat
        self.blocks = [
            TransformerEncoderBlock(
                intermediate_size,
                num_heads,
                name=f"layer_{index}",
                **self.block_options(),
            )
            for index in range(num_layers)
        ]
        self._call_traced = traced_for_all(self.blocks[0])

    def build(self, hidden_shape: tuple[int | None, ...] | None = None) -> None:
        for block in self.blocks:
            block.build((None, None, self.hidden_size))

    def _int8_layers(self) -> list[TransformerEncoderBlock]:
        return self.blocks

    def call(
        self,
        hidden: tf.Tensor,
        input_mask: tf.Tensor,
        *,
        training: bool = False,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Applies all blocks; arguments and result as in a block's ``call``."""
        return self.states(hidden, input_mask, training=training, seed=seed)[-1]

    def states(
        self,
        hidden: tf.Tensor,
        input_mask: tf.Tensor,
        *,
        training: bool = False,
        seed: tf.Tensor | None = None,
    ) -> list[tf.Tensor]:
        """Returns ``hidden`` and each block's output, ``num_layers + 1`` tensors."""
        seeds = [None] * self.num_layers
        if training and seed is not None:
            seeds = split_seed(seed, self.num_layers)
        states = [hidden]
        for block, block_seed in zip(self.blocks, seeds, strict=True):
            run = block
            if training and not self.remat:
                run = functools.partial(self._call_traced, block)
            # Only differentiable tensors are positional arguments.
            run = functools.partial(
                run, input_mask=input_mask, training=training, seed=block_seed
            )
            if training and self.remat:
                run = tf.recompute_grad(run)
            states.append(run(states[-1]))
        return states

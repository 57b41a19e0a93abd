"""``TextEncoder``: token ids to hidden states, for generator and discriminator.

Letters: B batch, S sequence, E embedding size, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import keras
import tensorflow as tf

from electra_tf.features import ENCODER_INPUTS, PRETRAINING, encoder_inputs
from electra_tf.layers.embeddings import TextEmbedding
from electra_tf.layers.lora import LoraModel
from electra_tf.layers.packing import Packing
from electra_tf.layers.quantization import check_without_lora
from electra_tf.layers.randomness import known_shape, split_seed
from electra_tf.layers.replicas import seed_of_rows
from electra_tf.layers.transformer import BlockOptions, TransformerEncoder
from electra_tf.layers.weights import add_dense, matmul


class ExportsTokenInputs:
    """Exports integer token ids of any shape, and makes weights int8."""

    exported_inputs = tuple(ENCODER_INPUTS)

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Exports the model; the default ``input_signature`` takes any [B, S]."""
        if kwargs.get("input_signature") is None:
            features = {name: PRETRAINING[name] for name in self.exported_inputs}
            kwargs["input_signature"] = [features]
        super().export(filepath, *args, **kwargs)

    def quantize(
        self, mode: str | None = None, config: Any = None, **kwargs: Any
    ) -> None:
        """Makes word tables and kernels of blocks int8, a quarter of the memory.

        Takes the arguments of ``keras.Model.quantize``; raises ValueError for modes
        other than "int8" or if LoRA is enabled. Compile the model after this call. On a
        CPU, TensorFlow's int8 product is slower than float32: use LiteRT or ONNX files
        for speed; ``Int8QuantizationConfig(activation_quantizer=None)`` is about as
        fast as float32. Other weights stay float, except for Keras's layers.
        """
        check_without_lora(self)  # Before the first layer becomes int8.
        super().quantize(mode, config, **kwargs)


@keras.saving.register_keras_serializable(package="electra_tf")
class TextEncoder(LoraModel, ExportsTokenInputs, BlockOptions, keras.Model):
    """Embeddings, a projection if the widths differ, and a Transformer encoder.

    Encoders with the same embeddings object share it, also after saving and loading a
    model that contains both. The constructor creates all variables. Raises ValueError
    if the heads do not divide the hidden size, or a sequence is too long.

    Args:
        embeddings: a ``TextEmbedding``.
        intermediate_size: width of the feed-forward networks; default 4 * hidden_size.
        seed: seed of dropout in training calls without a seed.
        remat: as in ``TransformerEncoder``.
        **kwargs: ``dropout``, ``attention_dropout``, ``activation``, ``direction``,
            ``layer_norm_epsilon`` and ``initializer_range`` of ``BlockOptions``, and
            arguments of ``keras.Model``.

    Examples:
        >>> table = et.layers.TextEmbedding(vocab_size=30522, size=128)
        >>> encoder = et.TextEncoder(table, num_layers=12, hidden_size=256, num_heads=4)
        >>> encoder({"input_ids": tf.constant([[2, 7, 3]])}).shape
        TensorShape([1, 3, 256])
    """

    def __init__(
        self,
        embeddings: TextEmbedding,
        *,
        num_layers: int,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int | None = None,
        seed: int = 0,
        remat: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.embeddings = embeddings
        self.num_layers = num_layers
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        if intermediate_size is None:
            intermediate_size = 4 * hidden_size
        self.intermediate_size = intermediate_size
        self.seed = seed
        self.remat = remat
        self.lora_rank: int | None = None
        self.seed_generator = keras.random.SeedGenerator(
            seed, name=f"{self.name}_dropout"
        )
        self.transformer = TransformerEncoder(
            num_layers,
            hidden_size,
            num_heads,
            intermediate_size,
            remat=remat,
            name="transformer",
            **self.block_options(),
        )
        # Outside of this model's name scope, which would name the shared tables.
        if not embeddings.built:
            embeddings.build()
        self.build()
        if not self.trainable:
            # Keras freezes sublayers only if the attribute changes after construction.
            self.trainable = True
            self.trainable = False

    def build(self, input_shape: tuple | None = None) -> None:
        self.projection = ()
        if self.embeddings.size != self.hidden_size:
            shape = (self.embeddings.size, self.hidden_size)
            self.projection = add_dense(self, "embeddings_projection", shape)
        self.transformer.build()

    def _int8_layers(self) -> list[keras.layers.Layer]:
        return self.transformer.blocks

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        blocks = enumerate(self.transformer.blocks)
        others = [n for n, block in blocks if block.trainable != self.trainable]
        # Absent by default, as in older files.
        name = "frozen_blocks" if self.trainable else "trained_blocks"
        more = {"lora_rank": self.lora_rank, name: others}
        return config | {name: value for name, value in more.items() if value}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        config = dict(config)
        rank = config.pop("lora_rank", None)
        others = config.pop("frozen_blocks", config.pop("trained_blocks", ()))
        encoder = super().from_config(config)
        if rank:
            encoder.enable_lora(rank)
            encoder.trainable = config.get("trainable", True)
        for number in others:
            encoder.transformer.blocks[number].trainable = not encoder.trainable
        return encoder

    def call(
        self,
        inputs: Mapping[str, tf.Tensor],
        training: bool = False,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Encodes tokens as hidden states, [B, S, D] in the compute dtype.

        Args:
            inputs: input_ids, or a dictionary with input_ids and, optionally,
                input_mask (1 for real tokens; default ones) and segment_ids (default
                zeros), all int32 [B, S]. Also takes the names of Hugging Face
                (attention_mask, token_type_ids) and keras-hub (token_ids,
                padding_mask).
            training: whether dropout is on.
            seed: int32 [2] or [3] (``randomness``). The call is then a pure function.
                None draws a seed of this replica from the encoder's stream.
        """
        return self.states(inputs, training, seed)[-1]

    def states(
        self,
        inputs: Mapping[str, tf.Tensor],
        training: bool = False,
        seed: tf.Tensor | None = None,
        words: tf.Tensor | None = None,
    ) -> list[tf.Tensor]:
        """Returns the block inputs and the result: ``num_layers + 1`` [B, S, D].

        ``words``, float32 [B, S, E], replace the word embeddings of ``input_ids``.
        """
        inputs = encoder_inputs(inputs)
        seeds = [None, None]
        if training:
            if seed is None:
                # The same seed on all replicas would drop the same elements.
                seed = tf.math.floormod(self.seed_generator.next(), tf.int32.max)
                seed = seed_of_rows(tf.cast(seed, tf.int32), inputs["input_ids"])
            seeds = split_seed(seed, 2)
        embed, tokens = self.embeddings, inputs["input_ids"]
        if words is not None:
            embed, tokens = self.embeddings.compose, words
        embedded = embed(
            tokens, inputs["segment_ids"], training=training, seed=seeds[0]
        )
        rows = self._project(tf.reshape(embedded, [-1, self.embeddings.size]))
        hidden = tf.reshape(rows, [*known_shape(embedded)[:2], self.hidden_size])
        return self.transformer.states(
            hidden, inputs["input_mask"], training=training, seed=seeds[1]
        )

    def encode_first(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Computes ``encode_tokens`` at the first position only: [B, 1, D]."""
        return self.encode_tokens(inputs, only_first=True)

    def encode_tokens(
        self, inputs: Mapping[str, tf.Tensor], only_first: bool = False
    ) -> tf.Tensor:
        """Runs inference on real tokens only: [B, S, D] with zeros at padding."""
        inputs = encoder_inputs(inputs)
        packing = Packing.of(inputs["input_mask"], self.num_heads)
        embedded = self.embeddings(inputs["input_ids"], inputs["segment_ids"])
        tokens = self._project(packing.pack(embedded))
        *lower, last = self.transformer.blocks
        for block in lower:
            tokens = block.infer(tokens, packing)
        if only_first:
            return tf.expand_dims(last.infer(tokens, packing.first()), 1)
        return packing.unpack(last.infer(tokens, packing))

    def _project(self, rows: tf.Tensor) -> tf.Tensor:
        rows = tf.cast(rows, self.compute_dtype)
        if not self.projection:
            return rows
        kernel, bias = self.projection
        rows = matmul(rows, kernel)
        return rows + tf.cast(bias, rows.dtype)

    def variables_by_depth(self) -> list[list[keras.Variable]]:
        """Returns trainable variables: of embeddings and projection, then by block."""
        projection = [variable for variable in self.projection if variable.trainable]
        bottom = [*self.embeddings.trainable_variables, *projection]
        blocks = self.transformer.blocks
        return [bottom, *(block.trainable_variables for block in blocks)]

    def take_over(self, source: TextEncoder) -> None:
        """Copies all weights from an equal encoder, which may share the embeddings."""
        self.embeddings.take_over(source.embeddings)
        for own, value in zip(self.projection, source.projection, strict=True):
            own.assign(value)
        self.transformer.set_weights(source.transformer.get_weights())

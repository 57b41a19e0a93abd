"""Fine-tuning model, and heads for text classification and tagging.

Letters: B batch, S sequence, D hidden size, L layers, C outputs.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.features import ENCODER_INPUTS, encoder_inputs
from electra_tf.layers import Dropout, split_seed
from electra_tf.layers.encoder import ExportsTokenInputs, TextEncoder
from electra_tf.layers.lora import LoraModel
from electra_tf.layers.plain import gelu
from electra_tf.layers.quantization import modes
from electra_tf.layers.replicas import DistributedFit, seed_of_rows
from electra_tf.layers.serialization import Serializable, fresh_copy
from electra_tf.layers.weights import add_dense, check_choice, linear

Tensors = dict[str, tf.Tensor]


def mean_over_tokens(hidden: tf.Tensor, inputs: Tensors) -> tf.Tensor:
    """Averages [B, S, D] over real tokens with special tokens: float32 [B, D]."""
    # Not tf.newaxis, which LiteRT's built-in strided slice does not support.
    weights = tf.expand_dims(tf.cast(inputs["input_mask"], tf.float32), -1)
    total = tf.reduce_sum(tf.cast(hidden, tf.float32) * weights, axis=1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=1))


# Hidden states that each pooling reads (``reads`` of ``TaskModel``).
POOLINGS = {"cls": "first", "mean": "tokens", "layers": "states"}


@keras.saving.register_keras_serializable(package="electra_tf")
class ClassificationHead(Serializable, keras.layers.Layer):
    """Pooling, dropout and one linear layer, for classification and regression.

    The default is the head of the original code, without pooler or hidden layer.

    ``pooling`` "cls" takes the [CLS] vector of the last block, "mean" the mean of its
    vectors over all tokens, and "layers" the same mean of a learned softmax mixture of
    ``num_states`` hidden states: the first block's input and each block's output.

    Examples:
        >>> head = et.tasks.ClassificationHead(hidden_size=32, num_outputs=3)
        >>> head(tf.zeros([1, 3, 32])).shape
        TensorShape([1, 3])
    """

    every_position = False

    def __init__(
        self,
        hidden_size: int,
        num_outputs: int,
        *,
        dropout: float = 0.1,
        pooling: str = "cls",
        num_states: int = 1,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_choice("pooling", pooling, POOLINGS)
        self.pooling = pooling
        self.num_states = num_states
        self.reads = POOLINGS[pooling]
        if self.every_position and pooling != "layers":
            self.reads = "tokens"
        self.hidden_size = hidden_size
        self.num_outputs = num_outputs
        self.dropout = dropout
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, hidden_shape: Any = None) -> None:
        shape = (self.hidden_size, self.num_outputs)
        self.kernel, self.bias = add_dense(self, "output", shape)
        if self.reads == "states":
            # float32 under every dtype policy, as the averaged vectors.
            self.mixture = self.add_weight(
                (self.num_states,), "zeros", autocast=False, name="mixture"
            )

    def call(
        self,
        hidden: tf.Tensor | list[tf.Tensor],
        inputs: Tensors | None = None,
        *,
        training: bool = False,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns logits, float32 [B, C], from ``hidden`` [B, S or 1, D] or a list.

        Training with dropout needs ``seed``, int32 [2]. Mean pooling needs input_mask.
        """
        if self.pooling == "layers":
            shares = tf.unstack(tf.nn.softmax(tf.cast(self.mixture, tf.float32)))
            parts = zip(shares, hidden, strict=True)
            hidden = tf.add_n([share * tf.cast(h, tf.float32) for share, h in parts])
        if not self.every_position:
            is_cls = self.pooling == "cls"
            hidden = hidden[:, 0] if is_cls else mean_over_tokens(hidden, inputs)
        return self._logits(hidden, training, seed)

    def _logits(self, vectors: tf.Tensor, training: bool, seed: Any) -> tf.Tensor:
        vectors = self.dropout_layer(vectors, training=training, seed=seed)
        return linear(vectors, self.kernel, self.bias)


@keras.saving.register_keras_serializable(package="electra_tf")
class HiddenClassificationHead(ClassificationHead):
    """Classification head of ``transformers``: adds a hidden layer with GELU."""

    def build(self, hidden_shape: Any = None) -> None:
        shape = (self.hidden_size, self.hidden_size)
        self.hidden_kernel, self.hidden_bias = add_dense(self, "hidden", shape)
        super().build(hidden_shape)

    def _logits(self, vectors: tf.Tensor, training: bool, seed: Any) -> tf.Tensor:
        seeds = [None, None] if seed is None else split_seed(seed, 2)
        vectors = self.dropout_layer(vectors, training=training, seed=seeds[0])
        vectors = gelu(linear(vectors, self.hidden_kernel, self.hidden_bias))
        return super()._logits(vectors, training, seeds[1])


@keras.saving.register_keras_serializable(package="electra_tf")
class TaggingHead(ClassificationHead):
    """Token classification: dropout and one linear layer, logits [B, S, C].

    Examples:
        >>> head = et.tasks.TaggingHead(hidden_size=32, num_outputs=5)
        >>> head(tf.zeros([1, 3, 32])).shape
        TensorShape([1, 3, 5])
    """

    every_position = True


@keras.saving.register_keras_serializable(package="electra_tf")
class TaskModel(
    LoraModel, ExportsTokenInputs, Serializable, DistributedFit, keras.Model
):
    """Encoder with a task head.

    ``head`` is a layer with ``call(hidden, inputs, training=, seed=)``. Its attribute
    ``reads`` selects the hidden states: "first", "tokens" (zeros at padding in
    inference), "states" (the list of ``TextEncoder.states``) or "all" (default).
    Dropout is a function of ``seed``, training calls and row of the global batch.

    Examples:
        >>> encoder = et.load("mini").encoder
        >>> model = et.tasks.TaskModel(encoder, et.tasks.ClassificationHead(256, 3))
        >>> model({"input_ids": tf.constant([[2, 7, 3]])}).shape
        TensorShape([1, 3])
    """

    def __init__(
        self,
        encoder: TextEncoder,
        head: keras.layers.Layer,
        *,
        seed: int = 0,
        name: str = "task_model",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        self.encoder = encoder
        self.head = head
        self._inference: tuple[Any, Any] = None, None
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed, name="task_dropout")
        reads = getattr(head, "reads", "all")
        self._encode = encoder.states if reads == "states" else encoder
        # Inference computes only the hidden states that the head reads.
        fast = {"first": encoder.encode_first, "tokens": encoder.encode_tokens}
        self._infer = fast.get(reads, self._encode)
        self._build_head(head)
        self.built = True

    def build(self, input_shape: Any = None) -> None:
        """All variables are created in ``__init__``."""

    def call(self, inputs: Tensors, training: bool = False) -> Any:
        """Maps input_ids, input_mask and segment_ids, int32 [B, S], to outputs."""
        inputs = encoder_inputs(inputs)
        seeds = [None, None]
        if training:
            # The generator counts in uint32; stateless operations take int32.
            # Not at the end of the data, which Keras's loop meets in a step.
            with tf.control_dependencies([inputs["input_ids"]]):
                seed = tf.math.floormod(self.seed_generator.next(), tf.int32.max)
            # Replicas have different rows and need different dropout masks.
            seed = seed_of_rows(tf.cast(seed, tf.int32), inputs["input_ids"])
            seeds = split_seed(seed, 2)
        hidden = self._encode(inputs, training=training, seed=seeds[0])
        return self.head(hidden, inputs, training=training, seed=seeds[1])

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Updates the metrics of ``compile``; those of words have equal weights."""
        if getattr(self.head, "every_position", False):
            # Keras averages by row first, so that results would depend on padding.
            y, y_pred, sample_weight = (
                None if part is None else tf.reshape(part, [-1, *part.shape[2:]])
                for part in (y, y_pred, sample_weight)
            )
            if sample_weight is not None:
                # For ``metrics`` too, which Keras computes without weights.
                y_pred._keras_mask = sample_weight > 0
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def infer(self, inputs: Tensors) -> Any:
        """Runs inference; outputs at padding differ from ``call``."""
        inputs = encoder_inputs(inputs)
        return self.head(self._infer(inputs), inputs)

    @property
    def inference(self) -> tf.types.experimental.PolymorphicFunction:
        """``infer`` as a function, traced once for all lengths and signatures."""
        # A trace keeps its weights, without new factors of LoRA or new int8 kernels.
        key = self.encoder.lora_rank, modes(self)
        if self._inference[0] != key:
            specs = [ENCODER_INPUTS]
            function = tf.function(self.infer, input_signature=specs, autograph=False)
            self._inference = key, function
        return self._inference[1]

    def reset_seed(self, seed: int) -> None:
        self.seed_generator.state.assign([seed, 0])

    def fresh(self, seed: int, dtype: str | None = None) -> TaskModel:
        """Returns an uncompiled copy with new weights; sets Keras's global seed."""
        keras.utils.set_random_seed(seed)
        return fresh_copy(self, dtype)

    def new_head_weights(self, seed: int) -> list[np.ndarray]:
        """Returns the head's weights of a model that is built from this seed."""
        keras.utils.set_random_seed(seed)
        head = fresh_copy(self.head)
        self._build_head(head)
        return head.get_weights()

    def _build_head(self, head: keras.layers.Layer) -> None:
        if not head.built:
            head.build((None, None, self.encoder.hidden_size))

"""The model that every task fine-tunes, and the heads for whole texts and for tags.

Letters: B batch, S sequence, D hidden size, C outputs.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from electra_tf.layers import Dropout, split_seed
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.randomness import fold_in
from electra_tf.layers.replicas import DistributedFit, replica_id
from electra_tf.layers.serialization import Serializable
from electra_tf.layers.weights import add_dense

Tensors = dict[str, tf.Tensor]


@keras.saving.register_keras_serializable(package="electra_tf")
class ClassificationHead(Serializable, keras.layers.Layer):
    """One linear layer on the [CLS] vector of the last block, after dropout.

    The head of the original code: no pooler, no hidden layer, so its parameters are
    hidden size * outputs + outputs. Also used for regression, with one output.

    ``kwargs`` are those of ``keras.layers.Layer``.
    """

    reads = "first"

    def __init__(
        self, hidden_size: int, num_outputs: int, *, dropout: float = 0.1, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.num_outputs = num_outputs
        self.dropout = dropout
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, hidden_shape: Any = None) -> None:
        """Creates the variables."""
        shape = (self.hidden_size, self.num_outputs)
        glorot = keras.initializers.GlorotUniform()
        self.kernel, self.bias = add_dense(self, "output", shape, glorot)

    def call(
        self,
        hidden: tf.Tensor,
        inputs: Tensors | None = None,
        *,
        training: bool = False,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns class_logits, float32 [B, C], from hidden [B, S or 1, D].

        ``seed``, int32 [2], is needed when training with dropout; ``inputs``, what the
        encoder read, are not used.
        """
        vectors = hidden[:, 0] if self.reads == "first" else hidden
        vectors = self.dropout_layer(vectors, training=training, seed=seed)
        # float32 whatever the policy: it is the last product before the loss.
        logits = tf.tensordot(tf.cast(vectors, tf.float32), self.kernel, 1)
        return logits + self.bias

    def compute_output_spec(
        self, hidden: Any, *others: Any, **options: Any
    ) -> keras.KerasTensor:
        """Returns the shape of the result of ``call``."""
        read = hidden.shape[: 1 if self.reads == "first" else 2]
        return keras.KerasTensor((*read, self.num_outputs), dtype="float32")


@keras.saving.register_keras_serializable(package="electra_tf")
class TaggingHead(ClassificationHead):
    """One linear layer on every position, after dropout: tag_logits [B, S, C]."""

    reads = "tokens"


@keras.saving.register_keras_serializable(package="electra_tf")
class TaskModel(Serializable, DistributedFit, keras.Model):
    """An encoder and a head: what every task fine-tunes.

    All variables exist after construction. ``head`` is a layer with
    ``call(hidden, inputs, training=, seed=)``. Its attribute ``reads`` says which
    hidden states it needs: "first", "tokens" (those of padding are 0 in inference), or
    "all", which is the default. Dropout masks are a function of ``seed``, the number of
    training calls and the replica.
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
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed, name="task_dropout")
        self._encode = {
            "first": encoder.encode_first,
            "tokens": encoder.encode_tokens,
            "all": encoder,
        }[getattr(head, "reads", "all")]
        if not head.built:
            head.build((None, None, encoder.hidden_size))
            head.built = True
        self.built = True

    def build(self, input_shape: Any = None) -> None:
        """Has nothing to create."""

    def call(self, inputs: Tensors, training: bool = False) -> Any:
        """Returns what the head returns, such as class_logits.

        Inputs are input_ids, input_mask and segment_ids (int32 [B, S]), and what the
        head needs besides.
        """
        seeds = [None, None]
        if training:
            # The generator counts in uint32; stateless operations take int32.
            seed = tf.math.floormod(self.seed_generator.next(), tf.int32.max)
            # Replicas must not drop the same units: they see different rows.
            seeds = split_seed(fold_in(tf.cast(seed, tf.int32), replica_id()), 2)
        hidden = self.encoder(inputs, training=training, seed=seeds[0])
        return self.head(hidden, inputs, training=training, seed=seeds[1])

    def infer(self, inputs: Tensors) -> Any:
        """Does what evaluation and exports need of the call without training.

        Only hidden states that the head reads are computed, so what it returns for
        padding is not what the call returns.
        """
        return self.head(self._encode(inputs), inputs)

    def reset_seed(self, seed: int) -> None:
        """Starts the dropout stream anew, as if constructed with this seed."""
        self.seed_generator.state.assign([seed, 0])

    def fresh(self, seed: int, dtype: str | None = None) -> TaskModel:
        """Returns an uncompiled model of the same structure with initial weights.

        The weights are a function of ``seed``, which becomes the global seed. ``dtype``
        names another dtype policy, such as "mixed_bfloat16".
        """
        keras.utils.set_random_seed(seed)
        return fresh_copy(self, dtype)

    def compute_output_spec(self, inputs: Any, training: bool = False) -> Any:
        """Returns the shape of the result of ``call``."""
        hidden = self.encoder.compute_output_spec(inputs)
        return self.head.compute_output_spec(hidden, inputs)


def fresh_copy(model: keras.Model, dtype: str | None = None) -> Any:
    """Constructs a model anew from its configuration, with initial weights.

    The copy is not compiled and shares nothing with ``model``, a registered Keras model
    that creates its variables when constructed. ``dtype`` names the copy's dtype
    policy; None keeps that of each layer.
    """
    config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    if dtype is not None:
        config = _with_dtype(config, dtype)
    return keras.saving.deserialize_keras_object(config)


def _with_dtype(config: Any, dtype: str) -> Any:
    # Every layer carries its own policy, so all of them have to change.
    if isinstance(config, dict):
        return {
            key: dtype if key == "dtype" else _with_dtype(value, dtype)
            for key, value in config.items()
        }
    if isinstance(config, list):
        return [_with_dtype(value, dtype) for value in config]
    return config

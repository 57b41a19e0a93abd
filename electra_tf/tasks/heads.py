"""Task heads and the model that joins one to an encoder.

Letters: B batch, S sequence, D hidden size, C outputs.
"""

import keras
import tensorflow as tf

from electra_tf.layers.dropout import Dropout, split_seed
from electra_tf.layers.weights import add_dense
from electra_tf.replicas import DistributedFit, fold_in, replica_id


@keras.saving.register_keras_serializable(package="electra_tf")
class ClassificationHead(keras.layers.Layer):
    """One linear layer on the [CLS] vector of the last block, after dropout.

    The head of the original code: no pooler, no hidden layer, so its parameters are
    hidden size * outputs + outputs. Also used for regression, with one output.

    Args:
        hidden_size: Width of the hidden states.
        num_outputs: Number of classes, or 1 for regression.
        dropout: Dropout rate of the vector.
        **kwargs: Passed to `keras.layers.Layer`.
    """

    def __init__(self, hidden_size, num_outputs, *, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.num_outputs = num_outputs
        self.dropout = dropout
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, hidden_shape=None):
        """Creates the variables."""
        self.kernel, self.bias = add_dense(
            self,
            "output",
            (self.hidden_size, self.num_outputs),
            keras.initializers.GlorotUniform(),
        )

    def call(self, hidden, inputs=None, *, training=False, seed=None):
        """Returns class_logits, float32 [B, C].

        Args:
            hidden: [B, S, D].
            inputs: What the encoder read; not used.
            training: Python bool.
            seed: int32 [2], needed when training with dropout.
        """
        vector = self.dropout_layer(hidden[:, 0], training=training, seed=seed)
        # float32 whatever the policy: it is the last product before the loss.
        logits = tf.matmul(tf.cast(vector, tf.float32), self.kernel)
        return logits + self.bias

    def compute_output_spec(self, hidden, inputs=None, *, training=False, seed=None):
        """Returns the shape of the result of `call`."""
        return keras.KerasTensor((hidden.shape[0], self.num_outputs), dtype="float32")

    def get_config(self):
        """Returns the constructor arguments."""
        return {
            **super().get_config(),
            "hidden_size": self.hidden_size,
            "num_outputs": self.num_outputs,
            "dropout": self.dropout,
        }


@keras.saving.register_keras_serializable(package="electra_tf")
class TaskModel(DistributedFit, keras.Model):
    """An encoder and a head: what every task fine-tunes.

    All variables exist after construction. Dropout masks are a function of `seed`, the
    number of calls and the replica.

    Args:
        encoder: A `TextEncoder`.
        head: A layer with `call(hidden, inputs, training=, seed=)`.
        seed: Start of the dropout stream of training calls.
        name: Name of the model.
        **kwargs: Passed to `keras.Model`.
    """

    def __init__(self, encoder, head, *, seed=0, name="task_model", **kwargs):
        super().__init__(name=name, **kwargs)
        self.encoder = encoder
        self.head = head
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed, name="task_dropout")
        if not head.built:
            head.build((None, None, encoder.hidden_size))
            head.built = True
        self.built = True

    def build(self, input_shape=None):
        """Has nothing to create."""

    def build_from_config(self, config):
        """Does nothing: the constructor has created the variables."""

    def call(self, inputs, training=False):
        """Applies encoder and head.

        Args:
            inputs: Dictionary with input_ids, input_mask and segment_ids (int32
                [B, S]) and what the head needs besides.
            training: Python bool; True turns dropout on.

        Returns:
            What the head returns, such as class_logits.
        """
        seeds = [None, None]
        if training:
            seeds = split_seed(fold_in(self._next_seed(), replica_id()), 2)
        hidden = self.encoder(inputs, training=training, seed=seeds[0])
        return self.head(hidden, inputs, training=training, seed=seeds[1])

    def _next_seed(self):
        seed = tf.math.floormod(self.seed_generator.next(), tf.int32.max)
        return tf.cast(seed, tf.int32)

    def reset_seed(self, seed):
        """Starts the dropout stream anew, as if constructed with this seed."""
        self.seed_generator.state.assign([seed, 0])

    def fresh(self, seed, dtype=None):
        """Returns an uncompiled model of the same structure with initial weights.

        Args:
            seed: Python integer; the weights are a function of it. Sets the global
                seeds.
            dtype: Name of another dtype policy, such as "mixed_bfloat16".
        """
        keras.utils.set_random_seed(seed)
        return fresh_copy(self, dtype)

    def compute_output_spec(self, inputs, training=False):
        """Returns the shape of the result of `call`."""
        hidden = self.encoder.compute_output_spec(inputs)
        return self.head.compute_output_spec(hidden, inputs)

    def get_config(self):
        """Returns the constructor arguments."""
        # Live objects, not their serialized form: Keras keeps their identity.
        return {
            **super().get_config(),
            "encoder": self.encoder,
            "head": self.head,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config):
        """Builds the model from `get_config`, before or after serialization."""
        return cls(**{**config, **{k: _live(config[k]) for k in ("encoder", "head")}})


def fresh_copy(model, dtype=None):
    """Constructs a model anew from its configuration, with initial weights.

    Args:
        model: A registered Keras model that creates its variables when constructed.
        dtype: Name of the dtype policy of the copy; None keeps that of each layer.

    Returns:
        The copy, not compiled; it shares nothing with `model`.
    """
    config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    if dtype is not None:
        config = _with_dtype(config, dtype)
    return keras.saving.deserialize_keras_object(config)


def _with_dtype(config, dtype):
    if isinstance(config, dict):
        return {
            key: dtype if key == "dtype" else _with_dtype(value, dtype)
            for key, value in config.items()
        }
    if isinstance(config, list):
        return [_with_dtype(value, dtype) for value in config]
    return config


def _live(value):
    if isinstance(value, dict):
        return keras.saving.deserialize_keras_object(value)
    return value

"""A discriminator with its head, as a model of its own: what a run saves to be asked.

Letters: B batch, S sequence.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from electra_tf.encoder import TextEncoder
from electra_tf.pretraining.base import Batch, deserialize_parts


@keras.saving.register_keras_serializable(package="electra_tf")
class Discriminator(keras.Model):
    """An encoder and the trained objective layer on top of it.

    Args:
        encoder: the ``TextEncoder``.
        objective: the trained objective layer that owns the head.
        **kwargs: passed to ``keras.Model``.
    """

    def __init__(self, encoder: TextEncoder, objective: keras.layers.Layer, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.objective = objective
        if not objective.built:
            objective.build((None, None, encoder.hidden_size))
        self.built = True

    def call(
        self, inputs: Batch, training: bool = False, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns what the objective says of encoder inputs, float32 [B, S, ...]."""
        hidden = self.encoder(inputs, training=training, seed=seed)
        return self.objective(hidden, inputs)

    def get_config(self):
        """Returns the constructor's arguments, the parts live."""
        return {
            **super().get_config(),
            "encoder": self.encoder,
            "objective": self.objective,
        }

    @classmethod
    def from_config(cls, config):
        """Rebuilds the model from ``get_config``, before or after serialization."""
        return cls(**deserialize_parts(config))

    def build_from_config(self, config):
        """Nothing to do: every variable exists once the constructor returns."""


@keras.saving.register_keras_serializable(package="electra_tf")
class ReplacedTokenDetector(Discriminator):
    """A discriminator that says of every token how likely it was replaced.

    Called with encoder inputs it returns rtd_logits [B, S] float32; > 0 is replaced.

    Args:
        encoder: the ``TextEncoder``.
        objective: the trained ``ReplacedTokenDetection`` that owns the head.
        **kwargs: passed to ``keras.Model``.
    """

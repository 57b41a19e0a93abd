"""Generators without a network, for use in ``Electra`` instead of ``MaskedLM``.

Letters: B batch, S sequence, P predicted positions, V vocabulary.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from electra_tf.layers.randomness import known_shape
from electra_tf.layers.serialization import Serializable
from electra_tf.pretraining.base import Batch
from electra_tf.pretraining.baselines import log_frequencies
from electra_tf.pretraining.masked_lm import Prediction, masked_cross_entropy
from electra_tf.pretraining.metrics import Likelihood


@keras.saving.register_keras_serializable(package="electra_tf")
class UnigramGenerator(Serializable, keras.Model):
    """The same token distribution at every position.

    With the token frequencies of the training text it is the paper's unigram generator
    (section 3.2, "Smaller Generators"; Figure 3, left). Without ``set_counts`` it is
    uniform, as ``uniform_generator`` of the original code, with a masked-LM loss of
    ln V. The distribution is a non-trainable weight.

    Examples:
        >>> generator = pretraining.UnigramGenerator(5)
        >>> generator.set_counts(np.array([0, 0, 3, 1, 0]))
    """

    def __init__(self, vocab_size: int, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.log_probabilities = self.add_weight(
            name="log_probabilities",
            shape=(vocab_size,),
            initializer=keras.initializers.Constant(-np.log(vocab_size)),
            dtype="float32",
            autocast=False,
            trainable=False,
        )
        self.built = True

    def set_counts(self, counts: np.ndarray) -> None:
        """Sets token counts [V]; raises ValueError for a wrong shape or a sum of 0."""
        counts = np.asarray(counts, np.float64)
        if counts.shape != (self.vocab_size,) or not counts.sum() > 0:
            raise ValueError(
                f"expected counts of the {self.vocab_size} tokens of the vocabulary, "
                f"got shape {list(counts.shape)} with a sum of {counts.sum():g}."
            )
        self.log_probabilities.assign(log_frequencies(counts))

    def call(
        self, inputs: Batch, training: bool = False, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns mlm_logits [B, P, V] float32, the same row everywhere."""
        del training, seed
        rows, slots = known_shape(inputs["masked_lm_positions"])
        row = tf.convert_to_tensor(self.log_probabilities)
        return tf.broadcast_to(row, [rows, slots, self.vocab_size])

    def predictions(
        self, inputs: Batch, *, training: bool = False, seed: tf.Tensor | None = None
    ) -> Prediction:
        """Returns the logits at the masked positions."""
        return Prediction(self(inputs))

    def loss_of(
        self, predicted: Prediction, batch: Batch, totals: Batch, metrics: Likelihood
    ) -> tf.Tensor:
        """Returns this replica's part of the mean loss; updates ``metrics``."""
        return masked_cross_entropy(
            predicted.logits, batch, totals, metrics, self.compute_dtype
        )

    def local_counts(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns {}: the loss needs no other count than the masked slots."""
        return {}

    def standalone(self) -> UnigramGenerator:
        """Returns the model."""
        return self

"""Generators without a network: fixed distributions over the vocabulary.

They replace the ``MaskedLM`` in ``Electra``. Letters: B batch, S sequence,
P predicted positions, V vocabulary.
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
    """The same distribution at every position, whatever the text.

    With the token frequencies of the training text it is the paper's unigram generator
    (section 3.2, "Smaller Generators"; Figure 3, left). Without ``set_counts`` it is
    uniform over the whole vocabulary, special tokens included, which is the original
    code's ``uniform_generator``; its masked-LM loss is then the constant ln V.

    Nothing is trained. The distribution is a weight, so models and checkpoints save it.

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
        """Sets token counts [V]; raises ValueError for other shapes or a sum of 0."""
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
        """Returns mlm_logits [B, P, V] float32, the same row everywhere.

        Of the inputs only the shape of masked_lm_positions [B, P] is read.
        """
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
        """Returns the local share of the mean cross-entropy; updates ``metrics``."""
        return masked_cross_entropy(
            predicted.logits, batch, totals, metrics, self.compute_dtype
        )

    def local_counts(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns no counts: the loss divides by the masked slots."""
        return {}

    def standalone(self) -> UnigramGenerator:
        """Returns the model."""
        return self

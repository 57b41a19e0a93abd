"""Masked language model, BERT's objective, and the generators of ELECTRA.

Letters: B batch, S sequence, P predicted positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from electra_tf.features import check_batch
from electra_tf.layers import MaskedLMHead, fused, losses
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.randomness import known_shape
from electra_tf.layers.serialization import Serializable
from electra_tf.pretraining.base import Batch, PretrainingModel
from electra_tf.pretraining.metrics import Likelihood, log_frequencies, total_loss


class Prediction(NamedTuple):
    """Logits [B, P, V] at the masked positions, and last hidden states [B, S, D]."""

    logits: tf.Tensor
    hidden: tf.Tensor | None = None


def masked_cross_entropy(
    generator: keras.Model,
    predicted: Prediction,
    batch: Batch,
    totals: Batch,
    metrics: Likelihood,
) -> tf.Tensor:
    """Returns this replica's part of the mean over masked slots; updates metrics."""
    logits = predicted.logits
    targets, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
    # The fused kernel is faster, but rounds differently; float32 runs keep their bits.
    ops = losses if generator.compute_dtype in ("float32", "float64") else fused
    values = ops.token_cross_entropy(logits, targets)
    best = tf.argmax(logits, axis=-1, output_type=tf.int32)
    metrics.update_state(values, best == targets, weights)
    return losses.weighted_mean(values, weights, totals["masked"])


class Generator(PretrainingModel):
    """Base class of generators with networks; trained alone, it minimizes ``loss_of``.

    Subclasses define ``predictions``, ``loss_of`` and a ``head``. ``prefix`` begins the
    names of the metrics. All encoders have the same embeddings.
    """

    prefix = "generator"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._likelihood = Likelihood(self.prefix)
        self._total_loss = total_loss((self._likelihood.loss, 1.0))

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Metrics ``loss``, and loss (nats) and accuracy of the predictions."""
        return [self._total_loss, self._likelihood.loss, self._likelihood.accuracy]

    def compute_losses(
        self, batch: Batch, totals: Batch, *, seed: tf.Tensor, training: bool
    ) -> list[tf.Tensor]:
        check_batch(batch)
        predicted = self.predictions(batch, training=training, seed=seed)
        return [self.loss_of(predicted, batch, totals, self._likelihood)]


@keras.saving.register_keras_serializable(package="electra_tf")
class MaskedLM(Generator):
    """BERT without next-sentence prediction, and the generator of ``Electra``.

    The vocabulary head at the masked positions is tied to the encoder's word table.

    Examples:
        >>> bert = et.MaskedLM(et.TextEncoder(table, hidden_size=32, **small))
        >>> ids = tf.constant([[2, 4, 9, 3]])  # 4 is [MASK]
        >>> inputs = {
        ...     "masked_input_ids": ids,
        ...     "masked_lm_positions": tf.constant([[1]]),
        ... }
        >>> bert({**inputs, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}).shape
        TensorShape([1, 1, 100])
    """

    prefix = "masked_lm"
    loss_of = masked_cross_entropy
    exported_inputs = ("masked_input_ids", "input_mask", "segment_ids")
    exported_inputs += ("masked_lm_positions",)

    def __init__(self, encoder: TextEncoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.head = MaskedLMHead(
            encoder.embeddings, dtype=self.dtype_policy, name="masked_lm_head"
        )
        self.head.build((None, None, encoder.hidden_size))
        self.built = True

    def call(
        self, inputs: Batch, training: bool = False, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns mlm_logits [B, P, V] float32 at ``masked_lm_positions`` [B, P].

        The other inputs are masked_input_ids, input_mask and segment_ids [B, S].
        """
        return self.predictions(inputs, training=training, seed=seed).logits

    def predictions(
        self, inputs: Batch, *, training: bool = False, seed: tf.Tensor | None = None
    ) -> Prediction:
        shown = {name: inputs[name] for name in ("input_mask", "segment_ids")}
        shown["input_ids"] = inputs["masked_input_ids"]
        hidden = self.encoder(shown, training=training, seed=seed)
        return Prediction(self.head(hidden, inputs["masked_lm_positions"]), hidden)

    def artifacts(self) -> dict[str, keras.Model]:
        """Returns the models to save at the end of a run, by file name."""
        return {"encoder": self.encoder, "generator": self}


@keras.saving.register_keras_serializable(package="electra_tf")
class UnigramGenerator(Serializable, keras.Model):
    """A generator without a network: one token distribution at every position.

    With the token frequencies of the training text it is the paper's unigram generator
    (section 3.2, "Smaller Generators"; Figure 3, left). Without ``set_counts`` it is
    uniform, as ``uniform_generator`` of the original code.

    Examples:
        >>> generator = pretraining.UnigramGenerator(5)
        >>> generator.set_counts(np.array([0, 0, 3, 1, 0]))
    """

    loss_of = masked_cross_entropy

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
        """Sets token counts [V]; raises ValueError for another shape."""
        self.log_probabilities.assign(log_frequencies(counts))

    def call(
        self, inputs: Batch, training: bool = False, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns mlm_logits [B, P, V] float32, the same row everywhere."""
        rows, slots = known_shape(inputs["masked_lm_positions"])
        row = tf.convert_to_tensor(self.log_probabilities)
        return tf.broadcast_to(row, [rows, slots, self.vocab_size])

    def predictions(
        self, inputs: Batch, *, training: bool = False, seed: tf.Tensor | None = None
    ) -> Prediction:
        return Prediction(self(inputs))

    def local_counts(self, batch: Batch) -> dict[str, tf.Tensor]:
        # The loss counts only masked slots.
        return {}

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Raises NotImplementedError; Keras then warns and skips this model."""
        raise NotImplementedError(f"{self.name} has no kernels to quantize.")

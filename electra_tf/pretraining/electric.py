"""Electric: an energy-based cloze model, trained by noise-contrastive estimation.

Clark et al., 2020b, "Pre-Training Transformers as Energy-Based Cloze Models" (EMNLP).
docs/objectives.md derives the loss, the binary cross-entropy of noise against data at
every token. A high energy is an unlikely token and a positive logit is noise, as in
ELECTRA's head. One pass scores all tokens, each in the noisy text (Algorithm 2). A draw
that equals the original is labeled noise.

Letters: B batch, S sequence.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.features import scatter_positions
from electra_tf.layers import losses
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining.electra import Electra
from electra_tf.pretraining.objectives import (
    Discriminator,
    Objective,
    ReplacedTokenDetection,
)
from electra_tf.pretraining.samplers import Corrupted
from electra_tf.pretraining.two_tower import TwoTowerGenerator


def noise_logits(
    energies: tf.Tensor,
    log_noise: tf.Tensor,
    is_noise: tf.Tensor,
    input_mask: tf.Tensor,
) -> tf.Tensor:
    """Returns E + log q + log(k / (n - k)), float32 [B, S]; > 0 is noise.

    ``is_noise`` marks the k sampled tokens; n is the number of real tokens of a row.
    """
    drawn = tf.reduce_sum(tf.cast(is_noise, tf.float32), 1, keepdims=True)
    rest = tf.reduce_sum(tf.cast(input_mask, tf.float32), 1, keepdims=True) - drawn
    # Deviation: k / (n - k) per row, as in the paper's Algorithm 2. The original code
    # uses the constant mask_prob / (1 - mask_prob), which is wrong for short rows and
    # under a mask rate schedule. k is at least 1, also for rows without a sample.
    odds = tf.maximum(drawn, 1.0) / tf.maximum(rest, 1.0)
    return energies + log_noise + tf.math.log(odds)


def log_noise(corrupted: Corrupted) -> tf.Tensor:
    """Returns log q of each token given its *original* context, float32 [B, S].

    ``corrupted.predicted`` is the ``Cloze`` of a two-tower generator. No gradient.
    """
    batch, cloze = corrupted.batch, corrupted.predicted
    positions = batch["masked_lm_positions"]
    # Ids come from the corrupted text: of two samples at a position only one remains.
    drawn_ids = tf.gather(corrupted.inputs["input_ids"], positions, batch_dims=1)
    values = scatter_positions(
        -cloze.values,
        positions,
        -losses.token_cross_entropy(cloze.logits, drawn_ids),
        batch["masked_lm_weights"] > 0,
    )
    return tf.stop_gradient(values)


@keras.saving.register_keras_serializable(package="electra_tf")
class NoiseContrastiveEstimation(ReplacedTokenDetection):
    """Noise-contrastive estimation: noise or data, by token.

    ``call`` returns the energies E(x)_t [B, S]. Loss and metrics use ``noise_logits``
    of all real tokens (Algorithm 2). ``replaced_fraction`` is the fraction of noise.

    Examples:
        >>> energy = pretraining.NoiseContrastiveEstimation()
        >>> energy(tf.zeros([1, 4, 32])).shape  # of every token
        TensorShape([1, 4])
    """

    def __init__(self, **kwargs):
        super().__init__("all", **kwargs)

    def labels(self, corrupted: Corrupted) -> tf.Tensor:
        """Returns the sampled positions, including samples of the original token."""
        return corrupted.is_masked

    def logits(
        self, hidden: tf.Tensor, corrupted: Corrupted, training: bool = False
    ) -> tf.Tensor:
        """Returns the noise logits, float32 [B, S]."""
        return noise_logits(
            self(hidden, training=training),
            log_noise(corrupted),
            corrupted.is_masked,
            corrupted.inputs["input_mask"],
        )

    def as_model(self, encoder: TextEncoder) -> EnergyModel:
        """Returns an ``EnergyModel`` of the encoder and this head."""
        return EnergyModel(encoder, self)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, which exclude ``positions``."""
        config = super().get_config()
        del config["positions"]
        return config


@keras.saving.register_keras_serializable(package="electra_tf")
class EnergyModel(Discriminator):
    """A trained Electric without its generator; returns energies E(x)_t [B, S].

    Examples:
        >>> objective = pretraining.NoiseContrastiveEstimation()
        >>> model = pretraining.EnergyModel(discriminator, objective)
        >>> model({"input_ids": tf.constant([[2, 7, 9, 3]])}).shape
        TensorShape([1, 4])
    """


@keras.saving.register_keras_serializable(package="electra_tf")
class Electric(Electra):
    """Energy-based cloze model, trained jointly with its noise distribution.

    The loss is ``generator_weight * cross-entropy + discriminator_weight * NCE``: over
    all candidates (see ``TwoTowerGenerator``) and over all real tokens. No gradient of
    the NCE reaches the generator, neither through the samples nor through log q.

    ``call`` returns the energies E(x)_t [B, S], like ``detector()``, the
    ``discriminator.keras`` of a run. The sum of -E(x)_t over a text is its
    pseudo-log-likelihood (section 3; ``electra-tf score --method=energy``).

    Raises ValueError for a sampler with a temperature or ``disallow_correct``: log q is
    the plain softmax.

    Examples:
        >>> model = pretraining.Electric(towers, discriminator)
    """

    _learns_from_samples = True

    def __init__(
        self,
        generator: TwoTowerGenerator,
        discriminator: TextEncoder,
        *,
        objective: Objective | None = None,
        **kwargs,
    ):
        objective = objective or NoiseContrastiveEstimation(name="objective")
        super().__init__(generator, discriminator, objective=objective, **kwargs)
        temperature = getattr(self.sampler, "temperature", 1)
        if temperature != 1 or getattr(self.sampler, "disallow_correct", False):
            raise UserError(
                "Electric takes log q from the softmax of the generator's logits: its "
                "sampler needs temperature=1 and no disallow_correct."
            )

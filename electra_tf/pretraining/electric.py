"""Electric, an energy-based cloze model, and its two-tower noise generator.

Clark et al., 2020b, "Pre-Training Transformers as Energy-Based Cloze Models" (EMNLP).
docs/objectives.md derives the loss, the binary cross-entropy of noise against data at
every token. A high energy means an unlikely token. A positive logit means noise, as in
ELECTRA's head. One pass scores all tokens of the noisy text (Algorithm 2). A sample
that equals the original is labeled noise.

Letters: B batch, S sequence, P predicted positions, V vocabulary, E embedding size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.features import ENCODER_INPUTS, scatter_positions
from electra_tf.layers import MaskedLMHead, chunked, losses, split_seed
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.heads import gather_positions
from electra_tf.layers.randomness import known_shape
from electra_tf.pretraining.base import Batch
from electra_tf.pretraining.electra import Electra
from electra_tf.pretraining.masked_lm import Generator
from electra_tf.pretraining.metrics import Likelihood
from electra_tf.pretraining.objectives import (
    Discriminator,
    ReplacedTokenDetection,
)
from electra_tf.pretraining.samplers import (
    Corrupted,
    GreedySampler,
    LeaveRows,
    candidates,
)


class Cloze(NamedTuple):
    """Output of the two towers on an unmasked text."""

    logits: tf.Tensor  # [B, P, V] at the masked positions, without gradient.
    values: tf.Tensor  # [B, S], -log q(token | its context) in nats.
    is_best: tf.Tensor  # [B, S], whether the token is the most probable one.


@keras.saving.register_keras_serializable(package="electra_tf")
class TwoTowerGenerator(Generator):
    """q(token t | all others) from two causal Transformers.

    Both towers read the *unmasked* text. The left-to-right state at t - 1 and the
    right-to-left state at t + 1, or 0 beyond the text, are concatenated, so one pass
    predicts every token. (The original's shifts wrap around, at positions that are not
    predicted.) A ``MaskedLMHead`` follows. The loss is the mean cross-entropy over all
    real tokens except special ones, masked or not.

    Args:
        left: encoder with direction "left_to_right"; ValueError for another one.
        right: encoder with direction "right_to_left" on the same embeddings.
        special_ids: ids of [CLS], [SEP] and [MASK], which are not predicted; required.

    Examples:
        >>> towers = pretraining.TwoTowerGenerator(left, right, special_ids=(2, 3, 4))
    """

    exported_inputs = (*ENCODER_INPUTS, "masked_lm_positions")

    def __init__(
        self,
        left: TextEncoder,
        right: TextEncoder,
        *,
        special_ids: Sequence[int],
        **kwargs,
    ):
        super().__init__(**kwargs)
        directions = (left.direction, right.direction)
        if directions != ("left_to_right", "right_to_left"):
            raise ValueError(
                "TwoTowerGenerator needs towers with direction='left_to_right' and "
                f"'right_to_left', got {directions}."
            )
        if not special_ids:
            raise ValueError("special_ids must be the ids of [CLS], [SEP] and [MASK].")
        self.left = left
        self.right = right
        self.special_ids = tuple(special_ids)
        self.head = MaskedLMHead(
            left.embeddings, dtype=self.dtype_policy, name="masked_lm_head"
        )
        self.head.build((None, None, left.hidden_size + right.hidden_size))
        self.built = True

    def local_counts(self, batch: Batch) -> dict[str, tf.Tensor]:
        predicted = tf.cast(candidates(batch, self.special_ids), tf.float32)
        return {**super().local_counts(batch), "candidates": tf.reduce_sum(predicted)}

    def call(
        self, inputs: Batch, training: bool = False, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns mlm_logits [B, P, V] float32 at ``masked_lm_positions`` [B, P].

        The other inputs are the unmasked input_ids, input_mask and segment_ids [B, S].
        """
        rows = self._rows(inputs, training, seed)
        return self._logits_at(rows, inputs["masked_lm_positions"])

    def predictions(
        self, batch: Batch, *, training: bool = False, seed: tf.Tensor | None = None
    ) -> Cloze:
        rows = self._rows(batch, training, seed)
        shape = known_shape(batch["input_ids"])
        values, is_best = chunked.cross_entropy(
            tf.reshape(rows, [-1, rows.shape[-1]]),
            self.head.embeddings.word_table(),
            self.head.output_bias,
            tf.reshape(batch["input_ids"], [-1]),
        )
        return Cloze(
            self._logits_at(tf.stop_gradient(rows), batch["masked_lm_positions"]),
            tf.reshape(values, shape),
            tf.reshape(is_best, shape),
        )

    def loss_of(
        self, predicted: Cloze, batch: Batch, totals: Batch, metrics: Likelihood
    ) -> tf.Tensor:
        """Returns this replica's part of the mean over candidates; updates metrics."""
        weights = candidates(batch, self.special_ids)
        metrics.update_state(predicted.values, predicted.is_best, weights)
        return losses.weighted_mean(predicted.values, weights, totals["candidates"])

    def _rows(self, inputs: Batch, training: bool, seed: tf.Tensor | None) -> tf.Tensor:
        """Returns the rows to multiply by the word table, float32 [B, S, E]."""
        inputs = {name: inputs[name] for name in ENCODER_INPUTS}
        seeds = [None, None] if seed is None else split_seed(seed, 2)
        before = self.left(inputs, training=training, seed=seeds[0])
        after = self.right(inputs, training=training, seed=seeds[1])
        # The state of a padding neighbor has attended to no real token.
        is_real = tf.expand_dims(inputs["input_mask"] > 0, 2)
        after = tf.where(is_real, after, tf.zeros([], after.dtype))
        before = tf.pad(before[:, :-1], [[0, 0], [1, 0], [0, 0]])
        after = tf.pad(after[:, 1:], [[0, 0], [0, 1], [0, 0]])
        contexts = tf.concat([before, after], axis=2)
        rows = self.head.transform(tf.reshape(contexts, [-1, contexts.shape[-1]]))
        return tf.reshape(rows, [*known_shape(contexts)[:2], rows.shape[-1]])

    def _logits_at(self, rows: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        logits = self.head.logits(gather_positions(rows, positions))
        return tf.reshape(logits, [*known_shape(positions), logits.shape[-1]])


def noise_logits(
    energies: tf.Tensor,
    log_noise: tf.Tensor,
    is_noise: tf.Tensor,
    input_mask: tf.Tensor,
) -> tf.Tensor:
    """Returns E + log q + log(k / (n - k)), float32 [B, S]; positive for noise.

    ``is_noise`` marks the k sampled tokens; n is the number of real tokens of a row.
    """
    drawn = tf.reduce_sum(tf.cast(is_noise, tf.float32), 1, keepdims=True)
    rest = tf.reduce_sum(tf.cast(input_mask, tf.float32), 1, keepdims=True) - drawn
    # Deviation: k / (n - k) per row, as in the paper's Algorithm 2. The original code
    # uses the constant mask_prob / (1 - mask_prob), which is wrong for short rows and
    # under a mask rate schedule. k is at least 1, also for rows without a sample.
    odds = tf.maximum(drawn, 1.0) / tf.maximum(rest, 1.0)
    return energies + log_noise + tf.math.log(odds)


@keras.saving.register_keras_serializable(package="electra_tf")
class EnergyModel(Discriminator):
    """A trained Electric without its generator; returns energies E(x)_t [B, S].

    Examples:
        >>> model = pretraining.Electric(towers, discriminator).detector()
    """


@keras.saving.register_keras_serializable(package="electra_tf")
class NoiseContrastiveEstimation(ReplacedTokenDetection):
    """Noise-contrastive estimation: classifies each token as noise or data.

    ``call`` returns the energies E(x)_t [B, S]. Loss and metrics use ``noise_logits``
    of all real tokens (Algorithm 2). ``replaced_fraction`` is the fraction of noise.

    Examples:
        >>> energy = pretraining.NoiseContrastiveEstimation()
        >>> energy(tf.zeros([1, 4, 32])).shape  # of every token
        TensorShape([1, 4])
    """

    model_class = EnergyModel

    def __init__(self, **kwargs):
        super().__init__("all", **kwargs)

    def check_sampler(self, sampler: Callable, sampling_dropout: bool) -> None:
        """Raises ValueError if the samples do not follow the generator's softmax."""
        if (
            getattr(sampler, "temperature", 1) != 1
            or getattr(sampler, "disallow_correct", False)
            or isinstance(sampler, GreedySampler | LeaveRows)
            or not sampling_dropout
        ):
            raise UserError(
                "Noise must be drawn from the generator's softmax: the sampler needs "
                "temperature=1, and no disallow_correct, GreedySampler or LeaveRows; "
                "instead of sampling_dropout=False, set the generator's dropout to 0."
            )

    def labels(self, corrupted: Corrupted) -> tf.Tensor:
        """Returns the sampled positions, including samples of the original token."""
        return corrupted.is_masked

    def logits(
        self, hidden: tf.Tensor, corrupted: Corrupted, training: bool = False
    ) -> tf.Tensor:
        batch, cloze = corrupted.batch, corrupted.predicted
        if not hasattr(cloze, "values"):
            raise UserError(
                "Noise-contrastive estimation needs a generator that scores every "
                "token, such as TwoTowerGenerator."
            )
        positions, inputs = batch["masked_lm_positions"], corrupted.inputs
        # Ids come from the corrupted text: only one sample per position remains.
        drawn_ids = tf.gather(inputs["input_ids"], positions, batch_dims=1)
        # log q of each token given its *original* context.
        log_noise = scatter_positions(
            -cloze.values,
            positions,
            -losses.token_cross_entropy(cloze.logits, drawn_ids),
            batch["masked_lm_weights"] > 0,
        )
        return noise_logits(
            self(hidden, training=training),
            tf.stop_gradient(log_noise),
            corrupted.is_masked,
            inputs["input_mask"],
        )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["positions"]
        return config


@keras.saving.register_keras_serializable(package="electra_tf")
class Electric(Electra):
    """Energy-based cloze model, trained jointly with its noise distribution.

    The loss is ``generator_weight * cross-entropy + discriminator_weight * NCE``: over
    all candidates (see ``TwoTowerGenerator``) and over all real tokens. No gradient of
    the NCE reaches the generator, neither through the samples nor through log q.

    ``call`` returns the energies E(x)_t [B, S], as does ``detector()``, which runs save
    as ``discriminator.keras``. The sum of -E(x)_t over a text is its
    pseudo-log-likelihood (section 3; ``electra-tf score --method=energy``).

    Raises ValueError for samplers that do not follow the generator's softmax.

    Examples:
        >>> model = pretraining.Electric(towers, discriminator)
    """

    default_objective = NoiseContrastiveEstimation


# Older files have the class TwoTowerElectra for Electra with this generator.
keras.saving.get_custom_objects()["electra_tf>TwoTowerElectra"] = Electra

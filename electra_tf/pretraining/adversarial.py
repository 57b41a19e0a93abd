"""Generators that learn to fool the discriminator, instead of by maximum likelihood.

Clark et al., 2020, section 3.2 ("Training Algorithms") and appendix F: the generator
maximizes the discriminator's loss. Both classes train on

    generator_weight * ((1 - w) * MLM - w * J) + discriminator_weight * L_disc

where J is the mean of the discriminator's loss at the masked positions, which only the
generator ascends and L_disc only the discriminator descends, and w is
``adversarial_weight``: 1 is the paper's experiment, a schedule from 0 to 1 anneals from
maximum likelihood to the adversarial game. They differ in the way the gradient of J
takes through the samples, which are integers.

The paper found the adversarial generator worse than the ordinary one.

Letters: B batch, S sequence, P predicted positions, V vocabulary, E embedding size, D
hidden size.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from electra_tf import losses
from electra_tf.features import PRETRAINING, check_batch
from electra_tf.layers.heads import gather_positions
from electra_tf.layers.randomness import known_shape
from electra_tf.pretraining.electra import (
    _DISCRIMINATOR,
    _GENERATOR,
    _SAMPLER,
    Electra,
)
from electra_tf.pretraining.metrics import StepValue, TokenMean, TotalLoss
from electra_tf.pretraining.relaxation import (
    perturbed_logits,
    put_rows,
    reverse_gradient,
    straight_through,
)
from electra_tf.pretraining.samplers import corrupt
from electra_tf.pretraining.schedules import Schedule, as_schedule
from electra_tf.replicas import fold_in

_RELAXATION = 3


@keras.saving.register_keras_serializable(package="electra_tf")
class RewardBaseline(keras.layers.Layer):
    """What reward to expect at a position: b = -log sigmoid(w . h_G), appendix F.

    Called, it returns the logits w . h_G, [..] of hidden [.., D]; at first all zero, a
    reward of ln 2.

    Args:
        **kwargs: passed to ``keras.layers.Layer``.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)

    def build(self, hidden_shape):
        """Creates the linear map for hidden states of shape [.., D]."""
        self.reward_kernel = self.add_weight(
            name="reward_kernel",
            shape=(hidden_shape[-1], 1),
            initializer="zeros",
            autocast=False,
        )
        self.built = True

    def call(self, hidden):
        """Returns baseline_logits, float32, without the last axis of ``hidden``."""
        rows = tf.cast(hidden, tf.float32)
        return tf.squeeze(tf.matmul(rows, tf.cast(self.reward_kernel, tf.float32)), -1)

    @staticmethod
    def value(baseline_logits: tf.Tensor) -> tf.Tensor:
        """The baseline b of the logits, in nats like the reward."""
        return tf.nn.softplus(-baseline_logits)

    @staticmethod
    def loss(baseline_logits: tf.Tensor, reward: tf.Tensor) -> tf.Tensor:
        """Cross-entropy "to match the reward": exp(-reward) is a probability.

        It is the one that the discriminator gave to the right answer, and sigmoid of
        the logits is fitted to it.
        """
        return losses.binary_cross_entropy(tf.exp(-reward), baseline_logits)


def policy_loss(
    log_likelihood: tf.Tensor, reward: tf.Tensor, baseline: tf.Tensor
) -> tf.Tensor:
    """Whose gradient is minus that of the expected reward, by REINFORCE (appendix F).

    grad E R = E [(R - b) grad log p_G(sample)]; Williams, 1992.

    Args:
        log_likelihood: log p_G of the samples, any shape.
        reward: of the same shape; no gradient flows into it.
        baseline: of the same shape; no gradient flows into it.
    """
    return -tf.stop_gradient(reward - baseline) * log_likelihood


class _AdversarialElectra(Electra):
    """What the two adversarial trainings share: mixture, reward and their metrics."""

    def __init__(
        self,
        generator,
        discriminator,
        *,
        adversarial_weight: float | Schedule = 1.0,
        **kwargs,
    ):
        super().__init__(generator, discriminator, **kwargs)
        self.adversarial_weight = adversarial_weight
        self._mixture = as_schedule(adversarial_weight)
        self._reward = TokenMean(name="reward")
        self._mixture_value = StepValue(self._weight, name="adversarial_weight")
        self._total_loss = TotalLoss(
            [
                (self._generator_loss, self._likelihood_factor),
                (self._reward, lambda: -self._adversarial_factor()),
                (self.objective.loss_metric, self.discriminator_weight),
            ]
        )

    def _weight(self):
        return self._mixture(self.step)

    def _likelihood_factor(self):
        return self.generator_weight * (1.0 - self._weight())

    def _adversarial_factor(self):
        return self.generator_weight * self._weight()

    @property
    def metrics(self):
        """Those of ``Electra``, the mean reward, and the mixture weight."""
        return [*super().metrics, self._reward, self._mixture_value]

    def _rewards(self, rtd_logits, corrupted, batch):
        """The discriminator's loss at the slots, [B, P], without gradient.

        -log D(x) where the sample is the original, -log(1 - D(x)) elsewhere. The loss
        at other positions is taken not to depend on the samples (appendix F).
        """
        values = losses.binary_cross_entropy(corrupted.is_replaced, rtd_logits)
        positions = batch["masked_lm_positions"]
        reward = tf.stop_gradient(tf.gather(values, positions, batch_dims=1))
        self._reward.update_state(reward, batch["masked_lm_weights"])
        return reward

    def get_config(self):
        """Returns the constructor's arguments, the models live."""
        return {**super().get_config(), "adversarial_weight": self.adversarial_weight}


@keras.saving.register_keras_serializable(package="electra_tf")
class ReinforceElectra(_AdversarialElectra):
    """Adversarial generator by policy gradient with a learned baseline, appendix F.

    All samples of a row are one action, whose probability is a product over positions.
    Each sample gets the discriminator's loss at its own position as reward R and learns
    from (R - b) grad log p_G, one sample per position, b the ``RewardBaseline`` of the
    generator's last hidden state there. p_G is what the sampler draws from, temperature
    included.

    The paper does not say whether the baseline's loss trains the generator's encoder;
    here it trains the linear map only. Its weight is ``generator_weight`` whatever the
    mixture, so the baseline is ready when the adversarial part begins.

    Args:
        generator: the ``MaskedLM``.
        discriminator: the ``TextEncoder``.
        adversarial_weight: w, a number in [0, 1] or a schedule.
        **kwargs: of ``Electra``; the sampler must have ``distribution`` as
            ``CategoricalSampler`` has.
    """

    def __init__(self, generator, discriminator, **kwargs):
        super().__init__(generator, discriminator, **kwargs)
        self.baseline = RewardBaseline(name="reward_baseline")
        self.baseline.build((None, generator.encoder.hidden_size))
        self._baseline_value = TokenMean(name="reward_baseline")

    @property
    def metrics(self):
        """Those of ``Electra``, mean reward and baseline, and the mixture weight."""
        return [*super().metrics, self._baseline_value]

    def compute_losses(self, batch, totals, *, seed, training):
        """Likelihood, policy, baseline and discriminator terms."""
        check_batch(PRETRAINING, batch)
        positions, targets = batch["masked_lm_positions"], batch["masked_lm_ids"]
        weights = batch["masked_lm_weights"]
        hidden = self.generator.encode(
            batch, training=training, seed=fold_in(seed, _GENERATOR)
        )
        mlm_logits = self.generator.head(hidden, positions)
        sampled_ids = self.sampler(
            mlm_logits, targets, fold_in(seed, _SAMPLER), self.step
        )
        corrupted = corrupt(batch, sampled_ids)
        rtd_logits = self.objective(
            self.discriminator(
                corrupted.inputs, training=training, seed=fold_in(seed, _DISCRIMINATOR)
            ),
            training=training,
        )
        reward = self._rewards(rtd_logits, corrupted, batch)
        states = tf.stop_gradient(gather_positions(hidden, positions))
        baseline_logits = tf.reshape(self.baseline(states), known_shape(positions))
        baseline = self.baseline.value(baseline_logits)
        self._baseline_value.update_state(baseline, weights)

        policy = self.sampler.distribution(mlm_logits, targets, self.step)
        log_likelihood = -losses.token_cross_entropy(policy, sampled_ids)
        values = self._adversarial_factor() * policy_loss(
            log_likelihood, reward, baseline
        ) + self.generator_weight * self.baseline.loss(baseline_logits, reward)
        return [
            self._likelihood_factor()
            * self._generator_term(batch, mlm_logits, sampled_ids, totals),
            losses.weighted_mean(values, weights, totals["masked"]),
            self.discriminator_weight
            * self.objective.loss_of_logits(rtd_logits, corrupted, totals),
        ]


@keras.saving.register_keras_serializable(package="electra_tf")
class GumbelElectra(_AdversarialElectra):
    """Adversarial generator by straight-through Gumbel-softmax (Jang et al., 2017).

    Not in the paper, which names only REINFORCE. The discriminator reads one-hots of
    the samples times its word table; backward they are softmax((logits + noise) / tau),
    and the gradient turns its sign on the way to the generator. It is the gradient of
    the discriminator's whole loss, scaled to a mean over the masked positions, so ``w``
    weighs as in ``ReinforceElectra``. The word table has the gradient of the hard
    lookup.

    Costs the products [B P, V] x [V, E] of one more masked-LM head, and some tensors
    of [B, P, V].

    Args:
        generator: the ``MaskedLM``.
        discriminator: the ``TextEncoder``.
        adversarial_weight: w, a number in [0, 1] or a schedule.
        gumbel_temperature: tau of the relaxation.
        **kwargs: of ``Electra``; the sampler must have ``distribution`` as
            ``CategoricalSampler`` has.

    Raises:
        ValueError: if ``gumbel_temperature`` or ``discriminator_weight`` is not
            positive.
    """

    def __init__(
        self,
        generator,
        discriminator,
        *,
        gumbel_temperature: float = 1.0,
        **kwargs,
    ):
        super().__init__(generator, discriminator, **kwargs)
        if gumbel_temperature <= 0 or self.discriminator_weight <= 0:
            raise ValueError(
                "gumbel_temperature and discriminator_weight must be positive, got "
                f"{gumbel_temperature} and {self.discriminator_weight}: the generator "
                "learns from the discriminator's gradient."
            )
        self.gumbel_temperature = gumbel_temperature

    def compute_losses(self, batch, totals, *, seed, training):
        """Likelihood and discriminator terms; the game is in the gradient."""
        check_batch(PRETRAINING, batch)
        mlm_logits, sampled_ids, corrupted = self._corrupt(batch, seed, training)
        one_hots = self._one_hots(
            mlm_logits, batch["masked_lm_ids"], sampled_ids, fold_in(seed, _RELAXATION)
        )
        # discriminator_weight * L_disc is a sum over all tokens / tokens; J is a sum
        # over masked slots / slots.
        scale = tf.math.divide_no_nan(
            self._adversarial_factor() * totals["tokens"],
            self.discriminator_weight * totals["masked"],
        )
        words = self._words(batch, corrupted, reverse_gradient(one_hots, scale))
        rtd_logits = self.objective(
            self.discriminator.encode_words(
                words,
                corrupted.inputs,
                training=training,
                seed=fold_in(seed, _DISCRIMINATOR),
            ),
            training=training,
        )
        self._rewards(rtd_logits, corrupted, batch)
        return [
            self._likelihood_factor()
            * self._generator_term(batch, mlm_logits, sampled_ids, totals),
            self.discriminator_weight
            * self.objective.loss_of_logits(rtd_logits, corrupted, totals),
        ]

    def _one_hots(self, mlm_logits, targets, sampled_ids, seed):
        logits = self.sampler.distribution(mlm_logits, targets, self.step)
        perturbed = perturbed_logits(logits, sampled_ids, seed)
        return straight_through(perturbed, sampled_ids, self.gumbel_temperature)

    def _words(self, batch, corrupted, one_hots):
        """Rows of the discriminator's word table [B, S, E], masked ones by one-hots."""
        embeddings = self.discriminator.embeddings
        visible = tf.where(
            corrupted.is_masked[..., tf.newaxis],
            0.0,
            embeddings.words(corrupted.inputs["input_ids"]),
        )
        return put_rows(
            embeddings.words_of(one_hots),
            batch["masked_lm_positions"],
            batch["masked_lm_weights"] > 0,
            visible,
        )

    def get_config(self):
        """Returns the constructor's arguments, the models live."""
        return {**super().get_config(), "gumbel_temperature": self.gumbel_temperature}

"""Adversarial training of the generator.

Clark et al., 2020, section 3.2 ("Training Algorithms") and appendix F. Its results are
worse than with a maximum-likelihood generator. Both classes minimize

    generator_weight * ((1 - w) * MLM - w * J) + discriminator_weight * L_disc

J is the mean discriminator loss at the masked positions. Only the generator maximizes
it, and only the discriminator minimizes L_disc. The weight w is ``adversarial_weight``:
1 is the paper's experiment, a schedule from 0 to 1 anneals from maximum likelihood. The
classes differ in how the gradient of J passes through the discrete samples.

Letters: B batch, S sequence, P predicted positions, V vocabulary, E embedding size, D
hidden size.
"""

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.features import scatter_positions
from electra_tf.layers import losses
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.heads import gather_positions
from electra_tf.layers.randomness import fold_in, known_shape, uniform
from electra_tf.layers.weights import add_weight
from electra_tf.pretraining.base import DISCRIMINATOR, RELAXATION, Batch
from electra_tf.pretraining.electra import Electra
from electra_tf.pretraining.electric import NoiseContrastiveEstimation
from electra_tf.pretraining.masked_lm import MaskedLM
from electra_tf.pretraining.metrics import Derived, TokenMean, total_loss
from electra_tf.pretraining.objectives import ReplacedTokenDetection
from electra_tf.pretraining.samplers import Corrupted
from electra_tf.training.schedules import Schedule, as_schedule


@keras.saving.register_keras_serializable(package="electra_tf")
class RewardBaseline(keras.layers.Layer):
    """Expected reward at a position: b = -log sigmoid(w . h_G), appendix F.

    ``call`` maps hidden [.., D] to logits w . h_G, [..], initially 0 (a reward ln 2).
    """

    def build(self, hidden_shape: tuple[int | None, ...]) -> None:
        self.reward_kernel = add_weight(self, "reward_kernel", (hidden_shape[-1], 1))

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        rows = tf.cast(hidden, tf.float32)
        return tf.squeeze(tf.matmul(rows, tf.cast(self.reward_kernel, tf.float32)), -1)


class _AdversarialElectra(Electra):
    def __init__(
        self,
        generator: MaskedLM,
        discriminator: TextEncoder,
        *,
        adversarial_weight: float | Schedule = 1.0,
        **kwargs,
    ):
        super().__init__(generator, discriminator, **kwargs)
        # Other generators pass no gradient to a network, and the loss of
        # noise-contrastive estimation also needs the noise.
        parts = (generator, self.sampler, self.objective)
        given = ", ".join(type(part).__name__ for part in parts)
        if (
            not isinstance(generator, MaskedLM)
            or not hasattr(self.sampler, "distribution")
            or not isinstance(self.objective, ReplacedTokenDetection)
            or isinstance(self.objective, NoiseContrastiveEstimation)
            or not self.sampling_dropout
        ):
            raise UserError(
                f"{type(self).__name__} needs a MaskedLM, a sampler with a "
                "distribution, the objective ReplacedTokenDetection and "
                f"sampling_dropout=True, got {given} and {self.sampling_dropout}."
            )
        if not callable(adversarial_weight) and not 0 <= adversarial_weight <= 1:
            raise UserError(
                f"adversarial_weight must be in [0, 1], got {adversarial_weight}."
            )
        self.adversarial_weight = adversarial_weight
        self._mixture = as_schedule(adversarial_weight)
        self._reward = TokenMean(name="reward")
        self._mixture_value = Derived(
            lambda: self._mixture(self.step), name="adversarial_weight"
        )
        self._total_loss = total_loss(
            (self._likelihood.loss, self._likelihood_factor),
            (self._reward, lambda: -self._adversarial_factor()),
            (self.objective.loss_metric, self.discriminator_weight),
        )

    def _likelihood_factor(self) -> tf.Tensor | float:
        return self.generator_weight * (1.0 - self._mixture(self.step))

    def _adversarial_factor(self) -> tf.Tensor | float:
        return self.generator_weight * self._mixture(self.step)

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [*super().metrics, self._reward, self._mixture_value]

    def _both_losses(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the weighted losses of generator and discriminator, and rewards.

        These are the discriminator loss at the masked slots, [B, P], no gradient. The
        loss at other positions counts as independent of the samples (appendix F).
        """
        batch = corrupted.batch
        rtd_logits = self.objective(hidden, training=training)
        values = losses.binary_cross_entropy(corrupted.is_replaced, rtd_logits)
        positions = batch["masked_lm_positions"]
        reward = tf.stop_gradient(tf.gather(values, positions, batch_dims=1))
        self._reward.update_state(reward, batch["masked_lm_weights"])
        likelihood = self.generator.loss_of(
            corrupted.predicted, batch, totals, self._likelihood
        )
        likelihood *= self._likelihood_factor()
        detection = self.objective.loss_of_logits(rtd_logits, corrupted, totals)
        return likelihood, self.discriminator_weight * detection, reward


@keras.saving.register_keras_serializable(package="electra_tf")
class ReinforceElectra(_AdversarialElectra):
    """Adversarial generator by policy gradient with a learned baseline, appendix F.

    The reward R of a sample is the discriminator's loss at its position. The policy
    gradient is (R - b) grad log p_G. The distribution p_G is the sampler's, temperature
    included. The baseline b is the ``RewardBaseline`` of the generator's last hidden
    state at the position, trained by cross-entropy to match the reward. Its loss,
    weighted with ``generator_weight``, trains only the linear map, also while w is 0.

    ``adversarial_weight`` w is a number in [0, 1] or a schedule. The sampler must have
    a ``distribution`` method like ``CategoricalSampler``.

    Examples:
        >>> model = pretraining.ReinforceElectra(generator, discriminator)
    """

    def __init__(self, generator: MaskedLM, discriminator: TextEncoder, **kwargs):
        super().__init__(generator, discriminator, **kwargs)
        self.baseline = RewardBaseline(name="reward_baseline")
        self.baseline.build((None, generator.encoder.hidden_size))
        self._baseline_value = TokenMean(name="reward_baseline")

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [*super().metrics, self._baseline_value]

    def compute_losses(
        self, batch: Batch, totals: Batch, *, seed: tf.Tensor, training: bool
    ) -> list[tf.Tensor]:
        corrupted = self._corrupt(batch, seed, training)
        positions, weights = batch["masked_lm_positions"], batch["masked_lm_weights"]
        hidden = self.discriminator(
            corrupted.inputs, training=training, seed=fold_in(seed, DISCRIMINATOR)
        )
        likelihood, detection, reward = self._both_losses(
            hidden, corrupted, totals, training
        )
        predicted = corrupted.predicted
        states = tf.stop_gradient(gather_positions(predicted.hidden, positions))
        baseline_logits = tf.reshape(self.baseline(states), known_shape(positions))
        baseline = tf.nn.softplus(-baseline_logits)
        self._baseline_value.update_state(baseline, weights)

        policy = self.sampler.distribution(
            predicted.logits, batch["masked_lm_ids"], self.step
        )
        surprise = losses.token_cross_entropy(policy, corrupted.sampled_ids)
        # The gradient is -(R - b) grad log p_G (Williams, 1992), with none for R and b.
        policy_values = tf.stop_gradient(reward - baseline) * surprise
        # exp(-R) is the discriminator's probability of the correct label.
        baseline_values = losses.binary_cross_entropy(tf.exp(-reward), baseline_logits)
        values = self._adversarial_factor() * policy_values
        values += self.generator_weight * baseline_values
        policy_term = losses.weighted_mean(values, weights, totals["masked"])
        return [likelihood, policy_term, detection]


@keras.saving.register_keras_serializable(package="electra_tf")
class GumbelElectra(_AdversarialElectra):
    """Adversarial generator by straight-through Gumbel-softmax (Jang et al., 2017).

    Not in the paper, which names only REINFORCE. The discriminator reads one-hot
    samples times its word table. The backward pass replaces them by
    softmax((logits + noise) / tau) and reverses the sign for the generator. The whole
    discriminator loss gives the gradient, scaled to a mean over the masked positions
    as in ``ReinforceElectra``. The word table gets the gradient of the hard
    lookup. The extra cost is one masked-LM head and some [B, P, V] tensors.

    ``gumbel_temperature`` (tau) and ``discriminator_weight`` must be positive, else
    ValueError; other arguments as in ``ReinforceElectra``.

    Examples:
        >>> model = pretraining.GumbelElectra(generator, discriminator)
    """

    def __init__(
        self,
        generator: MaskedLM,
        discriminator: TextEncoder,
        *,
        gumbel_temperature: float = 1.0,
        **kwargs,
    ):
        super().__init__(generator, discriminator, **kwargs)
        if gumbel_temperature <= 0 or self.discriminator_weight <= 0:
            raise ValueError(
                "gumbel_temperature and discriminator_weight must be positive, got "
                f"{gumbel_temperature} and {self.discriminator_weight}."
            )
        self.gumbel_temperature = gumbel_temperature

    def compute_losses(
        self, batch: Batch, totals: Batch, *, seed: tf.Tensor, training: bool
    ) -> list[tf.Tensor]:
        # J acts through the gradient alone.
        corrupted = self._corrupt(batch, seed, training)
        sampled_ids = corrupted.sampled_ids
        logits = self.sampler.distribution(
            corrupted.predicted.logits, batch["masked_lm_ids"], self.step
        )
        perturbed = perturbed_logits(logits, sampled_ids, fold_in(seed, RELAXATION))
        # Converts a mean over the positions of L_disc to a mean over masked slots (J).
        count = "tokens" if self.objective.positions == "all" else "masked"
        scale = tf.math.divide_no_nan(
            self._adversarial_factor() * totals[count],
            self.discriminator_weight * totals["masked"],
        )
        one_hots = straight_through(
            perturbed, sampled_ids, self.gumbel_temperature, -scale
        )
        # Word embeddings [B, S, E] of the discriminator; masked slots use one-hots.
        embeddings = self.discriminator.embeddings
        positions, used = batch["masked_lm_positions"], batch["masked_lm_weights"] > 0
        # If a position is masked twice, the kept sample alone gets the gradient.
        slots = tf.broadcast_to(tf.range(tf.shape(positions)[1]), tf.shape(positions))
        kept = tf.zeros_like(batch["input_ids"])
        kept = scatter_positions(kept, positions, slots, used)
        used &= tf.gather(kept, positions, batch_dims=1) == slots
        words = scatter_positions(
            embeddings.words(corrupted.inputs["input_ids"]),
            positions,
            tf.tensordot(one_hots, embeddings.word_table(), 1),
            used,
        )
        hidden = self.discriminator.states(
            corrupted.inputs, training, fold_in(seed, DISCRIMINATOR), words
        )[-1]
        return [*self._both_losses(hidden, corrupted, totals, training)[:2]]


def perturbed_logits(
    logits: tf.Tensor, sampled_ids: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Adds Gumbel noise conditioned on ``sampled_ids`` being the argmax.

    Sampling ids from softmax(logits) first and the noise second has the joint
    distribution of noise first and argmax second (truncated Gumbels; Maddison et al.,
    2014). With Z = logsumexp(logits) and all E exponential, the largest value is
    Z - log E_0; the others are -log(E_i exp(-logits_i) + exp(-largest)). Any exact
    sampler may draw the ids. The noise has no gradient: d perturbed / d logits = 1.
    """
    fixed = tf.stop_gradient(logits)
    draws = uniform(seed, known_shape(logits)) + 1e-30
    # log E with E exponential is a negated Gumbel variate.
    log_exponential = tf.math.log(-tf.math.log(draws))
    size = logits.shape[-1]
    is_sampled = tf.one_hot(sampled_ids, size, on_value=True, off_value=False)
    own = tf.where(is_sampled, log_exponential, 0.0)
    largest = tf.reduce_logsumexp(fixed, -1, keepdims=True)
    largest -= tf.reduce_sum(own, -1, keepdims=True)
    first, second = log_exponential - fixed, -largest
    others = -(tf.maximum(first, second) + tf.nn.softplus(-tf.abs(first - second)))
    perturbed = tf.where(is_sampled, largest, others)
    return logits + (perturbed - fixed)


def straight_through(
    perturbed: tf.Tensor, sampled_ids: tf.Tensor, temperature: float, scale: tf.Tensor
) -> tf.Tensor:
    """Returns one-hots with the gradient of ``scale * softmax(perturbed / tau)``.

    A lower temperature tau lowers the bias of the gradient and raises its variance.
    """
    soft = tf.nn.softmax(perturbed / temperature)
    # Zeros that pass the gradient on.
    zeros = soft - tf.stop_gradient(soft)
    return tf.one_hot(sampled_ids, perturbed.shape[-1]) + scale * zeros

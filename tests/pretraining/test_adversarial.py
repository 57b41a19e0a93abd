import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit, log_softmax

import electra_tf as et
from electra_tf import pretraining
from electra_tf.layers.randomness import fold_in
from electra_tf.pretraining import GreedySampler
from electra_tf.pretraining.adversarial import perturbed_logits, straight_through
from tests import tiny
from tests.layers.helpers import randomize

SEED = tf.constant([1, 2])
KINDS = {"reinforce": pretraining.ReinforceElectra, "gumbel": pretraining.GumbelElectra}


def make(kind, **kwargs):
    plain = tiny.electra(tied=False, num_layers=1)
    model = KINDS[kind](plain.generator, plain.discriminator, **kwargs)
    # Random weights, because initial zeros and ones hide mistakes.
    randomize(model.trainable_variables, stddev=0.2)
    return model


def gradients(model, batch):
    paths = [variable.path for variable in model.trainable_variables]
    return dict(zip(paths, tiny.gradients(model, batch)[1], strict=True))


def paths(layer):
    return {v.path for v in layer.trainable_variables}


class Oracle:
    """The losses of appendix F in NumPy, from the model's logits."""

    def __init__(self, model, batch):
        logits = model.generator(batch)
        sampled = model.sampler(logits, batch["masked_lm_ids"], fold_in(SEED, 1))
        self.logits = logits.numpy().astype(np.float64)
        self.sampled = sampled.numpy()
        self.value = tiny.numpy(batch)
        used = self.value["masked_lm_weights"] > 0
        ids = self.value["input_ids"].copy()
        rows, slots = np.nonzero(used)
        positions = self.value["masked_lm_positions"]
        ids[rows, positions[rows, slots]] = self.sampled[rows, slots]
        self.is_masked = np.zeros(ids.shape)
        self.is_masked[rows, positions[rows, slots]] = 1
        inputs = {**batch, "input_ids": tf.constant(ids)}
        rtd = model(inputs).numpy().astype(np.float64)
        # D is the probability of "original".
        original = expit(-np.take_along_axis(rtd, positions, 1))
        is_same = self.sampled == self.value["masked_lm_ids"]
        self.reward = -np.log(np.where(is_same, original, 1 - original))
        self.weights = used / used.sum()
        self.rtd, self.ids = rtd, ids
        self.one_hots = np.eye(self.logits.shape[-1])[self.sampled]


def test_reinforce_gradients_against_numpy():
    """Ascends (R - b) grad log p_G at the masked positions; w = 1."""
    model = make("reinforce", generator_weight=2.0, discriminator_weight=3.0)
    batch = tiny.batch()
    found = gradients(model, batch)
    oracle = Oracle(model, batch)
    hidden = model.generator.predictions(batch).hidden.numpy().astype(np.float64)
    positions = oracle.value["masked_lm_positions"]
    states = np.take_along_axis(hidden, positions[..., None], 1)
    scores = (states @ model.baseline.reward_kernel.numpy())[..., 0]
    baseline = -np.log(expit(scores))
    advantage = oracle.weights * (oracle.reward - baseline)
    # The output bias is added to every slot's logits, so its gradient is their sum.
    likelihoods = np.exp(log_softmax(oracle.logits, -1))
    to_logits = -advantage[..., None] * (oracle.one_hots - likelihoods)
    expected = 2.0 * to_logits.sum((0, 1))
    bias = model.generator.head.output_bias.path
    np.testing.assert_allclose(found[bias], expected, atol=2e-6)
    # Cross-entropy of sigmoid(score) to exp(-reward): the derivative is the difference.
    error = oracle.weights * (expit(scores) - np.exp(-oracle.reward))
    expected = 2.0 * np.einsum("bp,bpd->d", error, states)
    kernel = model.baseline.reward_kernel.path
    np.testing.assert_allclose(found[kernel][:, 0], expected, atol=2e-6)


@pytest.mark.parametrize(
    ("positions", "select"), [("masked", "tokens"), ("all", "with_replacement")]
)
def test_gumbel_gradient_against_numpy(positions, select):
    """Reversed gradient of the discriminator's loss, as a mean over masked slots.

    If a position is drawn twice, the last sample replaces the token.
    """
    tau = 0.7
    weights = {"generator_weight": 2.0, "discriminator_weight": 3.0}
    objective = et.ReplacedTokenDetection(positions)
    model = make("gumbel", gumbel_temperature=tau, objective=objective, **weights)
    batch = tiny.batch(select=select)
    found = gradients(model, batch)
    oracle = Oracle(model, batch)
    table = model.discriminator.embeddings
    inputs = {**batch, "input_ids": tf.constant(oracle.ids)}
    replaced = tf.constant(oracle.ids != oracle.value["input_ids"])
    with tf.GradientTape() as tape:
        words = table.words(inputs["input_ids"])
        tape.watch(words)
        hidden = model.discriminator.states(inputs, words=words)[-1]
        rtd = model.objective(hidden)
        values = et.losses.binary_cross_entropy(replaced, rtd)
        counted = oracle.is_masked if positions == "masked" else batch["input_mask"]
        total = tf.reduce_sum(values * tf.cast(counted, tf.float32))
    by_word = tape.gradient(total, words).numpy().astype(np.float64)
    upstream = np.zeros([*oracle.logits.shape[:2], by_word.shape[-1]])
    for row, row_positions in enumerate(oracle.value["masked_lm_positions"]):
        used = np.count_nonzero(oracle.value["masked_lm_weights"][row])
        last = {position: slot for slot, position in enumerate(row_positions[:used])}
        for position, slot in last.items():
            upstream[row, slot] = by_word[row, position]
    by_token = upstream @ table.word_embeddings.numpy().T.astype(np.float64)
    logits = tf.constant(oracle.logits, tf.float32)
    perturbed = perturbed_logits(logits, oracle.sampled, fold_in(SEED, 3))
    soft = np.exp(log_softmax(perturbed.numpy().astype(np.float64) / tau, -1))
    to_logits = soft * (by_token - (by_token * soft).sum(-1, keepdims=True)) / tau
    expected = -2.0 * to_logits.sum((0, 1)) / float(model.loss_totals(batch)["masked"])
    bias = model.generator.head.output_bias.path
    np.testing.assert_allclose(found[bias], expected, atol=2e-6)
    assert np.abs(expected).max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_metrics_are_those_of_joint_training(kind):
    """Same samples and losses; [CLS] and [SEP] are not replaceable in any class.

    A position that is drawn twice has the embedding of one sample.
    """
    special_ids = (tiny.CLS, tiny.SEP, tiny.MASK)
    model = make(kind, special_ids=special_ids)
    objective = et.ReplacedTokenDetection(name="objective")
    parts = (model.generator, model.discriminator)
    joint = et.Electra(*parts, objective=objective, special_ids=special_ids)
    objective.set_weights(model.objective.get_weights())
    data = tiny.dataset(2, select="with_replacement")
    expected, logs = tiny.scores(joint, data), tiny.scores(model, data)
    for name in expected.keys() - {"loss"}:
        assert logs[name] == pytest.approx(expected[name], rel=1e-5), name
    own = 50 * logs["discriminator_loss"] - logs["reward"]
    assert logs["loss"] == pytest.approx(own, rel=1e-4)
    # 110 tokens in 4 rows, including 20 [CLS] and [SEP].
    assert logs["replaced_replaceable_fraction"] > 1.1 * logs["replaced_fraction"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_generator_learns_from_a_mixture_and_the_discriminator_as_before(kind):
    """Weight 0 is joint training; the reward trains the generator only."""
    batch = tiny.batch()
    model, mixed = make(kind), make(kind, adversarial_weight=0.25)
    joint = et.Electra(model.generator, model.discriminator, objective=model.objective)
    likelihood, adversarial = gradients(joint, batch), gradients(model, batch)
    found = gradients(mixed, batch)
    without = gradients(make(kind, generator_weight=0.0), batch)
    discriminator = paths(model.discriminator) | paths(model.objective)
    for path, gradient in likelihood.items():
        expected = 0.75 * gradient + 0.25 * adversarial[path]
        np.testing.assert_allclose(found[path], expected, atol=2e-6, err_msg=path)
    for path, gradient in adversarial.items():
        same = np.allclose(gradient, without[path], atol=1e-7)
        assert same == (path in discriminator), path
        assert without[path].any() == same, path


@pytest.mark.parametrize("kind", KINDS)
def test_unsuitable_arguments_are_refused(kind):
    for options, message in (
        ({"sampling_dropout": False}, "sampling_dropout=True, got .* and False"),
        ({"sampler": GreedySampler()}, "got MaskedLM, GreedySampler"),
        ({"objective": pretraining.SentenceDetection()}, "Sampler, SentenceDetection"),
        (
            {"objective": pretraining.NoiseContrastiveEstimation()},
            "Sampler, NoiseContrastive",
        ),
        ({"adversarial_weight": 2}, r"must be in \[0, 1\], got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            make(kind, **options)
    towers = tiny.two_tower(et.Electra)
    with pytest.raises(ValueError, match=r"needs a MaskedLM.*got TwoTowerGenerator"):
        KINDS[kind](towers.generator, towers.discriminator)
    if kind == "gumbel":
        with pytest.raises(ValueError, match="must be positive, got 0"):
            make(kind, gumbel_temperature=0)


# Straight-through Gumbel-softmax against NumPy: forward hard, backward soft.
NOISE_SEED = tf.constant([3, 4])


def random_logits(shape=(2, 3, 7), seed=0):
    return tf.constant(np.random.default_rng(seed).normal(0, 2, shape), tf.float32)


def draw(logits):
    ids = tf.zeros(logits.shape[:2], tf.int32)
    return et.CategoricalSampler()(logits, ids, NOISE_SEED)


def test_the_sample_is_the_argmax_and_the_noise_is_gumbel():
    """Conditional noise, averaged over samples, has the distribution of the prior."""
    logits = random_logits((400, 50, 11))
    sampled = draw(logits)
    perturbed = perturbed_logits(logits, sampled, tf.constant([9, 1])).numpy()
    np.testing.assert_array_equal(perturbed.argmax(-1), sampled)
    noise = perturbed - logits.numpy()
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.02)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.04)
    assert abs(np.corrcoef(noise.ravel(), logits.numpy().ravel())[0, 1]) < 0.01
    # The distribution function of a Gumbel variable is exp(-exp(-x)).
    for point in (-1.0, 0.0, 1.0, 3.0):
        share = np.exp(-np.exp(-point))
        assert (noise < point).mean() == pytest.approx(share, abs=0.005)


def test_forbidden_tokens_have_no_gradient_and_no_nan():
    logits = tf.tensor_scatter_nd_add(random_logits(), [[0, 0, 2]], [-1e9])
    sampled = draw(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        perturbed = perturbed_logits(logits, sampled, NOISE_SEED)
        one_hots = straight_through(perturbed, sampled, 1.0, -2.0)
        value = tf.reduce_sum(one_hots * random_logits(seed=6))
    gradient = tape.gradient(value, logits).numpy()
    assert np.isfinite(gradient).all()
    assert gradient[0, 0, 2] == 0

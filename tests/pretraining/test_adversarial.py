"""Adversarial generators: gradients of generator, discriminator and baseline."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.layers import TextEmbedding
from electra_tf.layers.randomness import fold_in
from electra_tf.pretraining import (
    CategoricalSampler,
    GreedySampler,
    GumbelElectra,
    LinearChange,
    ReinforceElectra,
)
from electra_tf.pretraining.adversarial import (
    RewardBaseline,
    perturbed_logits,
    policy_loss,
    put_rows,
    reverse_gradient,
    straight_through,
)
from tests import tiny
from tests.layers.helpers import randomize

SEED = tf.constant([1, 2])
KINDS = {"reinforce": ReinforceElectra, "gumbel": GumbelElectra}
ONE_FAST = ["reinforce", pytest.param("gumbel", marks=pytest.mark.slow)]


def make(kind, *, tied=False, dropout=0.0, num_layers=2, scale=0.2, **kwargs):
    plain = tiny.electra(tied=tied, dropout=dropout, num_layers=num_layers)
    model = KINDS[kind](plain.generator, plain.discriminator, **kwargs)
    # Random weights, because initial zeros and ones hide mistakes.
    randomize(model.trainable_variables, stddev=scale)
    return model


def gradients(model, batch):
    _, found = tiny.gradients(model, batch)
    return {
        v.path: np.zeros(v.shape) if g is None else tf.convert_to_tensor(g).numpy()
        for v, g in zip(model.trainable_variables, found, strict=True)
    }


def paths(layer):
    return {v.path for v in layer.trainable_variables}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


class Oracle:
    """The losses of appendix F in NumPy, from the model's logits."""

    def __init__(self, model, batch):
        logits = model.generator(batch)
        sampled = model.sampler(logits, batch["masked_lm_ids"], fold_in(SEED, 1))
        self.logits = logits.numpy().astype(np.float64)
        self.sampled = sampled.numpy()
        self.value = {name: tensor.numpy() for name, tensor in batch.items()}
        used = self.value["masked_lm_weights"] > 0
        ids = self.value["input_ids"].copy()
        rows, slots = np.nonzero(used)
        positions = self.value["masked_lm_positions"]
        ids[rows, positions[rows, slots]] = self.sampled[rows, slots]
        inputs = {**batch, "input_ids": tf.constant(ids)}
        rtd = model(inputs).numpy().astype(np.float64)
        # D is the probability of "original".
        original = sigmoid(-np.take_along_axis(rtd, positions, 1))
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
    baseline = -np.log(sigmoid(scores))
    advantage = oracle.weights * (oracle.reward - baseline)
    # The output bias is added to every slot's logits, so its gradient is their sum.
    to_logits = -advantage[..., None] * (oracle.one_hots - softmax(oracle.logits))
    expected = 2.0 * to_logits.sum((0, 1))
    bias = model.generator.head.output_bias.path
    np.testing.assert_allclose(found[bias], expected, atol=2e-6)
    # Cross-entropy of sigmoid(score) to exp(-reward): the derivative is the difference.
    error = oracle.weights * (sigmoid(scores) - np.exp(-oracle.reward))
    expected = 2.0 * np.einsum("bp,bpd->d", error, states)
    kernel = model.baseline.reward_kernel.path
    np.testing.assert_allclose(found[kernel][:, 0], expected, atol=2e-6)


def test_policy_gradient_is_that_of_the_expected_reward():
    """Expectation over all tokens, for any baseline: grad sum p(x) R(x)."""
    rng = np.random.default_rng(0)
    logits = tf.constant(rng.normal(size=(1, 9)), tf.float32)
    reward = rng.random((9, 1)).astype(np.float32)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        log_p = tf.nn.log_softmax(logits)
        each = policy_loss(tf.transpose(log_p), reward, 0.3)
        p = tf.stop_gradient(tf.exp(tf.transpose(log_p)))
        loss = tf.reduce_sum(p * each)
    p = softmax(logits.numpy().astype(np.float64))[0]
    expected = p * (reward[:, 0] - p @ reward[:, 0])
    np.testing.assert_allclose(tape.gradient(loss, logits)[0], -expected, atol=1e-6)


def test_gumbel_gradient_against_numpy():
    """Reversed gradient of the discriminator's loss, as a mean over masked slots."""
    model = make("gumbel", generator_weight=2.0, discriminator_weight=3.0)
    batch = tiny.batch()
    found = gradients(model, batch)
    oracle = Oracle(model, batch)
    totals = model.loss_totals(batch)
    table = model.discriminator.embeddings
    inputs = {**batch, "input_ids": tf.constant(oracle.ids)}
    replaced = tf.constant(oracle.ids != oracle.value["input_ids"])
    with tf.GradientTape() as tape:
        words = table.words(inputs["input_ids"])
        tape.watch(words)
        rtd = model.objective(model.discriminator.encode_words(words, inputs))
        values = et.losses.binary_cross_entropy(replaced, rtd)
        total = tf.reduce_sum(values * tf.cast(batch["input_mask"], tf.float32))
    by_word = tape.gradient(total, words).numpy().astype(np.float64)
    positions = oracle.value["masked_lm_positions"]
    upstream = np.take_along_axis(by_word, positions[..., None], 1)
    upstream *= (oracle.value["masked_lm_weights"] > 0)[..., None]
    by_token = upstream @ table.word_embeddings.numpy().T.astype(np.float64)
    perturbed = perturbed_logits(
        tf.constant(oracle.logits, tf.float32), oracle.sampled, fold_in(SEED, 3)
    )
    soft = softmax(perturbed.numpy().astype(np.float64))
    to_logits = soft * (by_token - (by_token * soft).sum(-1, keepdims=True))
    expected = -2.0 * to_logits.sum((0, 1)) / float(totals["masked"])
    bias = model.generator.head.output_bias.path
    np.testing.assert_allclose(found[bias], expected, atol=2e-6)
    assert np.abs(expected).max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_forward_is_that_of_joint_training(kind):
    """Same samples and same discriminator loss; only the gradient differs."""
    model = make(kind)
    joint = et.Electra(model.generator, model.discriminator, objective=model.objective)
    batch = tiny.batch()
    terms = [
        m.compute_losses(batch, m.loss_totals(batch), seed=SEED, training=False)
        for m in (model, joint)
    ]
    assert float(terms[0][-1]) == pytest.approx(float(terms[1][-1]), rel=1e-6)


@pytest.mark.parametrize("kind", ONE_FAST)
def test_metrics_are_those_of_joint_training(kind):
    """[CLS] and [SEP] are not replaceable in any class."""
    special_ids = (tiny.CLS, tiny.SEP, tiny.MASK)
    model = make(kind, special_ids=special_ids)
    joint = et.Electra(
        model.generator,
        model.discriminator,
        objective=et.ReplacedTokenDetection(name="objective"),
        special_ids=special_ids,
    )
    for new, old in zip(joint.objective.weights, model.objective.weights, strict=True):
        new.assign(old)
    logs = []
    for each in (model, joint):
        each.compile(optimizer="sgd")
        logs.append(each.evaluate(tiny.dataset(2), verbose=0, return_dict=True))
    for name, value in logs[1].items():
        if name != "loss":
            assert logs[0][name] == pytest.approx(value, rel=1e-5), name
    # 110 tokens in 4 rows, including 20 [CLS] and [SEP].
    replaceable, everywhere = (
        logs[0][f"replaced_{name}fraction"] for name in ("replaceable_", "")
    )
    assert replaceable > 1.1 * everywhere


@pytest.mark.parametrize("kind", KINDS)
def test_samples_from_another_pass_are_refused(kind):
    with pytest.raises(
        ValueError, match="needs samples from the training forward pass"
    ):
        make(kind, sampling_dropout=False)
    with pytest.raises(ValueError, match="needs a sampler with a distribution"):
        make(kind, sampler=GreedySampler())


@pytest.mark.parametrize("kind", KINDS)
def test_weight_zero_is_joint_training(kind):
    model = make(kind, adversarial_weight=0.0)
    joint = et.Electra(model.generator, model.discriminator, objective=model.objective)
    found, expected = (gradients(m, tiny.batch()) for m in (model, joint))
    for path, gradient in expected.items():
        np.testing.assert_allclose(found[path], gradient, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("kind", ONE_FAST)
def test_only_the_two_networks_own_losses_train_them(kind):
    """The reward trains the generator only."""
    weighted = {
        weight: gradients(make(kind, generator_weight=weight), tiny.batch())
        for weight in (0.0, 1.0)
    }
    model = make(kind)
    discriminator = paths(model.discriminator) | paths(model.objective)
    for path, gradient in weighted[1.0].items():
        same = np.allclose(gradient, weighted[0.0][path], atol=1e-7)
        assert same == (path in discriminator), path
        if path not in discriminator:
            assert not weighted[0.0][path].any(), path


def test_mixture_weighs_both_terms():
    batch = tiny.batch()
    by_weight = {
        w: gradients(make("reinforce", adversarial_weight=w), batch)
        for w in (0.0, 0.25, 1.0)
    }
    model = make("reinforce")
    for path in paths(model.generator):
        expected = 0.75 * by_weight[0.0][path] + 0.25 * by_weight[1.0][path]
        np.testing.assert_allclose(by_weight[0.25][path], expected, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_fit_with_accumulation_logs_the_game_and_saves(kind, tmp_path):
    model = make(
        kind,
        tied=True,
        dropout=0.1,
        num_layers=1,
        scale=0.02,
        adversarial_weight=LinearChange(0.0, 1.0, 2, begin=1),
        gradient_accumulation_steps=2,
    )
    model.compile(optimizer=et.training.AdamW(1e-3))
    shown = []
    logger = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: shown.append(
            float(logs["adversarial_weight"])
        )
    )
    history = model.fit(
        tiny.dataset(4), verbose=0, shuffle=False, callbacks=[logger]
    ).history
    assert shown == [0.0, 0.5, 1.0, 1.0]
    assert 0 < history["reward"][0] < 5
    logs = model.evaluate(tiny.dataset(1), verbose=0, return_dict=True)
    expected = 50 * logs["discriminator_loss"] - logs["reward"]
    assert logs["loss"] == pytest.approx(expected, rel=1e-4)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is KINDS[kind]
    assert loaded.evaluate(tiny.dataset(1), verbose=0, return_dict=True) == logs


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_compiles_with_xla(kind):
    model = make(kind, dropout=0.1, num_layers=1, scale=0.02)
    model.compile(optimizer=et.training.AdamW(1e-3), jit_compile=True)
    history = model.fit(tiny.dataset(2), verbose=0, shuffle=False).history
    assert all(np.isfinite(values).all() for values in history.values())


def test_baseline_learns_the_mean_reward():
    """Converges to -log mean exp(-R), the minimum of the cross-entropy."""
    layer = RewardBaseline()
    layer.build((None, 1))
    rewards = tf.constant([0.2, 1.0, 3.0])
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(layer.trainable_variables)
    for _ in range(300):
        with tf.GradientTape() as tape:
            logits = layer(tf.ones([3, 1]))
            loss = tf.reduce_mean(layer.loss(logits, rewards))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables))
    expected = -np.log(np.exp(-rewards.numpy()).mean())
    np.testing.assert_allclose(layer.value(layer(tf.ones([1, 1]))), expected, rtol=1e-4)


def test_bad_temperature_is_refused():
    with pytest.raises(ValueError, match="must be positive, got 0"):
        make("gumbel", gumbel_temperature=0)


# Straight-through Gumbel-softmax against NumPy: forward hard, backward soft.
NOISE_SEED = tf.constant([3, 4])


def random_logits(shape=(2, 3, 7), scale=2.0, seed=0):
    rng = np.random.default_rng(seed)
    return tf.constant(rng.normal(0, scale, shape), tf.float32)


def draw(logits):
    ids = tf.zeros(logits.shape[:2], tf.int32)
    return CategoricalSampler()(logits, ids, NOISE_SEED)


def test_the_sample_is_the_argmax_and_the_noise_is_gumbel():
    """Conditional noise, averaged over samples, has the distribution of the prior.

    A Gumbel variable has mean 0.5772 and variance pi^2 / 6, and does not correlate
    with the logits.
    """
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
        assert (noise < point).mean() == pytest.approx(
            np.exp(-np.exp(-point)), abs=0.005
        )


def test_forward_is_exactly_one_hot_and_backward_is_the_softmax():
    logits, temperature = random_logits(), 0.7
    sampled = draw(logits)
    upstream = random_logits(seed=5)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        perturbed = perturbed_logits(logits, sampled, NOISE_SEED)
        one_hots = straight_through(perturbed, sampled, temperature)
    found = tape.gradient(one_hots, logits, output_gradients=upstream)
    np.testing.assert_array_equal(one_hots, np.eye(7)[sampled.numpy()])

    z = perturbed.numpy().astype(np.float64) / temperature
    soft = np.exp(z - z.max(-1, keepdims=True))
    soft /= soft.sum(-1, keepdims=True)
    g = upstream.numpy().astype(np.float64)
    expected = soft * (g - (g * soft).sum(-1, keepdims=True)) / temperature
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_forbidden_tokens_have_no_gradient_and_no_nan():
    logits = tf.tensor_scatter_nd_add(random_logits(), [[0, 0, 2]], [-1e9])
    sampled = draw(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        one_hots = straight_through(
            perturbed_logits(logits, sampled, NOISE_SEED), sampled, 1.0
        )
        value = tf.reduce_sum(one_hots * random_logits(seed=6))
    gradient = tape.gradient(value, logits).numpy()
    assert np.isfinite(gradient).all()
    assert gradient[0, 0, 2] == 0


def test_reversed_gradient():
    values = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(values)
        same = reverse_gradient(values, tf.constant(0.25))
        total = tf.reduce_sum(same * [3.0, 4.0])
    np.testing.assert_array_equal(same, values)
    np.testing.assert_array_equal(tape.gradient(total, values), [-0.75, -1.0])


def test_words_of_one_hots_are_words_and_their_gradient_the_product():
    table = TextEmbedding(7, 5, max_positions=4)
    table.build()
    ids = tf.constant([[2, 6, 0]])
    one_hots = tf.one_hot(ids, 7)
    with tf.GradientTape() as tape:
        tape.watch(one_hots)
        words = table.words_of(one_hots)
        value = tf.reduce_sum(words * random_logits((1, 3, 5), seed=2))
    np.testing.assert_array_equal(words, table.words(ids))
    expected = (
        random_logits((1, 3, 5), seed=2).numpy() @ table.word_embeddings.numpy().T
    )
    np.testing.assert_allclose(tape.gradient(value, one_hots), expected, rtol=1e-5)


def test_rows_go_to_their_positions_and_unused_ones_nowhere():
    into = tf.constant(np.arange(24).reshape(2, 4, 3), tf.float32)
    into *= tf.constant([[1, 0, 1, 0], [1, 1, 1, 0]], tf.float32)[..., tf.newaxis]
    rows = -tf.ones([2, 2, 3])
    positions = tf.constant([[3, 1], [3, 0]])
    used = tf.constant([[True, True], [True, False]])
    found = put_rows(rows, positions, used, into).numpy()
    expected = into.numpy()
    expected[0, 3] = expected[0, 1] = expected[1, 3] = -1
    np.testing.assert_array_equal(found, expected)

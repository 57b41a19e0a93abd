import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax

import electra_tf as et
from electra_tf.folders import models
from electra_tf.interop import run_folder
from electra_tf.interop.networks import Source
from electra_tf.pretraining import Electric, GreedySampler, LeaveRows
from electra_tf.pretraining.electric import noise_logits
from tests import tiny
from tests.layers.helpers import check_slope, randomize
from tests.pretraining.test_two_tower import everywhere
from tests.reference import two_tower as reference

LENGTHS = (24, 9, 17, 5)
SEED = tf.constant([1, 2])


def make(**kwargs):
    model = tiny.two_tower(Electric, **kwargs)
    randomize(model.trainable_variables, stddev=0.2)
    return model


@pytest.mark.parametrize(
    "options",
    [
        {"sampling_dropout": False},
        {"sampler": et.CategoricalSampler(2.0)},
        {"sampler": et.CategoricalSampler(disallow_correct=True)},
        {"sampler": GreedySampler()},
        {"sampler": LeaveRows(et.CategoricalSampler())},
    ],
)
def test_draws_that_are_not_of_log_q_are_refused(options):
    with pytest.raises(ValueError, match=r"sampling_dropout=False|needs temperature=1"):
        tiny.two_tower(Electric, **options)


def test_a_generator_without_the_noise_of_every_token_is_refused():
    joint = tiny.electra()
    model = Electric(joint.generator, joint.discriminator)
    with pytest.raises(ValueError, match="such as TwoTowerGenerator"):
        tiny.gradients(model, tiny.batch())


def test_rows_without_a_draw_or_without_tokens_are_finite():
    zeros, no_draw = tf.zeros([1, 4]), tf.zeros([1, 4], tf.bool)
    for real in (tf.ones([1, 4], tf.int32), tf.zeros([1, 4], tf.int32)):
        assert np.isfinite(noise_logits(zeros, zeros, no_draw, real)).all()


@pytest.mark.parametrize("select", ["tokens", "with_replacement"])
def test_losses_and_gradient_against_numpy(select):
    """The generator gets no gradient (pitfall 15 of docs/fidelity.md)."""
    model = make(tied=False, generator_weight=0.0)
    model.sampler = GreedySampler()
    batch = tiny.batch(LENGTHS, mask_rate=0.4, select=select)
    plain, found = tiny.numpy(batch), tiny.numpy(model.examine(batch, seed=SEED))
    scores = model.generator(everywhere(batch)).numpy().astype(np.float64)
    noised = plain["input_ids"].copy()
    for row, slot in np.argwhere(plain["masked_lm_weights"] > 0):
        position = plain["masked_lm_positions"][row, slot]
        noised[row, position] = scores[row, position].argmax()
    np.testing.assert_array_equal(found["corrupted_ids"], noised)

    def energies():
        return model({**batch, "input_ids": noised}).numpy().astype(np.float64)

    start = energies()
    for row, t in np.argwhere(plain["input_mask"]):
        drawn = int(found["is_replaced"][row].sum())
        q = np.exp(log_softmax(scores[row, t])[noised[row, t]])
        counts = (drawn, LENGTHS[row] - drawn)
        expected = reference.noise_probability(start[row, t], q, *counts)
        probability = found["replaced_probability"][row, t]
        assert probability == pytest.approx(expected, rel=1e-3, abs=1e-6)
    logs = tiny.scores(model, [batch])
    cloze = reference.cloze_loss(scores, plain, model.generator.special_ids)
    assert logs["generator_loss"] == pytest.approx(cloze, rel=1e-5)
    expected = reference.electric_loss(start, scores, noised, plain)
    loss, gradients = tiny.gradients(model, batch)
    assert loss == pytest.approx(50 * expected, rel=1e-5)

    own = {id(v) for v in model.generator.trainable_variables}
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        assert gradient.any() == (id(variable) not in own), variable.path
    variables = model.trainable_variables
    values = [variable.numpy() for variable in variables]

    def loss_at(moves):
        for variable, value, move in zip(variables, values, moves, strict=True):
            variable.assign(value + move)
        return 50 * reference.electric_loss(energies(), scores, noised, plain)

    check_slope(loss_at, gradients, step=1e-3, rel=1e-2)


def test_a_draw_that_equals_the_original_is_noise():
    """In Electric, not in ELECTRA (pitfall 17 of docs/fidelity.md)."""
    batch = tiny.batch(LENGTHS)
    drawn = int(tf.reduce_sum(batch["masked_lm_weights"]))

    def originals(mlm_logits, masked_lm_ids, seed, step=None):
        return masked_lm_ids

    for model_class, labels in ((Electric, drawn), (et.Electra, 0)):
        model = tiny.two_tower(model_class, sampler=originals)
        found = model.examine(batch, seed=SEED)
        np.testing.assert_array_equal(found["corrupted_ids"], batch["input_ids"])
        assert int(tf.reduce_sum(tf.cast(found["is_replaced"], tf.int32))) == labels
        model.compute_losses(batch, model.loss_totals(batch), seed=SEED, training=False)
        share = {m.name: float(m.result()) for m in model.metrics}
        assert share["replaced_fraction"] == pytest.approx(labels / sum(LENGTHS))


def test_saved_parts_are_whole(tmp_path):
    model, batch = make(), tiny.batch()
    loaded = tiny.reloaded(model, tmp_path)
    assert type(loaded.objective) is type(model.objective)
    np.testing.assert_array_equal(loaded(batch), model(batch))
    assert loaded.generator.left.embeddings is loaded.discriminator.embeddings
    tiny.check_artifacts(model, batch, tmp_path)


def test_energies_are_not_taken_for_verdicts(tmp_path):
    path = tmp_path / "discriminator.keras"
    make().detector().save(path)
    with pytest.raises(ValueError, match=r"holds a EnergyModel.*Give another"):
        models.load(path, et.ReplacedTokenDetector, "Give another.")
    message = "NoiseContrastiveEstimation, which other formats lack"
    with pytest.raises(ValueError, match=message):
        run_folder.read(Source(str(tmp_path)))

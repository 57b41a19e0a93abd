"""The sentence-level loss, rows that are left alone, and objectives that are summed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.pretraining import (
    GreedySampler,
    JointObjective,
    LeaveRows,
    ReplacedTokenDetection,
    SentenceDetection,
)
from electra_tf.pretraining.samplers import corrupt
from tests import tiny
from tests.layers.helpers import randomize
from tests.reference import objectives as reference

SEED = tf.constant([3, 4])


def joint(weight=2.0):
    return JointObjective(
        ReplacedTokenDetection(name="objective"),
        SentenceDetection(name="sentence"),
        weight,
        name="joint",
    )


def batch_of(changed):
    """Rows 0 and 2 as they were, a masked token of the others changed; 4 is padding."""
    batch = tiny.batch((24, 9, 17, 5))
    batch = {k: tf.pad(v, [[0, 1], [0, 0]]) for k, v in batch.items()}
    ids = batch["masked_lm_ids"]
    rows = tf.constant(changed)[:, tf.newaxis]
    return corrupt(batch, tf.where(rows, 5 + (ids + 7) % (tiny.VOCAB - 5), ids))


def test_loss_equals_the_definition():
    """Any replaced token makes the row corrupted; padding is no row."""
    corrupted = batch_of([False, True, False, True, True])
    objective = SentenceDetection()
    objective.build((None, None, 8))
    randomize(objective.variables)
    hidden = tf.constant(np.random.default_rng(0).normal(size=(5, 24, 8)), tf.float32)
    totals = tiny.electra().loss_totals(corrupted.batch)
    assert float(totals["rows"]) == 4
    unit = {v.path.split("/")[-1]: v.numpy() for v in objective.variables}
    expected = reference.sentence(
        hidden.numpy().astype(np.float64),
        unit,
        corrupted.batch["input_ids"].numpy(),
        corrupted.inputs["input_ids"].numpy(),
        corrupted.batch["input_mask"].numpy(),
    )
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        loss = objective.loss(hidden, corrupted, totals, training=True)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    results = {m.name: float(m.result()) for m in objective.step_metrics}
    assert results["sentence_loss"] == pytest.approx(expected, rel=1e-5)
    assert results["corrupted_fraction"] == 0.5
    reached = np.abs(tape.gradient(loss, hidden).numpy()).max(-1) > 0
    assert reached[:4, 0].all(), "the first position of every row"
    assert reached.sum() == 4


def test_leaving_rows_returns_their_own_tokens():
    """About a fifth of the rows, whole, and another fifth under another seed."""
    logits = tf.random.stateless_normal([2000, 3, 20], SEED)
    ids = tf.fill([2000, 3], 50)  # no sampler draws it
    sampler = LeaveRows(et.CategoricalSampler())
    drawn = sampler(logits, ids, SEED).numpy()
    left = (drawn == 50).all(axis=1)
    assert ((drawn == 50).any(axis=1) == left).all(), "rows are left whole"
    assert left.mean() == pytest.approx(0.2, abs=0.03)
    np.testing.assert_array_equal(drawn, sampler(logits, ids, SEED))
    plain = et.CategoricalSampler()(logits, ids, SEED).numpy()
    np.testing.assert_array_equal(drawn[~left], plain[~left])
    other = (sampler(logits, ids, SEED + 1).numpy() == 50).all(axis=1)
    assert (other != left).mean() > 0.2


def test_share_is_checked():
    with pytest.raises(ValueError, match=r"in \[0, 1\), got 1"):
        LeaveRows(GreedySampler(), 1)


def test_joint_loss_is_the_weighted_sum_and_its_metrics_are_both():
    model = tiny.electra(
        question=lambda _: joint(), sampler=LeaveRows(GreedySampler(), 0.5)
    )
    model.compile(optimizer=keras.optimizers.SGD(0.01))
    logs = model.evaluate(tiny.dataset(3), verbose=0, return_dict=True)
    expected = logs["generator_loss"] + 50 * (
        logs["discriminator_loss"] + 2 * logs["sentence_loss"]
    )
    assert logs["loss"] == pytest.approx(expected, rel=1e-5)
    assert 0 < logs["corrupted_fraction"] < 1
    batch = tiny.batch()
    terms = model.compute_losses(
        batch, model.loss_totals(batch), seed=SEED, training=False
    )
    model.reset_metrics()
    model.compute_losses(batch, model.loss_totals(batch), seed=SEED, training=False)
    assert float(sum(terms)) == pytest.approx(float(model.metrics[0].result()), 1e-5)


def test_generator_gets_nothing_from_the_sentence_loss():
    model = tiny.electra(
        tied=False, generator_weight=0.0, question=lambda _: joint(weight=1e3)
    )
    batch = tiny.batch()
    with tf.GradientTape() as tape:
        terms = model.compute_losses(
            batch, model.loss_totals(batch), seed=SEED, training=True
        )
    found = tape.gradient(terms, model.generator.trainable_variables)
    assert all(g is None or not np.any(tf.convert_to_tensor(g)) for g in found)


def test_save_and_load(tmp_path):
    model = tiny.electra(question=lambda _: joint(), sampler=LeaveRows(GreedySampler()))
    model.save(tmp_path / "electra.keras")
    loaded = keras.saving.load_model(tmp_path / "electra.keras")
    assert isinstance(loaded.sampler, LeaveRows)
    assert isinstance(loaded.sampler.sampler, GreedySampler)
    assert loaded.objective.weight == 2.0
    batch = tiny.batch()
    np.testing.assert_array_equal(loaded(batch), model(batch))
    hidden = tf.random.stateless_normal([2, 3, 32], SEED)
    np.testing.assert_array_equal(
        loaded.objective.second(hidden), model.objective.second(hidden)
    )
    assert isinstance(model.detector(), et.ReplacedTokenDetector)

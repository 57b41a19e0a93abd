"""Discriminator objectives: definitions, gradients, saving."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.layers import TextEmbedding
from electra_tf.pretraining import (
    CopyingTokenPrediction,
    GreedySampler,
    JointObjective,
    LeaveRows,
    ReplacedTokenDetection,
    SentenceDetection,
    TokenPrediction,
)
from electra_tf.pretraining.samplers import corrupt
from tests import tiny
from tests.layers.helpers import randomize
from tests.reference import encoder as reference_encoder
from tests.reference import objectives as reference

# One layer halves the time of tracing.
electra = functools.partial(tiny.electra, num_layers=1)

WIDTH = 8
LENGTHS = (24, 9, 17, 5, 0)
QUESTIONS = {
    "electra": lambda _: ReplacedTokenDetection(name="objective"),
    "electra_15": lambda _: ReplacedTokenDetection("masked", name="objective"),
    "replace_mlm": lambda table: TokenPrediction(table, name="objective"),
    "all_tokens_mlm": lambda table: CopyingTokenPrediction(table, name="objective"),
}
NEW = ["electra_15", "replace_mlm", "all_tokens_mlm"]


def corrupted_batch(select="tokens"):
    """Replaces half of the masked tokens; the last row is all padding."""
    batch = tiny.batch([n for n in LENGTHS if n], mask_rate=0.4, select=select)
    extra = sum(n == 0 for n in LENGTHS)
    batch = {k: tf.pad(v, [[0, extra], [0, 0]]) for k, v in batch.items()}
    ids = batch["masked_lm_ids"]
    other = 5 + (ids + 7) % (tiny.VOCAB - 5)
    keep = tf.range(ids.shape[1]) % 2 == 0
    return corrupt(batch, tf.where(keep, ids, other))


def hidden_for(corrupted):
    shape = (*corrupted.is_masked.shape, WIDTH)
    return tf.constant(np.random.default_rng(2).normal(size=shape), tf.float32)


def make(name):
    """Returns an objective with random weights, and its weights by name."""
    keras.utils.set_random_seed(0)
    table = TextEmbedding(tiny.VOCAB, 6, max_positions=24)
    table.build()
    objective = QUESTIONS[name](table)
    objective.build((None, None, WIDTH))
    randomize([*table.variables, *objective.variables])
    return objective, table


def named(variables):
    return {
        name: value.astype(np.float64)
        for name, value in reference_encoder.named_weights(variables).items()
    }


def totals_of(batch):
    return electra().loss_totals(batch)


def reference_loss(name, objective, table, hidden, corrupted):
    batch = {k: v.numpy() for k, v in corrupted.batch.items()}
    shown = corrupted.inputs["input_ids"].numpy()
    hidden = hidden.numpy().astype(np.float64)
    words = table.word_embeddings.numpy().astype(np.float64)
    slots = (batch["masked_lm_positions"], batch["masked_lm_weights"] > 0)
    if name == "electra_15":
        logits = objective(tf.constant(hidden, tf.float32)).numpy().astype(np.float64)
        return reference.detection_at_masked(logits, batch["input_ids"], shown, *slots)
    head = named(objective.head._trainable_variables)
    if name == "replace_mlm":
        return reference.replace_mlm(hidden, head, words, batch["input_ids"], *slots)
    gate = named(objective._trainable_variables)
    return reference.all_tokens_mlm(
        hidden, head, words, gate, batch["input_ids"], shown, batch["input_mask"]
    )


@pytest.mark.parametrize("select", ["tokens", "with_replacement"])
@pytest.mark.parametrize("name", NEW)
def test_loss_equals_the_definition(name, select):
    """Labels, loss positions and denominators, on random hidden states."""
    corrupted = corrupted_batch(select)
    objective, table = make(name)
    hidden = hidden_for(corrupted)
    totals = totals_of(corrupted.batch)
    assert corrupted.is_replaced.numpy().sum() > 4
    expected = reference_loss(name, objective, table, hidden, corrupted)
    for function in (objective.loss, tf.function(objective.loss, jit_compile=True)):
        loss = function(hidden, corrupted, totals, training=True)
        assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(objective.loss_metric.result()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", NEW)
def test_gradient_of_the_definition(name):
    """Finite differences of the NumPy loss along random directions, in float64."""
    corrupted = corrupted_batch()
    objective, table = make(name)
    hidden = hidden_for(corrupted)
    totals = totals_of(corrupted.batch)
    if name == "electra_15":
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = objective.loss(hidden, corrupted, totals, training=True)
        slopes = tape.gradient(loss, hidden).numpy()
        counted = np.abs(slopes).max(axis=-1) > 0
        np.testing.assert_array_equal(counted, corrupted.is_masked.numpy())
        return
    own = [*objective.head._trainable_variables, *objective._trainable_variables]
    words = table.word_embeddings
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        loss = objective.loss(hidden, corrupted, totals, training=True)
    sources = [hidden, words.value, *(v.value for v in own)]
    found = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, sources)]
    rng = np.random.default_rng(5)
    start = [np.asarray(x, np.float64) for x in (hidden, words, *own)]
    direction = [rng.normal(size=x.shape) for x in start]
    names = [v.path.split("/")[-1] for v in own]
    batch = {k: v.numpy() for k, v in corrupted.batch.items()}
    shown = corrupted.inputs["input_ids"].numpy()

    def at(size):
        moved = [x + size * d for x, d in zip(start, direction, strict=True)]
        weights = dict(zip(names, moved[2:], strict=True))
        if name == "replace_mlm":
            used = batch["masked_lm_weights"] > 0
            return reference.replace_mlm(
                moved[0],
                weights,
                moved[1],
                batch["input_ids"],
                batch["masked_lm_positions"],
                used,
            )
        return reference.all_tokens_mlm(
            moved[0],
            weights,
            moved[1],
            weights,
            batch["input_ids"],
            shown,
            batch["input_mask"],
        )

    slope = (at(1e-5) - at(-1e-5)) / 2e-5
    expected = sum(np.sum(g * d) for g, d in zip(found, direction, strict=True))
    assert slope == pytest.approx(expected, rel=1e-3)
    counted = np.abs(found[0]).max(axis=-1) > 0
    where = corrupted.is_masked if name == "replace_mlm" else batch["input_mask"] > 0
    np.testing.assert_array_equal(counted, np.asarray(where))


def test_scores_and_predictions_of_the_copy_gate():
    """Probabilities sum to 1 and equal the mixture; the prediction is its mode."""
    corrupted = corrupted_batch()
    objective, table = make("all_tokens_mlm")
    # A gate between 0 and 1, and token probabilities that differ.
    objective.gate_bias.assign([-2.0])
    table.word_embeddings.assign(table.word_embeddings * 5.0)
    hidden = hidden_for(corrupted)
    scores = objective(hidden, corrupted.inputs).numpy()
    shown = corrupted.inputs["input_ids"].numpy()
    head = named(objective.head._trainable_variables)
    gate = named(objective._trainable_variables)
    words = table.word_embeddings.numpy().astype(np.float64)
    plain = hidden.numpy().astype(np.float64)
    expected = np.array(
        [
            [
                reference.copying_mixture(plain[r, s], head, words, gate, shown[r, s])
                for s in range(24)
            ]
            for r in range(len(LENGTHS))
        ]
    )
    np.testing.assert_allclose(np.exp(scores), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(expected.sum(-1), 1)
    answer = objective.answer(hidden, corrupted)["predicted_ids"].numpy()
    np.testing.assert_array_equal(answer, expected.argmax(-1))
    assert 0.1 < np.mean(answer == shown) < 0.9, "both branches are the mode somewhere"


def test_metrics_by_hand():
    corrupted = corrupted_batch()
    real = corrupted.inputs["input_mask"].numpy() > 0
    masked, replaced = corrupted.is_masked.numpy(), corrupted.is_replaced.numpy()
    original = corrupted.batch["input_ids"].numpy()
    hidden = hidden_for(corrupted)
    for name in NEW:
        objective, _ = make(name)
        totals = totals_of(corrupted.batch)
        objective.loss(hidden, corrupted, totals, training=False)
        got = {m.name: float(m.result()) for m in objective.step_metrics}
        assert got["replaced_fraction"] == pytest.approx(replaced[real].mean())
        where = real if name == "all_tokens_mlm" else masked
        if name != "all_tokens_mlm":
            share = got["replaced_masked_fraction"]
            assert share == pytest.approx(replaced[masked].mean())
        if name == "electra_15":
            right = (objective(hidden).numpy() > 0) == replaced
            assert got["discriminator_accuracy"] == pytest.approx(right[where].mean())
            continue
        key = objective.answers
        right = objective.answer(hidden, corrupted)[key].numpy() == original
        assert got["prediction_accuracy"] == pytest.approx(right[where].mean())
        share = right[where & replaced].mean()
        assert got["corrected_accuracy"] == pytest.approx(share)


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_gradient_from_discriminator_to_generator(name):
    """The samples carry no gradient: generator weight 0, untied tables.

    (pitfall 15 of docs/fidelity.md)
    """
    model = electra(tied=False, generator_weight=0.0, question=QUESTIONS[name])
    own = {id(v) for v in model.generator.trainable_variables}
    moved = 0
    _, found = tiny.gradients(model, tiny.batch())
    for variable, gradient in zip(model.trainable_variables, found, strict=True):
        total = 0.0 if gradient is None else float(tf.reduce_sum(tf.abs(gradient)))
        if id(variable) in own:
            assert total == 0.0, variable.path
        else:
            assert total > 0.0, variable.path
            moved += 1
    assert moved > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", NEW)
def test_trains_saves_and_loads(name, tmp_path):
    """The loss falls; loaded models and parts stay tied and train identically."""
    model = electra(question=QUESTIONS[name])
    model.compile(optimizer=et.training.AdamW(3e-3))
    data = tiny.dataset(10)
    before = model.evaluate(data, verbose=0, return_dict=True)
    model.fit(data, epochs=3, verbose=0, shuffle=False)
    after = model.evaluate(data, verbose=0, return_dict=True)
    own = model.objective.loss_metric.name
    assert after[own] < before[own]
    assert after["loss"] == pytest.approx(
        after["generator_loss"] + 50 * after[own], rel=1e-5
    )
    batch = tiny.batch()
    model.save(tmp_path / "electra.keras")
    loaded = keras.saving.load_model(tmp_path / "electra.keras")
    np.testing.assert_array_equal(loaded(batch), model(batch))
    if name != "electra_15":
        assert loaded.objective.head.embeddings is loaded.discriminator.embeddings
    for each in (model, loaded):
        each.fit(tiny.dataset(2), verbose=0, shuffle=False)
    for a, b in zip(model.trainable_variables, loaded.trainable_variables, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)
    for part, saved in model.artifacts().items():
        saved.save(tmp_path / f"{part}.keras")
        again = keras.saving.load_model(tmp_path / f"{part}.keras")
        np.testing.assert_array_equal(again(batch), saved(batch))


@pytest.mark.parametrize("name", NEW)
def test_loading_keeps_the_tie(name, tmp_path):
    """A loaded head shares the table of the loaded discriminator."""
    model = electra(question=QUESTIONS[name])
    model.save(tmp_path / "electra.keras")
    loaded = keras.saving.load_model(tmp_path / "electra.keras")
    assert len(loaded.trainable_variables) == len(model.trainable_variables)
    np.testing.assert_array_equal(loaded(tiny.batch()), model(tiny.batch()))
    if name != "electra_15":
        assert loaded.objective.head.embeddings is loaded.discriminator.embeddings


def test_unknown_positions():
    with pytest.raises(ValueError, match="allowed are all, masked"):
        ReplacedTokenDetection("some")


# The sentence-level loss.
SAMPLING = tf.constant([3, 4])


def joint(weight=2.0):
    return JointObjective(
        ReplacedTokenDetection(name="objective"),
        SentenceDetection(name="sentence"),
        weight,
        name="joint",
    )


def batch_of(changed):
    """Rows 0 and 2 are unchanged, 1 and 3 have one replaced token, 4 is padding."""
    batch = tiny.batch((24, 9, 17, 5))
    batch = {k: tf.pad(v, [[0, 1], [0, 0]]) for k, v in batch.items()}
    ids = batch["masked_lm_ids"]
    rows = tf.constant(changed)[:, tf.newaxis]
    return corrupt(batch, tf.where(rows, 5 + (ids + 7) % (tiny.VOCAB - 5), ids))


def test_sentence_loss_equals_the_definition():
    """A replaced token makes its row corrupted; padding rows have no loss."""
    corrupted = batch_of([False, True, False, True, True])
    objective = SentenceDetection()
    objective.build((None, None, 8))
    randomize(objective.variables)
    hidden = tf.constant(np.random.default_rng(0).normal(size=(5, 24, 8)), tf.float32)
    totals = electra().loss_totals(corrupted.batch)
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
    """A fifth of the rows stays whole; the rows depend on the seed."""
    logits = tf.random.stateless_normal([2000, 3, 20], SAMPLING)
    ids = tf.fill([2000, 3], 50)  # never a sample
    sampler = LeaveRows(et.CategoricalSampler())
    drawn = sampler(logits, ids, SAMPLING).numpy()
    left = (drawn == 50).all(axis=1)
    assert ((drawn == 50).any(axis=1) == left).all(), "rows are left whole"
    assert left.mean() == pytest.approx(0.2, abs=0.03)
    np.testing.assert_array_equal(drawn, sampler(logits, ids, SAMPLING))
    plain = et.CategoricalSampler()(logits, ids, SAMPLING).numpy()
    np.testing.assert_array_equal(drawn[~left], plain[~left])
    other = (sampler(logits, ids, SAMPLING + 1).numpy() == 50).all(axis=1)
    assert (other != left).mean() > 0.2


def test_share_is_checked():
    with pytest.raises(ValueError, match=r"in \[0, 1\), got 1"):
        LeaveRows(GreedySampler(), 1)


def test_joint_loss_is_the_weighted_sum_and_its_metrics_are_both():
    model = electra(question=lambda _: joint(), sampler=LeaveRows(GreedySampler(), 0.5))
    model.compile(optimizer=keras.optimizers.SGD(0.01))
    logs = model.evaluate(tiny.dataset(3), verbose=0, return_dict=True)
    expected = logs["generator_loss"] + 50 * (
        logs["discriminator_loss"] + 2 * logs["sentence_loss"]
    )
    assert logs["loss"] == pytest.approx(expected, rel=1e-5)
    assert 0 < logs["corrupted_fraction"] < 1
    batch = tiny.batch()
    terms = model.compute_losses(
        batch, model.loss_totals(batch), seed=SAMPLING, training=False
    )
    model.reset_metrics()
    model.compute_losses(batch, model.loss_totals(batch), seed=SAMPLING, training=False)
    assert float(sum(terms)) == pytest.approx(float(model.metrics[0].result()), 1e-5)


def test_generator_gets_nothing_from_the_sentence_loss():
    model = electra(
        tied=False, generator_weight=0.0, question=lambda _: joint(weight=1e3)
    )
    batch = tiny.batch()
    with tf.GradientTape() as tape:
        terms = model.compute_losses(
            batch, model.loss_totals(batch), seed=SAMPLING, training=True
        )
    found = tape.gradient(terms, model.generator.trainable_variables)
    assert all(g is None or not np.any(tf.convert_to_tensor(g)) for g in found)


def test_joint_save_and_load(tmp_path):
    model = electra(question=lambda _: joint(), sampler=LeaveRows(GreedySampler()))
    model.save(tmp_path / "electra.keras")
    loaded = keras.saving.load_model(tmp_path / "electra.keras")
    assert isinstance(loaded.sampler, LeaveRows)
    assert isinstance(loaded.sampler.sampler, GreedySampler)
    assert loaded.objective.weight == 2.0
    batch = tiny.batch()
    np.testing.assert_array_equal(loaded(batch), model(batch))
    hidden = tf.random.stateless_normal([2, 3, 32], SAMPLING)
    np.testing.assert_array_equal(
        loaded.objective.second(hidden), model.objective.second(hidden)
    )
    assert isinstance(model.detector(), et.ReplacedTokenDetector)

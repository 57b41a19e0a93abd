import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf import pretraining
from electra_tf.layers import TextEmbedding
from electra_tf.pretraining import GreedySampler, LeaveRows, SentenceDetection
from electra_tf.pretraining.samplers import corrupt
from tests import tiny
from tests.layers.helpers import check_slope, randomize, randomized
from tests.reference import encoder as reference_encoder
from tests.reference import objectives as reference

# One layer halves the time of tracing.
electra = functools.partial(tiny.electra, num_layers=1)

WIDTH = 8
# Of the nine slots at a mask rate of 0.4, those that keep their token.
HALF = np.arange(9) % 2 == 0
SAMPLING = tf.constant([3, 4])
QUESTIONS = {
    "electra_15": lambda _: et.ReplacedTokenDetection("masked"),
    "replace_mlm": pretraining.TokenPrediction,
    "all_tokens_mlm": pretraining.CopyingTokenPrediction,
}


def joint(_):
    detection = et.ReplacedTokenDetection()
    return pretraining.JointObjective(detection, SentenceDetection(), 2.0)


def corrupted_batch(keep, **masking):
    """Replaces masked tokens that are not kept; the last row is all padding."""
    batch = tiny.batch(**masking)
    batch = {k: tf.pad(v, [[0, 1], [0, 0]]) for k, v in batch.items()}
    ids = batch["masked_lm_ids"]
    other = 5 + (ids + 7) % (tiny.VOCAB - 5)
    return corrupt(batch, tf.where(keep, ids, other))


def totals_of(batch):
    """Returns the denominators by hand."""
    mask = batch["input_mask"].numpy()
    totals = {
        "masked": batch["masked_lm_weights"].numpy().sum(),
        "tokens": mask.sum(),
        "rows": mask.any(axis=1).sum(),
    }
    return {name: tf.constant(value, tf.float32) for name, value in totals.items()}


def hidden_for(corrupted):
    shape = (*corrupted.is_masked.shape, WIDTH)
    return tf.constant(np.random.default_rng(2).normal(size=shape), tf.float32)


def make(name):
    """Returns an objective with random weights, and its table."""
    keras.utils.set_random_seed(0)
    table = TextEmbedding(tiny.VOCAB, 6, max_positions=24)
    table.build()
    objective = QUESTIONS[name](table)
    objective.build((None, None, WIDTH))
    randomize([*table.variables, *objective.variables])
    return objective, table


def reference_loss(name, hidden, words, weights, corrupted):
    """The loss in NumPy; ``weights`` of head and gate by name."""
    batch = tiny.numpy(corrupted.batch)
    original, shown = batch["input_ids"], corrupted.inputs["input_ids"].numpy()
    slots = (batch["masked_lm_positions"], batch["masked_lm_weights"] > 0)
    if name == "electra_15":
        wide = hidden @ weights["dense_kernel"] + weights["dense_bias"]
        logits = reference_encoder.gelu(wide) @ weights["prediction_kernel"]
        logits = logits[..., 0] + weights["prediction_bias"]
        return reference.detection_at_masked(logits, original, shown, *slots)
    if name == "replace_mlm":
        return reference.replace_mlm(hidden, weights, words, original, *slots)
    return reference.all_tokens_mlm(
        hidden, weights, words, weights, original, shown, batch["input_mask"]
    )


@pytest.mark.parametrize("name", QUESTIONS)
def test_loss_gradient_and_metrics_equal_the_definition(name):
    """In NumPy, from random hidden states; the gradient by finite differences."""
    objective, table = make(name)
    own = objective.trainable_variables
    own = [v for v in own if all(v is not w for w in table.variables)]
    names = [v.path.split("/")[-1] for v in own]
    for select in ("with_replacement", "tokens"):
        corrupted = corrupted_batch(HALF, mask_rate=0.4, select=select)
        assert corrupted.is_replaced.numpy().sum() > 4
        hidden, totals = hidden_for(corrupted), totals_of(corrupted.batch)
        start = [np.asarray(x, np.float64) for x in (hidden, table.word_embeddings)]
        start += [np.asarray(x, np.float64) for x in own]

        def loss_at(moves, start=start, corrupted=corrupted):
            moved = [x + m for x, m in zip(start, moves, strict=True)]
            weights = dict(zip(names, moved[2:], strict=True))
            return reference_loss(name, *moved[:2], weights, corrupted)

        expected = loss_at(np.zeros(len(start)))
        for metric in objective.step_metrics:
            metric.reset_state()
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = objective.loss(hidden, corrupted, totals, training=True)
        assert float(loss) == pytest.approx(expected, rel=1e-5)
    sources = [hidden, table.word_embeddings.value, *(v.value for v in own)]
    found = tape.gradient(loss, sources, unconnected_gradients="zero")
    check_slope(loss_at, found, step=1e-5, rel=1e-3)
    real = corrupted.inputs["input_mask"].numpy() > 0
    masked, replaced = corrupted.is_masked.numpy(), corrupted.is_replaced.numpy()
    where = real if name == "all_tokens_mlm" else masked
    np.testing.assert_array_equal(np.abs(found[0]).max(axis=-1) > 0, where)

    compiled = tf.function(objective.loss, jit_compile=True)
    loss = compiled(hidden, corrupted, totals, training=True)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    metrics = {m.name: float(m.result()) for m in objective.step_metrics}
    shares = {objective.loss_metric.name: expected}
    shares["replaced_fraction"] = replaced[real].mean()
    if name == "electra_15":
        right = (objective(hidden).numpy() > 0) == replaced
        shares["discriminator_accuracy"] = right[where].mean()
    else:
        predicted = objective(hidden, corrupted.inputs).numpy().argmax(-1)
        right = predicted == corrupted.batch["input_ids"].numpy()
        shares["prediction_accuracy"] = right[where].mean()
        shares["corrected_accuracy"] = right[where & replaced].mean()
    if name != "all_tokens_mlm":
        shares["replaced_masked_fraction"] = replaced[masked].mean()
    for key, share in shares.items():
        assert metrics[key] == pytest.approx(share, rel=1e-5), key


def test_all_tokens_mlm_is_a_mixture_of_copying_and_predicting():
    """Probabilities sum to 1 and equal the mixture; accuracy is of its mode."""
    corrupted = corrupted_batch(HALF, mask_rate=0.4)
    objective, table = make("all_tokens_mlm")
    # A gate between 0 and 1, and token probabilities that differ.
    objective.gate_bias.assign([-2.0])
    table.word_embeddings.assign(table.word_embeddings * 5.0)
    hidden = hidden_for(corrupted)
    scores = objective(hidden, corrupted.inputs).numpy()
    shown = corrupted.inputs["input_ids"].numpy()
    head = reference_encoder.named_weights(objective.head._trainable_variables)
    gate = reference_encoder.named_weights(objective._trainable_variables)
    words = table.word_embeddings.numpy().astype(np.float64)
    states = hidden.numpy().astype(np.float64).reshape(-1, WIDTH)
    pairs = zip(states, shown.ravel(), strict=True)
    mixtures = [reference.copying_mixture(x, head, words, gate, t) for x, t in pairs]
    expected = np.reshape(mixtures, scores.shape)
    np.testing.assert_allclose(np.exp(scores), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(expected.sum(-1), 1)
    mode = expected.argmax(-1)
    assert 0.1 < np.mean(mode == shown) < 0.9, "both branches are the mode somewhere"
    objective.loss(hidden, corrupted, totals_of(corrupted.batch), training=False)
    right = mode == corrupted.batch["input_ids"].numpy()
    (accuracy,) = (m for m in objective.step_metrics if m.name == "prediction_accuracy")
    real = corrupted.inputs["input_mask"].numpy() > 0
    assert float(accuracy.result()) == pytest.approx(right[real].mean())


@pytest.mark.parametrize(
    ("name", "sampling_dropout"), [("all_tokens_mlm", True), ("joint", False)]
)
def test_no_gradient_from_discriminator_to_generator(name, sampling_dropout):
    """The samples carry no gradient (pitfall 15 of docs/fidelity.md)."""
    options = {"question": QUESTIONS.get(name, joint), "dropout": 0.1}
    options |= {"sampling_dropout": sampling_dropout, "generator_weight": 0.0}
    model = electra(tied=False, **options)
    own = {id(v) for v in model.generator.trainable_variables}
    _, found = tiny.gradients(model, tiny.batch(), training=True)
    for variable, gradient in zip(model.trainable_variables, found, strict=True):
        assert gradient.any() == (id(variable) not in own), variable.path


def test_inputs_are_also_ids_alone_or_have_the_names_of_other_libraries():
    model = electra(question=QUESTIONS["all_tokens_mlm"])
    ids = tiny.batch()["input_ids"]
    for part in (model, model.detector()):
        expected = part({"input_ids": ids, "input_mask": tf.ones_like(ids)})
        np.testing.assert_array_equal(part(ids), expected)
        np.testing.assert_array_equal(part({"token_ids": ids}), expected)


@pytest.mark.parametrize(
    "make", [tiny.electra, functools.partial(tiny.two_tower, et.Electra)]
)
def test_export_serves_every_shape(make, tmp_path):
    model = make(num_layers=1)
    for part in (model, model.generator):
        part.export(tmp_path / part.name, verbose=False)
        loaded = tf.saved_model.load(tmp_path / part.name)
        for batch in (tiny.batch(), tiny.batch((24, 9))):
            inputs = {name: batch[name] for name in part.exported_inputs}
            np.testing.assert_allclose(loaded.serve(inputs), part(batch), atol=1e-5)


def test_heads_have_the_policy_of_their_model():
    table, *_ = tiny.parts()
    policy = "mixed_bfloat16"
    heads = [et.MaskedLM(tiny.encoder(table), dtype=policy).head]
    for objective in (
        et.ReplacedTokenDetection(dtype=policy),
        pretraining.TokenPrediction(table, dtype=policy),
    ):
        objective.build((None, None, 32))
        heads.append(objective.head)
    assert {head.compute_dtype for head in heads} == {"bfloat16"}


def test_bad_arguments():
    with pytest.raises(ValueError, match="allowed are all, masked"):
        et.ReplacedTokenDetection("some")
    with pytest.raises(ValueError, match="GreedySampler"):
        et.CategoricalSampler(0.0)
    with pytest.raises(ValueError, match=r"in \[0, 1\), got 1"):
        LeaveRows(GreedySampler(), 1)


def test_sentence_loss_equals_the_definition():
    """A replaced token makes its row corrupted; padding rows have no loss."""
    corrupted = corrupted_batch([[True], [False], [True], [False], [False]])
    objective = randomized(SentenceDetection(), (None, None, WIDTH))
    hidden, totals = hidden_for(corrupted), totals_of(corrupted.batch)
    assert float(totals["rows"]) == 4
    expected = reference.sentence(
        hidden.numpy().astype(np.float64),
        reference_encoder.named_weights(objective.variables),
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
    logits = tf.random.stateless_normal([2000, 3, 20], SAMPLING)
    ids = tf.fill([2000, 3], 50)  # never a sample
    sampler = LeaveRows(et.CategoricalSampler())
    drawn = sampler(logits, ids, SAMPLING).numpy()
    left = (drawn == 50).all(axis=1)
    assert ((drawn == 50).any(axis=1) == left).all(), "rows are left whole"
    assert left.mean() == pytest.approx(0.2, abs=0.03)
    plain = et.CategoricalSampler()(logits, ids, SAMPLING).numpy()
    np.testing.assert_array_equal(drawn[~left], plain[~left])


def test_joint_loss_is_the_weighted_sum_and_its_metrics_are_both(tmp_path):
    model = electra(question=joint, sampler=LeaveRows(GreedySampler(), 0.5))
    logs = tiny.scores(model, tiny.dataset(3))
    joined = logs["discriminator_loss"] + 2 * logs["sentence_loss"]
    expected = logs["generator_loss"] + 50 * joined
    assert logs["loss"] == pytest.approx(expected, rel=1e-5)
    assert 0 < logs["corrupted_fraction"] < 1
    # A padding row counts neither in the metric nor in the loss.
    batch = tiny.batch((24, 9, 17, 0))
    logs = tiny.scores(model, [batch])
    totals, seed = model.loss_totals(batch), model.test_seed(batch)
    terms = model.compute_losses(batch, totals, seed=seed, training=False)
    assert float(sum(terms)) == pytest.approx(logs["loss"], rel=1e-5)
    assert isinstance(model.detector(), et.ReplacedTokenDetector)
    loaded = tiny.reloaded(model, tmp_path)
    assert loaded.sampler.share == 0.5
    assert loaded.objective.weight == 2.0
    assert tiny.scores(loaded, [batch]) == logs

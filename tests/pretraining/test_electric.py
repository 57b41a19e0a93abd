"""Electric: labels, logits, loss and gradients against NumPy; scoring of texts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.data import Vocabulary, WordPiece
from electra_tf.folders import models
from electra_tf.interop import run_folder
from electra_tf.interop.imported import Source
from electra_tf.pretraining import (
    CategoricalSampler,
    Electric,
    GreedySampler,
    pseudo_log_likelihood,
)
from electra_tf.pretraining.electric import noise_logits
from tests import tiny
from tests.layers.helpers import randomize
from tests.pretraining.test_two_tower import everywhere, numpy
from tests.reference import two_tower as reference

LENGTHS = (24, 9, 17, 5)
SEED = tf.constant([1, 2])


def make(**kwargs):
    model = tiny.two_tower(Electric, **kwargs)
    randomize(model.trainable_variables, stddev=0.2)
    return model


class Originals:
    """A sampler that always draws the original."""

    def __call__(self, mlm_logits, masked_lm_ids, seed, step=None):
        return masked_lm_ids


def logits_of_row(energies, log_noise, drawn):
    """Logits of one unpadded row with the given noise positions."""
    energies, log_noise = (tf.constant([x], tf.float32) for x in (energies, log_noise))
    real = tf.ones([1, len(drawn)], tf.int32)
    return noise_logits(energies, log_noise, tf.constant([drawn]), real)


@pytest.mark.parametrize(
    "options",
    [
        {"sampling_dropout": False},
        {"sampler": CategoricalSampler(2.0)},
        {"sampler": CategoricalSampler(disallow_correct=True)},
    ],
)
def test_draws_that_are_not_of_log_q_are_refused(options):
    with pytest.raises(ValueError, match=r"sampling_dropout=False|must draw from it"):
        tiny.two_tower(Electric, **options)


def test_logit_is_bayes_rule():
    rng = np.random.default_rng(0)
    drawn = [False, True, False, False, True, False, False]
    energies, log_noise = rng.normal(size=7), -rng.gamma(2.0, size=7)
    logits = logits_of_row(energies, log_noise, drawn)
    for t in range(7):
        expected = reference.noise_probability(
            energies[t], np.exp(log_noise[t]), num_noise=2, num_data=5
        )
        found = 1 / (1 + np.exp(-float(logits[0, t])))
        assert found == pytest.approx(expected, rel=1e-5)


def test_the_loss_is_smallest_where_energies_are_those_of_the_data():
    """The expected loss has its minimum at E = -log p, not at log p."""
    p = np.array([0.5, 0.3, 0.15, 0.05])
    q = np.array([0.2, 0.2, 0.3, 0.3])
    drawn = [True] * 3 + [False] * 17

    def expected_loss(energies):
        total = 0.0
        for token in range(4):
            log_q = np.full(20, np.log(q[token]))
            logits = logits_of_row(np.full(20, energies[token]), log_q, drawn)
            noise = 1 / (1 + np.exp(-logits.numpy()[0, 0].astype(float)))
            total -= 17 * p[token] * np.log(1 - noise) + 3 * q[token] * np.log(noise)
        return total

    best = expected_loss(-np.log(p))
    for token in range(4):
        for size in (-0.3, 0.3):
            moved = -np.log(p)
            moved[token] += size
            assert expected_loss(moved) > best + 1e-3
    assert expected_loss(np.log(p)) > best + 0.5


def test_rows_without_a_draw_or_without_tokens_are_finite():
    zeros, no_draw = tf.zeros([1, 4]), tf.zeros([1, 4], tf.bool)
    for real in (tf.ones([1, 4], tf.int32), tf.zeros([1, 4], tf.int32)):
        assert np.isfinite(noise_logits(zeros, zeros, no_draw, real)).all()


@pytest.mark.parametrize("select", ["tokens", "with_replacement"])
def test_losses_against_numpy(select):
    """Both losses, from the model's logits and energies."""
    model = make(sampler=GreedySampler())
    batch = tiny.batch(LENGTHS, mask_rate=0.4, select=select)
    terms = model.compute_losses(
        batch, model.loss_totals(batch), seed=SEED, training=False
    )
    plain = numpy(batch)
    scores = model.generator(everywhere(batch)).numpy().astype(np.float64)
    noised = plain["input_ids"].copy()
    for row, slot in np.argwhere(plain["masked_lm_weights"] > 0):
        position = plain["masked_lm_positions"][row, slot]
        noised[row, position] = scores[row, position].argmax()
    energies = model({**batch, "input_ids": tf.constant(noised)}).numpy()
    expected = reference.electric_loss(
        energies.astype(np.float64), scores, noised, plain
    )
    cloze = reference.cloze_loss(scores, plain, model.generator.special_ids)
    assert float(terms[0]) == pytest.approx(cloze, rel=1e-5)
    assert float(terms[1]) == pytest.approx(50 * expected, rel=1e-5)


def test_a_draw_that_equals_the_original_is_noise():
    """In Electric every noise position is a negative (pitfall 17 of docs/fidelity.md).

    In ELECTRA a correct sample is labeled original.
    """
    batch = tiny.batch(LENGTHS)
    drawn = int(tf.reduce_sum(batch["masked_lm_weights"]))
    for model_class, labels in ((Electric, drawn), (et.Electra, 0)):
        model = tiny.two_tower(model_class, sampler=Originals())
        found = model.examine(batch, seed=SEED)
        np.testing.assert_array_equal(found["corrupted_ids"], batch["input_ids"])
        assert int(tf.reduce_sum(tf.cast(found["is_replaced"], tf.int32))) == labels
        model.compute_losses(batch, model.loss_totals(batch), seed=SEED, training=False)
        share = {m.name: float(m.result()) for m in model.metrics}
        assert share["replaced_fraction"] == pytest.approx(labels / sum(LENGTHS))


def test_no_gradient_passes_draws_or_noise_probabilities():
    """With untied tables the NCE loss has no gradient for the generator.

    (pitfall 15 of docs/fidelity.md)
    """
    model = make(tied=False, generator_weight=0.0)
    _, found = tiny.gradients(model, tiny.batch())
    own = {id(v) for v in model.generator.trainable_variables}
    for variable, gradient in zip(model.trainable_variables, found, strict=True):
        total = 0.0 if gradient is None else float(tf.reduce_sum(tf.abs(gradient)))
        assert (total == 0.0) == (id(variable) in own), variable.path


def test_slope_of_the_numpy_loss_along_the_discriminator():
    model = make(tied=False, generator_weight=0.0, sampler=GreedySampler())
    batch = tiny.batch(LENGTHS)
    _, found = tiny.gradients(model, batch)
    own = {id(v) for v in model.generator.trainable_variables}
    rng = np.random.default_rng(0)
    noised = model.examine(batch, seed=SEED)["corrupted_ids"]
    scores = model.generator(everywhere(batch)).numpy().astype(np.float64)
    moving = [
        (v, v.numpy(), rng.normal(size=v.shape), tf.convert_to_tensor(g).numpy())
        for v, g in zip(model.trainable_variables, found, strict=True)
        if id(v) not in own
    ]

    def loss(size):
        for variable, start, direction, _ in moving:
            variable.assign(start + size * direction)
        energies = model({**batch, "input_ids": noised}).numpy().astype(np.float64)
        return reference.electric_loss(energies, scores, noised.numpy(), numpy(batch))

    slope = 50 * (loss(1e-3) - loss(-1e-3)) / 2e-3
    expected = sum(np.sum(g * d) for _, _, d, g in moving)
    assert slope == pytest.approx(expected, rel=1e-2)


def test_examine_gives_the_probability_of_noise():
    model = make(sampler=GreedySampler())
    batch = tiny.batch(LENGTHS, mask_rate=0.4)
    found = numpy(model.examine(batch, seed=SEED))
    plain = numpy(batch)
    scores = model.generator(everywhere(batch)).numpy().astype(np.float64)
    ids = found["corrupted_ids"]
    energies = model({**batch, "input_ids": tf.constant(ids)}).numpy()
    for row, t in np.argwhere(plain["input_mask"]):
        drawn = int(plain["masked_lm_weights"][row].sum())
        expected = reference.noise_probability(
            energies[row, t],
            np.exp(reference.log_softmax(scores[row, t])[ids[row, t]]),
            drawn,
            LENGTHS[row] - drawn,
        )
        assert found["replaced_probability"][row, t] == pytest.approx(
            expected, rel=1e-3, abs=1e-6
        )


@pytest.mark.slow
def test_fit_has_the_metrics_of_electra():
    model = tiny.two_tower(Electric, dropout=0.1)
    model.compile(optimizer=et.training.AdamW(3e-3))
    history = model.fit(tiny.dataset(3), verbose=0, shuffle=False).history
    other = tiny.electra()
    assert set(history) == {metric.name for metric in other.metrics}
    logs = model.evaluate(tiny.dataset(3), verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(
        logs["generator_loss"] + 50 * logs["discriminator_loss"], rel=1e-5
    )


@pytest.mark.slow
def test_energies_become_negative_log_probabilities():
    """Independent tokens of known frequencies: E = -log p, sign and scale."""
    vocab, lengths = 25, (24,) * 16
    model = tiny.two_tower(Electric, vocab=vocab)
    model.compile(et.training.AdamW(5e-3, weight_decay=0.0, bias_correction=True))
    batches = [tiny.batch(lengths, seed=step, vocab=vocab) for step in range(100)]
    stacked = {name: tf.stack([b[name] for b in batches]) for name in batches[0]}
    data = tf.data.Dataset.from_tensor_slices(stacked)
    model.fit(data, verbose=0, shuffle=False)
    held_out = tiny.batch((24,) * 64, seed=999, vocab=vocab)
    ids, energies = held_out["input_ids"].numpy(), model(held_out).numpy()
    # `token_rows` draws 5 + floor(20 u^3).
    p = np.diff(np.linspace(0, 1, 21) ** (1 / 3))
    surprise = -np.log(p[ids[ids >= 5] - 5])
    slope, _ = np.polyfit(surprise, energies[ids >= 5], 1)
    assert slope == pytest.approx(1, abs=0.35)
    assert energies[ids >= 5].mean() == pytest.approx(surprise.mean(), abs=0.8)


@pytest.mark.slow
def test_jit_compile_equals_plain():
    results = []
    for jit_compile in (False, True):
        model = tiny.two_tower(
            Electric, dropout=0.1, num_layers=1, sampler=GreedySampler()
        )
        model.compile(et.training.AdamW(1e-3), jit_compile=jit_compile)
        model.fit(tiny.dataset(3), verbose=0, shuffle=False)
        results.append([v.numpy() for v in model.trainable_variables])
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, atol=2e-5)


def test_saved_parts_are_whole(tmp_path):
    model = make()
    model.save(tmp_path / "electric.keras")
    loaded = keras.saving.load_model(tmp_path / "electric.keras")
    assert type(loaded.objective) is type(model.objective)
    assert loaded.generator.left.embeddings is loaded.discriminator.embeddings
    batch = tiny.batch()
    np.testing.assert_array_equal(loaded(batch), model(batch))
    expected = {
        "encoder": model.discriminator(batch),
        "generator": model.generator(batch),
        "discriminator": model(batch),
    }
    assert expected.keys() == model.artifacts().keys()
    for name, part in model.artifacts().items():
        part.save(tmp_path / f"{name}.keras")
        part = keras.saving.load_model(tmp_path / f"{name}.keras")
        np.testing.assert_array_equal(part(batch), expected[name])


def test_energies_are_not_taken_for_verdicts(tmp_path):
    path = tmp_path / "discriminator.keras"
    make().detector().save(path)
    with pytest.raises(ValueError, match=r"holds a EnergyModel.*Give another"):
        models.load(path, et.ReplacedTokenDetector, "Give another.")
    with pytest.raises(
        ValueError, match="NoiseContrastiveEstimation, which other formats lack"
    ):
        run_folder.read(Source(str(tmp_path)))


def test_pseudo_log_likelihood_sums_energies_between_cls_and_sep():
    words = ["the", "cat", "dog", "sees", "a", "."]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = WordPiece(Vocabulary([*specials, *words]))
    model = tiny.two_tower(Electric, vocab=11)
    randomize(model.trainable_variables)
    texts = ["the cat sees a dog .", "dog", "a . " * 20, ""]
    found = pseudo_log_likelihood(
        model.detector(), tokenizer, texts, max_seq_length=12, batch_size=2
    )
    assert found.shape == (4,)
    assert found[3] == 0
    for text, score in zip(texts, found, strict=True):
        ids = [2, *(5 + words.index(w) for w in text.split()[:10]), 3]
        energies = model({"input_ids": tf.constant([ids])}).numpy()[0]
        assert score == pytest.approx(-energies[1:-1].sum(), rel=1e-4, abs=1e-5)

"""Generators without a network; samplers with schedules and without dropout."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.pretraining import (
    CategoricalSampler,
    ExponentialDecay,
    GreedySampler,
    LinearChange,
    UnigramGenerator,
)
from electra_tf.pretraining.baselines import TrivialBaselines
from tests import tiny


def with_generator(generator, **kwargs):
    keras.utils.set_random_seed(3)
    table = et.layers.TextEmbedding(tiny.VOCAB, 12, max_positions=32, dropout=0.1)
    return et.Electra(generator, tiny.encoder(table, name="discriminator"), **kwargs)


def losses_of(model, batch, training=False):
    with tf.GradientTape() as tape:
        terms = model.compute_losses(
            batch, model.loss_totals(batch), seed=tf.constant([1, 2]), training=training
        )
    return terms, tape


def test_uniform_loss_is_ln_v_and_nothing_of_it_is_trained():
    generator = UnigramGenerator(tiny.VOCAB)
    model = with_generator(generator)
    terms, _ = losses_of(model, tiny.batch())
    assert float(terms[0]) == pytest.approx(np.log(tiny.VOCAB), rel=1e-6)
    assert not generator.trainable_variables
    own = [*model.discriminator.trainable_variables, *model.objective.trainable_weights]
    assert len(model.trainable_variables) == len(own)


def test_uniform_draws_every_token_alike_specials_included():
    positions = tf.zeros([200, 50], tf.int32)
    logits = UnigramGenerator(tiny.VOCAB)({"masked_lm_positions": positions})
    drawn = CategoricalSampler()(logits, positions, tf.constant([1, 2])).numpy()
    counts = np.bincount(drawn.ravel(), minlength=tiny.VOCAB)
    expected = drawn.size / tiny.VOCAB
    # Chi-square with V - 1 degrees of freedom, five standard deviations above its mean.
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < tiny.VOCAB - 1 + 5 * np.sqrt(2 * (tiny.VOCAB - 1))
    assert counts.min() > 0


def test_unigram_scores_as_the_trivial_baseline_and_draws_by_frequency():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 1000, tiny.VOCAB)
    generator = UnigramGenerator(tiny.VOCAB)
    generator.set_counts(counts)
    batch = tiny.batch([24] * 20)
    terms, _ = losses_of(with_generator(generator), batch)
    trivial = TrivialBaselines(counts)
    trivial.update({name: value.numpy() for name, value in batch.items()})
    assert float(terms[0]) == pytest.approx(trivial.generator()["loss"], rel=1e-5)

    positions = tf.zeros([400, 50], tf.int32)
    logits = generator({"masked_lm_positions": positions})
    drawn = CategoricalSampler()(logits, positions, tf.constant([3, 4])).numpy()
    shares = np.bincount(drawn.ravel(), minlength=tiny.VOCAB) / drawn.size
    expected = (counts + 1) / (counts + 1).sum()
    np.testing.assert_allclose(
        shares, expected, atol=5 * np.sqrt(expected.max() / drawn.size)
    )


def test_wrong_counts_are_refused():
    generator = UnigramGenerator(5)
    for counts in (np.ones(4), np.zeros(5)):
        with pytest.raises(ValueError, match="counts of the 5 tokens"):
            generator.set_counts(counts)


@pytest.mark.slow
def test_unigram_trains_saves_and_loads(tmp_path):
    generator = UnigramGenerator(tiny.VOCAB)
    generator.set_counts(np.arange(tiny.VOCAB))
    model = with_generator(generator, gradient_accumulation_steps=2)
    model.compile(optimizer=et.training.AdamW(1e-3), jit_compile=True)
    model.fit(tiny.dataset(2), verbose=0, shuffle=False)
    model.save(tmp_path / "electra.keras")
    loaded = keras.saving.load_model(tmp_path / "electra.keras")
    np.testing.assert_array_equal(
        loaded.generator.log_probabilities, generator.log_probabilities
    )


def test_temperature_follows_the_step_and_is_logged():
    sampler = CategoricalSampler(LinearChange(4.0, 0.5, 2))
    model = tiny.electra(sampler=sampler)
    assert "temperature" not in {metric.name for metric in tiny.electra().metrics}
    model.compile(optimizer=keras.optimizers.SGD(0.01))
    shown = []
    logger = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: shown.append(float(logs["temperature"]))
    )
    model.fit(tiny.dataset(3), verbose=0, shuffle=False, callbacks=[logger])
    np.testing.assert_allclose(shown, [2.25, 0.5, 0.5])  # for the next update

    batch = tiny.batch()
    logits = model.generator(batch)
    for step, temperature in ((0, 4.0), (1, 2.25), (9, 0.5)):
        now = sampler(logits, batch["masked_lm_ids"], tf.constant([5, 6]), step)
        then = CategoricalSampler(temperature)(
            logits, batch["masked_lm_ids"], tf.constant([5, 6])
        )
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize(
    "schedule",
    [
        ExponentialDecay(2.0, 1.0, 5.0),
        keras.optimizers.schedules.PolynomialDecay(2.0, 10, 1.0),
    ],
)
def test_scheduled_sampler_round_trips(schedule):
    sampler = CategoricalSampler(schedule, True)
    serialized = keras.saving.serialize_keras_object(sampler)
    restored = keras.saving.deserialize_keras_object(serialized)
    step = tf.constant(3)
    assert restored.disallow_correct
    assert float(restored.temperature(step)) == float(sampler.temperature(step))


def test_sampling_without_dropout_leaves_the_trained_pass_alone():
    """The MLM loss is unchanged; samples come from the generator without dropout."""
    batch = tiny.batch()
    found = {}
    for dropout in (True, False):
        model = tiny.electra(
            dropout=0.5, sampler=GreedySampler(), sampling_dropout=dropout
        )
        out = model.corrupt(batch, seed=tf.constant([1, 2]), training=True)
        found[dropout] = out.predicted.logits.numpy(), out.sampled_ids.numpy()
    np.testing.assert_array_equal(found[True][0], found[False][0])
    clean = model.generator(batch, training=False).numpy().argmax(-1)
    np.testing.assert_array_equal(found[False][1], clean)
    assert (found[True][1] != clean).any()


def test_no_gradient_through_the_samples_of_a_second_pass():
    model = tiny.electra(
        tied=False, dropout=0.3, generator_weight=0.0, sampling_dropout=False
    )
    terms, tape = losses_of(model, tiny.batch(), training=True)
    own = model.generator.trainable_variables
    with tape:
        loss = tf.add_n(terms)
    for gradient in tape.gradient(loss, own):
        assert gradient is None or not np.any(tf.convert_to_tensor(gradient))

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.layers import fused
from electra_tf.pretraining import GreedySampler, LinearChange, UnigramGenerator
from electra_tf.pretraining.metrics import trivial_scores
from tests import tiny


def test_generators_without_a_network():
    """The uniform loss is ln V, the unigram loss that of the trivial baseline."""
    generator = UnigramGenerator(tiny.VOCAB)
    keras.utils.set_random_seed(3)
    table = et.layers.TextEmbedding(tiny.VOCAB, 12, max_positions=32)
    model = et.Electra(generator, tiny.encoder(table, name="discriminator"))
    own = [*model.discriminator.trainable_variables, *model.objective.trainable_weights]
    assert len(model.trainable_variables) == len(own)
    batch = tiny.batch([24] * 20)
    logs = tiny.scores(model, [batch])
    assert logs["generator_loss"] == pytest.approx(np.log(tiny.VOCAB), rel=1e-6)
    counts = np.random.default_rng(0).integers(0, 1000, tiny.VOCAB)
    generator.set_counts(counts)
    logs = tiny.scores(model, [batch])
    expected = trivial_scores(counts, [tiny.numpy(batch)], logs)["generator_loss"]
    assert logs["generator_loss"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="shape"):
        generator.set_counts(np.ones(4))
    generator.set_counts(np.zeros(tiny.VOCAB))
    np.testing.assert_allclose(generator.log_probabilities, -np.log(tiny.VOCAB))


def test_temperature_follows_the_step_and_is_logged():
    sampler = et.CategoricalSampler(LinearChange(4.0, 0.5, 2))
    model = tiny.electra(num_layers=1, sampler=sampler)
    batch, seed = tiny.batch(), tf.constant([5, 6])
    logits, ids = model.generator(batch), batch["masked_lm_ids"]
    for step, temperature in ((0, 4.0), (1, 2.25), (9, 0.5)):
        model.step.assign(step)
        assert tiny.scores(model, [batch])["temperature"] == temperature
        now = sampler(logits, ids, seed, step)
        then = et.CategoricalSampler(temperature)(logits, ids, seed)
        np.testing.assert_array_equal(now, then)
    plain = tiny.electra(num_layers=1)
    assert "temperature" not in {metric.name for metric in plain.metrics}


def test_a_schedule_of_keras_is_saved_with_the_sampler():
    schedule = keras.optimizers.schedules.PolynomialDecay(2.0, 10, 1.0)
    sampler = et.CategoricalSampler(schedule, True)
    serialized = keras.saving.serialize_keras_object(sampler)
    restored = keras.saving.deserialize_keras_object(serialized)
    assert restored.disallow_correct
    assert float(restored.temperature(tf.constant(3))) == float(schedule(3))


def test_sampling_without_dropout_leaves_the_trained_pass_alone():
    """The MLM loss is unchanged; samples have no dropout."""
    batch = tiny.batch()
    found = {}
    for dropout in (True, False):
        options = {"sampler": GreedySampler(), "sampling_dropout": dropout}
        model = tiny.electra(dropout=0.5, num_layers=1, **options)
        out = model.corrupt(batch, seed=tf.constant([1, 2]), training=True)
        found[dropout] = out.predicted.logits.numpy(), out.sampled_ids.numpy()
    np.testing.assert_array_equal(found[True][0], found[False][0])
    clean = model.generator(batch, training=False).numpy().argmax(-1)
    np.testing.assert_array_equal(found[False][1], clean)
    assert (found[True][1] != clean).any()


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_float32_runs_keep_the_bits_of_their_loss(policy, monkeypatch):
    """The fused cross-entropy rounds differently."""
    calls, kernel = [], fused.token_cross_entropy

    def counted(*arguments):
        return calls.append(arguments) or kernel(*arguments)

    monkeypatch.setattr(fused, "token_cross_entropy", counted)
    keras.config.set_dtype_policy(policy)
    tiny.scores(tiny.electra(num_layers=1), [tiny.batch()])
    assert bool(calls) == (policy != "float32")

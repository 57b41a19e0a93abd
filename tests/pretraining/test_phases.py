"""Two stages: who is trained when, what is handed over, where a run goes on."""

import keras
import numpy as np
import pytest

import electra_tf as et
from electra_tf.pretraining.phases import Phase, copy_weights, remaining
from tests import tiny


def test_remaining_phases_and_their_hand_overs():
    called = []
    phases = [
        Phase("one", None, 3, hand_over=lambda: called.append("one")),
        Phase("two", None, 4, hand_over=lambda: called.append("two")),
    ]

    def spans(done):
        called.clear()
        found = [(p.name, begin, end) for p, begin, end in remaining(phases, done)]
        return found, list(called)

    assert spans(0) == ([("one", 0, 3), ("two", 3, 7)], ["one", "two"])
    assert spans(2) == ([("one", 2, 3), ("two", 3, 7)], ["two"])
    # At the border the weights are those before the hand-over.
    assert spans(3) == ([("two", 3, 7)], ["two"])
    assert spans(4) == ([("two", 4, 7)], [])
    assert spans(7) == ([], [])


def test_the_hand_over_waits_for_the_phase_before():
    order = []
    phases = [
        Phase("one", None, 1),
        Phase("two", None, 1, hand_over=lambda: order.append("hand over")),
    ]
    for phase, _, _ in remaining(phases, 0):
        order.append(phase.name)
    assert order == ["one", "hand over", "two"]


def equal_pair():
    keras.utils.set_random_seed(3)

    def one(name, table):
        embeddings = et.layers.TextEmbedding(
            tiny.VOCAB, 12, max_positions=32, name=table
        )
        return tiny.encoder(embeddings, name=name)

    generator = et.MaskedLM(one("generator", "generator_embeddings"), name="masked_lm")
    return et.Electra(generator, one("discriminator", "embeddings"))


def test_copied_encoders_compute_the_same():
    model = equal_pair()
    batch = tiny.batch()
    assert np.any(model.generator.encoder(batch) != model.discriminator(batch))
    copy_weights(model.generator.encoder, model.discriminator)
    np.testing.assert_array_equal(
        model.generator.encoder(batch), model.discriminator(batch)
    )
    theirs = model.generator.encoder.trainable_variables
    for own in model.discriminator.trainable_variables:
        assert all(own is not variable for variable in theirs)


def test_copying_between_sizes_is_refused_by_name():
    model = tiny.electra(tied=False)
    with pytest.raises(ValueError, match=r"same layers and sizes.*against"):
        copy_weights(model.generator.encoder, model.discriminator)


def test_frozen_generator_stays_and_only_the_discriminator_learns():
    model = equal_pair()
    phase = Phase("second", model, 2, frozen=model.generator)
    phase.set_trainable()
    model.compile(optimizer=et.training.AdamW(1e-2))
    model.optimizer.build(model.trainable_variables)
    before = [v.numpy() for v in model.generator.weights]
    own = {id(v) for v in model.generator.weights}
    assert not own & {id(v) for v in model.trainable_variables}
    first = [v.numpy() for v in model.discriminator.trainable_variables]
    history = model.fit(tiny.dataset(2), verbose=0, shuffle=False).history
    assert history["generator_loss"][0] > 1  # measured all the same
    for variable, value in zip(model.generator.weights, before, strict=True):
        np.testing.assert_array_equal(variable, value, err_msg=variable.path)
    moved = [
        np.abs(v.numpy() - old).max()
        for v, old in zip(model.discriminator.trainable_variables, first, strict=True)
    ]
    assert min(moved) > 0
    phase.release()
    assert len(model.generator.trainable_variables) > 10
    assert not model.generator.step.trainable

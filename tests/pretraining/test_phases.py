"""Two-stage training: trained variables, transfer of weights, resuming."""

import types

import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.pretraining.base import Phase, remaining
from tests import tiny


def phase(name, steps, done, called):
    model = types.SimpleNamespace(step=tf.constant(done))
    return Phase(name, model, steps, hand_over=lambda: called.append(name))


@pytest.mark.parametrize(
    ("done", "of_each", "spans", "handed_over"),
    [
        (0, (0, 0), [("one", 0, 3), ("two", 3, 7)], ["one", "two"]),
        (2, (2, 0), [("one", 2, 3), ("two", 3, 7)], ["two"]),
        # A checkpoint at the boundary has the weights before the transfer.
        (3, (3, 0), [("two", 3, 7)], ["two"]),
        (4, (3, 1), [("two", 4, 7)], []),
        (7, (3, 4), [], []),
        # Older versions could overshoot the end of a phase.
        (4, (4, 0), [("two", 4, 7)], ["two"]),
    ],
)
def test_remaining_phases_and_their_hand_overs(done, of_each, spans, handed_over):
    called, found = [], []
    phases = [phase("one", 3, of_each[0], called), phase("two", 4, of_each[1], called)]
    for each, first, last in remaining(phases, done):
        # A hand-over waits for the training of the phase before.
        assert called[-1:] in ([], [each.name])
        found.append((each.name, first, last))
    assert found == spans
    assert called == handed_over


@pytest.mark.slow
def test_frozen_generator_stays_and_only_the_discriminator_learns():
    model = tiny.electra(tied=False, num_layers=1)
    phase = Phase("second", model, 2, frozen=model.generator)
    phase.set_trainable()
    model.compile(optimizer=et.training.AdamW(1e-2), run_eagerly=True)
    model.optimizer.build(model.trainable_variables)
    before = [v.numpy() for v in model.generator.weights]
    own = {id(v) for v in model.generator.weights}
    assert not own & {id(v) for v in model.trainable_variables}
    first = [v.numpy() for v in model.discriminator.trainable_variables]
    history = model.fit(tiny.dataset(2), verbose=0, shuffle=False).history
    # The frozen generator's loss is still logged.
    assert history["generator_loss"][0] > 1
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

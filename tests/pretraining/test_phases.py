import types

import pytest
import tensorflow as tf

from electra_tf.pretraining.base import Phase, remaining


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

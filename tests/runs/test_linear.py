from unittest import mock

import numpy as np
import pytest
from scipy import optimize
from sklearn.linear_model import LogisticRegression, Ridge

from electra_tf.runs import frozen


@pytest.fixture(autouse=True)
def to_the_end(monkeypatch):
    """Disables early stopping: scores converge long before logits."""
    monkeypatch.setattr(frozen, "LEAST_GAIN", 1e-12)


def data(count=300, size=6, outputs=4, layers=1, seed=0):
    """Returns float64 features, so that both solvers reach the same minimum."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=[layers, count, size])
    logits = states[-1] @ rng.normal(size=[size, outputs]) + rng.normal(size=outputs)
    return states, logits + rng.normal(size=logits.shape)


def test_classes_are_those_of_scikit_learn():
    states, logits = data()
    targets = logits.argmax(axis=1)
    weights, strength = np.linspace(0.5, 1.5, 300), 0.01
    options = {"strength": strength, "weights": weights}
    found = frozen.fit(states, targets, 4, frozen.LOSSES["classification"], **options)
    peer = LogisticRegression(C=1 / (strength * 300), tol=1e-8, max_iter=1000)
    peer.fit(states[0], targets, sample_weight=weights)
    expected = peer.decision_function(states[0])
    logits = found(states)
    # A softmax is invariant to a constant per example.
    centered = [x - x.mean(axis=1, keepdims=True) for x in (logits, expected)]
    np.testing.assert_allclose(*centered, atol=2e-2)
    np.testing.assert_array_equal(found.shares, [1.0])


def test_several_labels_are_as_many_logistic_regressions():
    states, logits = data(outputs=3)
    targets = (logits > 0).astype(np.float64)
    loss, strength = frozen.LOSSES["multilabel"], 0.01
    found = frozen.fit(states, targets, 3, loss, strength=strength)
    for number in range(3):
        peer = LogisticRegression(C=1 / (strength * 300), tol=1e-8)
        peer.fit(states[0], targets[:, number])
        expected = peer.decision_function(states[0])
        np.testing.assert_allclose(found(states)[:, number], expected, atol=2e-2)


def test_numbers_are_ridge_regression():
    states, logits = data(outputs=1)
    found = frozen.fit(states, logits, 1, frozen.LOSSES["regression"], strength=0.1)
    expected = Ridge(alpha=0.1 * 300).fit(states[0], logits).predict(states[0])
    np.testing.assert_allclose(found(states)[:, 0], expected, atol=1e-2)


@pytest.mark.parametrize("kind", ["classification", "multilabel", "regression"])
def test_the_mixture_has_the_right_gradient(kind, monkeypatch):
    states, logits = data(count=20, size=3, outputs=2, layers=3)
    targets = {"classification": logits.argmax(axis=1), "regression": logits}
    targets = targets.get(kind, (logits > 0) * 1.0)
    asked = []

    def checked(function, point, **options):
        point = np.random.default_rng(1).normal(size=len(point))
        numeric = optimize.approx_fprime(point, lambda x: function(x)[0], 1e-6)
        np.testing.assert_allclose(function(point)[1], numeric, atol=1e-4)
        asked.append(len(point))
        return optimize.OptimizeResult(x=point)

    monkeypatch.setattr(frozen.optimize, "minimize", checked)
    frozen.fit(states, targets, 2, frozen.LOSSES[kind], strength=0.3)
    assert asked == [3 + 3 * 2 + 2]


def test_the_mixture_finds_the_layer_that_knows():
    states, logits = data(layers=3)
    targets, loss = logits.argmax(axis=1), frozen.LOSSES["classification"]
    found = frozen.fit(states.astype(np.float32), targets, 4, loss, strength=1e-3)
    assert found.shares[2] > 0.9
    np.testing.assert_allclose(found.shares.sum(), 1)
    best = frozen.fit(states[2:], targets, 4, loss, strength=1e-3)
    right = [(x.argmax(axis=1) == targets).mean() for x in (found(states), logits)]
    assert abs(right[0] - (best(states[2:]).argmax(1) == targets).mean()) < 0.03


def test_noise_wants_more_strength_than_a_rule():
    rng = np.random.default_rng(0)
    states, loss = rng.normal(size=[1, 400, 40]), frozen.LOSSES["classification"]
    groups = np.arange(400)
    noise = rng.integers(0, 2, 400)
    rule = (states[0, :, 0] > 0).astype(int)
    chosen = [
        frozen.choose_strength(states, targets, groups, 2, loss)
        for targets in (noise, rule)
    ]
    assert chosen[0] == frozen.STRENGTHS[0]
    assert chosen[1] < chosen[0]


def test_groups_are_not_cut_in_two(monkeypatch):
    states, logits = data(count=200)
    groups = np.repeat(np.arange(20), 10)
    fit = mock.Mock(wraps=frozen.fit)
    monkeypatch.setattr(frozen, "fit", fit)
    targets, loss = logits.argmax(axis=1), frozen.LOSSES["classification"]
    frozen.choose_strength(states, targets, groups, 4, loss)
    counts = [call.args[0].shape[1] for call in fit.call_args_list]
    assert counts == [180] * len(frozen.STRENGTHS)
    one = np.zeros(200, int)
    assert frozen.choose_strength(states, targets, one, 4, loss) == frozen.STRENGTHS[0]

"""Groups of variables with a norm and a rate of their own, against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.training.optimizers import AdamW
from tests.reference import optimizer as reference

SHAPES = {"a": (4, 3), "b": (3,), "c": (5, 2)}


def make(seed=0):
    rng = np.random.default_rng(seed)
    return [
        keras.Variable(rng.normal(size=shape).astype("float32"), name=name)
        for name, shape in SHAPES.items()
    ]


def gradients(steps):
    rng = np.random.default_rng(1)
    return [
        [rng.normal(size=shape).astype("float32") for shape in SHAPES.values()]
        for _ in range(steps)
    ]


def test_two_groups_are_two_optimizers():
    """Rate and clip of the group: the same as Adam alone on it, and on the rest."""
    variables = make()
    weights = [v.numpy().astype(np.float64) for v in variables]
    optimizer = AdamW(
        0.1,
        weight_decay=0.3,
        clip_norm=0.5,
        learning_rate_multipliers=[([variables[0]], 0.2)],
        clip_groups={"generator": ([variables[0]], 2.0)},
    )
    optimizer.build(variables)
    own = reference.AdamW((True,), weight_decay=0.3, clip_norm=2.0)
    rest = reference.AdamW((True, True), weight_decay=0.3, clip_norm=0.5)
    for values in gradients(3):
        optimizer.apply([tf.constant(g) for g in values], variables)
        weights = [
            *own.apply(values[:1], weights[:1], 0.02),
            *rest.apply(values[1:], weights[1:], 0.1),
        ]
        for variable, expected in zip(variables, weights, strict=True):
            np.testing.assert_allclose(variable, expected, atol=1e-6)
        norm = float(optimizer.group_norms["generator"])
        assert norm == pytest.approx(own.norm, rel=1e-6)
        joint = np.hypot(own.norm, rest.norm)
        assert float(optimizer.gradient_norm) == pytest.approx(joint, rel=1e-6)


def test_a_group_without_a_limit_is_not_clipped():
    variables = make()
    before = [v.numpy() for v in variables]
    optimizer = AdamW(
        0.1, weight_decay=0.0, clip_norm=1e-9, clip_groups={"free": (["a"], None)}
    )
    optimizer.apply([tf.constant(g) for g in gradients(1)[0]], variables)
    moved = [
        np.abs(v.numpy() - b).max() for v, b in zip(variables, before, strict=True)
    ]
    assert moved[0] > 0.1
    assert max(moved[1:]) < 1e-3


def test_per_replica_clips_groups_too():
    """On one replica the share is the whole gradient."""
    results = []
    for clipping in ("after_reduction", "per_replica"):
        variables = make()
        optimizer = AdamW(
            0.1, clip_norm=0.5, clipping=clipping, clip_groups={"g": (["a"], 2.0)}
        )
        optimizer.apply([tf.constant(g) for g in gradients(1)[0]], variables)
        results.append([v.numpy() for v in variables])
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-7)


def test_one_bad_gradient_stops_both_groups():
    variables = make()
    before = [v.numpy() for v in variables]
    optimizer = AdamW(0.1, weight_decay=0.0, clip_groups={"g": (["a"], 2.0)})
    values = gradients(1)[0]
    values[2][0, 0] = np.inf
    optimizer.apply([tf.constant(g) for g in values], variables)
    assert optimizer.nonfinite_variable() == variables[2].path
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize(
    "groups", [{"g": (["nothing"], 1.0)}, {"g": (["a"], 1.0), "h": (["a"], 1.0)}]
)
def test_wrong_paths_are_named(groups):
    optimizer = AdamW(0.1, clip_groups=groups)
    with pytest.raises(ValueError, match="clip_groups names"):
        optimizer.build(make())


def test_a_norm_must_be_positive():
    with pytest.raises(ValueError, match="clip_norm is 0"):
        AdamW(0.1, clip_groups={"g": (["a"], 0)})

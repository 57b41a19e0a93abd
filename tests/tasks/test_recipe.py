import numpy as np
import pytest
import tensorflow as tf

from electra_tf.tasks import Classification, layerwise_multipliers
from electra_tf.tasks.batching import make_batch
from electra_tf.tasks.recipe import RECIPES, encoder_size
from electra_tf.training import AdamW
from tests.tasks import common


def model(layers=2):
    task = Classification(name="mood", source=None, labels=("neg", "pos"), dropout=0.0)
    return task, task.build_model(common.encoder(layers=layers, dropout=0.0))


def factors(exponent, layers=12, decay=0.8):
    return [f for _, f in layerwise_multipliers(model(layers)[1], decay, exponent)]


def test_original_exponent_is_that_of_the_code():
    # Pitfall 31: embeddings, layers 0 .. 11, head.
    got = factors("original")
    assert len(got) == 14
    np.testing.assert_allclose(got[0], 0.0440, atol=5e-5)
    np.testing.assert_allclose(got[1], 0.0550, atol=5e-5)
    np.testing.assert_allclose(got[12], 0.64)
    assert got[13] == 1


def test_original_exponent_for_large():
    np.testing.assert_allclose(factors("original", 24, 0.9)[0], 0.0646, atol=5e-5)


def test_exact_exponent_is_that_of_the_paper():
    got = factors("exact")
    np.testing.assert_allclose(got[12], 0.8)
    np.testing.assert_allclose(got[1], 0.8**12)
    np.testing.assert_allclose(got[0], 0.8**13)


def test_every_trainable_variable_has_one_multiplier():
    _, built = model()
    listed = [v.path for group, _ in layerwise_multipliers(built, 0.8) for v in group]
    assert sorted(listed) == sorted(v.path for v in built.trainable_variables)


@pytest.mark.parametrize(("decay", "exponent"), [(0, "exact"), (1.5, "exact")])
def test_bad_decay(decay, exponent):
    with pytest.raises(ValueError, match="above 0"):
        layerwise_multipliers(model()[1], decay, exponent)


def test_bad_exponent():
    with pytest.raises(ValueError, match="exact, original"):
        layerwise_multipliers(model()[1], 0.8, "paper")


def test_presets_are_table_7_and_the_defaults_of_the_code():
    paper, code = RECIPES["paper"], RECIPES["code"]
    assert paper.learning_rate == {"small": 3e-4, "base": 1e-4, "large": 5e-5}
    assert code.learning_rate == {"small": 1e-4, "base": 1e-4, "large": 5e-5}
    assert (paper.weight_decay, code.weight_decay) == (0.0, 0.01)
    decay = {"small": 0.8, "base": 0.8, "large": 0.9}
    assert paper.layerwise_decay == code.layerwise_decay == decay
    assert (paper.layerwise_exponent, code.layerwise_exponent) == ("exact", "original")
    assert (paper.reduction, code.reduction) == ("mean", "sum")
    assert list(map(encoder_size, (128, 256, 768, 1024))) == [
        "small",
        "small",
        "base",
        "large",
    ]


def step_of(rows, reduction):
    """Returns the update of the head's kernel in one clipped step, and the norm."""
    task, built = model()
    kernel = built.head.kernel
    before = kernel.numpy().copy()
    # Without momentum and with large epsilon, an Adam step is the clipped gradient.
    optimizer = AdamW(1.0, beta_1=0.0, beta_2=0.0, epsilon=1e6, weight_decay=0.0)
    built.compile(optimizer=optimizer, loss=task.loss(reduction))
    examples = common.sentiment(1) * rows
    features = task.featurize(examples, common.tokenizer(), 16)
    inputs, targets, _ = make_batch(features, np.arange(rows), 16)
    built.train_on_batch(inputs, targets)
    return (kernel.numpy() - before) * 1e6, float(optimizer.gradient_norm.numpy())


@pytest.mark.slow
def test_summed_loss_is_clipped_where_the_mean_is_not():
    # Pitfall 34: 32 identical rows compared with one.
    one, norm = step_of(1, "sum")
    mean, mean_norm = step_of(32, "mean")
    summed, summed_norm = step_of(32, "sum")
    assert mean_norm == pytest.approx(norm, rel=1e-4)
    assert summed_norm == pytest.approx(32 * norm, rel=1e-4)
    np.testing.assert_allclose(mean, one, rtol=1e-2, atol=1e-3)
    expected = one * 32 * min(1, 1 / summed_norm) / min(1, 1 / norm)
    np.testing.assert_allclose(summed, expected, rtol=2e-2, atol=2e-3)
    assert summed_norm > 1
    tf.debugging.assert_all_finite(summed, "step")

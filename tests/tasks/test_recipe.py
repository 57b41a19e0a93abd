import numpy as np
import pytest

from electra_tf.tasks import Classification, layerwise_multipliers
from electra_tf.tasks.batching import make_batch
from electra_tf.training import AdamW
from tests.tasks import common


def model(layers=1):
    task = Classification(name="mood", source=None, labels=("neg", "pos"), dropout=0.0)
    return task, task.build_model(common.encoder(layers=layers, dropout=0.0))


def test_original_exponent_is_that_of_the_code():
    # Pitfall 31: embeddings, layers 0 .. 11, head.
    _, built = model(12)
    groups, got = zip(*layerwise_multipliers(built, 0.8, "original"), strict=True)
    assert len(got) == 14
    np.testing.assert_allclose(got[:2], [0.0440, 0.0550], atol=5e-5)
    np.testing.assert_allclose(got[12], 0.64)
    assert got[13] == 1
    # That of the paper.
    exact = [f for _, f in layerwise_multipliers(built, 0.8, "exact")]
    np.testing.assert_allclose(exact, 0.8 ** np.array([*range(13, 0, -1), 0]))
    listed = [v.path for group in groups for v in group]
    assert sorted(listed) == sorted(v.path for v in built.trainable_variables)
    for decay in (0, 1.5):
        with pytest.raises(ValueError, match="above 0"):
            layerwise_multipliers(built, decay)
    with pytest.raises(ValueError, match="exact, original"):
        layerwise_multipliers(built, 0.8, "paper")


def step_of(rows, reduction):
    """Returns the update of the head's kernel in one clipped step, and the norm."""
    task, built = model()
    kernel = built.head.kernel
    before = kernel.numpy().copy()
    # Without momentum and with large epsilon, an Adam step is the clipped gradient.
    optimizer = AdamW(1.0, beta_1=0.0, beta_2=0.0, epsilon=1e6, weight_decay=0.0)
    built.compile(optimizer=optimizer, loss=task.loss(reduction), run_eagerly=True)
    features = task.featurize(common.sentiment(1) * rows, common.tokenizer(), 16)
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

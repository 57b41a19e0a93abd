import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.pretraining import GreedySampler
from electra_tf.training import WarmupPolynomialDecay
from tests import tiny
from tests.layers.helpers import check_slope, randomize
from tests.reference import step as reference


def weights(model):
    return [np.asarray(v, np.float64) for v in model.trainable_variables]


def make():
    model = tiny.electra(sampler=GreedySampler())
    # Random weights, because initial zeros and ones hide mistakes.
    randomize(model.trainable_variables, stddev=0.2)
    return model, reference.Networks(model.trainable_variables)


def test_decayed_variables_by_name():
    """Only tables and kernels are decayed (pitfall 29 of docs/fidelity.md)."""
    model, networks = make()
    variables = model.trainable_variables
    is_decayed = tiny.decayed(et.training.AdamW(1.0, weight_decay=0.5), variables)
    pairs = zip(variables, is_decayed, strict=True)
    decayed = {v.path.split("/")[-1] for v, decays in pairs if decays}
    tables = {f"{name}_embeddings" for name in ("word", "position", "segment")}
    kernels = "embeddings_projection qkv attention_output intermediate output"
    kernels += " dense prediction"
    assert decayed == tables | {f"{name}_kernel" for name in kernels.split()}
    assert is_decayed == networks.decayed()


def test_losses_and_their_gradient():
    """NumPy computes the losses, and the gradient by finite differences.

    Means over all tokens of the batch, [CLS] and [SEP] included, without padding; the
    samples carry no gradient (pitfalls 15, 26 and 28 of docs/fidelity.md).
    """
    model, networks = make()
    batch = tiny.batch()
    plain, start = tiny.numpy(batch), weights(model)
    generator, discriminator, sampled = reference.losses(networks, start, plain)
    logs = tiny.scores(model, [batch])
    assert logs["generator_loss"] == pytest.approx(generator, rel=1e-5)
    assert logs["discriminator_loss"] == pytest.approx(discriminator, rel=1e-5)
    loss, found = tiny.gradients(model, batch)
    assert loss == pytest.approx(generator + 50 * discriminator, rel=1e-5)
    # Directions within the shared tables, then within all weights.
    for part in ("embeddings/", ""):
        moving = [part in path for path in networks.paths]

        def loss_at(moves, moving=moving):
            moved = [w + m * on for w, m, on in zip(start, moves, moving, strict=True)]
            mlm, detection, _ = reference.losses(networks, moved, plain, sampled)
            return mlm + 50 * detection

        slopes = [g * on for g, on in zip(found, moving, strict=True)]
        check_slope(loss_at, slopes, step=1e-5, rel=1e-4)


@pytest.mark.slow
def test_three_training_steps():
    """Weights and losses equal the reference; the rate of step 0 is 0.

    Pitfalls 26, 28, 29, 30 and 32 of docs/fidelity.md.
    """
    model, networks = make()
    peak, steps, warmup_steps = numbers = (0.01, 10, 2)
    schedule = WarmupPolynomialDecay(peak, steps, warmup_steps=warmup_steps)
    options = {"weight_decay": 0.3, "clip_norm": 1.0}
    model.compile(et.training.AdamW(schedule, **options))
    model.optimizer.build(model.trainable_variables)
    train_step = tf.function(model.train_step)
    trainer = reference.Trainer(networks, numbers, **options)
    for step in range(3):
        batch = tiny.batch(seed=step)
        before = weights(model)
        mlm, detection, _ = reference.losses(networks, before, tiny.numpy(batch))
        expected = trainer.update(before, tiny.gradients(model, batch)[1])
        model.reset_metrics()
        logs = tiny.numpy(train_step(batch))
        assert logs["generator_loss"] == pytest.approx(mlm, rel=1e-5)
        assert logs["discriminator_loss"] == pytest.approx(detection, rel=1e-5)
        assert logs["loss"] == pytest.approx(mlm + 50 * detection, rel=1e-5)
        norm = float(model.optimizer.gradient_norm)
        assert norm == pytest.approx(trainer.optimizer.norm, rel=1e-5)
        assert norm > 5, "the clip is active"
        after = weights(model)
        for path, got, wanted in zip(networks.paths, after, expected, strict=True):
            atol = np.full(wanted.shape, 1e-6)
            if path.endswith("qkv_bias"):
                # The gradient of key biases is 0 up to rounding, which Adam amplifies.
                np.split(atol, 3)[1][:] = 1e-5
            np.testing.assert_array_less(np.abs(got - wanted), atol, err_msg=path)
        moved = max(np.abs(a - b).max() for a, b in zip(after, before, strict=True))
        assert moved == 0 if step == 0 else moved > 1e-3

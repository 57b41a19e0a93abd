import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax

import electra_tf as et
from electra_tf.pretraining import TwoTowerGenerator
from tests import tiny
from tests.layers.helpers import check_slope, randomize
from tests.reference import two_tower as reference
from tests.reference.encoder import named_weights

SPECIAL = (tiny.CLS, tiny.SEP, tiny.MASK)
SEED = tf.constant([1, 2])


def make(**kwargs):
    model = tiny.two_tower(et.Electra, **kwargs)
    randomize(model.trainable_variables, stddev=0.2)
    return model


def everywhere(batch):
    """Returns the batch with a slot at every position."""
    shape = batch["input_ids"].shape
    return {**batch, "masked_lm_positions": tf.tile(tf.range(shape[1])[None], [4, 1])}


def reference_logits(generator, batch):
    left, right = (
        [named_weights(group) for group in tower.variables_by_depth()]
        for tower in (generator.left, generator.right)
    )
    words = left[0]["word_embeddings"]
    own = [v for v in generator.trainable_variables if "masked_lm_head/" in v.path]
    assert len(own) == 5
    head = named_weights(own)
    return reference.logits(left, right, head, words, tiny.numpy(batch), num_heads=2)


def test_matches_definition():
    """All real tokens, in NumPy (pitfall 44 of docs/fidelity.md)."""
    generator = make().generator
    batch = everywhere(tiny.batch())
    ids = batch["input_ids"].numpy()
    # The logits at a position do not depend on its own token.
    ids[0, 5] = reference_logits(generator, batch)[0, 5].argmax()
    batch["input_ids"] = tf.constant(ids)
    expected = reference_logits(generator, batch)
    real = batch["input_mask"].numpy() > 0
    np.testing.assert_allclose(generator(batch)[real], expected[real], atol=3e-5)
    cloze = generator.predictions(batch)
    np.testing.assert_allclose(cloze.logits[real], expected[real], atol=3e-5)
    log_q = np.take_along_axis(log_softmax(expected, -1), ids[..., None], 2)
    np.testing.assert_allclose(cloze.values[real], -log_q[..., 0][real], atol=3e-5)
    best = expected.argmax(-1) == ids
    np.testing.assert_array_equal(cloze.is_best[real], best[real])
    assert best[0, 5]


@pytest.mark.parametrize(
    "policy", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)]
)
def test_a_token_never_sees_itself(policy):
    """Its own logits stay bit-identical (pitfall 44 of docs/fidelity.md)."""
    keras.config.set_dtype_policy(policy)
    generator = make(dropout=0.2).generator
    batch = everywhere(tiny.batch((24, 9, 17, 1)))
    predict = tf.function(lambda b: generator(b, training=True, seed=SEED))
    before = predict(batch).numpy()
    for t in range(24):
        ids = batch["input_ids"].numpy()
        ids[:, t] = (ids[:, t] + 31) % tiny.VOCAB
        after = predict({**batch, "input_ids": tf.constant(ids)}).numpy()
        np.testing.assert_array_equal(after[:, t], before[:, t])
        changed = np.abs(after - before).max(-1) > 0
        for row, length in enumerate((24, 9, 17, 1)):
            if t < length:
                beside = [u for u in (t - 1, t + 1) if 0 <= u < length]
                assert changed[row, beside].all()
            else:
                assert not changed[row, :length].any(), "padding was read"


def test_loss_and_its_gradient():
    """NumPy's loss over all tokens but special ones, and its finite differences."""
    model = make()
    batch = tiny.batch()
    ids = batch["input_ids"].numpy()
    ids[0, 4] = tiny.MASK
    batch["input_ids"] = tf.constant(ids)
    totals = model.loss_totals(batch)
    # 55 real tokens; each row has [CLS] and two [SEP], one has a [MASK].
    assert float(totals["candidates"]) == 55 - 3 * 4 - 1
    generator = model.generator
    variables = generator.trainable_variables
    with tf.GradientTape() as tape:
        (loss,) = generator.compute_losses(batch, totals, seed=SEED, training=False)
    found = tape.gradient(loss, variables)
    joint, _ = model.compute_losses(batch, totals, seed=SEED, training=False)
    start = [v.numpy() for v in variables]

    def loss_at(moves):
        for variable, value, move in zip(variables, start, moves, strict=True):
            variable.assign(value + move)
        scores = reference_logits(generator, batch)
        return reference.cloze_loss(scores, tiny.numpy(batch), SPECIAL)

    expected = loss_at(np.zeros(len(start)))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(joint) == pytest.approx(expected, rel=1e-5)
    check_slope(loss_at, found, step=1e-3, rel=1e-2)


def test_wrong_towers_are_refused():
    model = make()
    left, right = model.generator.left, model.generator.right
    with pytest.raises(ValueError, match=r"direction='left_to_right'.*'both'"):
        TwoTowerGenerator(model.discriminator, right, special_ids=SPECIAL)
    with pytest.raises(ValueError, match="special_ids"):
        TwoTowerGenerator(left, right, special_ids=())

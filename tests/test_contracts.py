import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from tests import tiny
from tests.test_surface import EXAMPLES

IDS = tf.constant([[2, 7, 9, 8, 3], [2, 5, 3, 0, 0]])
MASK = tf.cast(IDS > 0, tf.int32)
INPUTS = {"input_ids": IDS, "input_mask": MASK, "segment_ids": IDS * 0}
HIDDEN = tf.random.stateless_normal([2, 5, 8], [1, 2])
POSITIONS = tf.constant([[1, 3], [1, 0]])
CLOZE = {
    **INPUTS,
    "masked_input_ids": IDS,
    "masked_lm_positions": POSITIONS,
    "masked_lm_ids": POSITIONS,
    "masked_lm_weights": tf.constant([[1.0, 1.0], [1.0, 0.0]]),
}


def one(*arguments, **named):
    return lambda: (arguments, named)


# Class -> positional and named arguments of a call.
CALLS = {
    name: call
    for call, names in {
        one(HIDDEN): "Dropout ReplacedTokenHead ReplacedTokenDetection RewardBaseline "
        "SentenceDetection NoiseContrastiveEstimation",
        one(HIDDEN, MASK): "TransformerEncoder TransformerEncoderBlock",
        one(HIDDEN, POSITIONS): "MaskedLMHead",
        one(HIDDEN, INPUTS): "TokenPrediction CopyingTokenPrediction JointObjective "
        "SpanHead IndependentSpanHead",
        one([HIDDEN] * 3, INPUTS): "ClassificationHead HiddenClassificationHead "
        "TaggingHead",
        one(INPUTS): "TextEncoder Discriminator ReplacedTokenDetector EnergyModel "
        "TaskModel TextClassifier TokenClassifier QuestionAnswering",
        one(CLOZE): "MaskedLM UnigramGenerator TwoTowerGenerator",
        one(IDS, segment_ids=IDS * 0): "TextEmbedding DeltaEmbedding "
        "SharedWordEmbedding",
        one(tiny.batch()): "Electra ReinforceElectra GumbelElectra Electric",
    }.items()
    for name in names.split()
}


def test_every_class_has_a_contract():
    # tests/training has the others.
    others = "AdamW FitSchedule LinearChange ExponentialDecay WarmupPolynomialDecay"
    assert EXAMPLES.keys() - CALLS.keys() == {*others.split()}


def called(name):
    keras.utils.set_random_seed(0)
    part, (arguments, named) = EXAMPLES[name](), CALLS[name]()
    return part, arguments, named, tf.nest.flatten(part(*arguments, **named))


def symbols(values):
    return tf.nest.map_structure(
        lambda x: keras.KerasTensor(x.shape, dtype=x.dtype.name), values
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_calls_files_and_a_step(name, tmp_path):
    """Eager, symbolic and mixed calls agree; copies are equal; a step trains."""
    part, arguments, named, eager = called(name)
    assert part.built
    assert all(np.isfinite(np.array(x, np.float64)).all() for x in eager)
    again = tf.nest.flatten(part(*symbols(arguments), **symbols(named)))
    for found, wanted in zip(again, eager, strict=True):
        assert found.dtype == wanted.dtype.name
        # Some sizes are unknown in symbolic shapes.
        assert wanted.shape.is_compatible_with(found.shape)
    # Deltas need the table of the lender, which is saved with the whole model
    # (tests/golden/recipes.py, tests/end_to_end/test_objectives.py).
    if name != "DeltaEmbedding":
        if isinstance(part, keras.Model):
            part.save(tmp_path / "saved.keras")
            loaded = keras.saving.load_model(tmp_path / "saved.keras")
        else:
            config = keras.saving.serialize_keras_object(part)
            loaded = keras.saving.deserialize_keras_object(config)
            loaded(*arguments, **named)
            loaded.set_weights(part.get_weights())
        assert type(loaded) is type(part)
        found = tf.nest.flatten(loaded(*arguments, **named))
        tf.nest.map_structure(np.testing.assert_array_equal, found, eager)
    check_step(name, part, arguments, named)
    keras.config.set_dtype_policy("mixed_bfloat16")
    part, *_, mixed = called(name)
    assert all(v.dtype != "bfloat16" for v in part.variables)
    for found, wanted in zip(mixed, eager, strict=True):
        assert found.shape == wanted.shape
        assert np.isfinite(np.array(tf.cast(found, tf.float32))).all()


def check_step(name, part, arguments, named):
    """Checks that an update changes most trainable variables, to finite values."""
    trained = part.trainable_variables
    if not trained:
        assert name in ("Dropout", "UnigramGenerator")
        return
    with tf.GradientTape() as tape:
        outputs = tf.nest.flatten(part(*arguments, **named))
        numbers = [x for x in outputs if x.dtype.is_floating]
        # The sum of normalized outputs has zero gradient.
        loss = tf.add_n([tf.reduce_sum(tf.square(x - 0.5)) for x in numbers])
    gradients = tape.gradient(loss, [v.value for v in trained])
    pairs = [(g, v) for g, v in zip(gradients, trained, strict=True) if g is not None]
    before = [variable.numpy() for _, variable in pairs]
    optimizer = et.training.AdamW(0.1, weight_decay=0.0)
    optimizer.apply(*map(list, zip(*pairs, strict=True)))
    after = [variable.numpy() for _, variable in pairs]
    moved = [(old != new).any() for old, new in zip(before, after, strict=True)]
    assert np.mean(moved) > 0.5
    assert all(np.isfinite(value).all() for value in after)

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.tasks import Classification, ClassificationHead, TaskModel
from electra_tf.tasks.batching import make_batch
from electra_tf.tasks.heads import fresh_copy
from tests.layers.helpers import randomize
from tests.tasks import common


def task(**kwargs):
    examples, source = common.sentiment(12), common.splits
    labels = ("neg", "pos")
    made = Classification(
        name="mood", source=source(train=examples), labels=labels, **kwargs
    )
    return made, examples


def batch(count=8):
    mood, examples = task()
    rows = mood.featurize(examples, common.tokenizer(), 16)
    return make_batch(rows, np.arange(count), 16)[:2]


def test_head_has_hidden_times_labels_plus_labels_parameters():
    """Pitfall 35."""
    head = ClassificationHead(16, 3)
    head.build()
    assert sum(v.numpy().size for v in head.variables) == 16 * 3 + 3


def test_logits_are_a_linear_function_of_the_first_vector():
    """Pitfall 35."""
    mood, _ = task()
    model = mood.build_model(common.encoder())
    inputs, _ = batch()
    hidden = model.encoder(inputs).numpy()
    expected = hidden[:, 0] @ model.head.kernel.numpy() + model.head.bias.numpy()
    np.testing.assert_allclose(model(inputs), expected, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "layers"])
def test_pooling_by_hand(pooling):
    mood, _ = task(pooling=pooling)
    model = mood.build_model(common.encoder())
    randomize(model.head.variables)
    inputs, _ = batch()
    states = [state.numpy() for state in model.encoder.states(inputs)]
    shares, count = [0.0, 0.0, 1.0], 16 * 2 + 2
    if pooling == "layers":
        shares = np.exp(model.head.mixture.numpy())
        shares, count = shares / shares.sum(), count + 3
    assert sum(v.numpy().size for v in model.head.variables) == count
    mixed = sum(share * state for share, state in zip(shares, states, strict=True))
    rows = zip(mixed, inputs["input_mask"].astype(bool), strict=True)
    vectors = np.stack([row[mask].mean(axis=0) for row, mask in rows])
    expected = vectors @ model.head.kernel.numpy() + model.head.bias.numpy()
    np.testing.assert_allclose(model(inputs), expected, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_inputs_of_other_libraries(pooling):
    mood, _ = task(pooling=pooling)
    model = mood.build_model(common.encoder())
    inputs, _ = batch()
    theirs = {
        "input_ids": inputs["input_ids"],
        "attention_mask": inputs["input_mask"],
        "token_type_ids": inputs["segment_ids"],
    }
    ids = tf.constant(inputs["input_ids"])
    whole = {"input_ids": ids, "input_mask": tf.ones_like(ids)}
    for method in (model, model.infer):
        np.testing.assert_array_equal(method(theirs), method(inputs))
        np.testing.assert_array_equal(method(ids), method(whole))


def test_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match="allowed are cls, mean, layers"):
        ClassificationHead(16, 2, pooling="max")


def test_a_copy_can_have_other_dropout():
    """Fine-tuning sets its own dropout rates."""
    saved = common.encoder(dropout=0.0)
    copy = fresh_copy(saved, dropout=0.1, attention_dropout=0.2)
    copy.set_weights(saved.get_weights())
    assert (copy.dropout, copy.attention_dropout) == (0.1, 0.2)
    assert copy.embeddings.dropout == 0.1
    assert {(b.dropout, b.attention_dropout) for b in copy.transformer.blocks} == {
        (0.1, 0.2)
    }
    inputs, _ = batch()
    np.testing.assert_array_equal(copy(inputs), saved(inputs))
    seed = tf.constant([0, 1])
    dropped, kept = (x(inputs, training=True, seed=seed) for x in (copy, saved))
    assert np.abs(dropped - kept).max() > 0.1


@pytest.mark.parametrize(
    "pooling", ["cls", pytest.param("layers", marks=pytest.mark.slow)]
)
def test_fit_predict_save_and_load(tmp_path, pooling):
    mood, _ = task(pooling=pooling)
    model = mood.build_model(common.encoder(dropout=0.0))
    inputs, targets = batch(12 - 4)
    history = model.fit(inputs, targets, epochs=2, verbose=0)
    assert history.history["loss"][1] != history.history["loss"][0]
    expected = model.predict(inputs, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, TaskModel)
    np.testing.assert_allclose(loaded.predict(inputs, verbose=0), expected, atol=1e-6)
    assert (loaded.head.dropout, loaded.head.pooling) == (0.1, pooling)


def test_padding_does_not_change_the_answer():
    mood, examples = task()
    rows = mood.featurize(examples, common.tokenizer(), 16)
    model = mood.build_model(common.encoder())
    short, long = (
        model(make_batch(rows, np.array([0]), length)[0]) for length in (8, 16)
    )
    np.testing.assert_allclose(short, long, atol=1e-6)


def test_dropout_stream_starts_anew_with_the_seed():
    mood, _ = task()
    model = mood.build_model(common.encoder())
    inputs, _ = batch()
    model.reset_seed(3)
    first = [model(inputs, training=True).numpy() for _ in range(2)]
    model.reset_seed(3)
    again = model(inputs, training=True).numpy()
    np.testing.assert_array_equal(first[0], again)
    assert not np.allclose(first[0], first[1])


def test_fresh_is_a_function_of_the_seed_and_shares_nothing():
    mood, _ = task()
    model = mood.build_model(common.encoder())
    one, two, other = model.fresh(1), model.fresh(1), model.fresh(2)
    for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.allclose(one.head.kernel, other.head.kernel)
    assert not {id(v) for v in one.variables} & {id(v) for v in model.variables}


def test_fresh_can_change_the_compute_dtype():
    mood, _ = task()
    model = mood.build_model(common.encoder())
    low = model.fresh(0, dtype="mixed_bfloat16")
    inputs, _ = batch()
    assert low.encoder(inputs).dtype == tf.bfloat16
    assert low(inputs).dtype == tf.float32
    assert low.encoder.embeddings.word_embeddings.dtype == "float32"


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_loss_reduction(reduction):
    mood, _ = task()
    logits, labels = np.array([[1.0, 0.0], [3.0, -1.0]]), np.array([0, 1])
    each = [np.log1p(np.exp(-1.0)), np.log1p(np.exp(4.0))]
    expected = np.sum(each) if reduction == "sum" else np.mean(each)
    loss = mood.loss(reduction)(labels, logits)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="sum and mean"):
        task()[0].loss("average")

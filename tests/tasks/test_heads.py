import numpy as np
import pytest
import tensorflow as tf

from electra_tf import tasks
from electra_tf.tasks.batching import make_batch
from electra_tf.tasks.heads import HiddenClassificationHead, fresh_copy
from tests import tiny
from tests.layers.helpers import randomize
from tests.tasks import common


def task(**kwargs):
    labels = ("neg", "pos")
    made = tasks.Classification(name="mood", source=None, labels=labels, **kwargs)
    return made, common.sentiment(12)


@pytest.fixture(scope="module")
def inputs():
    mood, examples = task()
    rows = mood.featurize(examples, common.tokenizer(), 16)
    return make_batch(rows, np.arange(8), 16)[0]


@pytest.fixture(scope="module")
def model():
    return task()[0].build_model(common.encoder(layers=1))


@pytest.mark.parametrize("pooling", ["cls", "mean", "layers"])
def test_logits_are_a_linear_function_of_the_pooled_vector(inputs, pooling):
    """Pitfall 35."""
    model = task(pooling=pooling)[0].build_model(common.encoder(layers=1))
    randomize(model.head.variables)
    states = [state.numpy() for state in model.encoder.states(inputs)]
    shares, count = [0.0, 1.0], 16 * 2 + 2
    if pooling == "layers":
        shares = np.exp(model.head.mixture.numpy())
        shares, count = shares / shares.sum(), count + 2
    assert sum(v.numpy().size for v in model.head.variables) == count
    mixed = sum(share * state for share, state in zip(shares, states, strict=True))
    rows = zip(mixed, inputs["input_mask"].astype(bool), strict=True)
    vectors = np.stack([row[mask].mean(axis=0) for row, mask in rows])
    if pooling == "cls":
        vectors = states[-1][:, 0]
    expected = vectors @ model.head.kernel.numpy() + model.head.bias.numpy()
    np.testing.assert_allclose(model(inputs), expected, atol=1e-5)


@pytest.mark.parametrize("policy", ["bfloat16", "float64"])
def test_logits_are_float32_under_pure_policies(inputs, policy):
    heads = (
        tasks.ClassificationHead(16, 2, pooling="layers", num_states=2, dtype=policy),
        HiddenClassificationHead(16, 2, dtype=policy),
        tasks.SpanHead(16, beam_size=3, dense_size=8, dtype=policy),
    )
    for head in heads:
        encoder = fresh_copy(common.encoder(layers=1), policy)
        model = tasks.TaskModel(encoder, head)
        assert {v.dtype for v in head.variables if "kernel" in v.name} == {policy}
        for output in tf.nest.flatten(model(inputs)):
            assert output.dtype in (tf.float32, tf.int32)


def test_inputs_of_other_libraries(inputs):
    model = task(pooling="mean")[0].build_model(common.encoder(layers=1))
    names = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    theirs = {names.get(name, name): tensor for name, tensor in inputs.items()}
    ids = tf.constant(inputs["input_ids"])
    whole = {"input_ids": ids, "input_mask": tf.ones_like(ids)}
    for method in (model, model.infer):
        np.testing.assert_array_equal(method(theirs), method(inputs))
        np.testing.assert_array_equal(method(ids), method(whole))


def test_a_copy_can_have_other_dropout(inputs):
    """Fine-tuning sets its own dropout rates."""
    saved = common.encoder(layers=1, dropout=0.0)
    copy = fresh_copy(saved, dropout=0.1, attention_dropout=0.2)
    copy.set_weights(saved.get_weights())
    np.testing.assert_array_equal(copy(inputs), saved(inputs))
    seed = tf.constant([0, 1])
    dropped, kept = (x(inputs, training=True, seed=seed) for x in (copy, saved))
    assert np.abs(dropped - kept).max() > 0.1


def test_fit_save_and_load(inputs, tmp_path):
    encoder = common.encoder(layers=1, dropout=0.0)
    mood, _ = task(pooling="layers", dropout=0.0)
    model = mood.build_model(encoder)
    # Eagerly, because tracing takes seconds.
    model.compile("adam", mood.loss(), run_eagerly=True)
    before = model.head.mixture.numpy()
    model.fit(inputs, np.arange(8) % 2, epochs=2, verbose=0)
    assert (model.head.mixture.numpy() != before).all()
    loaded = tiny.reloaded(model, tmp_path)
    assert isinstance(loaded, tasks.TaskModel)
    np.testing.assert_array_equal(loaded(inputs), model(inputs))
    assert (loaded.head.dropout, loaded.head.pooling) == (0.0, "layers")


def test_padding_does_not_change_the_answer(model):
    mood, examples = task()
    rows = mood.featurize(examples, common.tokenizer(), 16)
    batches = (make_batch(rows, np.array([0]), length)[0] for length in (8, 16))
    np.testing.assert_allclose(*map(model, batches), atol=1e-6)


def test_dropout_stream_starts_anew_with_the_seed(model, inputs):
    model.reset_seed(3)
    first = [model(inputs, training=True).numpy() for _ in range(2)]
    model.reset_seed(3)
    np.testing.assert_array_equal(first[0], model(inputs, training=True).numpy())
    assert not np.allclose(first[0], first[1])


def test_fresh_is_a_function_of_the_seed_and_shares_nothing(model, inputs):
    one, two, other = model.fresh(1), model.fresh(1), model.fresh(2)
    common.assert_same_weights(one, two)
    assert not np.allclose(one.head.kernel, other.head.kernel)
    assert not {id(v) for v in one.variables} & {id(v) for v in model.variables}
    # It can have another compute dtype.
    low = model.fresh(0, dtype="mixed_bfloat16")
    assert low.encoder(inputs).dtype == tf.bfloat16
    assert low(inputs).dtype == tf.float32
    assert low.encoder.embeddings.word_embeddings.dtype == "float32"


def test_loss_reduction():
    logits, labels = np.array([[1.0, 0.0], [3.0, -1.0]]), np.array([0, 1])
    each = [np.log1p(np.exp(-1.0)), np.log1p(np.exp(4.0))]
    for reduction, expected in (("sum", np.sum(each)), ("mean", np.mean(each))):
        loss = task()[0].loss(reduction)(labels, logits)
        assert float(loss) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="reduction=average"):
        task()[0].loss("average")


def test_unknown_options_are_refused():
    for made, options in (
        (tasks.Classification, {"long_texts": "split"}),
        (tasks.Classification, {"main_metric": "f1"}),
        (tasks.MultiLabel, {"main_metric": "f1"}),
        (tasks.Regression, {"main_metric": "accuracy"}),
        (tasks.Tagging, {"main_metric": "F1"}),
        (tasks.QuestionAnswering, {"span_head": "both"}),
    ):
        ((name, value),) = options.items()
        with pytest.raises(ValueError, match=f"{name} is {value!r}; allowed are"):
            made(name="x", source=None, **options)
    for made, options in (
        (tasks.Example, {"texts": "a text"}),
        (tasks.Sentence, {"words": "a b"}),
        (tasks.Sentence, {"words": ("a", "b"), "tags": "OO"}),
    ):
        with pytest.raises(ValueError, match="must be a tuple of strings, got"):
            made("1", **options)
    for name in ("max_query_length", "doc_stride", "max_answer_length"):
        with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
            tasks.QuestionAnswering(name="x", source=None, **{name: 0})
    with pytest.raises(ValueError, match="allowed are cls, mean, layers"):
        tasks.ClassificationHead(16, 2, pooling="max")

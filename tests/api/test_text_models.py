import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.tasks import Question, saved
from electra_tf.tasks.batching import make_batch
from tests.api.common import CLASSES, DATA, LABELS, WORDS, make


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_a_trained_model_is_saved(name, preset, tmp_path):
    model = make(name, preset)
    before, texts = model.get_weights(), DATA[name][0]
    model.fit(*DATA[name], batch_size=2, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 2
    changed = [(a != b).any() for a, b in zip(before, model.get_weights(), strict=True)]
    assert np.mean(changed) > 0.8
    model.save(tmp_path / "model.keras")
    loaded = et.load(tmp_path / "model.keras")
    np.testing.assert_equal(loaded.get_weights(), model.get_weights())
    assert loaded.predict(texts) == model.predict(texts)


@pytest.mark.slow
def test_lora(preset, tmp_path):
    model = make("TextClassifier", preset, seed=1)
    # Traces the functions of inference.
    before, vectors = model.predict_proba(WORDS), model.encode(WORDS)
    answers = model.predict(WORDS)
    model.encoder.trainable = False
    model.backbone.enable_lora(2)
    model.compile_default()
    model.run_eagerly = True
    np.testing.assert_allclose(model.predict_proba(WORDS), before, atol=1e-6)
    frozen = model.encoder.embeddings.get_weights()
    model.optimizer.learning_rate = 0.05
    model.fit(WORDS, LABELS, epochs=3, batch_size=2, verbose=0)
    np.testing.assert_equal(model.encoder.embeddings.get_weights(), frozen)
    after = model.predict_proba(WORDS)
    assert np.abs(after - before).max() > 0.01
    assert np.abs(model.encode(WORDS) - vectors).max() > 0.01
    assert model.predict(WORDS) != answers
    model.save_lora_weights(tmp_path / "mine.lora.h5")
    other = make("TextClassifier", preset, seed=2, head_init="probe")
    other.load_lora_weights(tmp_path / "mine.lora.h5")
    np.testing.assert_allclose(other.predict_proba(WORDS), after, atol=1e-6)
    other.optimizer.learning_rate = 0.0
    other.fit(WORDS, LABELS, verbose=0)
    np.testing.assert_allclose(other.predict_proba(WORDS), after, atol=1e-6)
    merged = model.merge_lora()
    np.testing.assert_allclose(merged.predict_proba(WORDS), after, atol=1e-6)
    # A loaded model continues with the factors and the state of their optimizer.
    model.save(tmp_path / "mine.keras")
    loaded = et.load(tmp_path / "mine.keras")
    loaded.run_eagerly = True
    for one in (model, loaded):
        one.fit(WORDS, LABELS, shuffle=False, verbose=0)
    np.testing.assert_equal(loaded.get_weights(), model.get_weights())


def rates(model, *arguments, callbacks=(), **options):
    seen = []

    def record(batch, logs):
        seen.append(float(model.optimizer.learning_rate))

    watch = keras.callbacks.LambdaCallback(on_train_batch_begin=record)
    model.fit(*arguments, verbose=0, callbacks=[watch, *callbacks], **options)
    return seen


@pytest.mark.slow
def test_the_default_rate_ends_with_the_call_of_fit(preset):
    """Every call of ``fit`` restarts the schedule and keeps the optimizer."""
    model = make("TextClassifier", preset)
    optimizer = model.optimizer
    strings = tf.data.Dataset.from_tensor_slices((WORDS, LABELS)).batch(3)
    peak = 3e-4
    for arguments, options, steps in (
        ((WORDS, LABELS, 2), {"epochs": 10, "initial_epoch": 5}, 10),
        ((strings,), {"epochs": 5}, 10),
        ((strings.repeat(),), {"epochs": 2, "steps_per_epoch": 10}, 20),
    ):
        before = int(optimizer.iterations.numpy())
        warmup = steps // 10
        expected = [
            peak * min(1, step / warmup) * (1 - step / steps) for step in range(steps)
        ]
        assert rates(model, *arguments, **options) == pytest.approx(expected, rel=1e-5)
        assert model.optimizer is optimizer
        assert int(optimizer.iterations.numpy()) == before + steps
        # Outside of fit the rate is the peak, which train_on_batch uses.
        assert float(optimizer.learning_rate) == pytest.approx(peak)
    factors = optimizer.learning_rate_multipliers.values()
    assert min(factors) == pytest.approx(0.8 ** (model.encoder.num_layers + 1))
    assert max(factors) == 1
    found = rates(model, strings.filter(lambda *row: True))
    assert found[:2] == pytest.approx([peak] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["gradient_accumulation_steps", "float16"])
def test_the_schedule_restarts_inside_of_other_optimizers(preset, wrapper):
    model = make("TextClassifier", preset)
    schedule = et.training.FitSchedule(0.5)
    if wrapper == "float16":
        inner = keras.optimizers.SGD(schedule)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0)
    else:
        optimizer = keras.optimizers.SGD(schedule, gradient_accumulation_steps=2)
    model.compile(optimizer, model.loss, run_eagerly=True)
    for _ in range(2):
        assert rates(model, WORDS, LABELS, 1) == [0.5, 0.375, 0.25, 0.125]


@pytest.mark.slow
def test_a_rate_of_the_user_wins(preset):
    """Callbacks, assignment and ``compile`` each override the default schedule."""
    model = make("TextClassifier", preset)
    halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    found = rates(model, WORDS, LABELS, 4, 3, callbacks=[halved])
    assert found == pytest.approx([1.5e-4, 7.5e-5, 3.75e-5])
    model.optimizer.learning_rate = 1e-7
    assert rates(model, WORDS, LABELS, 2, 2) == pytest.approx([1e-7] * 4)
    plateau = keras.callbacks.ReduceLROnPlateau(
        monitor="loss", factor=0.5, patience=1, min_delta=1e9
    )
    found = rates(model, WORDS, LABELS, 4, 3, callbacks=[plateau])
    assert found == pytest.approx([1e-7, 1e-7, 5e-8])
    mine = keras.optimizers.SGD(0.1)
    model.compile(mine, model.loss, run_eagerly=True)
    assert rates(model, WORDS, LABELS) == pytest.approx([0.1])
    assert model.optimizer is mine


@pytest.mark.slow
def test_compile_has_defaults_and_fixes_what_trains(preset, tmp_path):
    model = make("TextClassifier", preset)
    model.compile("sgd", run_eagerly=True)
    model.fit(WORDS, LABELS, verbose=0)
    expected = model.evaluate(WORDS, LABELS, verbose=0, return_dict=True)
    assert {*expected} == {"loss", "accuracy"}
    model.save(tmp_path / "model.keras")
    loaded = et.load(tmp_path / "model.keras")
    loaded.run_eagerly = True
    found = loaded.evaluate(WORDS, LABELS, verbose=0, return_dict=True)
    assert found == pytest.approx(expected)
    model.encoder.trainable = False
    with pytest.warns(UserWarning, match="trainable"):
        model.fit(WORDS, LABELS, verbose=0)
    model.compile_default()
    model.run_eagerly = True
    model.fit(WORDS, LABELS, verbose=0)
    with pytest.raises(ValueError, match="schedule is fixed"):
        model.optimizer.learning_rate = et.training.FitSchedule(0.1)


@pytest.mark.slow
def test_the_length_of_predictions_may_change(preset):
    texts = ["the movie is good , but the book was very bad and awful"]
    model, other = (make("TextClassifier", preset, seed=1) for _ in range(2))
    model.predict(texts)
    model.max_seq_length = other.max_seq_length = 8
    assert model.predict(texts) == other.predict(texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_global"), [("QuestionAnswering", False), ("TextClassifier", True)]
)
def test_mixed_precision(name, is_global, preset):
    if is_global:
        keras.config.set_dtype_policy("mixed_bfloat16")
    options = {} if is_global else {"mixed_precision": "bfloat16"}
    model = make(name, preset, **options)
    assert model.backbone.compute_dtype == "bfloat16"
    assert model.backbone.variable_dtype == "float32"
    history = model.fit(*DATA[name], batch_size=4, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    (inputs, *_), *_ = model.preprocess(*DATA[name])
    assert {x.dtype for x in tf.nest.flatten(model(inputs))} <= {tf.float32, tf.int32}


def test_the_loss_is_the_mean_of_kerass(models):
    model = models["TextClassifier"]
    logits = np.concatenate([model(x) for x in model.preprocess(WORDS, batch_size=3)])
    np.testing.assert_allclose(model.predict_on_batch(WORDS), logits, atol=1e-5)
    index = np.array([label == "pos" for label in LABELS], int)
    entropy = keras.losses.sparse_categorical_crossentropy
    losses = entropy(index, logits, from_logits=True)
    weighted = tf.data.Dataset.from_tensor_slices((WORDS, index, [1.0, 0, 1, 1]))
    for given, expected in (
        ((WORDS, LABELS), np.mean(losses)),
        ((weighted.batch(4),), np.sum(losses * [1, 0, 1, 1]) / 4),
    ):
        scores = model.evaluate(*given, verbose=0, return_dict=True)
        assert scores["loss"] == pytest.approx(float(expected), rel=1e-4)


def test_batches_of_questions_are_those_of_fine_tuning_runs(preset):
    """For texts and words, test_same_as_run.py compares the trained weights."""
    model = make("QuestionAnswering", preset)
    texts, labels = DATA["QuestionAnswering"]
    rows = zip(texts["context"], labels["answer"], labels["start"], strict=True)
    examples = [Question("0", "is it good ?", c, ((a, s),)) for c, a, s in rows]
    rows = saved.from_json(model.task).featurize(
        examples, model.tokenizer, model.max_seq_length, training=True
    )
    (found,) = model.preprocess(texts, labels)
    # Padded to the next larger of four lengths.
    length = found[0]["input_ids"].shape[1]
    assert 0 <= length - rows.lengths.max() < model.max_seq_length / 4 + 1
    batch = make_batch(rows, np.arange(len(rows)), length)
    expected = tuple(part for part in batch if part is not None)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def test_questions_without_usable_answers_are_left_out(preset):
    model = make("QuestionAnswering", preset)
    x = {"question": ["who ?"] * 2, "context": ["the movie", "the \u200d movie"]}
    y = {"answer": ["movie", "\u200d"]}
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(1)
    assert len(list(model.preprocess(data))) == 1
    alone = [{name: column[1:] for name, column in part.items()} for part in (x, y)]
    with pytest.raises(ValueError, match="No text can be trained on"):
        model.preprocess(*alone)


def test_numbers_are_scaled_to_their_range(preset, tmp_path, monkeypatch):
    options = {"labels": None, "kind": "regression", "label_range": (1, 5)}
    model = make("TextClassifier", preset, **options)
    with monkeypatch.context() as patch:
        # Saving weights builds no graph for strings.
        patch.delattr("electra_tf.serving.export.ServingModule")
        model.save_weights(tmp_path / "model.weights.h5")
    ((_, targets),) = model.preprocess(WORDS, [1, 2.0, 3, 5])
    np.testing.assert_allclose(np.ravel(targets), [0, 0.25, 0.5, 1])
    scores = [row["score"] for row in model.predict(WORDS)]
    outputs = np.ravel(model(model.preprocessor(WORDS)))
    np.testing.assert_allclose(scores, 1 + 4 * outputs, rtol=1e-5)
    for labels in ([5, 7.5], [None, 1.0], [float("nan"), 1.0], ["x", 1], ["1_0", 1]):
        with pytest.raises(ValueError, match=r"Row [01]: the label .* (outside|not)"):
            model.preprocess(["a", "b"], labels)


def test_windows_share_the_weight_of_their_text(models):
    one = models["TextClassifier"]
    task = {**one.task, "long_texts": "windows"}
    model = et.TextClassifier.of(one.encoder, one.head, task, one.tokenizer, 8)
    texts = [" ".join(WORDS), "good"]
    ((_, targets, weights),) = model.preprocess(texts, [1, 0], [2.0, 3.0])
    assert len(targets) > 2
    np.testing.assert_allclose(np.bincount(targets, weights), [3, 2], rtol=1e-6)
    # One of two texts is right, however many windows the other one has.
    model.run_eagerly = True
    low, high = (model.labels[n] for n in np.argsort(model.predict_proba(["good"])[0]))
    answers = [model.predict([text])[0]["label"] for text in texts]
    given = [answers[0], low if answers[1] == high else high]
    inputs, *_ = next(iter(model.preprocess(texts, given)))
    windows = model(inputs).numpy().argmax(-1)
    share = np.mean(windows[:-1] == model.labels.index(given[0]))
    found = model.evaluate(texts, given, verbose=0, return_dict=True)["accuracy"]
    assert found == pytest.approx(100 * share / 2)


def test_a_recipe_has_the_defaults(capsys):
    model = et.TextClassifier.from_preset("mini", ["a", "b"], learning_rate=1e-3)
    assert model.head.pooling == "mean"
    assert model.encoder.dropout == model.head.dropout == 0
    assert model.optimizer.bias_correction
    assert float(model.optimizer.learning_rate) == pytest.approx(1e-3)
    (line,) = capsys.readouterr().err.splitlines()
    assert "pooling=mean" in line
    assert "learning_rate" not in line
    model = et.QuestionAnswering.from_preset("mini", dropout=0.1)
    assert model.encoder.dropout == 0.1


@pytest.mark.slow
def test_a_probe_is_the_first_head(preset, tmp_path):
    """Only new models start with a probe; a trained head continues its training."""
    options = {"head_init": "probe", "learning_rate": 1e-9}
    model = make("TextClassifier", preset, **options)
    model.fit(WORDS, LABELS, verbose=0)
    assert model.evaluate(WORDS, LABELS, verbose=0)[1] == 100
    model.head.set_weights([np.zeros_like(w) for w in model.head.get_weights()])
    copy = make("TextClassifier", preset, **options)
    copy.set_weights(model.get_weights())
    copy.save(tmp_path / "copy.keras")
    frozen = make("TextClassifier", preset, **options)
    frozen.head.set_weights(model.head.get_weights())
    frozen.head.trainable = False
    frozen.compile_default()
    by_hand = make("TextClassifier", preset, **options)
    by_hand.head.set_weights(model.head.get_weights())
    for each in (model, copy, et.load(tmp_path / "copy.keras"), frozen, by_hand):
        each.fit(WORDS, LABELS, verbose=0)
        np.testing.assert_allclose(each.head.kernel, 0, atol=1e-6)
    # Equal texts, so that the head learns the shares of the labels.
    tags = ["O", "O", "O", "B-X"]
    for name, labels, weights, share in (
        ("TextClassifier", LABELS, {"class_weight": {"neg": 3.0}}, 0.75),
        ("TokenClassifier", tags, {"sample_weight": [1, 1, 1, 9]}, 0.25),
    ):
        model = make(name, preset, **options)
        model.fit(["good"] * 4, labels, verbose=0, **weights)
        shares = np.ravel(model.predict_proba(["good"]))
        assert shares[0] == pytest.approx(share, abs=0.1)
    with pytest.raises(ValueError, match="head_init supports tasks"):
        make("QuestionAnswering", preset, **options)


@pytest.mark.slow
def test_the_optimizer_can_be_left_out(preset, tmp_path):
    model = make("TextClassifier", preset)
    model.fit(WORDS, LABELS, verbose=0)
    sizes = []
    for include in (True, False):
        path = tmp_path / f"{include}.keras"
        model.save(path, include_optimizer=include)
        sizes.append(path.stat().st_size)
        with warnings.catch_warnings(action="error"):
            loaded = et.load(path)
        assert loaded.predict(WORDS) == model.predict(WORDS)
        assert int(loaded.optimizer.iterations.numpy()) == include
        loaded.run_eagerly = True
        assert np.isfinite(loaded.fit(WORDS, LABELS, verbose=0).history["loss"]).all()
    assert sizes[1] < sizes[0] / 2
    # The model itself keeps its optimizer.
    assert int(model.optimizer.iterations.numpy()) == 1


@pytest.mark.slow
def test_exports_take_raw_strings(preset, tmp_path):
    model = make("TextClassifier", preset, pair=True)
    model.export(tmp_path / "served", verbose=False)
    pairs = [("the movie", "is good"), ("bad", "")]
    assert et.load(tmp_path / "served").predict(pairs) == model.predict(pairs)
    assert model.encode(pairs).shape == (2, 16)
    tagger = make("TokenClassifier", preset)
    tagger.export(tmp_path / "tagger", verbose=False)
    words = [["the", "movie"], ["bad"]]
    assert et.load(tmp_path / "tagger").predict(words) == tagger.predict(words)
    with pytest.raises(ValueError, match="allowed are tf_saved_model"):
        model.export(tmp_path / "x", "torch")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": ["a"]}, "needs at least 2 different ones"),
        ({"kind": "ranking"}, "kind is 'ranking'; allowed are classification"),
        ({"kind": "regression"}, "A regression has no labels"),
        ({"labels": None, "kind": "regression", "label_range": 3}, "label_range must"),
        ({"labels": None, "kind": "regression", "label_range": (1, 1)}, "label_range"),
        ({"max_seq_length": 65}, "is 65; it must be from 1 to 64, the positions"),
        ({"max_seq_length": 0}, "max_seq_length must be at least 8, got"),
        ({"rate": 1}, "Unknown option 'rate'; known are dropout"),
        ({"dropout": 2.0}, "dropout must"),
    ],
)
def test_settings_that_are_not_allowed_are_named(preset, arguments, message):
    with pytest.raises(ValueError, match=message):
        et.TextClassifier.from_preset(preset, **{"labels": ["a", "b"], **arguments})

"""Every form of input gives the same result as a list, or raises ValueError."""

import copy
import pickle
import random

import keras
import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
import tensorflow as tf

import electra_tf as et
from tests.api.common import CLASSES, DATA, LABELS, WORDS, make
from tests.strategy import two_cpus


@pytest.fixture(scope="module")
def starts(models):
    return {name: model.get_weights() for name, model in models.items()}


def restart(model, weights):
    model.compile_default()
    model.run_eagerly = True
    model.set_weights(weights)


# -- Inputs x methods ------------------------------------------------------------------


def bare(columns):
    return columns if len(columns) > 1 else next(iter(columns.values()))


def in_memory(form):
    """Converts columns of texts and keeps the labels."""
    return lambda x, y, labeled: (form(x), bare(y))


def tuples(x):
    return list(zip(*x.values(), strict=True)) if len(x) > 1 else bare(x)


def dataset(x, y, labeled, batched=True):
    columns = (bare(x), bare(y)) if labeled else bare(x)
    data = tf.data.Dataset.from_tensor_slices(columns)
    return (data.batch(2) if batched else data), None


# Form -> function of (columns of texts, columns of labels, whether they are labeled).
FORMS = {
    "list": in_memory(tuples),
    "tuple": in_memory(lambda x: tuple(x.values()) if len(x) > 1 else tuple(bare(x))),
    "strings": in_memory(lambda x: np.array(tuples(x))),
    "objects": in_memory(lambda x: np.array(tuples(x), object)),
    "bytes": in_memory(lambda x: np.char.encode(np.array(tuples(x)))),
    "tensor": in_memory(lambda x: tf.constant(tuples(x))),
    "series": in_memory(lambda x: pd.Series(tuples(x), index=range(7, 11))),
    "frame": in_memory(pd.DataFrame),
    "polars": in_memory(polars.DataFrame),
    "arrow": in_memory(pyarrow.table),
    "columns": in_memory(dict),
    "rows": in_memory(lambda x: pd.DataFrame(x).to_dict("records")),
    "dataset": dataset,
    "unbatched": lambda *given: dataset(*given, batched=False),
    "generator": in_memory(lambda x: (text for text in x)),
    "py_dataset": in_memory(lambda x: keras.utils.PyDataset()),
    "scalar": in_memory(lambda x: np.array(bare(x)[0]) if len(x) == 1 else "one text"),
    "string": in_memory(lambda x: "one text"),
    "numbers": in_memory(lambda x: np.arange(4)),
    "missing": in_memory(lambda x: {n: [*c[:3], None] for n, c in x.items()}),
    "other_columns": in_memory(lambda x: {"sentence": WORDS}),
    "token_ids": in_memory(lambda x: tf.constant([[2, 7, 3]])),
}
REFUSED = {
    "unbatched": "dataset.batch",
    "generator": "cannot be a generator: .*a list, or .*from_generator",
    "py_dataset": "cannot be a PyDataset: .*a list, or .*from_generator",
    "scalar": "must be a list|needs question and context",
    "string": "must be a list|needs question and context",
    "numbers": "must be strings|needs question and context",
    "missing": r"row 3\) must be strings, got None",
    "other_columns": "the columns are sentence",
    "token_ids": "must be strings|needs question and context|column",
}


def close(values, expected):
    pairs = zip(tf.nest.flatten(values), tf.nest.flatten(expected), strict=True)
    for one, other in pairs:
        if isinstance(other, str | bytes):
            assert one == other
        else:
            np.testing.assert_allclose(one, other, atol=1e-4)


def fit(model, x, y):
    return model.fit(x, y, verbose=0, shuffle=False).history["loss"]


def evaluate(model, x, y):
    return list(model.evaluate(x, y, verbose=0, return_dict=True).values())


def batches(model, x, y):
    parts = [inputs["input_ids"].numpy() for inputs, *_ in model.preprocess(x, y)]
    size = max(ids.shape[1] for ids in parts)
    return np.concatenate([np.pad(i, [(0, 0), (0, size - i.shape[1])]) for i in parts])


# Method -> (function of (model, x, y), whether it has labels).
METHODS = {
    "fit": (fit, True),
    "evaluate": (evaluate, True),
    "preprocess": (batches, True),
    "train_on_batch": (lambda m, x, y: m.train_on_batch(x, y), True),
    "test_on_batch": (lambda m, x, y: m.test_on_batch(x, y), True),
    "predict": (lambda m, x, y: m.predict(x), False),
    "predict_proba": (lambda m, x, y: m.predict_proba(x), False),
    "encode": (lambda m, x, y: m.encode(x), False),
    "predict_on_batch": (lambda m, x, y: m.predict_on_batch(x), False),
    "preprocessor": (lambda m, x, y: m(m.preprocessor(x)), False),
}


# The other methods convert the other forms as these do.
OF_ALL_FORMS = ("preprocess", "predict", "encode")
FEW = ("list", "frame", "dataset", "unbatched", "generator", "py_dataset")
FEW += ("string", "missing")


def cells():
    """Yields the cells; training cells are slow."""
    quick = [("TextClassifier", m) for m in ("preprocess", "preprocessor", "predict")]
    quick += [("TokenClassifier", "preprocess")]
    for name in CLASSES:
        for method in METHODS:
            marks = [] if (name, method) in quick else [pytest.mark.slow]
            yield pytest.param(name, method, marks=marks)


@pytest.mark.parametrize(("name", "method"), cells())
def test_every_form_is_the_list_or_refused(models, starts, name, method):
    call, labeled = METHODS[method]
    model, (x, y) = models[name], DATA[name]
    restart(model, starts[name])

    def cell(form):
        if method in ("fit", "train_on_batch"):
            restart(model, starts[name])
        return call(model, *FORMS[form](x, y, labeled))

    if (name, method) == ("QuestionAnswering", "predict_proba"):
        assert not hasattr(model, method)
        return
    # With labels, an epoch of a dataset has two batches.
    expected = {}
    for form in FORMS if method in OF_ALL_FORMS else FEW:
        in_batches = form in ("dataset", "unbatched")
        refused = REFUSED.get(form, "")
        if in_batches and method in ("train_on_batch", "test_on_batch"):
            refused = "needs labels|dataset.batch"
        if method == "evaluate" and form in ("string", "scalar"):
            # A string is read as the path of a table.
            refused = "No table|must be a list"
        try:
            if refused:
                with pytest.raises((ValueError, FileNotFoundError), match=refused):
                    cell(form)
            else:
                kind = "batches" if in_batches and labeled else "list"
                values = cell(form)
                close(values, expected.setdefault(kind, values))
        except BaseException as error:
            error.add_note(f"The form is {form}.")
            raise


@pytest.mark.parametrize("name", CLASSES)
def test_a_model_is_called_with_token_ids(models, name):
    for form in FORMS.keys() - {"numbers", "token_ids"}:
        x, _ = FORMS[form](*DATA[name], False)
        with pytest.raises(ValueError, match=r"token ids|input_ids is missing|convert"):
            models[name](x)


# -- Labels and invalid arguments ------------------------------------------------------

TWICE = pd.DataFrame([["a", "b"], ["c", "d"]], columns=["text", "text"])
ONE_HOT = pd.DataFrame([[1, 0], [0, 1]], columns=["neg", "pos"])
AB = [("a", "b")]


def test_both_classes_read_labels_alike(preset):
    names, labels = [5, 3], np.array([3.0, 5.0, 5.0, 3.0])
    texts = ["good", "bad", "poor", "fine"]
    model = make("TextClassifier", preset, labels=names)
    ((_, targets),) = model.preprocess(texts, labels)
    np.testing.assert_array_equal(targets, [1, 0, 0, 1])
    tagger = make("TokenClassifier", preset, tags=names)
    tags = [np.reshape(label, [1]) for label in labels]
    ((_, targets, weights),) = tagger.preprocess(texts, tags)
    # [CLS], the word, [SEP].
    np.testing.assert_array_equal(targets[:, 1], [1, 0, 0, 1])
    np.testing.assert_array_equal(weights[:, 1], np.ones([4]))


@pytest.mark.parametrize("name", CLASSES)
def test_tables_of_labels_are_the_list(models, name):
    model, (x, gold) = models[name], DATA[name]
    expected = tf.nest.flatten(list(model.preprocess(x, bare(gold))))
    for table in (pd.DataFrame, polars.DataFrame, pyarrow.table):
        close(list(model.preprocess(x, table(gold))), expected)
    weights = pd.DataFrame({0: [1.0, 2.0, 3.0, 4.0]})
    ((*_, found),) = model.preprocess(x, bare(gold), weights)
    ((*_, expected),) = model.preprocess(x, bare(gold), weights[0].to_list())
    np.testing.assert_array_equal(found, expected)


def test_a_tuple_of_one_row_is_a_row(models):
    """Batches of rows are often tuples, and the last one can have one row."""
    words = tuple(text.split() for text in WORDS)
    for name, rows in (("TextClassifier", tuple(WORDS)), ("TokenClassifier", words)):
        predict = models[name].predict
        close([*predict(rows[:3]), *predict(rows[3:])], predict(list(rows)))


def test_any_model_encodes_strings_and_pairs(models):
    encode, (one, other) = models["TextClassifier"].encode, (WORDS[:2], WORDS[2:])
    for texts in (tuple(one), tuple(map(str.encode, one)), [[x] for x in one], (one,)):
        close(encode(texts), encode(one))
    pairs = encode(list(zip(one, other, strict=True)))
    for texts in ((one, other), (np.array(one), np.array(other))):
        close(encode(texts), pairs)
    with pytest.raises(ValueError, match="needs text and text_pair, but got 1 column"):
        encode([(text,) for text in one])


@pytest.mark.parametrize(
    ("name", "x", "y", "message"),
    [
        ("TextClassifier", WORDS, ["pos", None, "neg", "neg"], "Row 1 has no label"),
        ("TextClassifier", WORDS, LABELS[:2], "4 texts, but 2 labels"),
        ("TextClassifier", AB, [0], "needs text, but got 2 column"),
        ("TextClassifier", [["a"], *AB], [0, 1], "needs text, but got 2 column"),
        (
            "QuestionAnswering",
            [*AB, ("a",)],
            None,
            r"context \(row 1\) must be strings",
        ),
        ("TextClassifier", [], [], "no texts"),
        ("TextClassifier", TWICE, None, "text must be one column"),
        # As many columns as texts.
        ("TextClassifier", ["a", "b"], ONE_HOT, "labels must be one column"),
        ("TokenClassifier", ["a b"], ["O"], "2 words but 1 tags: 'a b'"),
        ("TokenClassifier", ["a b"], ["O Q"], "'Q' is not a label"),
        ("TokenClassifier", ["a b", ""], [["O", "O"], []], "Row 1 has no words"),
        ("TokenClassifier", ["a b"], [None], "Row 0 has no tags"),
        ("TokenClassifier", [["a b"]], [["O"]], "'a b' is not a single word"),
        ("QuestionAnswering", AB, {"answer": ["b"], "start": [0.5]}, "Row 0"),
        ("QuestionAnswering", AB, {"answer": ["b"], "start": [np.nan]}, "Row 0"),
        ("QuestionAnswering", AB, {"answer": ["b"], "start": ["x"]}, "Row 0"),
        ("QuestionAnswering", AB, {"answer": ["b"], "answer_start": [1]}, "character"),
        ("TextClassifier", {"text": ["a"], "text_pair": ["b"]}, [0], "pair=True"),
        ("TextClassifier", [{"text": "a", "text_pair": "b"}], [0], "pair=True"),
        ("QuestionAnswering", AB, [{"answer": "b", "start": 0}], r"answer \(row 0\)"),
        ("QuestionAnswering", AB, {"text": ["b"]}, "needs answer, but answer is"),
        ("QuestionAnswering", AB, [None], "row 0"),
        ("QuestionAnswering", AB, [""], "build the model with"),
        ("QuestionAnswering", AB, ["c"], "is not in its context"),
    ],
)
def test_a_mistake_names_its_row(models, name, x, y, message):
    with pytest.raises(ValueError, match=message):
        models[name].preprocess(x, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation_split": 0.9}, "validation_split=0.9 of 4 texts"),
        ({"validation_data": ["a"]}, "must be a list of values"),
        ({"validation_data": (WORDS,)}, "validation_data needs labels"),
        ({"batch_size": 0}, "batch_size must be a positive integer"),
        ({"class_weight": {"good": 2.0}}, "class_weight: .*'good' is not a label"),
        ({"class_weight": {"pos": None}}, "class_weight=.*: give finite numbers"),
        ({"class_weight": {"pos": [1, 2]}}, "class_weight: "),
        ({"class_weight": "balanced"}, "class_weight is a dictionary of weights"),
        ({"sample_weight": ["x"] * 4}, "sample_weight must be one finite number"),
        ({"sample_weight": [1, 2]}, "4 texts, but 2 weights"),
        ({"sample_weight": [1, 2, float("nan"), 1]}, "sample_weight must be"),
    ],
)
def test_arguments_of_fit_are_checked(models, options, message):
    with pytest.raises(ValueError, match=message):
        models["TextClassifier"].fit(WORDS, LABELS, **options)


def test_batches_that_cannot_be_trained_on(models):
    model = models["TextClassifier"]
    for method in (model.train_on_batch, model.test_on_batch):
        with pytest.raises(ValueError, match=f"{method.__name__} needs labels"):
            method(WORDS)
    columns = ([*WORDS, "good", "bad"], [*LABELS, "pos", "fine"])
    wrong = tf.data.Dataset.from_tensor_slices(columns).batch(4)
    with pytest.raises(ValueError, match="validation_split needs texts in memory"):
        model.fit(wrong, validation_split=0.5)
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=r"^Row 1: 'fine' is not a label"):
            method(wrong, verbose=0)
    with pytest.raises(ValueError, match="Texts cannot be a list_iterator"):
        model.fit(WORDS, LABELS, validation_data=iter([(WORDS, LABELS)]))


def test_a_loss_of_probabilities_is_refused(preset):
    model = make("TextClassifier", preset)
    by_class = keras.losses.SparseCategoricalCrossentropy()
    for loss in (["sparse_categorical_crossentropy"], by_class, "bce", "ce"):
        model.compile("sgd", loss)
        for method in (model.fit, model.train_on_batch, model.test_on_batch):
            with pytest.raises(ValueError, match="from_logits=True"):
                method(WORDS, LABELS)


def test_a_metric_of_probabilities_is_refused(preset):
    model = make("TextClassifier", preset, labels=["x", "y"], kind="multilabel")
    metrics = keras.metrics
    for metric in (
        *(
            "acc",
            "accuracy",
            "binary_accuracy",
            "AUC",
            metrics.BinaryAccuracy(),
            metrics.AUC(),
        ),
        *(metrics.Precision(), metrics.PrecisionAtRecall(0.8)),
        metrics.BinaryCrossentropy(),
    ):
        for name in ("metrics", "weighted_metrics"):
            model.compile("sgd", model.loss, **{name: [metric]}, run_eagerly=True)
            for method in (model.fit, model.evaluate):
                with pytest.raises(ValueError, match=r"metric .* takes probabilities"):
                    method(["good"], [["x"]])
    model.compile("sgd", model.loss, metrics=["AUC"])
    with pytest.raises(ValueError, match="The metric AUC takes"):
        model.evaluate(["good"], [["x"]])
    model.compile(
        "sgd", model.loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0)]
    )
    model.run_eagerly = True
    (labels,) = (row["labels"] for row in model.predict(["good"]))
    assert model.evaluate(["good"], [labels], verbose=0)[1] == 1


def test_metrics_of_words_are_those_of_any_batches(preset):
    model = make("TokenClassifier", preset, seed=1)
    texts, tags = ["good", "the movie is very very good"], ["I-X", "O O O O O O"]
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="unweighted")
    options = {"metrics": [accuracy, "acc"], "weighted_metrics": ["accuracy"]}
    model.compile("sgd", model.loss, run_eagerly=True, **options)
    given = [tag for row in model.predict(texts) for tag in row["tags"]]
    right = np.array(given) == " ".join(tags).split()
    for size in (1, 2):
        scores = model.evaluate(texts, tags, size, verbose=0, return_dict=True)
        for name in ("acc", "accuracy", "unweighted"):
            assert scores[name] == pytest.approx(np.mean(right))


def test_words_are_those_of_the_graph(models):
    """A no-break space is part of a word, in training and when served."""
    model = models["TokenClassifier"]
    text = "costs 10\u00a0000 euro"
    model.preprocess([text], ["O B-X O"])
    lists = [["costs", "10\u00a0000", "euro"]]
    (answer,), (other,) = model.predict([text]), model.predict(lists)
    assert answer["words"] == other["words"] == lists[0]
    assert len(answer["tags"]) == len(model.predict_proba(lists)[0]) == 3
    assert model.predict([""]) == [{"words": [], "tags": [], "probabilities": []}]


def test_nothing_is_predicted_of_nothing(models):
    empty = tf.data.Dataset.from_tensor_slices(WORDS).batch(2).take(0)
    for x in ([], empty):
        assert models["TextClassifier"].predict(x) == []
        assert models["TextClassifier"].predict_proba(x).shape == (0, 2)
    with pytest.raises(ValueError, match="no texts"):
        models["TextClassifier"].evaluate(empty)


def test_a_model_that_is_not_compiled(models):
    model = models["TextClassifier"]
    other = type(model).from_config(model.get_config())
    other.set_weights(model.get_weights())
    assert other.predict(WORDS) == model.predict(WORDS)
    close(list(other.preprocess(WORDS)), list(model.preprocess(WORDS)))
    with pytest.raises(ValueError, match=r"call `compile\(\)`"):
        other.fit(WORDS, LABELS)


def test_seeds_are_left_alone(preset):
    """The head depends on ``seed`` if given, else on Keras's global seed."""

    def head(**options):
        model = et.TextClassifier.from_preset(preset, ["a", "b"], **options)
        return model.head.kernel.numpy()

    keras.utils.set_random_seed(3)
    expected = np.random.random(), keras.random.normal([2])  # noqa: NPY002
    keras.utils.set_random_seed(3)
    first = head(seed=1)
    close((np.random.random(), keras.random.normal([2])), expected)  # noqa: NPY002
    keras.utils.set_random_seed(4)
    assert (head(seed=1) == first).all()
    state = random.getstate()
    with pytest.raises(ValueError, match="rate must be"):
        head(seed=1, head_dropout=2.0)
    assert random.getstate() == state
    one, other = head(), head()
    assert (one != other).any()
    keras.utils.set_random_seed(4)
    assert (head() == one).all()


# -- States ----------------------------------------------------------------------------


def saved(model, folder):
    model.save(folder / "model.keras")
    return folder / "model.keras"


COPIES = {
    "keras": lambda m, folder: keras.saving.load_model(saved(m, folder)),
    "et": lambda m, folder: et.load(saved(m, folder)),
    "pickle": lambda m, folder: pickle.loads(pickle.dumps(m)),
    "deepcopy": lambda m, folder: copy.deepcopy(m),
}
CHANGES = {
    "fresh": lambda m: None,
    "trained": lambda m: fit(m, WORDS, LABELS),
    "rate": lambda m: setattr(m.optimizer, "learning_rate", 1e-2),
    "compiled": lambda m: m.compile(keras.optimizers.SGD(0.1, 0.9), m.loss),
    "frozen": lambda m: setattr(m.backbone, "trainable", False),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("copied", "change"),
    # All read the same archive.
    [*(("et", x) for x in CHANGES), *((x, "trained") for x in COPIES if x != "et")],
)
def test_a_copy_trains_as_the_original(preset, tmp_path, change, copied):
    model = make("TextClassifier", preset, head_dropout=0.1, dropout=0.1, seed=1)
    CHANGES[change](model)
    model.run_eagerly = True
    other = COPIES[copied](model, tmp_path)
    other.run_eagerly = True
    encoder, head = (part.get_weights() for part in (model.backbone, model.head))
    for each in (model, other):
        # In two calls: the second restarts the schedule.
        for _ in range(2):
            each.fit(WORDS, LABELS, batch_size=2, verbose=0)
        each.train_on_batch(WORDS, LABELS)
    assert (model.head.get_weights()[0] != head[0]).any()
    if change == "frozen":
        close(model.backbone.get_weights(), encoder)
    close(other.get_weights(), model.get_weights())
    close(float(other.optimizer.learning_rate), float(model.optimizer.learning_rate))
    assert type(other.optimizer) is type(model.optimizer)


@pytest.mark.slow
def test_weights_come_with_the_optimizer(preset, tmp_path):
    model, path = make("TextClassifier", preset, seed=1), tmp_path / "a.weights.h5"
    fit(model, WORDS, LABELS)
    model.save_weights(path)
    other = make("TextClassifier", preset, seed=2)
    other.load_weights(path)
    close(other.optimizer.iterations.numpy(), model.optimizer.iterations.numpy())
    for one, same in zip(
        other.optimizer.variables, model.optimizer.variables, strict=True
    ):
        close(one.numpy(), same.numpy())


@pytest.mark.slow
def test_a_fit_after_a_restored_one_trains(preset, tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    model = make("TextClassifier", preset, seed=1)
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        model.fit(WORDS, LABELS, epochs=2, verbose=0, callbacks=[backup, Stop()])
    restored = model.fit(WORDS, LABELS, epochs=2, verbose=0, callbacks=[backup])
    assert restored.epoch == [1]
    assert model.fit(WORDS, LABELS, verbose=0).epoch == [0]


@pytest.mark.slow
def test_executions_of_several_steps_end_with_the_epoch(preset):
    model = make("TextClassifier", preset, seed=1)
    model.compile("sgd", model.loss, steps_per_execution=3, run_eagerly=False)
    history = model.fit(WORDS, LABELS, batch_size=1, epochs=2, verbose=0).history
    # Four steps per epoch, rounded up to whole executions.
    assert int(model.optimizer.iterations.numpy()) == 12
    assert min(history["loss"]) > 0


@pytest.mark.slow
def test_a_strategy_is_that_of_the_constructor(preset):
    """``from_preset`` runs inside the scope and ``fit`` outside, as in Keras."""
    one = et.TextClassifier.from_preset(preset, ["neg", "pos"], seed=1)
    with two_cpus().scope():
        model = et.TextClassifier.from_preset(preset, ["neg", "pos"], seed=1)
    # Without shuffling, since each call of `fit` draws another order.
    options = {"batch_size": 4, "shuffle": False, "verbose": 0}
    for each in (one, model):
        each.fit(WORDS, LABELS, epochs=4, **options)
        each.optimizer.learning_rate = 1e-3
        each.fit(WORDS, LABELS, **options)
    close(model.get_weights(), one.get_weights())
    assert model.predict(WORDS)[0]["label"] == one.predict(WORDS)[0]["label"]


@pytest.mark.slow
def test_arguments_of_keras_work(models, starts):
    model, start = models["TextClassifier"], starts["TextClassifier"]
    restart(model, start)

    def endless():
        while True:
            yield WORDS, LABELS

    spec = tf.TensorSpec([None], tf.string)
    data = tf.data.Dataset.from_generator(endless, output_signature=(spec, spec))
    history = model.fit(data, steps_per_epoch=3, epochs=2, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 6
    assert len(history.history["loss"]) == 2
    held = model.fit(np.array(WORDS), LABELS, 1, 1, 0, validation_split=0.25).history
    assert {"val_loss", "val_accuracy"} <= held.keys()
    given = model.fit(WORDS, LABELS, None, verbose=0, validation_data=[WORDS, LABELS])
    assert "val_loss" in given.history
    given = model.fit(WORDS, LABELS, epochs=2, verbose=0, validation_data=data.take(1))
    assert len(given.history["val_loss"]) == 2
    restart(model, start)
    heavy = model.test_on_batch(WORDS, LABELS, sample_weight=[2.0, 1, 1, 2])
    restart(model, start)
    close(model.train_on_batch(WORDS, LABELS, class_weight={"pos": 2.0})[0], heavy[0])
    preprocessed = model.preprocess(WORDS, LABELS)
    for x, y in ((WORDS, LABELS), (preprocessed, None), (data.take(1), None)):
        restart(model, start)
        # Keras also accepts a single callback.
        one = keras.callbacks.History()
        history = model.fit(x, y, verbose=0, class_weight={1: 2.0}, callbacks=one)
        close(history.history["loss"][0], heavy[0])
    restart(model, start)
    # Class weights multiply sample weights, and leave held-out texts alone.
    both = {"sample_weight": [1.0, 2, 2, 1], "class_weight": {"pos": 2.0}}
    weighted = model.fit(WORDS, LABELS, verbose=0, validation_split=0.5, **both)
    assert weighted.params["steps"] == 1
    restart(model, start)
    expected = model.test_on_batch(WORDS[:2], LABELS[:2], sample_weight=[2.0, 2])
    close(weighted.history["loss"][0], expected[0])
    shuffled = model.preprocess([f"a {n}" for n in range(32)], shuffle=True)
    ordered = model.preprocess([f"a {n}" for n in range(32)])
    batches = (next(iter(data)) for data in (shuffled, ordered))
    first, second = (batch["input_ids"].numpy() for batch in batches)
    assert sorted(map(tuple, first)) == sorted(map(tuple, second))
    assert (first != second).any()
    assert 0 <= model.evaluate(WORDS, LABELS, 2, 0)[1] <= 100
    cached = model.preprocess(WORDS, LABELS).cache()
    close(model.evaluate(cached, verbose=0), model.evaluate(WORDS, LABELS, verbose=0))
    with pytest.raises(ValueError, match="leave out y"):
        model.evaluate(cached, LABELS)
    with pytest.raises(ValueError, match="leave out shuffle"):
        model.preprocess(cached, shuffle=True)
    assert model.predict(WORDS, 2, verbose=1) == model.predict(WORDS, 2, "auto")

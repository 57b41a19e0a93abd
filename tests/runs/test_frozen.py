import dataclasses
import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.linear_model import LogisticRegression

from electra_tf.runs import frozen
from electra_tf.runs.trainer import Trainer
from electra_tf.tasks import Classification, Example, Regression, TaskModel
from electra_tf.tasks.batching import TrainingOrder
from electra_tf.training import AdamW
from tests.runs.common import run as common_run
from tests.runs.common import table
from tests.runs.test_trainer import OPTIONS
from tests.tasks import common

POS = {"task": "pos", "word_column": "0", "tag_column": "-1"}


def run(folder, encoder, **values):
    values = {"frozen": True, "encoder": encoder, "max_seq_length": 16} | values
    return common_run(folder / "out", **values)


def run_tables(folder, encoder, task, train, dev, **values):
    values["train"] = table(folder / "train.csv", train)
    values["eval"] = table(folder / "eval.csv", dev)
    return run(folder, encoder, task=task, **values)


def states(path, examples):
    """Hidden states of all layers and the mask, one unpadded text at a time."""
    encoder, tokenizer = keras.saving.load_model(path), common.tokenizer()
    for example in examples:
        (ids,) = tokenizer.encode([example.texts[0]])
        ids = np.array([[2, *ids[:14], 3]], np.int32)
        yield [state.numpy()[0] for state in encoder.states({"input_ids": ids})]


def noisy():
    """Some labels are wrong, so that not every score is 100."""
    train = common.sentiment(60)
    train[::7] = [dataclasses.replace(e, label="pos") for e in train[::7]]
    return train


def peer(vectors, examples):
    """Trains scikit-learn's model of the strength 0.01."""
    # A binary model has one vector w instead of w/2 and -w/2, so C is doubled.
    model = LogisticRegression(C=2 / (0.01 * len(examples)), max_iter=1000)
    return model.fit(vectors, [e.label for e in examples])


@pytest.mark.slow
def test_texts_by_hand(tmp_path, pretrained, monkeypatch):
    train, test = noisy(), common.sentiment(21, offset=60)
    monkeypatch.setattr(frozen, "choose_strength", lambda *arguments, **options: 0.01)
    fitted, fit = [], frozen.fit

    def kept(*arguments, **options):
        fitted.append(fit(*arguments, **options))
        return fitted[0]

    monkeypatch.setattr(frozen, "fit", kept)
    report, said = run_tables(tmp_path, pretrained, "classification", train, test)

    def means(examples):
        every = states(pretrained, examples)
        layers = [[x.mean(axis=0) for x in one] for one in every]
        return np.swapaxes(layers, 0, 1)

    # Layers are standardized over the training data, with one scale, then mixed.
    shift = means(train).mean(axis=1, keepdims=True)
    scale = np.sqrt(means(train).var(axis=1).mean(axis=0))

    def vectors(examples):
        return np.tensordot(fitted[0].shares, (means(examples) - shift) / scale, 1)

    right = peer(vectors(train), train).score(vectors(test), [e.label for e in test])
    main = report["summary"]["eval"]["accuracy"]
    assert main["mean"] == pytest.approx(100 * right)
    assert main["baseline"] == pytest.approx(100 * 11 / 21, abs=5)
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written["task"] == "classification"
    assert not (tmp_path / "out" / "model.keras").exists()
    assert any(line.startswith("shares of the layers: ") for line in said)


def test_words_are_read_at_their_first_piece(tmp_path, pretrained):
    """The embedding layer predicts tags that are a function of the word."""
    tags = {"good": "A", "bad": "A", "movie": "N", "book": "N", "the": "D", "is": "V"}
    rng = np.random.default_rng(0)

    def write(name, count):
        blocks = []
        for _ in range(count):
            words = rng.choice(sorted(tags), rng.integers(2, 9))
            lines = [f"{word} {tags[word]}\n" for word in words]
            # A word of several pieces, with its own tag.
            lines.append("xyz X\n")
            blocks.append("".join(lines))
        (tmp_path / name).write_text("\n".join(blocks))
        return str(tmp_path / name)

    data = {"train": write("train.txt", 30), "eval": write("dev.txt", 10)}
    report, _ = run(tmp_path, pretrained, **POS, **data)
    scores = report["seeds"][0]["scores"]["dev"]
    assert scores["accuracy"] >= 99


def test_random_encoders_have_seeds_and_a_regression_its_scale(tmp_path, pretrained):
    stars, examples = {"neg": 3.0, "pos": 5.0}, common.sentiment(40)
    labeled = [dataclasses.replace(e, label=stars[e.label]) for e in examples]
    data = (tmp_path, pretrained, "regression", labeled, labeled[:20])
    report, _ = run_tables(*data, init="random", seeds=2)
    assert [seed["seed"] for seed in report["seeds"]] == [0, 1]
    first, second = (x["scores"]["eval"]["mse"] for x in report["seeds"])
    assert first != second
    # In units of the labels, and better than the mean baseline.
    assert report["summary"]["eval"]["mse"]["baseline"] == pytest.approx(1.0)
    assert max(first, second) < 0.9


def test_the_threshold_of_multilabel_is_tuned(tmp_path, pretrained):
    """Three of ten texts have the label, whatever they say: no probability is 0.5."""
    labels = ["x" if number % 10 < 3 else "" for number in range(120)]
    # Copies of a text would be held out together.
    ends = np.random.default_rng(0).permutation(120)
    examples = [
        dataclasses.replace(e, texts=(f"{e.texts[0]} {end}",), label=label)
        for e, end, label in zip(common.sentiment(120), ends, labels, strict=True)
    ]
    report, _ = run_tables(tmp_path, pretrained, "multilabel", examples, examples)
    found = report["summary"]["eval"]["micro_f1"]
    assert found["median"] == pytest.approx(found["baseline"], abs=10)


def test_spans_are_refused(tmp_path, pretrained):
    path = tmp_path / "squad.json"
    path.write_text('{"data": []}')
    values = {"task": "squad1", "train": str(path), "eval": str(path)}
    with pytest.raises(ValueError, match="leave --frozen out"):
        run(tmp_path, pretrained, **values)
    with pytest.raises(ValueError, match="leave --head_init=probe out"):
        run(tmp_path, pretrained, frozen=False, head_init="probe", **values)


# -- The head of a fine-tuning run -----------------------------------------------------


@pytest.mark.parametrize("pooling", ["cls", "layers"])
def test_a_head_starts_as_a_probe(pretrained, monkeypatch, pooling):
    train = noisy()
    monkeypatch.setattr(frozen, "choose_strength", lambda *arguments, **options: 0.01)
    options = {"labels": ("neg", "pos"), "pooling": pooling}
    task = Classification(name="mood", source=None, **options)
    rows = task.featurize(train, common.tokenizer(), 16, training=True)
    model = task.build_model(keras.saving.load_model(pretrained))
    frozen.start_head(model, task, rows, 8)
    head = model.head
    # [L, N, D]
    vectors = []
    for layers in states(pretrained, train):
        vectors.append([x[0] if pooling == "cls" else x.mean(axis=0) for x in layers])
    vectors = np.swapaxes(vectors, 0, 1)
    shares = [0, 1]
    if pooling == "layers":
        shares = np.exp(head.mixture.numpy()) / np.exp(head.mixture.numpy()).sum()
        # The mixture is learned.
        assert np.ptp(shares) > 0.02
    else:
        vectors = vectors[-1:].repeat(2, axis=0)
    scale = np.sqrt(vectors.var(axis=1).mean(axis=0))
    mixed = np.tensordot(shares, vectors, 1)
    scaled = (mixed - mixed.mean(axis=0)) / scale
    logits = mixed @ head.kernel.numpy() + head.bias.numpy()
    # The tolerance of L-BFGS: it stops when scores are constant (``frozen.py``).
    found = logits[:, 1] - logits[:, 0]
    wanted = peer(scaled, train).decision_function(scaled)
    np.testing.assert_allclose(found, wanted, atol=0.4)
    assert np.ptp(wanted) > 10


@pytest.fixture
def constant(monkeypatch):
    """Rows of labels whose states differ by rounding only; returns their maker."""
    noise = np.random.default_rng(0)

    def states_of(encoder, rows, *arguments):
        return 1 + 1e-7 * noise.normal(size=[1, len(rows), 16]).astype(np.float32)

    monkeypatch.setattr(frozen, "states_of", states_of)

    def start(task, labels, weights):
        examples = [Example(str(n), ("good",), x) for n, x in enumerate(labels)]
        rows = task.featurize(examples, common.tokenizer(), 16, training=True)
        model = TaskModel(common.encoder(), task.head(common.encoder()))
        weights = np.array(weights, np.float32)
        rows = dataclasses.replace(rows, weights=weights)
        # A custom task may lack num_outputs.
        own = types.SimpleNamespace(kind=task.kind)
        frozen.start_head(model, own, rows, 8)
        logits = tf.tensordot(states_of(None, rows)[0], model.head.kernel, 1)
        return (logits + model.head.bias).numpy()

    return start


def test_a_probe_does_not_multiply_rounding(constant):
    task = Regression(name="score", source=None, label_range=(0.0, 5.0))
    scores = constant(task, [0.0, 5.0] * 10, [1, 1] * 10)
    np.testing.assert_allclose(scores, 0.5, atol=0.4)


def test_a_probe_weights_its_examples(constant):
    task = Classification(name="mood", source=None, labels=("neg", "pos"))
    labels = ["neg", "pos"] * 10
    logits = constant(task, labels, [1, 3] * 6 + [0, 0] * 4)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], np.log(3), atol=0.4)
    with pytest.raises(ValueError, match="All sample weights are 0"):
        constant(task, labels, [0] * 20)


@pytest.mark.slow
def test_a_tagging_head_starts_as_a_probe(tmp_path, pretrained):
    """An untrained head has an accuracy of about one in five."""
    # A learning rate too small to change weights.
    still = {"learning_rate": 1e-12, "weight_decay": 0.0, "epochs": 0.1}
    path = tmp_path / "train.txt"
    path.write_text("the D\nmovie N\nis V\ngood A\nxyz X\n\n" * 9)
    options = {"frozen": False, "head_init": "probe", "export_saved_model": False}
    options |= {"train": str(path), "eval": str(path), **POS, **still}
    report, said = run(tmp_path, pretrained, **options)
    assert any(line.startswith("the head starts as a probe") for line in said)
    assert report["seeds"][0]["scores"][report["main_split"]]["accuracy"] == 100


def test_a_probe_of_the_same_encoder_is_trained_once():
    task = Classification(name="mood", source=None, labels=("neg", "pos"))
    rows = task.featurize(common.sentiment(24), common.tokenizer(), 16, training=True)
    model = task.build_model(common.encoder())
    model.compile(optimizer=AdamW(1e-3), loss=task.loss())
    heads = []

    def start_head(model):
        frozen.start_head(model, task, rows, 8)
        heads.append(model.head.kernel.numpy())

    order = TrainingOrder(rows.lengths, 8, (16,))
    options = {**OPTIONS, "start_head": start_head}
    for is_random, starts in ((False, 1), (True, 2)):
        heads.clear()
        options["random_encoder"] = is_random
        trainer = Trainer(model, rows, order, total_steps=3, **options)
        for seed in (0, 1):
            trainer.reset(seed)
            np.testing.assert_array_equal(model.head.kernel.numpy(), heads[-1])
            model.head.kernel.assign(np.zeros_like(heads[-1]))
        assert len(heads) == starts
    assert not np.array_equal(*heads)

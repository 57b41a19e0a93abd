import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import log_loss, roc_auc_score

import electra_tf as et
from electra_tf.layers.randomness import fold_in, uniform
from electra_tf.pretraining import GreedySampler
from electra_tf.pretraining.metrics import LogitAUC, TokenMean
from tests import tiny
from tests.layers.helpers import randomize
from tests.strategy import cpus

# One layer halves the time of tracing.
electra = functools.partial(tiny.electra, num_layers=1)


@pytest.mark.slow
def test_fit_evaluate_callbacks_and_metric_names(tmp_path):
    model = electra(dropout=0.1)
    model.compile(optimizer=keras.optimizers.Adam(1e-3))
    best = {"monitor": "val_discriminator_auc", "mode": "max"}
    path = tmp_path / "{epoch}.keras"
    history = model.fit(
        tiny.dataset(2),
        validation_data=tiny.dataset(2),
        epochs=9,
        verbose=0,
        shuffle=False,
        callbacks=[
            # The second epoch does not improve the loss by 1.
            keras.callbacks.EarlyStopping(**best, min_delta=1.0, patience=1),
            keras.callbacks.ModelCheckpoint(path, save_best_only=True, **best),
        ],
    )
    assert history.epoch == [0, 1]
    assert (tmp_path / "1.keras").exists()
    trained = {metric.name for metric in model.metrics}
    names = (
        "loss generator_loss generator_accuracy sampled_accuracy replaced_fraction "
        "discriminator_loss discriminator_accuracy discriminator_precision "
        "discriminator_recall discriminator_auc replaceable_loss replaceable_auc "
        "replaced_replaceable_fraction"
    )
    assert trained == {*names.split()}
    assert history.history.keys() == trained | {f"val_{name}" for name in trained}
    # Evaluation has no dropout and repeats its samples.
    logs = model.evaluate(tiny.dataset(2), verbose=0, return_dict=True)
    assert logs == {name: history.history[f"val_{name}"][-1] for name in trained}
    weighted = logs["generator_loss"] + 50 * logs["discriminator_loss"]
    assert logs["loss"] == pytest.approx(weighted, rel=1e-5)
    assert int(model.step) == 4


def test_losses_that_would_not_count_are_refused():
    class Regularized(et.ReplacedTokenDetection):
        def build(self, hidden_shape):
            self.add_weight(shape=(1,), regularizer="l2")
            super().build(hidden_shape)

    model = electra(question=lambda _: Regularized())
    model.compile("sgd", run_eagerly=True)
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match="regularizers and add_loss: add the"):
            call(tiny.dataset(1), verbose=0)
    for name in ("loss", "metrics", "weighted_metrics"):
        model = electra()
        model.compile("sgd", **{name: ["mse"]}, run_eagerly=True)
        with pytest.raises(ValueError, match=r"do not use compile\(loss=, metrics=\)"):
            model.fit(tiny.dataset(1), verbose=0)


def test_metrics_of_one_name_are_refused():
    def question(_):
        objective = et.ReplacedTokenDetection()
        objective.step_metrics[0].name = "loss"
        return objective

    with pytest.raises(ValueError, match="Two metrics are called loss"):
        electra(question=question)


def test_parts_that_do_not_fit_are_refused():
    model = electra()
    good = {"generator": model.generator, "discriminator": model.discriminator}
    unigram = et.pretraining.UnigramGenerator(tiny.VOCAB + 1)
    other = et.pretraining.TokenPrediction(et.layers.TextEmbedding(tiny.VOCAB, 8))
    for part, message in (
        ({"generator": model.discriminator}, r"pass et\.MaskedLM"),
        ({"generator": unigram}, f"has {tiny.VOCAB + 1} tokens, the discriminator"),
        ({"discriminator": model.detector()}, "instead of a TextEncoder"),
        ({"objective": et.ReplacedTokenDetection}, "instead of a Objective"),
        ({"objective": other}, "needs the table of the discriminator"),
    ):
        with pytest.raises(ValueError, match=message):
            et.Electra(**{**good, **part})


def numpy_batches(steps):
    return [tiny.numpy(batch) for batch in tiny.dataset(steps)]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return (numpy_batches(2)[index],)


def generated():
    yield from ((batch,) for batch in numpy_batches(2))


class Scale(et.pretraining.PretrainingModel):
    """Model with one weight, to test the training step without networks."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = self.add_weight(name="scale", initializer="ones")
        self.mean = TokenMean("loss")
        self.built = True

    @property
    def metrics(self):
        return [self.mean]

    def compute_losses(self, batch, totals, *, seed, training):
        values = self.scale * tf.cast(batch["input_ids"], tf.float32)
        self.mean.update_state(values, batch["input_mask"])
        return [et.losses.weighted_mean(values, batch["input_mask"], totals["tokens"])]


@pytest.mark.parametrize(
    "data",
    [
        lambda: tiny.dataset(2),
        lambda: tiny.dataset(2).map(lambda batch: (batch,)),
        Batches,
        generated,
    ],
)
def test_every_kind_of_data_that_keras_takes(data):
    """Datasets of batches or tuples, PyDataset, generators and single batches."""
    first, second = numpy_batches(2)
    sums = [batch["input_ids"].sum() for batch in (first, second)]
    counts = [batch["input_mask"].sum() for batch in (first, second)]
    means = np.divide(sums, counts)
    model = Scale()
    model.compile(optimizer=keras.optimizers.SGD(0.001))
    model.fit(data(), steps_per_epoch=2, verbose=0, shuffle=False)
    scale = 1 - 0.001 * means.sum()
    assert float(model.scale) == pytest.approx(scale, rel=1e-5)
    expected = scale * np.sum(sums) / np.sum(counts)
    found = model.evaluate(data(), steps=2, verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)
    logs = model.train_on_batch(first, return_dict=True)
    assert logs["loss"] == pytest.approx(scale * means[0], rel=1e-5)
    expected = (scale - 0.001 * means[0]) * means[1]
    assert model.test_on_batch(second) == pytest.approx(expected, rel=1e-5)


class Noisy(Scale):
    """Draws one number per row, as dropout and samplers do."""

    def compute_losses(self, batch, totals, *, seed, training):
        draws = uniform(seed, batch["input_ids"].shape) + (0 if training else 1)
        batch = {**batch, "input_ids": draws}
        return super().compute_losses(batch, totals, seed=seed, training=training)


@pytest.mark.parametrize(("devices", "micro_batches"), [(1, 1), (1, 2), (2, 1)])
def test_draws_and_means_do_not_depend_on_the_split(devices, micro_batches):
    """A row's draws follow seed, step and the row's number in the whole batch."""
    with cpus(devices).scope():
        model = Noisy(seed=7, gradient_accumulation_steps=micro_batches)
        # Momentum, almost none, for the slots that the strategy must hold.
        optimizer = keras.optimizers.SGD(0.5, momentum=1e-9)
        if devices == 1:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(optimizer=optimizer)
    first, second = numpy_batches(2)
    # Of unknown length, so that a third step begins and fails.
    data = tiny.dataset(2).filter(lambda batch: True)
    model.fit(data, verbose=0, shuffle=False)
    assert int(model.step.numpy()) == 2
    expected = 1.0
    for step, batch in enumerate((first, second)):
        seed = fold_in(tf.constant([7, step]), 0)
        mask = batch["input_mask"]
        expected -= 0.5 * (uniform(seed, mask.shape) * mask).numpy().sum() / mask.sum()
    assert float(model.scale.numpy()) == pytest.approx(expected, rel=1e-5)
    draws = uniform(model.test_seed(second), mask.shape).numpy() + 1
    expected *= (draws * mask).sum() / mask.sum()
    found = model.evaluate(tiny.dataset(2).skip(1), verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_variable_outside_of_the_loss_stays(micro_batches):
    model = Scale(gradient_accumulation_steps=micro_batches)
    other = model.add_weight(name="kernel", initializer="ones")
    model.compile(et.training.AdamW(0.1, weight_decay=0.5))
    model.fit(tiny.dataset(1), verbose=0, shuffle=False)
    assert float(model.scale) < 1
    assert float(other) == 1


def test_loss_scaling_needs_one_device():
    """Keras looks for overflow on the first replica alone."""
    with cpus(2).scope():
        model = Scale()
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    with pytest.raises(ValueError, match="float16 works on one device only"):
        model.fit(tiny.dataset(1), verbose=0, shuffle=False)


def test_labels_and_sample_weights_are_refused():
    model = Scale()
    model.compile(optimizer="sgd")
    batch = numpy_batches(1)[0]
    with pytest.raises(ValueError, match="labels or sample weights"):
        model.train_on_batch(batch, np.zeros(4))
    with pytest.raises(ValueError, match="labels or sample weights"):
        model.fit(tiny.dataset(1).map(lambda x: (x, x["input_ids"])), verbose=0)


def test_accumulation_needs_divisible_rows():
    model = Scale(gradient_accumulation_steps=3)
    model.compile(optimizer="sgd", run_eagerly=True)
    with pytest.raises(ValueError, match="divisible by it, got 4"):
        model.fit(tiny.dataset(1), verbose=0, shuffle=False)
    # The length may be unknown.
    specs = {n: tf.TensorSpec([4, None], v.dtype) for n, v in tiny.batch().items()}
    data = tf.data.Dataset.from_generator(generated, output_signature=(specs,))
    model = Scale(gradient_accumulation_steps=2)
    model.compile(optimizer="sgd", jit_compile=False)
    model.fit(data, epochs=2, verbose=0)
    # The end of such a dataset is found by a step that fails.
    assert int(model.step) == int(model.optimizer.iterations) == 4


def test_metrics_over_replaceable_tokens_are_scikit_learns():
    special_ids = (tiny.CLS, tiny.SEP, tiny.MASK)
    # With these weights some samples are correct, so both labels occur.
    model = tiny.electra(special_ids=special_ids)
    randomize(model.trainable_variables)
    data = tiny.dataset(4, mask_rate=0.4)
    logs = tiny.scores(model, data)
    # Every batch has a seed of its own.
    assert len({tuple(model.test_seed(batch).numpy()) for batch in data}) == 4
    labels, logits, is_real, is_replaceable = [], [], [], []
    for batch in data:
        found = model.examine(batch, seed=model.test_seed(batch))
        output = model({**batch, "input_ids": found["corrupted_ids"]})
        labels += found["is_replaced"].numpy().ravel().tolist()
        logits += output.numpy().ravel().tolist()
        is_real += (batch["input_mask"].numpy() > 0).ravel().tolist()
        expected = ~np.isin(batch["input_ids"].numpy(), [tiny.PAD, *special_ids])
        np.testing.assert_array_equal(found["is_replaceable"], expected)
        is_replaceable += expected.ravel().tolist()
    labels, logits = np.array(labels), np.array(logits)
    probabilities = 1 / (1 + np.exp(-logits))
    assert np.sum(is_replaceable) < np.sum(is_real)
    expected = log_loss(labels[is_replaceable], probabilities[is_replaceable])
    assert logs["replaceable_loss"] == pytest.approx(expected)
    assert logs["replaceable_loss"] != pytest.approx(logs["discriminator_loss"])
    rate = np.mean(labels[is_replaceable])
    assert logs["replaced_replaceable_fraction"] == pytest.approx(rate)
    # About 40 labels of each class: two logits of one rank change the AUC by 3e-3.
    for name, where in (("replaceable", is_replaceable), ("discriminator", is_real)):
        expected = roc_auc_score(labels[where], logits[where])
        assert logs[f"{name}_auc"] == pytest.approx(expected, abs=6e-3)


def test_auc_of_rare_labels_is_scikit_learns():
    rng = np.random.default_rng(0)
    labels = rng.random([7, 300]) < 0.1
    logits = (rng.normal(-2, 1.5, labels.shape) + 1.2 * labels).astype(np.float32)
    weights = rng.random(labels.shape) < 0.8
    metric = LogitAUC("auc")
    assert float(metric.result()) == 0
    for row in range(7):
        metric.update_state(labels[row], logits[row], weights[row])
    expected = roc_auc_score(labels[weights], logits[weights])
    assert float(metric.result()) == pytest.approx(expected, abs=1e-4)
    metric.reset_state()
    # Logits beyond the last bucket are ties.
    metric.update_state([0.0, 1.0, 1.0], tf.constant([90.0, 99.0, -99.0]), [1, 1, 1])
    assert float(metric.result()) == pytest.approx(0.25)


@pytest.mark.slow
def test_padding_does_not_change_losses_and_metrics():
    """Padding rows and columns (pitfalls 26 and 43 of docs/fidelity.md)."""
    batch = tiny.batch((24, 9, 17, 5))
    rows = {name: tf.pad(value, [[0, 4], [0, 0]]) for name, value in batch.items()}
    columns = {
        name: tf.pad(value, [[0, 0], [0, 8]]) if value.shape[1] == 24 else value
        for name, value in batch.items()
    }
    assert columns["input_ids"].shape == (4, 32)
    model = electra(sampler=GreedySampler())
    expected, *others = (tiny.scores(model, [x]) for x in (batch, rows, columns))
    for found in others:
        assert found == pytest.approx(expected, rel=1e-5)
    # The length may be unknown, as in batches of rows of similar length.
    specs = {n: tf.TensorSpec([None, None], v.dtype) for n, v in batch.items()}
    model.reset_metrics()
    logs = tf.function(model.test_step, input_signature=[specs])(columns)
    assert {n: float(v) for n, v in logs.items()} == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_jit_compile_equals_plain():
    results = []
    for jit_compile in (False, True):
        model = electra(dropout=0.1, sampler=GreedySampler())
        optimizer = et.training.AdamW(1e-3, clip_norm=1.0)
        model.compile(optimizer=optimizer, jit_compile=jit_compile)
        model.fit(tiny.dataset(3), verbose=0, shuffle=False)
        results.append([v.numpy() for v in model.trainable_variables])
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, atol=2e-5)


def test_wrong_batch_is_named():
    model = electra()
    batch = tiny.batch()
    del batch["masked_lm_ids"]
    with pytest.raises(ValueError, match="lacks masked_lm_ids"):
        tiny.gradients(model, {**batch})
    bad = {**tiny.batch(), "segment_ids": tf.zeros([4, 24])}
    with pytest.raises(ValueError, match="segment_ids: expected int32"):
        tiny.gradients(model, bad)

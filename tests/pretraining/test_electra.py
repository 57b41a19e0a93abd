"""The training step: definition, gradients, equivalences."""

import csv
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import log_loss, roc_auc_score

import electra_tf as et
from electra_tf.layers import TextEmbedding
from electra_tf.pretraining import GreedySampler
from electra_tf.pretraining.metrics import BucketAUC, TokenMean
from tests import tiny
from tests.layers.helpers import randomize

# One layer halves the time of tracing.
electra = functools.partial(tiny.electra, num_layers=1)


def sgd():
    return keras.optimizers.SGD(0.01)


def weights(model):
    return [v.numpy() for v in model.trainable_variables]


def assert_same_weights(first, second, atol=1e-6):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


def test_fit_evaluate_callbacks_and_metric_names(tmp_path):
    model = electra(dropout=0.1)
    model.compile(optimizer=keras.optimizers.Adam(1e-3))
    best = {"monitor": "val_discriminator_auc", "mode": "max"}
    history = model.fit(
        tiny.dataset(3),
        validation_data=tiny.dataset(3),
        epochs=9,
        verbose=0,
        shuffle=False,
        callbacks=[
            # The second epoch does not improve the loss by 1.
            keras.callbacks.EarlyStopping(**best, min_delta=1.0, patience=1),
            keras.callbacks.ModelCheckpoint(
                tmp_path / "{epoch}.keras", save_best_only=True, **best
            ),
            keras.callbacks.CSVLogger(tmp_path / "losses.csv"),
        ],
    )
    with open(tmp_path / "losses.csv") as file:
        rows = [*csv.DictReader(file)]
    assert [row["epoch"] for row in rows] == ["0", "1"]
    for name, values in history.history.items():
        np.testing.assert_allclose([float(row[name]) for row in rows], values)
    assert (tmp_path / "1.keras").exists()
    held_out = {name for name in history.history if name.startswith("val_")}
    trained = set(history.history) - held_out
    assert held_out == {f"val_{name}" for name in trained}
    assert trained == {
        "loss",
        "generator_loss",
        "generator_accuracy",
        "sampled_accuracy",
        "discriminator_loss",
        "replaced_fraction",
        "discriminator_accuracy",
        "discriminator_precision",
        "discriminator_recall",
        "discriminator_auc",
        "replaceable_loss",
        "replaceable_auc",
        "replaced_replaceable_fraction",
    }
    logs = model.evaluate(tiny.dataset(3), verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(
        logs["generator_loss"] + 50 * logs["discriminator_loss"], rel=1e-5
    )
    assert int(model.step) == 6


def numpy_batches(steps):
    return [
        {name: value.numpy() for name, value in batch.items()}
        for batch in tiny.dataset(steps)
    ]


class Batches(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.batches = numpy_batches(2)

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return (self.batches[index],)


def generated():
    yield from ((batch,) for batch in numpy_batches(2))


class Scale(et.pretraining.PretrainingModel):
    """Model with one weight, to test the training step without networks."""

    def __init__(self):
        super().__init__()
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


def test_every_kind_of_data_that_keras_takes():
    """Datasets of tuples, PyDataset, generators and single batches give one result."""
    first, second = numpy_batches(2)
    tokens = [b["input_ids"].sum() / b["input_mask"].sum() for b in (first, second)]
    kinds = {
        "batches": lambda: tiny.dataset(2),
        "tuples": lambda: tiny.dataset(2).map(lambda batch: (batch,)),
        "PyDataset": Batches,
        "generator": generated,
    }
    for kind, data in kinds.items():
        model = Scale()
        model.compile(optimizer=keras.optimizers.SGD(0.001))
        model.fit(data(), steps_per_epoch=2, verbose=0, shuffle=False)
        expected = 1 - 0.001 * sum(tokens)
        assert float(model.scale) == pytest.approx(expected, rel=1e-5), kind
        loss = model.evaluate(data(), steps=2, verbose=0)
        whole = sum(b["input_ids"].sum() for b in (first, second))
        whole /= sum(b["input_mask"].sum() for b in (first, second))
        assert loss == pytest.approx(expected * whole, rel=1e-5), kind
    logs = model.train_on_batch(first, return_dict=True)
    assert logs["loss"] == pytest.approx(expected * tokens[0], rel=1e-5)
    expected -= 0.001 * tokens[0]
    assert model.test_on_batch(second) == pytest.approx(expected * tokens[1], rel=1e-5)


def test_labels_and_sample_weights_are_refused():
    model = Scale()
    model.compile(optimizer=sgd())
    batch = numpy_batches(1)[0]
    with pytest.raises(ValueError, match="labels or sample weights"):
        model.train_on_batch(batch, np.zeros(4))
    with pytest.raises(ValueError, match="labels or sample weights"):
        model.fit(tiny.dataset(1).map(lambda x: (x, x["input_ids"])), verbose=0)


@pytest.mark.parametrize(
    "ignored",
    [{"loss": "mse"}, {"metrics": ["accuracy"]}, {"weighted_metrics": ["accuracy"]}],
)
def test_compile_refuses_what_it_would_ignore(ignored):
    (name,) = ignored
    with pytest.raises(ValueError, match=rf"compile\({name}=\) has no effect"):
        Scale().compile(optimizer="sgd", **ignored)
    with pytest.raises(ValueError, match="loss=, metrics="):
        Scale().compile("sgd", "mse", metrics=["accuracy"])


@pytest.mark.parametrize(
    "positions", ["all", pytest.param("masked", marks=pytest.mark.slow)]
)
def test_metrics_over_replaceable_tokens_are_scikit_learns(positions):
    model = electra(
        # With these weights some samples are correct, so both labels occur.
        num_layers=2,
        special_ids=(tiny.CLS, tiny.SEP, tiny.MASK),
        question=lambda _: et.ReplacedTokenDetection(positions, name="objective"),
    )
    randomize(model.trainable_variables)
    model.compile(optimizer=keras.optimizers.Adam(1e-3))
    data = tiny.dataset(4, mask_rate=0.4)
    logs = model.evaluate(data, verbose=0, return_dict=True)
    labels, logits, everywhere, all_logits = [], [], [], []
    for batch in data:
        found = model.examine(batch, seed=model.test_seed(batch))
        in_loss = batch["input_mask"] > 0
        if positions == "masked":
            in_loss = found["is_masked"]
        where = in_loss & found["is_replaceable"]
        inputs = {**batch, "input_ids": found["corrupted_ids"]}
        labels += found["is_replaced"][where].numpy().tolist()
        logits += model(inputs)[where].numpy().tolist()
        everywhere += found["is_replaced"][in_loss].numpy().tolist()
        all_logits += model(inputs)[in_loss].numpy().tolist()
        ids = batch["input_ids"].numpy()
        expected = ~np.isin(ids, [tiny.PAD, tiny.CLS, tiny.SEP, tiny.MASK])
        np.testing.assert_array_equal(found["is_replaceable"], expected)
    probabilities = tf.sigmoid(logits).numpy()
    assert len(labels) < len(everywhere) or positions == "masked"
    assert logs["replaceable_loss"] == pytest.approx(log_loss(labels, probabilities))
    assert logs["replaced_replaceable_fraction"] == pytest.approx(np.mean(labels))
    expected = roc_auc_score(labels, logits)
    # About 40 labels of each class: two logits in one bucket change the AUC by 3e-3.
    assert logs["replaceable_auc"] == pytest.approx(expected, abs=6e-3)
    expected = roc_auc_score(everywhere, all_logits)
    assert logs["discriminator_auc"] == pytest.approx(expected, abs=6e-3)
    same = logs["replaceable_loss"] == pytest.approx(logs["discriminator_loss"])
    assert same == (positions == "masked")


def test_bucket_auc_is_scikit_learns():
    rng = np.random.default_rng(0)
    labels = rng.random([7, 300]) < 0.1
    logits = (rng.normal(-2, 1.5, labels.shape) + 1.2 * labels).astype(np.float32)
    weights = rng.random(labels.shape) < 0.8
    metric = BucketAUC("auc")
    assert float(metric.result()) == 0
    for row in range(7):
        metric.update_state(labels[row], logits[row], weights[row])
    expected = roc_auc_score(labels[weights], logits[weights])
    assert float(metric.result()) == pytest.approx(expected, abs=1e-4)
    metric.reset_state()
    # Logits beyond the last bucket are ties.
    metric.update_state([0.0, 1.0, 1.0], tf.constant([90.0, 99.0, -99.0]), [1, 1, 1])
    assert float(metric.result()) == pytest.approx(0.25)


def test_loss_at_initialization_is_ln_v_plus_50_ln_2():
    """The value is 44.98 at V = 30522."""
    loss, _ = tiny.gradients(electra(), tiny.batch())
    assert float(loss) == pytest.approx(np.log(tiny.VOCAB) + 50 * np.log(2), rel=0.1)


def test_accumulation_needs_divisible_rows():
    model = electra(gradient_accumulation_steps=3)
    model.compile(optimizer=sgd())
    with pytest.raises(ValueError, match="divisible by it, got 4"):
        model.fit(tiny.dataset(1), verbose=0, shuffle=False)


def test_padding_does_not_change_the_loss():
    """Padding rows change neither loss nor metrics.

    (pitfalls 26 and 43 of docs/fidelity.md)
    """
    results = []
    for extra in (0, 4):
        model = electra(sampler=GreedySampler())
        model.compile(optimizer=sgd())
        batch = tiny.batch((24, 9, 17, 5))
        batch = {k: tf.pad(v, [[0, extra], [0, 0]]) for k, v in batch.items()}
        data = tf.data.Dataset.from_tensors(batch)
        results.append(model.evaluate(data, verbose=0, return_dict=True))
    for name, value in results[0].items():
        assert value == pytest.approx(results[1][name], rel=1e-5), name


def test_padding_columns_do_not_change_the_loss():
    """Padding at the end of every row (pitfall 26 of docs/fidelity.md)."""
    batch = tiny.batch((24, 9, 17, 5))
    wide = {
        name: tf.pad(value, [[0, 0], [0, 8]]) if value.shape[1] == 24 else value
        for name, value in batch.items()
    }
    assert wide["input_ids"].shape == (4, 32)
    model = electra(sampler=GreedySampler())
    first, _ = tiny.gradients(model, batch)
    second, _ = tiny.gradients(model, wide)
    assert float(first) == pytest.approx(float(second), rel=1e-6)


def test_discriminator_denominator_counts_cls_and_sep():
    """The denominator counts special tokens (pitfall 28 of docs/fidelity.md)."""
    totals = electra().loss_totals(tiny.batch((24, 9, 17, 5)))
    assert float(totals["tokens"]) == 24 + 9 + 17 + 5


def test_losses_against_numpy():
    """Token-weighted means over the whole batch, from the model's logits.

    (pitfalls 26 and 28 of docs/fidelity.md)
    """
    model = electra(sampler=GreedySampler())
    batch = tiny.batch((24, 9, 17, 5))
    terms = model.compute_losses(
        batch, model.loss_totals(batch), seed=tf.constant([0, 0]), training=False
    )
    logits = model.generator(batch).numpy().astype(np.float64)
    value = {k: v.numpy() for k, v in batch.items()}

    log_z = np.log(np.exp(logits).sum(-1))
    mlm, slots = 0.0, 0.0
    corrupted = value["input_ids"].copy()
    for row in range(4):
        for slot in range(logits.shape[1]):
            if value["masked_lm_weights"][row, slot]:
                target = value["masked_lm_ids"][row, slot]
                mlm += log_z[row, slot] - logits[row, slot, target]
                slots += 1
                position = value["masked_lm_positions"][row, slot]
                corrupted[row, position] = logits[row, slot].argmax()
    inputs = {**value, "input_ids": corrupted}
    rtd = model({k: tf.constant(v) for k, v in inputs.items()}).numpy()
    rtd = rtd.astype(np.float64)
    probability = 1 / (1 + np.exp(-rtd))
    replaced = corrupted != value["input_ids"]
    entropy = -np.where(replaced, np.log(probability), np.log(1 - probability))
    real = value["input_mask"] > 0
    assert float(terms[0]) == pytest.approx(mlm / slots, rel=1e-5)
    assert float(terms[1]) == pytest.approx(50 * entropy[real].mean(), rel=1e-5)


def test_dropout_off_in_evaluation_and_samples_repeat():
    model = electra(dropout=0.3)
    model.compile(optimizer=sgd())
    first = model.evaluate(tiny.dataset(2), verbose=0, return_dict=True)
    second = model.evaluate(tiny.dataset(2), verbose=0, return_dict=True)
    assert first == second


@pytest.mark.slow
def test_jit_compile_equals_plain():
    results = []
    for jit_compile in (False, True):
        model = electra(dropout=0.1, sampler=GreedySampler())
        model.compile(
            optimizer=et.training.AdamW(1e-3, clip_norm=1.0), jit_compile=jit_compile
        )
        model.fit(tiny.dataset(3), verbose=0, shuffle=False)
        results.append(weights(model))
    assert_same_weights(*results, atol=2e-5)


@pytest.mark.slow
def test_steps_per_execution_equals_single_steps():
    results = []
    for count in (1, 3):
        model = electra(dropout=0.1)
        model.compile(optimizer=sgd(), steps_per_execution=count)
        model.fit(tiny.dataset(6), verbose=0, shuffle=False)
        results.append(weights(model))
    assert_same_weights(*results)


@pytest.mark.slow
def test_mixed_bfloat16_keeps_float32_logits_and_weights():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = electra(dropout=0.1)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    batch = tiny.batch()
    assert model.generator(batch).dtype == tf.float32
    assert model(batch).dtype == tf.float32
    assert model.discriminator(batch).dtype == tf.bfloat16
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    loss, grads = tiny.gradients(model, batch, training=True)
    assert np.isfinite(float(loss))
    assert all(np.isfinite(tf.convert_to_tensor(g)).all() for g in grads)


@pytest.mark.slow
def test_save_and_load_keeps_ties_optimizer_and_outputs(tmp_path):
    model = electra()
    model.compile(optimizer=et.training.AdamW(1e-3))
    model.fit(tiny.dataset(2), verbose=0, shuffle=False)
    model.save(tmp_path / "electra.keras")
    loaded = keras.saving.load_model(tmp_path / "electra.keras")
    assert loaded.generator.encoder.embeddings is loaded.discriminator.embeddings
    assert int(loaded.step) == 2
    assert int(loaded.optimizer.iterations) == 2
    batch = tiny.batch()
    np.testing.assert_array_equal(loaded(batch), model(batch))
    np.testing.assert_array_equal(loaded.generator(batch), model.generator(batch))
    # Resumed training is bit-identical.
    model.fit(tiny.dataset(2), verbose=0, shuffle=False)
    loaded.fit(tiny.dataset(2), verbose=0, shuffle=False)
    assert_same_weights(weights(model), weights(loaded), atol=1e-7)


def test_parts_save_alone(tmp_path):
    model = electra()
    batch = tiny.batch()
    model.discriminator.save(tmp_path / "encoder.keras")
    model.generator.save(tmp_path / "generator.keras")
    model.detector().save(tmp_path / "discriminator.keras")
    encoder = keras.saving.load_model(tmp_path / "encoder.keras")
    generator = keras.saving.load_model(tmp_path / "generator.keras")
    detector = keras.saving.load_model(tmp_path / "discriminator.keras")
    np.testing.assert_array_equal(encoder(batch), model.discriminator(batch))
    np.testing.assert_array_equal(generator(batch), model.generator(batch))
    np.testing.assert_array_equal(detector(batch), model(batch))


def test_masked_lm_alone_is_bert():
    keras.utils.set_random_seed(0)
    table = TextEmbedding(tiny.VOCAB, 16, max_positions=32)
    model = et.MaskedLM(tiny.encoder(table))
    model.compile(optimizer=et.training.AdamW(3e-3))
    data = tiny.dataset(20, rule="bert")
    before = model.evaluate(data, verbose=0, return_dict=True)
    model.fit(data.repeat(), steps_per_epoch=60, verbose=0, shuffle=False)
    after = model.evaluate(data, verbose=0, return_dict=True)
    assert set(after) == {"loss", "masked_lm_loss", "masked_lm_accuracy"}
    assert after["masked_lm_loss"] < before["masked_lm_loss"] - 0.3


def test_wrong_batch_is_named():
    model = electra()
    batch = tiny.batch()
    del batch["masked_lm_ids"]
    with pytest.raises(ValueError, match="lacks masked_lm_ids"):
        tiny.gradients(model, {**batch})
    bad = {**tiny.batch(), "segment_ids": tf.zeros([4, 24])}
    with pytest.raises(ValueError, match="segment_ids: expected int32"):
        tiny.gradients(model, bad)

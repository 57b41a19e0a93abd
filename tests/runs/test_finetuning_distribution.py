import dataclasses
import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.runs import finetuning, frozen
from electra_tf.runs.trainer import Trainer
from electra_tf.tasks import Classification, MultiLabel
from electra_tf.tasks.batching import TrainingOrder, bucket_lengths
from electra_tf.training import AdamW, WarmupPolynomialDecay
from tests.examples.common import ROOT, output_of
from tests.runs.common import config, moods, run
from tests.runs.test_trainer import OPTIONS, weights
from tests.strategy import cpus, two_cpus
from tests.tasks import common
from tests.tasks.test_question_answering import some_questions
from tests.tasks.test_question_answering import task as squad
from tests.tasks.test_tagging import sentence
from tests.tasks.test_tagging import task as tagging

STEPS = 5
PROGRAM = """
import sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from electra_tf.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def weighted():
    # Neither classes nor weights are equal.
    examples = common.sentiment(14)[:9] + common.sentiment(22)[::2]
    examples[3] = dataclasses.replace(examples[3], texts=("very " * 40 + "good",))
    task = Classification(name="mood", source=None, long_texts="windows")
    return task.prepare(examples), examples


def several_labels():
    examples = [
        dataclasses.replace(
            example, label=tuple(w for w in ("good", "movie") if w in example.texts[0])
        )
        for example in common.sentiment(14)
    ]
    return MultiLabel(name="words", source=None).prepare(examples), examples


def unequal_sentences():
    # Two devices receive unequal numbers of words.
    examples = [
        sentence("the movie is very good", "B-A I-A O O B-B", "1"),
        sentence("bad", "B-B", "2"),
        sentence("the book was bad", "B-A I-A O B-B", "3"),
    ]
    return tagging(train=examples), examples


CASES = {
    "classes": weighted,
    "tags": unequal_sentences,
    "answers": lambda: (squad(), some_questions()),
    "labels": several_labels,
}


def trained(strategy, jit_compile, case, reduction):
    task, examples = CASES[case]()
    rows = task.featurize(examples, common.tokenizer(), 16, training=True)
    with strategy.scope():
        model = task.build_model(common.encoder(layers=1))
        # Plain clipped gradients, because Adam is invariant to a wrong scale.
        rate = WarmupPolynomialDecay(1e5, STEPS)
        plain = {"beta_1": 0.0, "beta_2": 0.0, "epsilon": 1e6, "weight_decay": 0.0}
        optimizer, loss = AdamW(rate, **plain), task.loss(reduction)
        model.compile(optimizer=optimizer, loss=loss, jit_compile=jit_compile)
    order = TrainingOrder(rows.lengths, 4, bucket_lengths(rows.lengths, 16))
    records = []
    options = {**OPTIONS, "log_steps": 1, "record": records.append}
    trainer = Trainer(model, rows, order, total_steps=STEPS, **options)
    trainer.train(1)
    return weights(trainer), [record["loss"] for record in records]


@pytest.mark.slow
@pytest.mark.filterwarnings("error:Your input ran out of data")
@pytest.mark.parametrize(
    ("case", "reduction"), [*((case, "mean") for case in CASES), ("classes", "sum")]
)
def test_devices_give_the_weights_of_one(case, reduction):
    one, losses = trained(tf.distribute.get_strategy(), "auto", case, reduction)
    assert abs(losses[0] - losses[-1]) > 1e-3
    # One of four devices does not receive a sentence.
    more, others = trained(cpus(4 if case == "tags" else 2), False, case, reduction)
    np.testing.assert_allclose(more, one, atol=1e-5)
    np.testing.assert_allclose(others, losses, rtol=1e-4)


@pytest.mark.slow
def test_a_run_on_devices_leaves_what_one_leaves(tmp_path):
    """The command trains on all devices of its process."""
    encoder = common.save_pretrained(tmp_path / "encoder", layers=1)
    recipe = {"learning_rate": 1e-2, "layerwise_decay": 1.0, "epochs": 8.0}
    recipe |= {"pooling": "mean", "adam_bias_correction": True}
    values = moods(tmp_path, encoder, dev=20, **recipe, export_saved_model=True)
    run(tmp_path / "1", **values)
    values |= {"distribution": "mirrored", "output_dir": tmp_path / "2"}
    flags = [f"--{n}={v}" for n, v in values.items() if v is not True]
    flags += ["--adam_bias_correction", "--export_saved_model"]
    output_of([sys.executable, "-c", PROGRAM, "finetune", *flags], ROOT)
    answers = []
    for folder in (tmp_path / "1", tmp_path / "2"):
        model = tf.saved_model.load(str(folder / "saved_model"))
        texts = tf.constant(["good movie", "a bad book"])
        served = model.signatures["serving_default"](text=texts)
        (seed,) = json.loads((folder / "results.json").read_text())["seeds"]
        answers.append((seed["scores"], served["probabilities"].numpy()))
    (one, first), (scores, served) = answers
    assert scores == one
    np.testing.assert_allclose(served, first, atol=1e-4)


@pytest.mark.slow
def test_a_head_starts_as_a_probe_on_devices_too():
    task, examples = weighted()
    rows = task.featurize(examples, common.tokenizer(), 16, training=True)
    heads = []
    for strategy in (tf.distribute.get_strategy(), two_cpus()):
        with strategy.scope():
            model = task.build_model(common.encoder(layers=1))
        frozen.start_head(model, task, rows, 8)
        copies = strategy.experimental_local_results(model.head.kernel.value)
        assert len(copies) == strategy.num_replicas_in_sync
        heads += [copy.numpy() for copy in copies]
    one, *others = heads
    assert np.ptp(one) > 0.1
    for other in others:
        np.testing.assert_allclose(other, one, atol=1e-3)


def test_devices_get_equal_shares(monkeypatch):
    monkeypatch.setattr(finetuning, "strategy_for", lambda name: two_cpus())
    found = config(distribution="mirrored", train_batch_size=9)
    with pytest.raises(ValueError, match="9 is not divisible by the 2 devices"):
        finetuning.equal_shares(found)

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.folders import models
from electra_tf.folders.cards import task_card
from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.interop.task_heads import CLASSES
from electra_tf.runs import finetuning
from electra_tf.serving import export
from electra_tf.serving.predictor import Predictor
from electra_tf.tasks import Classification, MultiLabel, Regression, Tagging
from electra_tf.tasks.question_answering import QuestionAnswering
from tests.interop.models import batch
from tests.interop.test_convert import fine_tuning_start, refused, run
from tests.tasks import common

LABELS = ("neg", "n\u00e9utral", "pos")
TASKS = {
    "classification": Classification(name="mood", source=None, labels=LABELS),
    # One label, which `transformers` would take for a regression.
    "multilabel": MultiLabel(
        name="toxic", source=None, labels=("toxic",), threshold=0.3
    ),
    "regression": Regression(
        name="stars", source=None, label_range=(1.0, 5.0), pair=True
    ),
    "tagging": Tagging(name="chunking", source=None, labels=("B-X", "I-X", "O")),
    "question_answering": QuestionAnswering(
        name="squad1", source=None, span_head="independent", max_query_length=8
    ),
}


def saved(folder, task, **changes):
    """Writes a fine-tuning run of a task, with random weights."""
    model = task.build_model(common.encoder(dropout=0.0, layers=1))
    rng = np.random.default_rng(4)
    for variable in model.trainable_variables:
        variable.assign(variable + rng.normal(0, 0.3, variable.shape))
    home = FinetuningFolder(folder)
    flags = fields.to_flat(FinetuneConfig()) | changes
    home.begin(task, common.tokenizer(), 24, {"config": flags}, trained_length=32)
    models.save(model, folder / "model.keras")
    (folder / "model_card.md").write_text(task_card(home, {}))
    return model


@pytest.fixture(scope="module")
def mood(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mood") / "run"
    return folder, saved(folder, TASKS["classification"])


BATCH = batch(np.random.default_rng(1), common.VOCAB_SIZE)
SPANS = ("start_logits", "end_logits")


def at_task(kind, found):
    real, segments = BATCH["input_mask"] > 0, BATCH["segment_ids"]
    chosen = {
        "tagging": real,
        "question_answering": (segments > 0) | (np.arange(12) == 0),
    }.get(kind, slice(None))
    return {name: np.asarray(tensor)[chosen] for name, tensor in found.items()}


def logits(kind, model, task):
    """Logits under the names of `transformers`."""
    if kind == "question_answering":
        found = model({**BATCH, "start_positions": np.zeros([3], np.int32)})
        return at_task(kind, {name: found[name] for name in SPANS})
    found = model(BATCH).numpy()
    if kind == "regression":
        found = task.decode(found, None, None)[:, np.newaxis]
    return at_task(kind, {"logits": found})


def theirs(kind, model):
    torch = pytest.importorskip("torch")
    from tests.interop.make_golden import torch_inputs

    with torch.no_grad():
        found = model(**torch_inputs(BATCH))
    names = SPANS if kind == "question_answering" else ("logits",)
    return at_task(kind, {name: getattr(found, name) for name in names})


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert np.abs(value).max() > 0.1, "too small to tell a mistake"
        np.testing.assert_allclose(found[name], value, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.slow] * (k != "regression")) for k in TASKS],
)
def test_out_to_transformers_and_back(kind, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    if kind not in ("regression", "question_answering"):
        # Tracing takes most of the time.
        monkeypatch.setattr(export, "export_saved_model", lambda *parts: None)
    task = TASKS[kind]
    model = saved(tmp_path / "run", task)
    run(tmp_path / "run", tmp_path / "hf", "--format=hugging_face")
    about = FinetuningFolder(tmp_path / "run").about()
    told = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert told["model_max_length"] == about["max_seq_length"] < about["trained_length"]
    load = getattr(transformers, CLASSES[kind]).from_pretrained
    loaded, report = load(tmp_path / "hf", output_loading_info=True)
    assert not any(report.values()), report
    wanted = logits(kind, model, task)
    assert_equal(theirs(kind, loaded.eval()), wanted)
    if labels := getattr(task, "labels", ()):
        assert tuple(loaded.config.id2label.values()) == labels
        assert loaded.config.label2id == {x: n for n, x in enumerate(labels)}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    (ids,) = common.tokenizer().encode(["the movie is bad"])
    assert tokenizer("The movie is BAD")["input_ids"][1:-1] == list(ids)
    card = (tmp_path / "hf" / "README.md").read_text()
    assert CLASSES[kind] in card
    assert f"task: {task.name}" in card
    loaded.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    run(tmp_path / "again", tmp_path / "back")
    back = FinetuningFolder(tmp_path / "back")
    assert_equal(logits(kind, back.load(), task), wanted)
    assert back.about()["text_names"] == list(task.text_names)
    assert back.about()["trained_length"] == about["trained_length"]
    if kind == "multilabel":
        assert (back.about()["kind"], back.about()["labels"]) == (kind, ["toxic"])
        assert back.about()["threshold"] == 0.3
    if kind == "tagging":
        assert back.load().head.dropout == task.dropout
    if kind == "regression":
        texts = {"text": "the movie is bad", "text_pair": "a fine book"}
        (answer,) = Predictor(str(back.path))([texts])
        assert "score" in answer
        path = tmp_path / "hf" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"electra_tf": None}))
        assert "labels are from 0 to 1" in run(tmp_path / "hf", tmp_path / "unknown")
    if kind == "question_answering":
        texts = {"question": "what is bad", "context": "the movie is bad"}
        (answer,) = Predictor(str(back.path))([texts])
        assert "answer" in answer


@pytest.mark.slow
def test_their_models_come_in(tmp_path):
    """Imports a head with the hidden layer of `transformers`."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from tests.interop import make_golden

    sizes = {"embedding_size": 8, "hidden_size": 16, "num_attention_heads": 2}
    sizes |= {"vocab_size": common.VOCAB_SIZE, "max_position_embeddings": 64}
    config = make_golden.config(**sizes, num_labels=3)
    model = transformers.ElectraForSequenceClassification(config)
    make_golden.randomized(model, torch.Generator().manual_seed(3))
    model.save_pretrained(tmp_path / "hf")
    common.tokenizer().vocabulary.save(tmp_path / "hf" / "vocab.txt")
    run(tmp_path / "hf", tmp_path / "in", "--trained_length=24")
    home = FinetuningFolder(tmp_path / "in")
    wanted = theirs("classification", model)
    assert_equal(logits("classification", home.load(), None), wanted)
    assert home.about()["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    # The export is bit-exact, because the format has this head.
    run(tmp_path / "in", tmp_path / "out", "--format=hugging_face")
    paths = (tmp_path / name / "model.safetensors" for name in ("hf", "out"))
    np.testing.assert_equal(*map(load_file, paths))
    # The imported encoder can be fine-tuned on another task.
    chosen = fields.from_flat({"encoder": str(tmp_path / "in")}, FinetuneConfig)
    start = finetuning.pretrained(chosen, lambda line: None)
    assert start.trained_length == 24
    common.assert_same_weights(start.encoder, home.load().encoder)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("classification", {"pooling": "mean"}, "--pooling=cls"),
        ("classification", {"labels": tuple("abcdefghi")}, "9 classes"),
        ("question_answering", {"span_head": "joint"}, "--span_head=independent"),
        ("question_answering", {"answerability": True}, "--task=squad1"),
        ("regression", {"label_range": (0.0, 1e6)}, "that float16 cannot hold"),
    ],
)
def test_heads_without_a_counterpart_are_refused(kind, changes, message, tmp_path):
    saved(tmp_path / "run", dataclasses.replace(TASKS[kind], **changes))
    to = tmp_path / "hf"
    flags = ("--format=hugging_face", "--float16")
    assert message in refused(tmp_path / "run", to, *flags)
    assert not to.exists()


def test_other_formats_and_the_encoder_alone(mood, tmp_path):
    folder, model = mood
    for name in ("keras_hub", "electra_tf"):
        message = refused(folder, tmp_path / "to", f"--format={name}")
        assert "--only=discriminator" in message
    run(folder, tmp_path / "encoder", "--only=discriminator")
    assert not (tmp_path / "encoder" / "model_card.md").exists()
    encoder = fine_tuning_start(tmp_path / "encoder").encoder
    common.assert_same_weights(encoder, model.encoder)


def test_configs_that_do_not_fit_their_head_are_refused(mood, tmp_path):
    folder, _ = mood
    run(folder, tmp_path / "hf", "--format=hugging_face")
    run(tmp_path / "hf", tmp_path / "alone", "--only=discriminator")
    assert fine_tuning_start(tmp_path / "alone").trained_length == 32
    path = tmp_path / "hf" / "config.json"
    config = json.loads(path.read_text())
    for change, said in (
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, "id2label"),
        ({"id2label": {"0": "a"}}, "id2label"),
        ({"problem_type": "regression"}, "problem_type"),
        ({"electra_tf": {"long_texts": "high"}}, "long_texts"),
        ({"electra_tf": {"max_seq_length": 65}}, "max_seq_length is 65"),
        ({"electra_tf": {"label_range": [1, 1]}}, "label_range"),
        ({"classifier_dropout": 1.5}, "classifier_dropout is 1.5"),
    ):
        path.write_text(json.dumps(config | change))
        assert said in refused(tmp_path / "hf", tmp_path / "in")
    path.write_text(json.dumps(config))
    assert "--pair" in refused(folder, tmp_path / "in", "--pair")

import csv
import functools
import json
import re
import shutil
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import softmax
from tensorflow.core.protobuf import saved_model_pb2

from electra_tf import serving, tasks
from electra_tf.__main__ import main as command
from electra_tf.serving import predictor
from electra_tf.tasks.batching import Outputs
from electra_tf.tasks.tables import TableSource, read_table
from tests.examples.common import ROOT, output_of
from tests.tasks import common
from tests.tasks.test_encoding import HARD

LENGTH = 24
LABELS = ("neg", "n\u00e9utral", "pos")


def classification(**options):
    return tasks.Classification(name="mood", source=None, labels=LABELS, **options)


def export(task, model, folder):
    path = str(folder / "saved_model")
    serving.export_saved_model(model, task, common.tokenizer(), path, LENGTH)
    return task, model, path


def signature(path):
    return tf.saved_model.load(path).signatures["serving_default"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A classifier of texts, which is loaded once for all tests."""
    task = classification()
    model = task.build_model(common.encoder(layers=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.saved_model, "load", functools.cache(tf.saved_model.load))
        yield export(task, model, tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def paired(tmp_path_factory):
    """A classifier of pairs with a trained mixture of layers."""
    task = classification(pair=True, pooling="layers")
    model = task.build_model(common.encoder(layers=1))
    model.head.mixture.assign([0.5, -1.0])
    return export(task, model, tmp_path_factory.mktemp("paired"))


def examples_of(*columns):
    return [common.Example("", texts, None) for texts in zip(*columns, strict=True)]


def python_answers(task, model, *columns):
    examples = examples_of(*columns)
    rows = task.featurize(examples, common.tokenizer(), LENGTH)
    return rows, task.decode(Outputs(model, 5)(rows), rows, examples)


def eager(model, task):
    """A predictor without a graph, because tracing takes seconds."""
    module = serving.ServingModule(model, task, common.tokenizer(), LENGTH)
    module.text_signature = lambda: module.answer
    return predictor.Predictor(module)


FRESH = """
import json, sys
import tensorflow as tf
import tensorflow_text
model = tf.saved_model.load(sys.argv[1])
texts = {name: tf.constant(column) for name, column in json.loads(sys.argv[2]).items()}
found = model.signatures["serving_default"](**texts)
answers = {name: tensor.numpy().tolist() for name, tensor in found.items()}
print(json.dumps(answers, default=bytes.decode))
ours = [name for name in sys.modules if name.split(".")[0] == "electra_tf"]
sys.exit(1 if ours else 0)
"""


@pytest.mark.slow
def test_fresh_process_gives_the_answers_that_are_scored(paired):
    """tests/runs/test_finetuning_tasks.py has tags and answers to questions."""
    task, model, path = paired
    # Zero bytes cannot be passed on a command line.
    columns = [[t.replace("\0", "") for t in HARD], ["good"] * len(HARD)]
    rows, in_batches = python_answers(task, model, *columns)
    order = np.argsort(rows.lengths, kind="stable")
    columns = [[column[number] for number in order] for column in columns]
    texts = json.dumps(dict(zip(task.text_names, columns, strict=True)))
    output = output_of([sys.executable, "-c", FRESH, path, texts], ROOT)
    found = json.loads(output.splitlines()[-1])
    # One batch in the order of Outputs, for the same matrix products, and a graph, as
    # eager operations of tests may have other kernels (tests/conftest.py).
    rows, _ = python_answers(task, model, *columns)
    logits = tf.stack(Outputs(model, len(HARD))(rows))
    together = tf.function(task.answers)(logits).numpy()
    np.testing.assert_array_equal(np.float32(found["probabilities"]), together)
    # Other batches have other padding, which changes the last bits.
    np.testing.assert_allclose(found["probabilities"], in_batches[order], atol=1e-6)
    assert found["label"] == task.readable(in_batches[order])


def test_signatures_agree_on_hard_strings(exported):
    task, model, path = exported
    loaded = tf.saved_model.load(path)
    rows, expected = python_answers(task, model, HARD)
    served = loaded.signatures["serving_default"](text=tf.constant(HARD))
    np.testing.assert_allclose(served["probabilities"], expected, atol=1e-6)
    labels = [label.decode() for label in served["label"].numpy()]
    assert labels == task.readable(expected)
    assert served["labels"].numpy()[0].tolist() == [x.encode() for x in task.labels]

    for number in (0, 7):
        ids = tf.constant(rows.inputs["input_ids"][number][None])
        zeros = tf.zeros_like(ids)
        inputs = {"input_ids": ids, "input_mask": zeros + 1, "segment_ids": zeros}
        (alone,) = loaded.signatures["ids"](**inputs)["probabilities"]
        np.testing.assert_allclose(alone, expected[number], atol=1e-6)


@pytest.mark.slow
def test_another_precision_is_exported(exported, tmp_path):
    task, model, path = exported
    halves = str(tmp_path / "bfloat16")
    serving.export_saved_model(
        model, task, common.tokenizer(), halves, LENGTH, "bfloat16"
    )
    found = []
    for each in (path, halves):
        serve = signature(each)
        found.append(serve(text=tf.constant(HARD))["probabilities"].numpy())
    assert tf.bfloat16 in {variable.dtype for variable in serve.variables}
    # bfloat16 has eight bits.
    assert 0 < np.abs(found[1] - found[0]).max() < 0.05
    # The export does not change the model.
    assert model.encoder.dtype_policy.name == "float32"


def test_keras_calls_the_signature(exported):
    _, _, path = exported
    texts = tf.constant(["the movie is", "good"])
    serve = signature(path)
    answer = keras.layers.TFSMLayer(path, call_endpoint="serving_default")(texts)
    for name, value in serve(text=texts).items():
        np.testing.assert_array_equal(answer[name], value)


@pytest.mark.slow
def test_inputs_keep_their_order(paired):
    task, _, path = paired
    assert predictor.Predictor(path).text_names == task.text_names


def test_exports_that_cannot_be_written_are_refused(exported, tmp_path):
    task, model, _ = exported
    parts = (model, task, common.tokenizer())
    with pytest.raises(ValueError, match="128, and the model has 64 positions"):
        serving.export_saved_model(*parts, str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "variables").mkdir()
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ValueError, match=r"has thesis\.txt, and the export would"):
        serving.export_saved_model(*parts, str(tmp_path))
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("names", [("question", "context"), ("text", "text_pair")])
def test_inputs_of_older_models_have_an_order(tmp_path, names):
    specs = {name: tf.TensorSpec([None], tf.string, name) for name in names[::-1]}
    function = tf.function(lambda **texts: texts).get_concrete_function(**specs)
    tf.saved_model.save(tf.Module(), str(tmp_path), {"serving_default": function})
    assert serving.Predictor(tmp_path).text_names == names


def test_multilabel_names_the_labels_above_the_threshold():
    task = tasks.MultiLabel(name="mood", source=None, labels=("x", "y", "z"))
    model = task.build_model(common.encoder(layers=1))
    _, expected = python_answers(task, model, ["good"])
    (row,) = eager(model, task)([{"text": "good"}])
    given = [n for n, p in zip("xyz", expected[0], strict=True) if p >= 0.5]
    assert row["labels"] == given
    np.testing.assert_allclose(list(row["probabilities"].values()), expected[0], 1e-5)


def test_labels_in_a_cell_have_the_separator_of_the_run(predict, tmp_path):
    columns = {"text": ("text",), "label": ("label",)}
    source = TableSource(files={}, kind="multilabel", separator=";", **columns)
    task = tasks.MultiLabel(name="m", source=source, labels=("a", "b"), threshold=0.0)
    assert task.readable(np.ones([1, 2])) == ["a;b"]
    assert task.readable_label(("b", "a")) == "a;b"
    export(task, task.build_model(common.encoder(layers=1)), tmp_path)
    (tmp_path / "config.json").write_text('{"config": {"label_separator": ";"}}')
    (tmp_path / "in.csv").write_text("text\ngood\n")
    for flags, cell in ([], "a;b"), (["--label_separator=/"], "a/b"):
        out = tmp_path / f"out-{len(flags)}.csv"
        flags += [f"--input={tmp_path / 'in.csv'}", f"--output={out}"]
        predict(*flags, model=tmp_path)
        ((_, row),) = read_table(str(out)).rows
        assert row["labels"] == cell


def test_the_graph_needs_no_other_operations_than_the_docs_say(exported):
    _, _, path = exported
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((Path(path) / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    # Operations of tensorflow_text are not in raw_ops.
    foreign = {node.op for node in nodes if not hasattr(tf.raw_ops, node.op)}
    assert foreign >= {"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"}
    docs = (ROOT / "docs" / "serving.md").read_text()
    assert all(f"`{name}`" in docs for name in foreign)


def test_every_weight_is_saved_once(exported):
    _, model, path = exported
    variables = tf.train.list_variables(f"{path}/variables/variables")
    saved = sum(np.prod(shape) for name, shape in variables if "VARIABLE" in name)
    assert saved == sum(np.prod(variable.shape) for variable in model.variables)


@pytest.mark.slow
def test_rest_requests_of_the_docs_fit_the_signatures(exported, paired):
    text = (ROOT / "docs" / "serving.md").read_text()
    bodies = re.findall(r"(?:curl -d '|Pair tasks: `)(\{.*?\})['`]", text)
    assert bodies
    for body in bodies:
        (row,) = json.loads(body)["instances"]
        _, _, path = paired if len(row) == 2 else exported
        serve = signature(path)
        assert set(row) == set(serve.structured_input_signature[1])
        found = serve(**{name: tf.constant([value]) for name, value in row.items()})
        # As rows of a JSON answer: one entry per instance in every output.
        assert {len(tensor) for tensor in found.values()} == {1}


@pytest.fixture
def predict(exported, monkeypatch, capsys):
    """Runs the command; returns its rows, or its one-line error."""

    def run(*arguments, stdin="", model=exported[2]):
        monkeypatch.setattr(sys, "stdin", stdin.splitlines(keepends=True))
        error = ""
        try:
            command(["predict", f"--model={model}", *arguments])
        except SystemExit as stopped:
            error = stopped.code
        out, err = capsys.readouterr()
        assert not (stdin and err)
        if not error:
            return [json.loads(line) for line in out.splitlines()]
        assert out == ""
        assert error.startswith("error: ")
        assert "\n" not in error
        return error

    return run


def test_predict_from_arguments_lines_and_jsonl(exported, predict, tmp_path):
    (one,) = predict("good movie", model=Path(exported[2]).parent)
    assert set(one["probabilities"]) == set(LABELS)
    assert one["probability"] == max(one["probabilities"].values())
    lines = predict(stdin="good movie\n\nbad\n")
    # An answer for each line, also if it is blank.
    assert [row["text"] for row in lines] == ["good movie", "", "bad"]
    assert lines[0]["label"] == one["label"]
    table = tmp_path / "in.jsonl"
    table.write_text('\ufeff{"text": "bad", "k": 3, "note": "\\ud800", "label": 7}\n')
    (row,) = predict(f"--input={table}")
    assert (row["k"], row["label"]) == (3, 7)
    assert row["note"] == "?"
    predict(f"--input={table}", f"--output={tmp_path / 'out.csv'}")
    ((_, written),) = read_table(str(tmp_path / "out.csv")).rows
    assert written["note"] == "?"
    assert row["predicted_label"] in LABELS
    assert row["probabilities"] == pytest.approx(lines[2]["probabilities"])


def test_cells_of_csv_hold_carriage_returns_and_any_json(predict, tmp_path):
    table, out = tmp_path / "in.jsonl", tmp_path / "out.csv"
    table.write_text('{"text": "a\\rb", "probabilities": {"x": null, "y": [1]}}\n')
    assert predict(f"--input={table}", f"--output={out}") == []
    ((_, row),) = read_table(str(out)).rows
    assert [row["text"], row["p(x)"], row["p(y)"]] == ["a\rb", "", "[1]"]


def test_predict_says_what_is_wrong(exported, predict, tmp_path, monkeypatch):
    flag = "--text_pair=bad"
    assert "The model reads text: leave --text_pair out" in predict("good", flag)
    for text in (flag, "good"):
        assert "--input has all texts" in predict("--input=x.csv", text)
    message = predict("--batch_size=0", "good")
    assert "--batch_size must be at least 1, got 0" in message
    assert f"No SavedModel at {tmp_path}" in predict("text", model=tmp_path)
    folder = shutil.copytree(exported[2], tmp_path / "copied")
    (data,) = folder.glob("variables/variables.data*")
    data.write_bytes(data.read_bytes()[:1000])
    assert f"error: {folder} cannot be loaded: " in predict("text", model=folder)

    def broken(text):
        raise tf.errors.InvalidArgumentError(None, None, "Bad graph\nat node x")

    broken.structured_input_signature = ((), {"text": tf.TensorSpec([], tf.string)})
    module = types.SimpleNamespace(signatures={"serving_default": broken})
    monkeypatch.setattr(tf.saved_model, "load", lambda path: module)
    assert "failed on a batch of 1 texts: Bad graph" in predict("good")


def test_batches_without_texts_or_without_words_are_answered(exported):
    """tests/tasks has empty sentences, questions and contexts."""
    task, model, _ = exported
    module = serving.ServingModule(model, task, common.tokenizer(), LENGTH)
    for texts in (["", " \t"], []):
        answer = module.answer(text=tf.constant(texts, tf.string))
        assert {len(tensor) for tensor in answer.values()} == {len(texts)}


def test_lone_surrogates_keep_words_and_offsets_in_place():
    def answers(task, **row):
        whole = {name: text.replace("\ud83d", "\ufffd") for name, text in row.items()}
        model = task.build_model(common.encoder(layers=1))
        answer, expected = eager(model, task)([row, whole])
        # The sums of a row may depend on its place in the batch.
        numbers = answer.pop("probabilities", []), expected.pop("probabilities", [])
        np.testing.assert_allclose(*numbers, atol=1e-6)
        assert answer == expected
        return answer, whole

    tagging = tasks.Tagging(name="people", source=None, labels=("O", "B-X"))
    answer, whole = answers(tagging, text="good \ud83d movie")
    assert answer["words"] == whole["text"].split()
    answering = tasks.QuestionAnswering(name="mine", source=None, max_query_length=8)
    answer, whole = answers(answering, question="is it ?", context="\ud83d \ud83d good")
    assert answer["answer"] == whole["context"][answer["start"] : answer["end"]] != ""


@pytest.mark.parametrize("kind", [tasks.Classification, tasks.Regression])
def test_windows_are_averaged_alike_in_evaluation_and_serving(kind):
    """The graph is traced for a regression only."""
    own = {"labels": ("neg", "pos")}
    if kind is tasks.Regression:
        own = {"label_range": (1.0, 5.0)}
    task = kind(name="mood", source=None, long_texts="windows", **own)
    model = task.build_model(common.encoder(layers=1))
    texts = ["good", "", "the movie was not bad, it is a great movie " * 3]
    texts.append("a b c d e f g")
    examples = examples_of(texts)
    rows = task.featurize(examples, common.tokenizer(), 8)
    assert np.bincount(rows.example).tolist() == [1, 1, 6, 2]
    outputs = np.stack(Outputs(model, 3)(rows))
    answers = task.decode(list(outputs), rows, examples)
    # By hand: the mean of logits, then the prediction.
    logits = np.array([outputs[rows.example == i].mean(0) for i in range(4)])
    module = serving.ServingModule(model, task, common.tokenizer(), 8)
    if kind is tasks.Regression:
        expected = logits[:, 0] * 4 + 1
        served = predictor.Predictor(module)([{"text": text} for text in texts])
        found = [row["score"] for row in served]
    else:
        expected = softmax(logits, axis=1)
        found = module.answer(text=tf.constant(texts))["probabilities"]
    np.testing.assert_allclose(answers, expected, atol=1e-6)
    # Graphs sum in other orders; the range of a score scales the difference.
    np.testing.assert_allclose(found, answers, atol=4e-6)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_tables_keep_their_columns(exported, tmp_path, kind, capsys):
    task, model, path = exported
    gold = ["pos", "neg", "pos", "neg", "n\u00e9utral"]
    bodies = ["a good movie", "the book, it is bad", "great", "awful", ""]
    columns = {"body": bodies, "label": gold}
    rows = [{"body": x, "label": y} for x, y in zip(bodies, gold, strict=True)]
    table, out = tmp_path / f"in.{kind}", tmp_path / f"out.{kind}"
    if kind == "jsonl":
        table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with table.open("w", newline="") as file:
            mark = {"csv": ",", "tsv": "\t"}[kind]
            writer = csv.DictWriter(file, list(rows[0]), delimiter=mark)
            writer.writeheader()
            writer.writerows(rows)
    flags = [f"--model={path}", f"--input={table}", "--text=body", "--batch_size=2"]
    assert command(["predict", *flags, f"--output={out}"]) == 0
    assert capsys.readouterr().out == ""
    _, answers = python_answers(task, model, bodies)
    written = read_table(str(out))
    columns["predicted_label"] = task.readable(answers)
    for name, column in columns.items():
        assert [row[name] for _, row in written.rows] == column
    if kind != "jsonl":
        shares = [float(row["p(pos)"]) for _, row in written.rows]
        np.testing.assert_allclose(shares, answers[:, 2], atol=1e-5)
    # Predictions on predictions keep the earlier ones.
    again = tmp_path / f"again.{kind}"
    flags[1] = f"--input={out}"
    assert command(["predict", *flags, f"--output={again}"]) == 0
    content = again.read_text()
    with pytest.raises(SystemExit, match="exists: pass --overwrite"):
        command(["predict", *flags, f"--output={again}"])
    assert again.read_text() == content
    rows = read_table(str(again)).rows
    for (_, first), (_, row) in zip(written.rows, rows, strict=True):
        assert first.items() <= row.items()
        assert row["predicted_predicted_label"] == first["predicted_label"]
        assert len(row) > len(first) + 2


def test_the_columns_are_those_of_the_run(exported, predict, tmp_path, capsys):
    table, run = tmp_path / "in.csv", tmp_path / "run"
    table.write_text("body,text\ngood movie,bad\nawful,\n")
    shutil.copytree(exported[2], run / "saved_model")
    (by_text, _) = predict(f"--input={table}", model=run)
    (run / "config.json").write_text('{"config": {"text": ["body"]}}')
    (by_body, _) = predict(f"--input={table}", model=run)
    assert by_body["probabilities"] != by_text["probabilities"]
    (given, _) = predict(f"--input={table}", "--text=body", model=run)
    assert by_body == given
    # A table without the column of the run.
    table.write_text('text\nbad\n" "\n')
    flags = [f"--model={run}", f"--input={table}", f"--output={tmp_path / 'out.csv'}"]
    assert command(["predict", *flags]) == 0
    assert "warning: 1 of 2 rows have no text" in capsys.readouterr().err
    ((_, row), _) = read_table(str(tmp_path / "out.csv")).rows
    assert float(row["probability"]) == pytest.approx(by_text["probability"], abs=1e-5)


def test_tables_that_do_not_fit_are_refused(exported, predict, tmp_path):
    model = f"--model={exported[2]}"
    table = tmp_path / "in.csv"
    table.write_text("body,label\na,b\n")
    for flags, message in (
        ([], "has no column 'text'"),
        (["--text=body,label"], "reads text: name 1"),
        (["--text=body", "--output=x.xlsx"], "must end in"),
    ):
        assert message in predict(f"--input={table}", *flags)
    lines = table.with_suffix(".jsonl")
    lines.write_text('{"text": "a"}\n{"body": "b"}\n')
    assert "needs text, but text is missing" in predict(f"--input={lines}")
    assert "--output needs --input" in predict("--output=a.csv", "a text")
    for flags, message in (
        ([model], "--input is required"),
        ([model, f"--input={table}", "run"], "unexpected arguments"),
        ([model, f"--input={table}"], "holds no fine-tuned Keras model"),
    ):
        with pytest.raises(SystemExit) as stopped:
            command(["evaluate", *flags])
        assert message in stopped.value.code

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from electra_tf import serving
from electra_tf.__main__ import main as command
from electra_tf.serving import predictor
from electra_tf.tasks import Classification, MultiLabel, Regression
from electra_tf.tasks.batching import Outputs
from electra_tf.tasks.question_answering import QuestionAnswering
from electra_tf.tasks.tables import read_table
from tests.tasks import common
from tests.tasks.test_encoding import HARD
from tests.tasks.test_tagging import task as tagging

LENGTH = 24
ROOT = Path(__file__).parents[2]


def make(folder, kind=Classification, *, pair=False, layers=1, **kwargs):
    kwargs = kwargs or {"labels": ("neg", "n\u00e9utral", "pos")}
    task = kind(name="mood", source=None, pair=pair, **kwargs)
    model = task.build_model(common.encoder(layers=layers))
    path = str(folder / "saved_model")
    serving.export_saved_model(model, task, common.tokenizer(), path, LENGTH)
    return task, model, path


def squad2():
    return QuestionAnswering(
        name="squad2",
        source=None,
        unanswerable=True,
        answerability=True,
        max_query_length=8,
        doc_stride=8,
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Task, model and path of the SavedModel of a text classifier."""
    return make(tmp_path_factory.mktemp("exported"))


def python_answers(task, model, *columns, batch_size=5):
    examples = [
        common.Example(str(i), texts)
        for i, texts in enumerate(zip(*columns, strict=True))
    ]
    rows = task.featurize(examples, common.tokenizer(), LENGTH)
    return rows, task.decode(Outputs(model, batch_size)(rows), rows, examples)


FRESH = """
import json, sys
import tensorflow as tf
import tensorflow_text
answers = []
for path, texts in json.loads(sys.argv[1]):
    model = tf.saved_model.load(path)
    texts = {name: tf.constant(column) for name, column in texts.items()}
    found = model.signatures["serving_default"](**texts)
    answers.append({name: tensor.numpy().tolist() for name, tensor in found.items()})
print(json.dumps(answers, default=bytes.decode))
ours = [name for name in sys.modules if name.split(".")[0] == "electra_tf"]
sys.exit(1 if ours else 0)
"""


def served_in_a_fresh_process(requests):
    """Serves (path of a SavedModel, texts by name) in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH, json.dumps(requests)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_fresh_process_gives_the_answers_of_python_to_the_bit(tmp_path):
    texts = {"text": ["the movie is good", "", "the xy was very " * 12]}
    tasks = {
        "pair": (
            Classification(name="mood", source=None, pair=True, labels=("neg", "pos")),
            {"text": ["good", "a very bad book"], "text_pair": ["the movie is", ""]},
        ),
        "tagging": (tagging(), texts),
        "squad2": (
            squad2(),
            {"question": ["is it good ?"] * 3, "context": texts["text"]},
        ),
    }
    requests, expected = [], []
    for name, (task, columns) in tasks.items():
        model, path = task.build_model(common.encoder(layers=1)), str(tmp_path / name)
        serving.export_saved_model(model, task, common.tokenizer(), path, LENGTH)
        requests.append((path, columns))
        module = serving.ServingModule(model, task, common.tokenizer(), LENGTH)
        columns = {n: tf.constant(c) for n, c in columns.items()}
        found = module.signatures()["serving_default"](**columns)
        expected.append({n: tensor.numpy().tolist() for n, tensor in found.items()})
        # Eager, because TensorFlow fuses operations in a graph.
        for n, tensor in module.answer(**columns).items():
            if tensor.dtype.is_floating:
                np.testing.assert_allclose(tensor, found[n], rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(tensor, found[n])
    found = served_in_a_fresh_process(requests)
    assert found == json.loads(json.dumps(expected, default=bytes.decode))
    assert "".join(found[2]["answer"])


@pytest.mark.slow
def test_fresh_process_gives_the_answers_that_are_scored(tmp_path):
    labels = ("neg", "n\u00e9utral", "pos")
    options = {"pair": True, "labels": labels, "pooling": "layers"}
    task, model, path = make(tmp_path, layers=2, **options)
    model.head.mixture.assign([0.5, -1.0, 1.0])
    serving.export_saved_model(model, task, common.tokenizer(), path, LENGTH)
    # Zero bytes cannot be passed on a command line.
    columns = [[t.replace("\0", "") for t in HARD], ["good"] * len(HARD)]
    rows, in_batches = python_answers(task, model, *columns)
    order = np.argsort(rows.lengths, kind="stable")
    columns = [[column[number] for number in order] for column in columns]
    names = ("text", "text_pair")
    (found,) = served_in_a_fresh_process(
        [(path, dict(zip(names, columns, strict=True)))]
    )
    # One batch in the order of Outputs, for the same matrix products.
    rows, together = python_answers(task, model, *columns, batch_size=len(HARD))
    np.testing.assert_array_equal(np.float32(found["probabilities"]), together)
    # Other batches have other padding, which changes the last bits.
    np.testing.assert_allclose(found["probabilities"], in_batches[order], atol=1e-6)
    assert found["label"] == task.readable(in_batches[order])


def test_three_signatures_agree_on_hard_strings(exported):
    task, model, path = exported
    loaded = tf.saved_model.load(path)
    rows, expected = python_answers(task, model, HARD)
    served = loaded.signatures["serving_default"](text=tf.constant(HARD))
    np.testing.assert_allclose(served["probabilities"], expected, atol=1e-6)
    labels = [label.decode() for label in served["label"].numpy()]
    assert labels == task.readable(expected)
    assert served["labels"].numpy()[0].tolist() == [x.encode() for x in task.labels]

    def serialized(text):
        feature = tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[text.encode("utf-8")])
        )
        features = tf.train.Features(feature={"text": feature})
        return tf.train.Example(features=features).SerializeToString()

    examples = tf.constant([serialized(text) for text in HARD])
    parsed = loaded.signatures["tf_example"](examples=examples)
    np.testing.assert_array_equal(parsed["probabilities"], served["probabilities"])

    for number in (0, 7):
        ids = rows.inputs["input_ids"][number][None]
        alone = loaded.signatures["ids"](
            input_ids=tf.constant(ids),
            input_mask=tf.ones_like(ids),
            segment_ids=tf.zeros_like(ids),
        )
        np.testing.assert_allclose(
            alone["probabilities"][0], expected[number], atol=1e-6
        )


@pytest.mark.slow
def test_another_precision_is_exported_and_measured(tmp_path):
    task = Classification(name="mood", source=None, labels=("neg", "pos"))
    model = task.build_model(common.encoder(layers=1))
    differences, sizes, found = {}, {}, {}
    for precision in ("float32", "bfloat16"):
        path = str(tmp_path / precision)
        differences[precision] = serving.export_saved_model(
            model, task, common.tokenizer(), path, LENGTH, precision
        )
        loaded = tf.saved_model.load(path)
        sizes[precision] = {variable.dtype for variable in loaded._variables}
        serve = loaded.signatures["serving_default"]
        found[precision] = serve(text=tf.constant(HARD))["probabilities"].numpy()
    assert differences["float32"] is None
    assert tf.bfloat16 in sizes["bfloat16"] - sizes["float32"]
    # bfloat16 has eight bits.
    assert 0 < differences["bfloat16"] < 0.05
    difference = np.abs(found["bfloat16"] - found["float32"]).max()
    assert 0 < difference < 0.05
    # The export does not change the model.
    assert model.encoder.dtype_policy.name == "float32"


@pytest.mark.parametrize(
    "task",
    [
        Classification(name="mood", source=None, labels=("neg", "pos")),
        pytest.param(
            Classification(name="mood", source=None, pair=True, labels=("neg", "pos")),
            marks=pytest.mark.slow,
        ),
        pytest.param(squad2(), marks=pytest.mark.slow),
    ],
    ids=["text", "pair", "question"],
)
def test_endpoints_of_keras(task, tmp_path):
    """``serve`` and ``TFSMLayer`` equal the signature; inputs keep their order."""
    path, model = str(tmp_path / "model"), task.build_model(common.encoder(layers=1))
    serving.export_saved_model(model, task, common.tokenizer(), path, LENGTH)
    columns = [tf.constant(["the movie is", "good"]), tf.constant(["bad", "a book"])]
    texts = dict(zip(task.text_names, columns, strict=False))
    loaded = tf.saved_model.load(path)
    expected = loaded.signatures["serving_default"](**texts)
    layer = keras.layers.TFSMLayer(path, call_endpoint="serve")
    answers = [loaded.serve(texts), layer(texts)]
    if len(texts) == 1:
        answers += [loaded.serve(columns[0]), layer(columns[0])]
    for answer in answers:
        assert answer.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(answer[name], value)
    assert predictor.Predictor(path).text_names == task.text_names


def test_inputs_of_older_models_have_an_order():
    order = predictor._in_order
    assert order(None, ("context", "question")) == ("question", "context")
    assert order(None, ("text_pair", "text")) == ("text", "text_pair")


@pytest.mark.slow
def test_regression_is_served_on_the_scale_of_its_labels(tmp_path):
    task, model, path = make(tmp_path, Regression, label_range=(2.0, 12.0))
    _, expected = python_answers(task, model, ["good", "bad movie"])
    served = predictor.Predictor(path)([{"text": "good"}, {"text": "bad movie"}])
    np.testing.assert_allclose([row["score"] for row in served], expected, rtol=1e-5)


@pytest.mark.slow
def test_multilabel_names_the_labels_above_the_threshold(tmp_path):
    task, model, path = make(tmp_path, MultiLabel, labels=("x", "y", "z"))
    _, expected = python_answers(task, model, ["good"])
    (row,) = predictor.Predictor(path)([{"text": "good"}])
    given = [n for n, p in zip("xyz", expected[0], strict=True) if p >= 0.5]
    assert row["labels"] == given
    np.testing.assert_allclose(list(row["probabilities"].values()), expected[0], 1e-5)


# The executable, and the same program after importing the tokenizer's operations.
CLI = [str(Path(sys.executable).with_name("saved_model_cli"))]
# One process for several runs, because imports take seconds.
CLI_WITH_TEXT = """
import json, os, sys
import tensorflow_text
from tensorflow.python.tools import saved_model_cli
for arguments in json.loads(sys.argv[1]):
    process = os.fork()
    if not process:
        sys.argv[1:] = arguments
        saved_model_cli.main()
    if os.waitpid(process, 0)[1]:
        sys.exit(f"{arguments} failed")
"""
RUNS = {
    "serving_default": ("--input_exprs", 'text=["good movie"]'),
    "ids": (
        "--input_exprs",
        "input_ids=[[2,5,11,3]];input_mask=[[1,1,1,1]];segment_ids=[[0,0,0,0]]",
    ),
    "tf_example": ("--input_examples", 'examples=[{"text":["good movie"]}]'),
}


@pytest.mark.slow
def test_saved_model_cli_shows_and_runs_it(exported):
    _, _, path = exported

    def cli(program, *arguments):
        done = subprocess.run(
            [*program, *arguments], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    common_flags = ("run", "--dir", path, "--tag_set", "serve")
    runs = {
        signature: [*common_flags, "--signature_def", signature, *flags]
        for signature, flags in RUNS.items()
    }
    code, shown, _ = cli(CLI, "show", "--dir", path, "--all")
    assert code == 0
    assert all(f"signature_def['{signature}']" in shown for signature in runs)
    with_text = [sys.executable, "-c", CLI_WITH_TEXT]
    code, out, err = cli(with_text, json.dumps([*runs.values()]))
    assert code == 0, err[-500:]
    assert out.count("Result for output key probabilities") == len(runs)
    # docs/serving.md documents the executable alone, for any signature.
    code, _, err = cli(CLI, *runs["ids"])
    assert code != 0
    assert "Op type not registered" in err


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


@pytest.mark.slow
def test_rest_requests_of_the_docs_fit_the_signatures(tmp_path):
    """Checks requests without a running server."""
    text = (ROOT / "docs" / "serving.md").read_text()
    bodies = re.findall(r"(?:curl -d '|Pair tasks: `)(\{.*?\})['`]", text)
    assert bodies
    for body in bodies:
        (row,) = json.loads(body)["instances"]
        folder = tmp_path / str(len(row))
        _, _, path = make(folder, pair=len(row) == 2)
        serve = tf.saved_model.load(path).signatures["serving_default"]
        assert set(row) == set(serve.structured_input_signature[1])
        found = serve(**{name: tf.constant([value]) for name, value in row.items()})
        # As rows of a JSON answer: one entry per instance in every output.
        assert {len(tensor) for tensor in found.values()} == {1}


def run_predict(monkeypatch, capsys, *arguments, stdin=""):
    monkeypatch.setattr(sys, "stdin", stdin.splitlines(keepends=True))
    assert command(["predict", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err


def complaint(monkeypatch, capsys, *arguments, stdin=""):
    """Returns the one-line error of a failing command."""
    with pytest.raises(SystemExit) as stopped:
        run_predict(monkeypatch, capsys, *arguments, stdin=stdin)
    assert capsys.readouterr().out == ""
    message = stopped.value.code
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def test_predict_from_arguments_lines_and_jsonl(exported, monkeypatch, capsys):
    model = f"--model={Path(exported[2]).parent}"
    (one,), _ = run_predict(monkeypatch, capsys, model, "good movie")
    assert set(one["probabilities"]) == {"neg", "n\u00e9utral", "pos"}
    assert one["probability"] == max(one["probabilities"].values())
    lines, _ = run_predict(monkeypatch, capsys, model, stdin="good movie\n\nbad\n")
    assert [row["text"] for row in lines] == ["good movie", "bad"]
    assert lines[0]["label"] == one["label"]
    rows, _ = run_predict(
        monkeypatch, capsys, model, "--jsonl", stdin='{"text": "bad", "k": 3}\n'
    )
    assert rows[0]["k"] == 3
    assert rows[0]["probabilities"] == pytest.approx(lines[1]["probabilities"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"txt": "a"}', "needs text, but text is missing"),
        ("{", "standard input, line 1"),
        ("[1]", "not a JSON object"),
    ],
)
def test_predict_says_what_is_wrong(exported, monkeypatch, capsys, line, message):
    model = f"--model={exported[2]}"
    assert message in complaint(
        monkeypatch, capsys, model, "--jsonl", stdin=line + "\n"
    )


def test_predict_refuses_other_folders(tmp_path, monkeypatch, capsys):
    def refused(folder):
        return complaint(monkeypatch, capsys, f"--model={folder}", "text")

    assert "No model at" in refused(tmp_path / "nothing")
    common.save_pretrained(tmp_path / "pretrained")
    assert "holds a pretraining run" in refused(tmp_path / "pretrained")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "task.json").write_text("{}")
    assert "did not finish" in refused(unfinished)


@pytest.mark.parametrize("kind", ["classification", "tagging", "squad2"])
def test_batches_without_texts_or_without_words_are_answered(kind):
    tasks = {
        "classification": Classification(name="mood", source=None, labels=("a", "b")),
        "tagging": tagging(),
        "squad2": squad2(),
    }
    task = tasks[kind]
    model = task.build_model(common.encoder())
    module = serving.ServingModule(model, task, common.tokenizer(), LENGTH)

    # Eager, because tracing three signatures takes seconds.
    def sizes(serve, texts, names):
        columns = {name: tf.constant(texts, tf.string) for name in names}
        return {len(tensor) for tensor in serve(**columns).values()}

    assert sizes(module.answer, ["", " \t"], task.text_names) == {2}
    assert sizes(module.answer, [], task.text_names) == {0}
    assert sizes(module.serve_examples, [], ["examples"]) == {0}


def test_predict_takes_what_json_allows(exported, monkeypatch, capsys):
    lines = '\ufeff{"text": "good", "note": "\\ud800", "label": 7}\n'
    model = f"--model={Path(exported[2]).parent}"
    (row,), err = run_predict(monkeypatch, capsys, model, "--jsonl", stdin=lines)
    assert err == ""
    assert row["note"] == "\ufffd"
    assert row["label"] in ("neg", "n\u00e9utral", "pos")
    message = complaint(monkeypatch, capsys, model, "--batch_size=0", "good")
    assert "--batch_size must be at least 1, got 0" in message


def test_predict_says_in_one_line_that_the_model_fails(monkeypatch, capsys):
    class Broken(predictor.Predictor):
        def __init__(self, path):
            self.text_names = ("text",)

        def _serve(self, text):
            raise tf.errors.InvalidArgumentError(None, None, "Bad graph\nat node x")

    monkeypatch.setattr(predictor, "Predictor", Broken)
    message = complaint(monkeypatch, capsys, "--model=any", "good")
    assert message == "error: The model failed on a batch of 1 texts: Bad graph"


@pytest.mark.parametrize(
    "kind", [Classification, pytest.param(Regression, marks=pytest.mark.slow)]
)
def test_windows_are_averaged_alike_in_evaluation_and_serving(kind, tmp_path):
    own = {"label_range": (1.0, 5.0)}
    if kind is Classification:
        own = {"labels": ("neg", "pos")}
    task = kind(name="mood", source=None, long_texts="windows", **own)
    model = task.build_model(common.encoder())
    path = str(tmp_path / "saved_model")
    serving.export_saved_model(model, task, common.tokenizer(), path, 8)
    texts = [
        "good",
        "",
        "the movie was not bad, it is a great movie " * 3,
        "a b c d e f g",
    ]
    examples = [common.Example(str(i), (text,)) for i, text in enumerate(texts)]
    rows = task.featurize(examples, common.tokenizer(), 8)
    assert np.bincount(rows.example).tolist() == [1, 1, 6, 2]
    outputs = np.stack(Outputs(model, 3)(rows))
    answers = task.decode(list(outputs), rows, examples)
    # By hand: the mean of logits, then the prediction.
    logits = np.array([outputs[rows.example == i].mean(0) for i in range(4)])
    if kind is Regression:
        expected, name = logits[:, 0] * 4 + 1, "score"
    else:
        shares = np.exp(logits - logits.max(1, keepdims=True))
        expected, name = shares / shares.sum(1, keepdims=True), "probabilities"
    np.testing.assert_allclose(answers, expected, atol=1e-6)
    served = predictor.Predictor(path)([{"text": text} for text in texts])
    found = [row[name] for row in served]
    if kind is Classification:
        found = [list(row.values()) for row in found]
    # Graphs sum in other orders; the range of a score scales the difference.
    tolerance = 4e-6 if kind is Regression else 1e-6
    np.testing.assert_allclose(found, answers, atol=tolerance)


@pytest.mark.parametrize(
    "kind",
    ["csv", *(pytest.param(k, marks=pytest.mark.slow) for k in ("tsv", "jsonl"))],
)
def test_tables_keep_their_columns_and_are_scored(exported, tmp_path, kind, capsys):
    task, model, path = exported
    gold = ["pos", "neg", "pos", "neg", "n\u00e9utral"]
    bodies = ["a good movie", "the book, it is bad", "great", "awful", ""]
    rows = [
        {"id": str(i), "body": body, "label": label}
        for i, (body, label) in enumerate(zip(bodies, gold, strict=True))
    ]
    table, out = tmp_path / f"in.{kind}", tmp_path / f"out.{kind}"
    if kind == "jsonl":
        table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        mark = {"csv": ",", "tsv": "\t"}[kind]
        cells = [list(rows[0]), *(list(row.values()) for row in rows)]
        quoted = [
            [f'"{c}"' if kind == "csv" and "," in c else c for c in line]
            for line in cells
        ]
        table.write_text("".join(mark.join(line) + "\n" for line in quoted))
    flags = [f"--model={path}", f"--input={table}", "--text=body", "--batch_size=2"]
    assert command(["predict", *flags, "--label=label", f"--output={out}"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    _, answers = python_answers(task, model, bodies)
    examples = [
        common.Example(str(i), (body,), label)
        for i, (body, label) in enumerate(zip(bodies, gold, strict=True))
    ]
    scores = [f"{n} {x:.2f}" for n, x in task.score(answers, examples).items()]
    assert all(score in said.err for score in scores)
    assert command(["evaluate", *flags]) == 0
    assert capsys.readouterr().out.splitlines() == scores
    written = read_table(str(out))
    assert [row["label"] for _, row in written.rows] == gold
    assert [row["body"] for _, row in written.rows] == bodies
    found = [row["predicted_label"] for _, row in written.rows]
    assert found == task.readable(answers)
    if kind != "jsonl":
        shares = [float(row["p(pos)"]) for _, row in written.rows]
        np.testing.assert_allclose(shares, answers[:, 2], atol=1e-5)


def test_tables_that_do_not_fit_are_refused(exported, tmp_path):
    _, _, path = exported
    table = tmp_path / "in.csv"
    table.write_text("body,label\na,b\n")
    for flags, said in (
        ([], "has no column 'text'"),
        (["--text=body,label"], "reads text: name 1"),
        (["--text=body", "--output=x.xlsx"], "must end in"),
        (["--text=body", "--label=topic"], "has no column 'topic'"),
        (["--text=body", "--label=label"], "'b'"),
    ):
        with pytest.raises(SystemExit) as stopped:
            command(["predict", f"--model={path}", f"--input={table}", *flags])
        assert said in stopped.value.code
    with pytest.raises(SystemExit) as stopped:
        command(["predict", f"--model={path}", "--label=label", "a text"])
    assert "--label needs --input" in stopped.value.code
    for flags, said in (
        ([f"--model={path}"], "--model and --input are required"),
        (["--model=x", "--glue=y.zip", "run"], "leave out --model"),
        ([f"--model={path}", f"--input={table}", "run"], "unexpected arguments"),
    ):
        with pytest.raises(SystemExit) as stopped:
            command(["evaluate", *flags])
        assert said in stopped.value.code

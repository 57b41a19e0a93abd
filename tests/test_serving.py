import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from electra_tf import predict, serving
from electra_tf.tasks import Classification, MultiLabel, Regression
from electra_tf.tasks.batching import Outputs
from tests.tasks import common
from tests.tasks.test_encoding import HARD

LENGTH = 24


def make(folder, kind=Classification, *, pair=False, **kwargs):
    kwargs = kwargs or {"labels": ("neg", "n\u00e9utral", "pos")}
    task = kind(name="mood", source=None, pair=pair, **kwargs)
    model = task.build_model(common.encoder())
    path = str(folder / "saved_model")
    serving.export_saved_model(model, task, common.tokenizer(), path, LENGTH)
    return task, model, path


def python_answers(task, model, *columns):
    examples = [
        common.Example(str(i), texts)
        for i, texts in enumerate(zip(*columns, strict=True))
    ]
    rows = task.featurize(examples, common.tokenizer(), LENGTH)
    return rows, task.decode(Outputs(model, 5)(rows), rows, examples)


FRESH = """
import json, sys
import tensorflow as tf
import tensorflow_text
model = tf.saved_model.load(sys.argv[1])
texts = [tf.constant(column) for column in json.loads(sys.argv[2])]
inputs = dict(zip(("text", "text_pair"), texts))
found = model.signatures["serving_default"](**inputs)
print(json.dumps(found["probabilities"].numpy().tolist()))
ours = [name for name in sys.modules if name.split(".")[0] == "electra_tf"]
sys.exit(1 if ours else 0)
"""


def test_fresh_process_gives_the_answers_of_python(tmp_path):
    task, model, path = make(tmp_path, pair=True)
    # Zero bytes cannot be passed on a command line.
    columns = [[t.replace("\0", "") for t in HARD], ["good"] * len(HARD)]
    _, expected = python_answers(task, model, *columns)
    done = subprocess.run(
        [sys.executable, "-c", FRESH, path, json.dumps(columns)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_three_signatures_agree_on_hard_strings(tmp_path):
    task, model, path = make(tmp_path)
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


def test_regression_is_served_on_the_scale_of_its_labels(tmp_path):
    task, model, path = make(tmp_path, Regression, label_range=(2.0, 12.0))
    _, expected = python_answers(task, model, ["good", "bad movie"])
    served = predict.Predictor(path)([{"text": "good"}, {"text": "bad movie"}])
    np.testing.assert_allclose([row["score"] for row in served], expected, rtol=1e-5)


def test_multilabel_names_the_labels_above_the_threshold(tmp_path):
    task, model, path = make(tmp_path, MultiLabel, labels=("x", "y", "z"))
    _, expected = python_answers(task, model, ["good"])
    (row,) = predict.Predictor(path)([{"text": "good"}])
    given = [n for n, p in zip("xyz", expected[0], strict=True) if p >= 0.5]
    assert row["labels"] == given
    np.testing.assert_allclose(list(row["probabilities"].values()), expected[0], 1e-5)


@pytest.mark.slow
def test_saved_model_cli_runs_it(tmp_path):
    _, _, path = make(tmp_path)
    # The tool needs the tokenizer's operations, so it is started after their import.
    script = (
        "import tensorflow_text\n"
        "from tensorflow.python.tools import saved_model_cli\n"
        "saved_model_cli.main()"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", script, "run", "--dir", path),
            *("--tag_set", "serve", "--signature_def", "serving_default"),
            *("--input_exprs", 'text=["good movie"]'),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Result for output key probabilities" in done.stdout


def run_predict(monkeypatch, capsys, *arguments, stdin=""):
    monkeypatch.setattr(sys, "stdin", stdin.splitlines(keepends=True))
    code = predict.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def test_predict_from_arguments_lines_and_jsonl(tmp_path, monkeypatch, capsys):
    make(tmp_path)
    model = f"--model={tmp_path}"
    _, (one,), _ = run_predict(monkeypatch, capsys, model, "good movie")
    assert set(one["probabilities"]) == {"neg", "n\u00e9utral", "pos"}
    assert one["probability"] == max(one["probabilities"].values())
    _, lines, _ = run_predict(monkeypatch, capsys, model, stdin="good movie\n\nbad\n")
    assert [row["text"] for row in lines] == ["good movie", "bad"]
    assert lines[0]["label"] == one["label"]
    _, rows, _ = run_predict(
        monkeypatch, capsys, model, "--jsonl", stdin='{"text": "bad", "k": 3}\n'
    )
    assert rows[0]["k"] == 3
    assert rows[0]["probabilities"] == pytest.approx(lines[1]["probabilities"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"txt": "a"}', "wants text, but text is missing"),
        ("{", "standard input, line 1"),
        ("[1]", "not a JSON object"),
    ],
)
def test_predict_says_what_is_wrong(tmp_path, monkeypatch, capsys, line, message):
    make(tmp_path)
    code, _, err = run_predict(
        monkeypatch, capsys, f"--model={tmp_path}", "--jsonl", stdin=line + "\n"
    )
    assert code == 1
    assert message in err


def test_predict_refuses_other_folders(tmp_path, monkeypatch, capsys):
    def complaint(folder):
        code, _, err = run_predict(monkeypatch, capsys, f"--model={folder}", "text")
        assert code == 1
        return err

    assert "No model at" in complaint(tmp_path / "nothing")
    common.save_pretrained(tmp_path / "pretrained")
    assert "holds a pretraining run" in complaint(tmp_path / "pretrained")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "task.json").write_text("{}")
    assert "did not finish" in complaint(unfinished)

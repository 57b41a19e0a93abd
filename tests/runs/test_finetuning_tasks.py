import json

import numpy as np
import pytest

import electra_tf as et
from electra_tf.__main__ import main as command
from electra_tf.runs import finetuning_tasks
from tests.runs import common
from tests.runs.common import config

SENTENCES = (
    "the movie is good",
    "a book was bad",
    "the song is poor",
    "a movie was fine",
)
TAGS = {"movie": "B-A", "book": "B-A", "song": "B-A", "good": "B-B", "bad": "B-B"}


def columns(path, count):
    lines = []
    for number in range(count):
        words = SENTENCES[number % 4].split()
        lines += [f"{word} {TAGS.get(word, 'O')}" for word in words] + [""]
    path.write_text("\n".join(lines))
    return str(path)


def squad(path, count, *, start=0, impossible=True):
    paragraphs = []
    for number in range(start, start + count):
        context = SENTENCES[number % 4]
        answer = context.split()[-1]
        answers = [{"text": answer, "answer_start": context.index(answer)}]
        item = {"id": str(number), "question": "how is it?", "answers": answers}
        if impossible and number % 3 == 0:
            item |= {"question": "who?", "answers": [], "is_impossible": True}
        paragraphs.append({"context": context, "qas": [item]})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return str(path)


def run(pretrained, folder, **values):
    recipe = {"learning_rate": 1e-2, "layerwise_decay": 1.0, "train_batch_size": 8}
    values = {"encoder": pretrained, "log_steps": 100, **recipe, **values}
    return common.run(folder, **values)[0]


@pytest.fixture(scope="module")
def tagged(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagged")
    train, dev = columns(folder / "a.txt", 32), columns(folder / "b.txt", 8)
    values = {"task": "chunking", "train": train, "eval": dev, "epochs": 12.0}
    report = run(pretrained, folder / "run", **values)
    return folder / "run", report


@pytest.fixture(scope="module")
def answered(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answered")
    report = run(
        pretrained,
        folder / "run",
        task="squad2",
        train=squad(folder / "train.json", 32),
        eval=squad(folder / "dev.json", 8, start=200),
        max_query_length=8,
        epochs=10.0,
        test=squad(folder / "test.json", 4),
    )
    return folder / "run", report


@pytest.mark.slow
def test_tagging_run_learns_and_leaves_its_files(tagged):
    folder, report = tagged
    assert report["summary"]["dev"]["f1"]["median"] > 95
    assert (folder / "labels.txt").read_text().split() == ["B-A", "B-B", "O"]
    lines = (folder / "predictions.conll").read_text().split("\n")
    assert lines[1] == "movie\tB-A\tB-A"


@pytest.mark.slow
def test_question_answering_run_leaves_its_files(answered):
    folder, report = answered
    assert report["main_metric"] == "f1"
    assert set(report["summary"]["dev"]) >= {"exact_match", "best_f1_threshold"}
    for kind in ("predictions", "null_odds"):
        assert len(json.loads((folder / f"{kind}.json").read_text())) == 8
        assert len(json.loads((folder / f"{kind}_test.json").read_text())) == 4
    assert json.loads((folder / "task.json").read_text())["max_seq_length"] == 64


@pytest.mark.slow
def test_runs_are_loaded(tagged, answered):
    """Scores and predictions equal those of the run, also in its SavedModel."""
    blocks = (tagged[0] / "predictions.conll").read_text().strip().split("\n\n")
    tags = [[line.split()[-1] for line in block.split("\n")] for block in blocks]
    predictions = json.loads((answered[0] / "predictions.json").read_text())
    questions = [
        ("how is it?" if number % 3 else "who?", SENTENCES[number % 4])
        for number in map(int, predictions)
    ]
    for (folder, report), table, column, texts, expected in (
        (tagged, "b.txt", "tags", SENTENCES * 2, tags),
        (answered, "dev.json", "answer", questions, [*predictions.values()]),
    ):
        model, exported = et.load(folder), et.load(folder / "saved_model")
        scores = report["seeds"][0]["scores"]["dev"]
        assert model.evaluate(folder.parent / table) == pytest.approx(scores)
        for each in (model, exported):
            assert [row[column] for row in each.predict(list(texts))] == expected
    odds = json.loads((answered[0] / "null_odds.json").read_text())
    found = [row["null_odds"] for row in exported.predict(questions)]
    np.testing.assert_allclose(found, [*odds.values()], atol=1e-4)
    assert report["summary"]["dev"]["best_f1"]["median"] > 60


@pytest.mark.slow
def test_predict_answers_questions_and_tags_words(tagged, answered, capsys):
    model = f"--model={answered[0]}"
    assert command(["predict", model, "--context=the movie is good", "how is it?"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["answer"] in answer["context"]
    assert answer["context"][answer["start"] : answer["end"]] == answer["answer"]
    texts = ["a movie", "the book was bad"]
    assert command(["predict", f"--model={tagged[0]}", *texts]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["words"] == ["a", "movie"]
    assert len(first["tags"]) == len(first["probabilities"]) == 2
    assert second["tags"] == ["O", "B-A", "O", "B-B"]


def built(**values):
    lines = []
    return finetuning_tasks.task(config(**values), lines.append), lines


def test_tagging_tasks_are_built_from_flags(tmp_path):
    columns(tmp_path / "train.txt", 30)
    columns(tmp_path / "test.txt", 4)
    task, _ = built(task="chunking", data_dir=str(tmp_path), head_dropout=0.0)
    # CoNLL-2000 has no other labeled split.
    assert task.eval_splits == ("test",)
    assert task.test_splits == ()
    assert (task.main_metric, task.max_seq_length, task.dropout) == ("f1", 256, 0)
    assert len(task.examples("test")) == 4
    train = str(tmp_path / "train.txt")
    task, lines = built(task="ner", train=train, test=train)
    assert "held out" in lines[0]
    assert len(task.examples("train")) + len(task.examples("dev")) == 30
    assert task.test_splits == ("test",)
    assert task.examples("test")[0].tags is None
    task, lines = built(task="pos", train=train, eval=train)
    assert "not those of held-out data" in lines[0]
    assert task.main_metric == "accuracy"
    with pytest.raises(ValueError, match="--task=pos needs --data_dir"):
        built(task="pos")


def test_question_answering_tasks_are_built_from_flags(tmp_path):
    squad(tmp_path / "train-v1.1.json", 30, impossible=False)
    squad(tmp_path / "dev-v1.1.json", 4, impossible=False)
    task, _ = built(task="squad1", data_dir=str(tmp_path), doc_stride=64)
    assert (task.doc_stride, task.max_seq_length) == (64, 512)
    assert not task.answerability
    assert len(task.examples("dev")) == 4
    train = str(tmp_path / "train-v1.1.json")
    task, lines = built(task="squad2", train=train, null_threshold=0.5)
    assert task.unanswerable
    assert (task.answerability, task.null_threshold) == (True, 0.5)
    assert "held out" in lines[0]
    with pytest.raises(ValueError, match="--task=squad2 needs --data_dir"):
        built(task="squad2")
    with pytest.raises(FileNotFoundError, match=r"No file no\.json: correct --test"):
        built(task="squad2", train=train, test="no.json")
    with pytest.raises(ValueError, match="--doc_stride must be at least 1"):
        config(doc_stride=0)

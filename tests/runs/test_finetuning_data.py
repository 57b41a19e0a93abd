import json

import pytest

from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.runs import finetuning_tasks
from electra_tf.runs.finetuning_tasks import TaskData
from tests.runs.common import config
from tests.tasks import common


def read(*, train_fraction=1.0, tokenizer=None, max_seq_length=16, **values):
    """Returns the data of a run and its log lines."""
    said = []
    task = finetuning_tasks.task(config(**values), said.append)
    arguments = (task, tokenizer or common.tokenizer(), max_seq_length)
    options = {"train_fraction": train_fraction, "seed": 0, "log": said.append}
    return TaskData(*arguments, **options), said


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def test_splits_that_a_benchmark_folder_lacks_are_logged(tmp_path):
    for split in ("train", "dev"):
        write(tmp_path / f"{split}.tsv", "x\t1\t\tgood", "x\t0\t\tbad")
    data, said = read(task="cola", data_dir=str(tmp_path))
    assert [*data.examples] == [*data.eval_splits] == ["dev"]
    assert "cola has no test data here: left out" in said
    write(tmp_path / "test.tsv", "index\tsentence", "0\tfine")
    data, said = read(task="cola", data_dir=str(tmp_path))
    assert [*data.examples] == ["dev", "test"]
    assert not any("left out" in line for line in said)


def test_swapped_pairs_are_held_out_together(tmp_path):
    """The strength of a probe was chosen on pairs that it was trained on."""
    lines = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t5\t6\tgood\tbad"
    for split in ("train", "dev"):
        write(tmp_path / f"{split}.tsv", *lines, "0\t5\t6\tmovie\tbook")
    data, _ = read(task="mrpc", data_dir=str(tmp_path), pair_doubling=True)
    assert data.train_rows.example.tolist() == [0, 1, 0, 1]


def test_labels_come_from_the_whole_table(tmp_path):
    # The only example of a label may be in training, held-out or discarded rows.
    for at in range(10):
        labels = ["a", "b"] * 15
        labels[at] = "rare"
        lines = (f"good {number},{label}" for number, label in enumerate(labels))
        train = write(tmp_path / "train.csv", "text,label", *lines)
        data, _ = read(task="classification", train=train, train_fraction=0.5)
        assert data.task.labels == ("a", "b", "rare")
    assert len(data.train) == 14
    kept, _ = read(task="classification", train=train, eval=train, train_fraction=0.1)
    assert kept.task.labels == ("a", "b", "rare")
    assert "rare" not in {example.label for example in kept.train}


def test_the_hash_of_the_data_holds_all_that_rows_depend_on(tmp_path):
    """Pitfall 40: the cache key of the original is the task alone."""
    other = WordPiece(Vocabulary(common.TOKENS), lower_case=False)
    keys = []
    for lines, options in (
        (("Good,a", "bad,b"), {}),
        (("Good,b", "bad,a"), {}),
        (("Good,a", "fine,b"), {}),
        (("Good movie,a", "bad,b"), {"max_seq_length": 3}),
        (("Good,a", "bad,b"), {"tokenizer": other}),
    ):
        train = write(tmp_path / "train.csv", "text,label", *lines)
        data, _ = read(task="classification", train=train, eval=train, **options)
        keys.append(tuple(data.keys.values()))
    assert all(len({*column}) == 5 for column in zip(*keys, strict=True))


def test_the_hash_of_the_data_holds_the_rows_of_the_threshold(tmp_path):
    """Those rows are not trained, but choose the threshold of a resumed run."""
    texts = [f"good {number}" for number in range(120)]
    evaluation = write(tmp_path / "eval.csv", "text,label", "good,a")
    trained, keys = set(texts), []
    for _ in range(2):
        lines = [f"{text},{'a' if text in trained else 'a|b'}" for text in texts]
        train = write(tmp_path / "train.csv", "text,label", *lines)
        data, said = read(task="multilabel", train=train, eval=evaluation)
        trained = {example.texts[0] for example in data.train}
        keys.append(data.keys["train"])
    assert len(trained) == 108
    assert keys[0] != keys[1]
    assert "warning: no example has two labels: check --label_separator" in said


def test_training_data_by_another_path_is_seen(tmp_path):
    train = write(tmp_path / "train.csv", "text,label", "good,a", "bad,b")
    again = str(tmp_path / "." / ".." / tmp_path.name / "train.csv")
    _, said = read(task="classification", train=train, eval=again)
    assert any("--eval is --train" in line for line in said)


def test_answers_that_are_too_long_to_predict_are_counted(tmp_path):
    context = "a good movie is a fine book"
    qas = [
        {
            "id": text,
            "question": "what?",
            "answers": [{"text": text, "answer_start": 2}],
        }
        for text in ("good", "good movie is", "good movie is a")
    ]
    content = {"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}
    path = write(tmp_path / "x.json", json.dumps(content))
    values = {"task": "squad1", "train": path, "eval": path, "max_query_length": 4}
    for limit, count in ((1, 2), (3, 1), (4, 0)):
        _, said = read(**values, max_answer_length=limit)
        warned = [line for line in said if f"--max_answer_length={limit}" in line]
        assert [line.split()[1] for line in warned] == [str(count)] * (count > 0)


def test_examples_without_text_are_counted(tmp_path):
    lines = ["good,a", "' ',b".replace("'", '"'), ",a", *["bad,b"] * 5]
    train = write(tmp_path / "train.csv", "text,label", *lines)
    _, said = read(task="classification", train=train, eval=train)
    for split in ("training", "eval"):
        assert f"warning: 2 of 8 {split} examples have no text" in said


def test_questions_without_answers_or_context(tmp_path):
    def question(context, **more):
        asked = [{"id": context, "question": "good?", **more}]
        return {"paragraphs": [{"context": context, "qas": asked}]}

    answers = [{"text": "movie", "answer_start": 2}]
    labeled = json.dumps({"data": [question("a movie", answers=answers)]})
    test = json.dumps({"data": [question("a movie"), question(" ")]})
    path = write(tmp_path / "x.json", labeled)
    files = {"train": path, "eval": path, "test": write(tmp_path / "y.json", test)}
    _, said = read(task="squad1", max_query_length=4, **files)
    warned = [line for line in said if "have no text" in line]
    assert warned == ["warning: 1 of 2 test examples have no text"]


def test_questions_none_of_which_can_be_trained(tmp_path):
    answers = [{"text": "\u200d", "answer_start": 2}]
    question = {"id": "q", "question": "good?", "answers": answers}
    paragraph = {"context": "a \u200d b", "qas": [question]}
    content = json.dumps({"data": [{"paragraphs": [paragraph]}]})
    path = write(tmp_path / "x.json", content)
    values = {"task": "squad1", "train": path, "eval": path, "max_query_length": 4}
    with pytest.raises(ValueError, match="No answer to the 1 training q"):
        read(**values)

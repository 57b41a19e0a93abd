import json
from pathlib import Path

import numpy as np
import pytest

from electra_tf.tasks.squad import (
    Question,
    SquadSource,
    best_threshold,
)
from tests.tasks import common


def write(folder, *paragraphs, name="x.json"):
    written = [{"context": context, "qas": asked} for context, asked in paragraphs]
    return common.write(folder, name, json.dumps({"data": [{"paragraphs": written}]}))


def question(name, *answers, **more):
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": f"{name}?", "answers": found, **more}


def source(split, path, *, unanswerable=False, log=None):
    files = {split: path}
    return SquadSource(files=files, unanswerable=unanswerable, log=log or pytest.fail)


def test_reads_both_layouts(tmp_path):
    first = "a cat", [question("q1", ("cat", 2), ("a cat", 0))]
    more = [question("q2", is_impossible=True), question("q3", ("b", 0))]
    path = write(tmp_path, first, ("b dog", more))
    found = source("dev", path, unanswerable=True)("dev")
    assert [q.id for q in found] == ["q1", "q2", "q3"]
    assert found[0].answers == (("cat", 2), ("a cat", 0))
    assert found[0].texts == ["cat", "a cat"]
    assert found[1].answers == ()
    assert found[2].context == "b dog"
    path = write(tmp_path, ("a cat", [{"id": 7, "question": "q"}]))
    (unanswered,) = source("test", path)("test")
    assert (unanswered.answers, unanswered.id) == (None, "7")
    assert unanswered.texts == []


def test_training_answers_that_are_elsewhere_are_left_out_and_counted(tmp_path):
    lines = []
    questions = [question("q1", ("cat", 1)), question("q2", ("cat", 2))]
    path = write(tmp_path, ("a cat", questions))
    assert [q.id for q in source("train", path, log=lines.append)("train")] == ["q2"]
    assert "1 training questions are left out" in lines[0]
    assert len(source("dev", path)("dev")) == 2
    for start in (-3, 5):
        # Python counts negative numbers from the end.
        assert not Question("q", "?", "a cat", (("cat", start),)).is_located
    path = write(tmp_path, ("a cat", questions[:1]))
    with pytest.raises(ValueError, match=r"no training question is left.*answer_start"):
        source("train", path, log=lines.append)("train")


def test_bad_files_are_named(tmp_path):
    path = write(tmp_path, ("a", [question("q")]))
    with pytest.raises(ValueError, match=r"question 'q' has no answer.*squad2"):
        source("dev", path)("dev")
    with pytest.raises(ValueError, match="there are no questions"):
        source("dev", write(tmp_path))("dev")
    item = question("q", ("a", 0), is_impossible="false")
    no_boolean = Path(write(tmp_path, ("a", [item]))).read_text()
    for text, message in (
        ('{"data": [{"paragraph": []}]}', "layout of SQuAD.*: paragraphs is missing"),
        (no_boolean, 'is_impossible is "false", expected bool'),
        ("{", "not JSON"),
    ):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            source("dev", path)("dev")
    with pytest.raises(FileNotFoundError, match="--test"):
        source("dev", path)("test")


def test_only_evaluation_data_needs_unique_ids(tmp_path):
    """A translation of SQuAD, combined with it for training, keeps its ids."""
    first, other = question("q", ("a", 0)), question("q", ("b", 2))
    second = question("q#2", ("a", 0))
    path = write(tmp_path, ("a", [first, second]), ("a b", [other]))
    assert [q.id for q in source("train", path)("train")] == ["q", "q#2", "q#3"]
    with pytest.raises(ValueError, match="two questions have the id 'q'"):
        source("dev", path)("dev")


def test_the_best_threshold_is_the_official_scripts_also_for_ties():
    """``find_best_thresh`` of evaluate-v2.0.py, which adds floats one by one."""
    rng = np.random.default_rng(0)
    for number in range(100):
        values = rng.choice([0, 1, 2 / 3, 0.8, 0.4, 1 / 3, 2 / 7, 6 / 7], 200)
        # Silence is best if all answers are wrong.
        values *= number > 0
        answerable, given = rng.random((2, 200)) < [[0.5], [0.9]]
        odds = rng.normal(size=200)
        score = best = np.sum(~answerable)
        threshold = 0.0
        for at in np.argsort(odds):
            score += values[at] if answerable[at] else -float(given[at])
            if score > best:
                best, threshold = score, odds[at]
        found = best_threshold(values, odds, answerable, given)
        assert found == (best / 200, threshold)

import json

import numpy as np
import pytest

from electra_tf.tasks.squad import (
    SquadSource,
    best_threshold,
    exact_match,
    find_squad_files,
    normalize_answer,
    token_f1,
    token_f1_or_none,
)
from tests.tasks.common import squad_scores


def write(folder, *paragraphs, name="x.json"):
    data = [
        {
            "title": "t",
            "paragraphs": [
                dict(zip(("context", "qas"), p, strict=True)) for p in paragraphs
            ],
        }
    ]
    path = folder / name
    path.write_text(json.dumps({"version": "v", "data": data}))
    return str(path)


def question(name, *answers, **more):
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": f"{name}?", "answers": found, **more}


def source(split, *paths, unanswerable=False, log=None):
    return SquadSource(
        files={split: list(paths)}, unanswerable=unanswerable, log=log or pytest.fail
    )


def test_reads_both_layouts_and_several_files(tmp_path):
    first = write(tmp_path, ("a cat", [question("q1", ("cat", 2), ("a cat", 0))]))
    more = [question("q2", is_impossible=True), question("q3", ("b", 0))]
    second = write(tmp_path, ("b dog", more), name="y.json")
    found = source("dev", first, second, unanswerable=True)("dev")
    assert [q.id for q in found] == ["q1", "q2", "q3"]
    assert found[0].answers == (("cat", 2), ("a cat", 0))
    assert found[0].texts == ["cat", "a cat"]
    assert found[1].answers == ()
    assert found[2].context == "b dog"


def test_answers_are_not_needed_to_predict(tmp_path):
    path = write(tmp_path, ("a cat", [{"id": 7, "question": "q"}]))
    assert source("test", path)("test")[0].answers is None
    assert source("test", path)("test")[0].id == "7"


def test_halves_of_surrogate_pairs_keep_their_place(tmp_path):
    path = write(tmp_path, ("a \ud83d cat", [question("q", ("cat", 4))]))
    (found,) = source("train", path)("train")
    assert found.context == "a \ufffd cat"


def test_training_answers_that_are_elsewhere_are_left_out_and_counted(tmp_path):
    lines = []
    path = write(
        tmp_path, ("a cat", [question("q1", ("cat", 1)), question("q2", ("cat", 2))])
    )
    assert [q.id for q in source("train", path, log=lines.append)("train")] == ["q2"]
    assert "1 training questions are left out" in lines[0]
    assert len(source("dev", path)("dev")) == 2
    path = write(tmp_path, ("a cat", [question("q1", ("cat", 1))]))
    with pytest.raises(ValueError, match=r"no training question is left.*answer_start"):
        source("train", path, log=lines.append)("train")


def test_bad_files_are_named(tmp_path):
    path = write(tmp_path, ("a", [question("q")]))
    with pytest.raises(ValueError, match=r"question 'q' has no answer.*squad2"):
        source("dev", path)("dev")
    path = write(tmp_path, ("a", [question("q", ("a", 0))] * 2))
    with pytest.raises(ValueError, match="two questions have the id 'q'"):
        source("dev", path)("dev")
    with pytest.raises(ValueError, match="not a single question"):
        source("dev", write(tmp_path))("dev")
    (tmp_path / "x.json").write_text('{"data": [{"paragraph": []}]}')
    with pytest.raises(
        ValueError, match=r"not in the layout of SQuAD.*: paragraphs is missing"
    ):
        source("dev", path)("dev")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        source("dev", path)("dev")
    (tmp_path / "x.json").write_text("")
    with pytest.raises(ValueError, match="empty"):
        source("dev", path)("dev")
    with pytest.raises(FileNotFoundError, match="--test"):
        source("dev", path)("test")


def test_training_questions_may_share_an_id(tmp_path):
    """A translation of SQuAD keeps its ids; only evaluation data needs unique ids."""
    once = write(tmp_path, ("a", [question("q", ("a", 0)), question("q#2", ("a", 0))]))
    other = write(tmp_path, ("a b", [question("q", ("b", 2))]), name="y.json")
    found = source("train", once, other)("train")
    assert [each.id for each in found] == ["q", "q#2", "q#3"]
    with pytest.raises(ValueError, match="two questions have the id 'q'"):
        source("dev", once, other)("dev")


def test_official_names_come_before_short_ones(tmp_path):
    for name in ("train.json", "train-v1.1.json", "dev.json", "dev-v2.0.json"):
        (tmp_path / name).touch()
    found = find_squad_files(str(tmp_path), "1.1")
    assert found["train"] == [str(tmp_path / "train-v1.1.json")]
    assert found["dev"] == [str(tmp_path / "dev.json")]
    assert "test" not in found
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"neither train-v2.0.json nor train.json"):
        find_squad_files(str(tmp_path / "empty"), "2.0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat\t(sat)!", "cat sat"),
        ("an A-bomb", "abomb"),  # Without the hyphen "a" is not a word.
        ("theory of a the an", "theory of"),
        ("U.S.", "us"),
        (
            "caf\u00e9 \u2013 bar",
            "caf\u00e9 \u2013 bar",
        ),  # Only ASCII punctuation is removed.
        ("a\u00a0b", "b"),
        ("The", ""),
    ],
)
def test_normalization(text, expected):
    assert normalize_answer(text) == expected


def test_exact_match_and_f1_of_worked_examples():
    assert exact_match("the Broncos!", "Broncos") == 1
    assert exact_match("Denver Broncos", "Broncos") == 0
    # Bags {denver, broncos} and {broncos}: precision 1/2, recall 1.
    assert token_f1("Denver Broncos", "the Broncos") == pytest.approx(2 / 3)
    # Repeated words match as often as both texts have them.
    assert token_f1("x x y", "x x x") == pytest.approx(2 * 2 / 6)
    assert token_f1("b", "c") == 0
    # The two versions differ for texts without words.
    assert token_f1("the", "a") == 0
    assert token_f1_or_none("the", "a") == 1
    assert token_f1_or_none("the", "b") == 0


def test_version_1_takes_the_best_of_several_answers():
    scores = squad_scores(
        ["in 1973", "Paris, France"],
        [["October 1973", "1973", "in 1973"], ["Paris", "the city of Paris"]],
    )
    assert scores["exact_match"] == 50
    assert scores["f1"] == pytest.approx(100 * (1 + 2 / 3) / 2)


# By hand with the rules of the official script for version 2.0: right, half right, two
# answers to unanswerable questions, and an empty answer to an answerable question.
ANSWERS = ["cat", "big dog", "fish", "bird", ""]
RIGHT = [["the cat"], ["dog", "the"], [], [], ["cow"]]
ODDS = [-4.0, -3.0, -2.0, 5.0, 1.0]


def test_version_2_at_a_fixed_threshold():
    """Pitfall 38."""
    scores = squad_scores(ANSWERS, RIGHT, ODDS, -2.75)
    # The third to fifth become empty answers: right, right, wrong.
    assert scores["exact_match"] == pytest.approx(100 * 3 / 5)
    assert scores["f1"] == pytest.approx(100 * (1 + 2 / 3 + 1 + 1 + 0) / 5)
    assert scores["has_answer_exact_match"] == pytest.approx(100 / 3)
    assert scores["has_answer_f1"] == pytest.approx(100 * (1 + 2 / 3) / 3)
    assert scores["no_answer_exact_match"] == 100
    open_to_all = squad_scores(ANSWERS, RIGHT, ODDS, 100.0)
    assert open_to_all["no_answer_f1"] == 0
    assert open_to_all["exact_match"] == pytest.approx(100 / 5)
    assert squad_scores([""], [[]], [0.0], 1.0)["exact_match"] == 100


def test_best_thresholds_are_those_of_a_search_over_all():
    scores = squad_scores(ANSWERS, RIGHT, ODDS)
    # All empty: 2 of 5. With the first answer: 3. The second adds only 2/3 F1.
    assert scores["best_exact_match"] == pytest.approx(100 * 3 / 5)
    assert scores["best_exact_match_threshold"] == -4
    assert scores["best_f1"] == pytest.approx(100 * (3 + 2 / 3) / 5)
    assert scores["best_f1_threshold"] == -3
    random = np.random.default_rng(0)
    answerable = random.random(50) < 0.5
    values = np.where(answerable, random.random(50), 0.0)
    odds = random.normal(size=50) - 2 * values
    best, threshold = best_threshold(values, odds, answerable, np.full(50, True))
    means = [np.mean(np.where(odds > t, ~answerable, values)) for t in [-np.inf, *odds]]
    assert best == pytest.approx(max(means))
    reached = np.mean(np.where(odds > threshold, ~answerable, values))
    assert reached == pytest.approx(best)


def test_silence_is_best_when_all_answers_are_wrong():
    found = best_threshold(
        np.zeros(3), np.zeros(3), np.array([True, False, False]), np.full(3, True)
    )
    assert found == (pytest.approx(2 / 3), 0.0)

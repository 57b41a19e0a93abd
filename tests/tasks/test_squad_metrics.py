import numpy as np
import pytest

from electra_tf.tasks.squad_metrics import (
    best_threshold,
    exact_match,
    normalize_answer,
    score_v1,
    score_v2,
    token_f1,
    token_f1_or_none,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat\t(sat)!", "cat sat"),
        ("an A-bomb", "abomb"),  # The hyphen goes first: "a" is no word any more.
        ("theory of a the an", "theory of"),
        ("U.S.", "us"),
        ("caf\u00e9 \u2013 bar", "caf\u00e9 \u2013 bar"),  # Only ASCII punctuation.
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
    # Repeated words count as often as both have them.
    assert token_f1("x x y", "x x x") == pytest.approx(2 * 2 / 6)
    assert token_f1("b", "c") == 0
    # The two versions differ where no word is left.
    assert token_f1("the", "a") == 0
    assert token_f1_or_none("the", "a") == 1
    assert token_f1_or_none("the", "b") == 0


def test_version_1_takes_the_best_of_several_answers():
    scores = score_v1(
        ["in 1973", "Paris, France"],
        [["October 1973", "1973", "in 1973"], ["Paris", "the city of Paris"]],
    )
    assert scores["exact_match"] == 0.5
    assert scores["f1"] == pytest.approx((1 + 2 / 3) / 2)


# Worked by hand with the rules of the official script for version 2.0. Right, half
# right, answered although there is none (twice), and no answer although there is one.
ANSWERS = ["cat", "big dog", "fish", "bird", ""]
RIGHT = [["the cat"], ["dog", "the"], [], [], ["cow"]]
ODDS = [-4.0, -3.0, -2.0, 5.0, 1.0]


def test_version_2_at_a_fixed_threshold():
    """Pitfall 38."""
    scores = score_v2(ANSWERS, ODDS, RIGHT, -2.75)
    # The third to fifth are taken as no answer: right, right, wrong.
    assert scores["exact_match"] == pytest.approx(3 / 5)
    assert scores["f1"] == pytest.approx((1 + 2 / 3 + 1 + 1 + 0) / 5)
    assert scores["has_answer_exact_match"] == pytest.approx(1 / 3)
    assert scores["has_answer_f1"] == pytest.approx((1 + 2 / 3) / 3)
    assert scores["no_answer_exact_match"] == 1
    open_to_all = score_v2(ANSWERS, ODDS, RIGHT, 100.0)
    assert open_to_all["no_answer_f1"] == 0
    assert open_to_all["exact_match"] == pytest.approx(1 / 5)
    assert score_v2([""], [0.0], [[]], 1.0)["exact_match"] == 1


def test_best_thresholds_are_those_of_a_search_over_all():
    scores = score_v2(ANSWERS, ODDS, RIGHT, 0.0)
    # All silent: 2 of 5. The first one in: 3. The second adds no match, but 2/3 F1.
    assert scores["best_exact_match"] == pytest.approx(3 / 5)
    assert scores["best_exact_match_threshold"] == -4
    assert scores["best_f1"] == pytest.approx((3 + 2 / 3) / 5)
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

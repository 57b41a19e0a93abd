"""Exact match and F1 of answers, as SQuAD 1.1 and 2.0 define them.

Answers are compared after lower-casing, without ASCII punctuation, without the words a,
an and the, and with runs of white space as one space. Of several right answers the best
one counts. Shares are in [0, 1].

Letters: N questions.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Sequence

import numpy as np

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """The form in which answers are compared."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, right: str) -> float:
    """1 if both are the same after normalization."""
    return float(normalize_answer(answer) == normalize_answer(right))


def token_f1(answer: str, right: str) -> float:
    """F1 of the two bags of words; 0 if one has no words.

    SQuAD 1.1's rule; 2.0 has another one for answers without words, see `score_v2`.
    """
    found, wanted = normalize_answer(answer).split(), normalize_answer(right).split()
    common = sum((collections.Counter(found) & collections.Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


def token_f1_or_none(answer: str, right: str) -> float:
    """`token_f1`, but 1 if neither has a word: both say that there is no answer."""
    if not normalize_answer(answer) and not normalize_answer(right):
        return 1.0
    return token_f1(answer, right)


def _best(metric: Callable[[str, str], float], answer: str, right: Sequence[str]):
    return max(metric(answer, text) for text in right)


def score_v1(
    answers: Sequence[str], right: Sequence[Sequence[str]]
) -> dict[str, float]:
    """SQuAD 1.1: mean exact match and F1.

    Args:
        answers: N answers.
        right: The right answers of each question, at least one.
    """
    pairs = list(zip(answers, right, strict=True))
    return {
        "exact_match": float(np.mean([_best(exact_match, *pair) for pair in pairs])),
        "f1": float(np.mean([_best(token_f1, *pair) for pair in pairs])),
    }


def score_v2(
    answers: Sequence[str],
    null_odds: Sequence[float],
    right: Sequence[Sequence[str]],
    threshold: float,
) -> dict[str, float]:
    """SQuAD 2.0: means with a fixed threshold, and with the best one in hindsight.

    Args:
        answers: N answers, "" for none.
        null_odds: What says that there is no answer; above the threshold it counts as
            given, whatever the answer is.
        right: The right answers of each question; empty if there is none.
        threshold: The fixed threshold.

    Returns:
        exact_match and f1; the same of questions with and without answer (has_answer_,
        no_answer_), if there are any; best_exact_match and best_f1 with the thresholds
        that give them.
    """
    odds = np.asarray(null_odds, np.float64)
    raw, answerable = raw_scores_v2(answers, right)
    groups = {
        "": np.full(len(odds), True),
        "has_answer_": answerable,
        "no_answer_": ~answerable,
    }
    scores = {
        group + name: float(np.mean(decided(values, odds, answerable, threshold)[rows]))
        for group, rows in groups.items()
        for name, values in raw.items()
        if np.any(rows)
    }
    given = np.array([bool(answer) for answer in answers])
    for name, values in raw.items():
        best, at = best_threshold(values, odds, answerable, given)
        scores |= {f"best_{name}": best, f"best_{name}_threshold": at}
    return scores


def raw_scores_v2(
    answers: Sequence[str], right: Sequence[Sequence[str]]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """exact_match and f1 of each answer as it is, [N]; whether there is one, [N]."""
    wanted = [[text for text in texts if normalize_answer(text)] for texts in right]
    pairs = list(zip(answers, [texts or [""] for texts in wanted], strict=True))
    metrics = {"exact_match": exact_match, "f1": token_f1_or_none}
    raw = {
        name: np.array([_best(metric, *pair) for pair in pairs])
        for name, metric in metrics.items()
    }
    return raw, np.array([bool(texts) for texts in right])


def decided(
    values: np.ndarray, odds: np.ndarray, answerable: np.ndarray, threshold: float
) -> np.ndarray:
    """Scores [N] when no answer is given above the threshold; see `best_threshold`."""
    return np.where(odds > threshold, ~answerable, values)


def best_threshold(
    values: np.ndarray, odds: np.ndarray, answerable: np.ndarray, given: np.ndarray
) -> tuple[float, float]:
    """The best mean score over all thresholds, and the threshold.

    Starts from no answer to every question, and lets answers in by their odds, the
    lowest first; of several best thresholds the lowest is taken, and 0 if it is best to
    answer nothing.

    Args:
        values: Score of each answer, [N].
        odds: What says that there is no answer, [N].
        answerable: Whether there is one, [N].
        given: Whether the answer is not empty, [N].
    """
    order = np.argsort(odds, kind="stable")
    steps = np.where(answerable, values, -given.astype(float))[order]
    totals = np.sum(~answerable) + np.concatenate([[0.0], np.cumsum(steps)])
    index = int(np.argmax(totals))
    threshold = float(odds[order[index - 1]]) if index else 0.0
    return float(totals[index] / len(odds)), threshold

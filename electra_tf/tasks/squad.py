"""SQuAD 1.1 and 2.0: their files, their scores, and predictions in their layouts.

Answers are compared after lower-casing, without ASCII punctuation, without the words a,
an and the, and with runs of white space as one space. Of several right answers the best
one counts. Shares are in [0, 1].

Letters: N questions.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import operator
import os
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.tasks.span_head import Answer
from electra_tf.tasks.tables import read_text

Texts = Sequence[str]
# What a question of a file has to hold, and what it holds where it has answers.
_QUESTION = {"id": str | int, "question": str}
_LABELED = {"answers": [{"text": str, "answer_start": int}]}


@dataclasses.dataclass(frozen=True)
class Question:
    """A question and the paragraph (context) that holds its answer, or does not.

    ``answers`` are (text, first character in the paragraph) of each right answer; empty
    if there is none in the paragraph; None where it is unknown.

    Examples:
        >>> question = et.tasks.Question("1", "Who?", "Ada wrote it.", (("Ada", 0),))
        >>> answer, start = question.answers[0]
        >>> question.context[start : start + len(answer)]
        'Ada'
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None = None

    @property
    def texts(self) -> list[str]:
        """The right answers."""
        return [text for text, _ in self.answers]

    @property
    def is_located(self) -> bool:
        """Whether the first answer, which is trained, is where the file says."""
        first = self.answers[:1]
        return all(text and self.context.startswith(text, at) for text, at in first)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadSource:
    """Splits of a question answering task.

    The files of a split are read one after the other. ``unanswerable`` allows questions
    without answer (SQuAD 2.0); answers of ``unlabeled`` splits are not read. ``log`` is
    told how many training questions are left out: their answer is not where the file
    says.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> answers = [{"text": "Ada", "answer_start": 0}]
        >>> question = {"id": "1", "question": "Who?", "answers": answers}
        >>> paragraph = {"context": "Ada wrote it.", "qas": [question]}
        >>> _ = Path("dev.json").write_text(
        ...     json.dumps({"data": [{"paragraphs": [paragraph]}]})
        ... )
        >>> source = et.tasks.SquadSource(
        ...     files={"dev": ["dev.json"]}, unanswerable=False, log=print
        ... )
        >>> source("dev")[0].question
        'Who?'
    """

    files: Mapping[str, Sequence[str]]
    unanswerable: bool
    unlabeled: tuple[str, ...] = ("test",)
    log: Log = dataclasses.field(compare=False)

    def __call__(self, split: str) -> list[Question]:
        """Reads a split."""
        if not self.files.get(split):
            raise FileNotFoundError(f"No file was given for {split}: set --{split}.")
        questions = [q for path in self.files[split] for q in self._read(path, split)]
        names = ", ".join(self.files[split])
        if not questions:
            raise UserError(f"{names}: not a single question.")
        seen = collections.Counter(question.id for question in questions)
        name, count = seen.most_common(1)[0]
        if split != "train":
            if count > 1:
                raise UserError(
                    f"{names}: two questions have the id {name!r}; predictions are "
                    "written by id."
                )
            return questions
        if count > 1:
            # Such as SQuAD and its translation. Some may be held out and predicted.
            questions = _with_ids_once(questions)
        located = [question for question in questions if question.is_located]
        if missing := len(questions) - len(located):
            self.log(
                f"warning: {missing} training questions are left out, because the "
                "answer is not where the file says"
            )
        if not located:
            raise UserError(
                f"{names}: no training question is left. Does answer_start count "
                "characters of context, from 0?"
            )
        return located

    def _read(self, path: str, split: str) -> Iterator[Question]:
        content = files.parse_json(read_text(path), f"{path}: not JSON")
        question = _QUESTION | ({} if split in self.unlabeled else _LABELED)
        paragraphs = [{"context": str, "qas": [question]}]
        files.check_shape(
            content,
            {"data": [{"paragraphs": paragraphs}]},
            f"{path}: not in the layout of SQuAD (data / paragraphs / context and "
            "qas / id, question and answers)",
        )
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for item in paragraph["qas"]:
                    yield self._question(paragraph, item, split, path)

    def _question(self, paragraph: Any, item: Any, split: str, path: str) -> Question:
        answers = None
        if split not in self.unlabeled:
            given = [(a["text"], a["answer_start"]) for a in item["answers"]]
            # SQuAD 2.0 lists plausible wrong answers elsewhere; be sure.
            answers = tuple(given) if not item.get("is_impossible") else ()
            if not answers and not self.unanswerable:
                raise UserError(
                    f"{path}: question {item['id']!r} has no answer; use --task=squad2."
                )
        return Question(
            str(item["id"]),
            whole_characters(item["question"]),
            whole_characters(paragraph["context"]),
            answers,
        )


def _with_ids_once(questions: Sequence[Question]) -> list[Question]:
    """Appends #2, #3, ... to an id that came before."""
    seen: set[str] = set()
    unique = []
    for question in questions:
        name, number = question.id, 1
        while name in seen:
            number += 1
            name = f"{question.id}#{number}"
        seen.add(name)
        unique.append(dataclasses.replace(question, id=name))
    return unique


def whole_characters(text: str) -> str:
    """Replaces halves of surrogate pairs, which UTF-8 cannot hold, by U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def find_squad_files(folder: str, version: str) -> dict[str, list[str]]:
    """Finds train-v1.1.json, or else train.json, in a folder; so for dev and test."""
    by_split: dict[str, list[str]] = {}
    for split, end in itertools.product(("train", "dev", "test"), ("", f"-v{version}")):
        path = os.path.join(folder, f"{split}{end}.json")
        if os.path.isfile(path):
            by_split[split] = [path]
    if "train" not in by_split:
        raise UserError(
            f"{folder} has neither train-v{version}.json nor train.json: name the "
            "files with --train, --eval and --test."
        )
    return by_split


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Returns the form in which answers are compared."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, right: str) -> float:
    """Returns 1 if both are the same after normalization."""
    return float(normalize_answer(answer) == normalize_answer(right))


def token_f1(answer: str, right: str) -> float:
    """Returns the F1 of the two bags of words; 0 if one has no words.

    SQuAD 1.1's rule; 2.0 has another one for answers without words, see ``score_v2``.
    """
    given, wanted = normalize_answer(answer).split(), normalize_answer(right).split()
    common = sum((collections.Counter(given) & collections.Counter(wanted)).values())
    return 2 * common / (len(given) + len(wanted)) if common else 0.0


def token_f1_or_none(answer: str, right: str) -> float:
    """SQuAD 2.0 token F1: 1.0 if both answers are empty."""
    if not normalize_answer(answer) and not normalize_answer(right):
        return 1.0
    return token_f1(answer, right)


def _best(
    metric: Callable[[str, str], float], answers: Texts, right: Sequence[Texts]
) -> np.ndarray:
    """Returns what each answer scores with the best of its right ones, [N]."""
    pairs = zip(answers, right, strict=True)
    return np.array([max(metric(given, one) for one in ones) for given, ones in pairs])


def score_v1(answers: Texts, right: Sequence[Texts]) -> dict[str, float]:
    """SQuAD 1.1: mean exact match and F1; a question has at least one right answer."""
    return {n: float(x.mean()) for n, x in raw_scores_v1(answers, right).items()}


def raw_scores_v1(answers: Texts, right: Sequence[Texts]) -> dict[str, np.ndarray]:
    """Returns exact_match and f1 of each answer, [N]."""
    metrics = {"exact_match": exact_match, "f1": token_f1}
    return {name: _best(metric, answers, right) for name, metric in metrics.items()}


def score_v2(
    answers: Texts, null_odds: Sequence[float], right: Sequence[Texts], threshold: float
) -> dict[str, float]:
    """SQuAD 2.0: means with a fixed threshold, and with the best one in hindsight.

    An answer is "" for none, and counts as none, whatever it is, if its ``null_odds``
    are above the threshold. ``right`` has no answer where there is none. Returns
    exact_match and f1; the same of questions with and without answer (has_answer_,
    no_answer_), if there are any; best_exact_match and best_f1 with the thresholds that
    give them.
    """
    raw, answerable = raw_scores_v2(answers, right)
    given = np.array([bool(answer) for answer in answers])
    odds = np.asarray(null_odds, np.float64)
    return means_v2(raw, odds, answerable, given, threshold)


def means_v2(
    raw: Mapping[str, np.ndarray],
    odds: np.ndarray,
    answerable: np.ndarray,
    given: np.ndarray,
    threshold: float,
) -> dict[str, float]:
    """Aggregates the per-question scores of ``raw_scores_v2``, [N].

    ``given`` marks answers that are not empty.
    """
    every = np.full(len(odds), True)
    groups = {"": every, "has_answer_": answerable, "no_answer_": ~answerable}
    scores = {
        group + name: float(np.mean(decided(values, odds, answerable, threshold)[rows]))
        for group, rows in groups.items()
        for name, values in raw.items()
        if np.any(rows)
    }
    for name, values in raw.items():
        best, at = best_threshold(values, odds, answerable, given)
        scores |= {f"best_{name}": best, f"best_{name}_threshold": at}
    return scores


def raw_scores_v2(
    answers: Texts, right: Sequence[Texts]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns exact_match and f1 of each answer, [N], and if there is one, [N]."""
    wanted = [list(filter(normalize_answer, texts)) or [""] for texts in right]
    metrics = {"exact_match": exact_match, "f1": token_f1_or_none}
    raw = {name: _best(metric, answers, wanted) for name, metric in metrics.items()}
    return raw, np.array([bool(texts) for texts in right])


def decided(
    values: np.ndarray, odds: np.ndarray, answerable: np.ndarray, threshold: float
) -> np.ndarray:
    """Returns scores [N] if nothing is answered above the threshold."""
    return np.where(odds > threshold, ~answerable, values)


def best_threshold(
    values: np.ndarray, odds: np.ndarray, answerable: np.ndarray, given: np.ndarray
) -> tuple[float, float]:
    """Returns the best mean score over all thresholds, and the threshold.

    Starts from no answer to every question, and lets answers in by their odds, the
    lowest first; of several best thresholds the lowest is taken, and 0 if it is best to
    answer nothing. Takes the score of each answer, what says that there is none,
    whether there is one, and whether the answer is not empty, [N] each.
    """
    order = np.argsort(odds, kind="stable")
    steps = np.where(answerable, values, -given.astype(float))[order]
    totals = np.sum(~answerable) + np.concatenate([[0.0], np.cumsum(steps)])
    index = int(np.argmax(totals))
    threshold = float(odds[order[index - 1]]) if index else 0.0
    return float(totals[index] / len(odds)), threshold


def write_answers(named: Mapping[str, Answer], path: Path, *, null_odds: bool) -> None:
    """Writes predictions, nbest_predictions and null_odds, JSON by question id.

    The text in predictions is the best one, also where null_odds says that there is
    none: the official script for SQuAD 2.0 is given both files, and a threshold.
    ``path`` is that of predictions, whose name becomes those of the other files.
    """
    kinds = {"predictions": operator.attrgetter("text"), "nbest_predictions": _n_best}
    if null_odds:
        kinds["null_odds"] = operator.attrgetter("null_odds")
    for kind, of_answer in kinds.items():
        content = {name: of_answer(answer) for name, answer in named.items()}
        write_by_id(path.with_name(path.name.replace("predictions", kind)), content)


def _n_best(answer: Answer) -> list[dict[str, Any]]:
    pairs = zip(answer.candidates, answer.probabilities(), strict=True)
    return [
        {
            "text": candidate.text,
            "probability": float(probability),
            "start_logit": candidate.start_log_prob,
            "end_logit": candidate.end_log_prob,
            "start": candidate.start,
            "end": candidate.end,
        }
        for candidate, probability in pairs
    ]


def write_by_id(path: Path, content: Mapping[str, Any]) -> None:
    """Writes one file in the layout of the official scripts."""
    # Readable in any language: files.write_json would escape what is not ASCII.
    text = json.dumps(content, indent=2, ensure_ascii=False)
    files.write_text(path, text + "\n")

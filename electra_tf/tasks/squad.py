"""SQuAD 1.1 and 2.0: data files and official metrics.

Scores compare each answer with the best-matching label. N is the number of questions.
"""

import collections
import dataclasses
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.tasks.tables import read_text

Texts = Sequence[str]
# Fields of questions, and additional ones of labeled questions.
_QUESTION = {"id": str | int, "question": str}
_ANSWER = {"text": str, "answer_start": int}
_LABELED = {"answers": [_ANSWER], "is_impossible": bool | int | None}


@dataclasses.dataclass(frozen=True)
class Question:
    """A question and its paragraph (context).

    ``answers`` are (text, first character), empty if unanswerable, None if unknown.

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
        """Texts of the labels, none if they are unknown."""
        return [text for text, _ in self.answers or ()]

    @property
    def is_located(self) -> bool:
        """True if the first answer, the training target, is at its offset."""
        if not self.answers:
            return True
        text, start = self.answers[0]
        # Negative numbers would count from the end.
        return bool(text) and start >= 0 and self.context.startswith(text, start)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadSource:
    """Reads the splits of a question answering task, one file each.

    ``unanswerable`` allows questions without answers (SQuAD 2.0). Answers of
    ``unlabeled`` splits are not read. Training drops and logs answers at wrong offsets.

    Examples:
        >>> files = {"train": "train-v1.1.json", "dev": "dev-v1.1.json"}
        >>> source = et.tasks.SquadSource(files=files, unanswerable=False, log=print)
        >>> task = et.tasks.QuestionAnswering(name="squad1", source=source)
    """

    files: Mapping[str, str]
    unanswerable: bool
    unlabeled: tuple[str, ...] = ("test",)
    log: Log = dataclasses.field(compare=False)

    def __call__(self, split: str) -> list[Question]:
        path = self.files.get(split)
        if not path:
            raise FileNotFoundError(f"No file was given for {split}: set --{split}.")
        questions = self._read(path, split)
        if not questions:
            raise UserError(f"{path}: there are no questions.")
        if split != "train":
            # Predictions are written by id.
            ids = collections.Counter(question.id for question in questions)
            name, count = ids.most_common(1)[0]
            if count > 1:
                raise UserError(f"{path}: two questions have the id {name!r}.")
            return questions
        # Combined files, such as SQuAD and its translation, may share ids: adds #2.
        unique: dict[str, Question] = {}
        counts: dict[str, int] = {}
        for question in questions:
            name = question.id
            while name in unique:
                counts[question.id] = counts.get(question.id, 1) + 1
                name = f"{question.id}#{counts[question.id]}"
            unique[name] = dataclasses.replace(question, id=name)
        located = [question for question in unique.values() if question.is_located]
        if missing := len(questions) - len(located):
            self.log(
                f"warning: {missing} training questions are left out, because their "
                "answer is not at its answer_start"
            )
        if not located:
            raise UserError(f"{path}: no training question is left: fix answer_start.")
        return located

    def _read(self, path: str, split: str) -> list[Question]:
        content = files.parse_json(read_text(path), f"{path}: not JSON")
        question = _QUESTION | ({} if split in self.unlabeled else _LABELED)
        files.check_shape(
            content,
            {"data": [{"paragraphs": [{"context": str, "qas": [question]}]}]},
            f"{path}: not in the layout of SQuAD (data / paragraphs / context and "
            "qas / id, question and answers)",
        )
        return [
            self._question(paragraph["context"], item, split, path)
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for item in paragraph["qas"]
        ]

    def _question(self, context: str, item: Any, split: str, path: str) -> Question:
        name, answers = str(item["id"]), None
        if split not in self.unlabeled:
            given = [(a["text"], a["answer_start"]) for a in item["answers"]]
            answers = tuple(given) if not item.get("is_impossible") else ()
            if not answers and not self.unanswerable:
                raise UserError(
                    f"{path}: question {name!r} has no answer; use --task=squad2."
                )
        return Question(name, item["question"], context, answers)


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lowercases and removes ASCII punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def token_f1(answer: str, right: str, empty: float) -> float:
    """F1 of the two bags of words; ``empty`` if both are empty."""
    given, wanted = normalize_answer(answer).split(), normalize_answer(right).split()
    if not given and not wanted:
        return empty
    common = sum((collections.Counter(given) & collections.Counter(wanted)).values())
    return 2 * common / (len(given) + len(wanted))


def raw_scores(
    answers: Texts, right: Sequence[Texts], *, unanswerable: bool
) -> dict[str, np.ndarray]:
    """Returns exact_match and f1 of each answer, in [0, 1], [N].

    ``right`` are the labels; an empty answer is right if there are none.
    """
    if unanswerable:
        right = [list(filter(normalize_answer, texts)) or [""] for texts in right]
    pairs = list(zip(answers, right, strict=True))
    empty = float(unanswerable)
    exact = [
        normalize_answer(given) in map(normalize_answer, ones) for given, ones in pairs
    ]
    f1 = [max(token_f1(given, one, empty) for one in ones) for given, ones in pairs]
    return {"exact_match": np.array(exact, float), "f1": np.array(f1)}


def means_v2(
    raw: Mapping[str, np.ndarray],
    odds: np.ndarray,
    answerable: np.ndarray,
    given: np.ndarray,
    threshold: float,
) -> dict[str, float]:
    """SQuAD 2.0 exact match and F1 in percent, at a fixed and at the best threshold.

    ``raw`` are the scores of ``raw_scores``, and ``given`` marks non-empty answers.
    An answer counts as empty if its null odds exceed the threshold. The prefixes
    has_answer_ and no_answer_ mark the scores of such questions.
    """
    every = np.full(len(odds), True)
    groups = {"": every, "has_answer_": answerable, "no_answer_": ~answerable}
    decided = {n: np.where(odds > threshold, ~answerable, x) for n, x in raw.items()}
    scores = {
        group + name: 100 * float(np.mean(values[rows]))
        for group, rows in groups.items()
        for name, values in decided.items()
        if np.any(rows)
    }
    for name, values in raw.items():
        best, at = best_threshold(values, odds, answerable, given)
        scores |= {f"best_{name}": 100 * best, f"best_{name}_threshold": at}
    return scores


def best_threshold(
    values: np.ndarray, odds: np.ndarray, answerable: np.ndarray, given: np.ndarray
) -> tuple[float, float]:
    """Returns the best mean score, and its lowest threshold (0 if all are empty)."""
    order = np.argsort(odds, kind="stable")
    steps = np.where(answerable, values, -given.astype(float))[order]
    # In the order of the official script, whose rounding decides ties.
    totals = np.cumsum(np.concatenate([[np.sum(~answerable)], steps]))
    index = int(np.argmax(totals))
    threshold = float(odds[order[index - 1]]) if index else 0.0
    return float(totals[index] / len(odds)), threshold

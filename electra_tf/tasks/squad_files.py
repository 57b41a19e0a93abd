"""Questions about paragraphs, in the JSON layout of SQuAD 1.1 and 2.0."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from electra_tf.tasks.tables import read_text

_SPLITS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True)
class Question:
    """A question and the paragraph that holds its answer, or does not.

    Attributes:
        id: The question's id.
        question: The question.
        context: The paragraph.
        answers: (text, first character in the paragraph) of each right answer; empty
            if there is none in the paragraph; None where it is unknown.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None = None

    @property
    def texts(self) -> list[str]:
        """The right answers."""
        return [text for text, _ in self.answers]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadSource:
    """Splits of a question answering task.

    Attributes:
        files: Paths of each split; the files of a split are read one after the other.
        unanswerable: Whether questions without answer are allowed (SQuAD 2.0).
        unlabeled: Splits whose answers are not read.
        log: Told how many training answers are not where the file says; such questions
            are left out of training.
    """

    files: Mapping[str, Sequence[str]]
    unanswerable: bool
    unlabeled: tuple[str, ...] = ("test",)
    log: Callable[[str], None] = dataclasses.field(compare=False)

    def __call__(self, split: str) -> list[Question]:
        """Reads a split.

        Raises:
            ValueError: A file is not what it should be.
            FileNotFoundError: There is no file for it.
        """
        if not self.files.get(split):
            raise FileNotFoundError(f"No file was given for {split}: set --{split}.")
        questions = [q for path in self.files[split] for q in self._read(path, split)]
        if not questions:
            raise ValueError(f"{', '.join(self.files[split])}: not a single question.")
        seen: set[str] = set()
        for question in questions:
            if question.id in seen:
                raise ValueError(
                    f"{', '.join(self.files[split])}: two questions have the id "
                    f"{question.id!r}; predictions are written by id."
                )
            seen.add(question.id)
        return self._trainable(questions) if split == "train" else questions

    def _read(self, path: str, split: str) -> Iterator[Question]:
        try:
            content = json.loads(read_text(path))
            for article in content["data"]:
                for paragraph in article["paragraphs"]:
                    for item in paragraph["qas"]:
                        yield self._question(paragraph, item, split, path)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: not JSON ({error}).") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: not in the layout of SQuAD (data / paragraphs / context and "
                f"qas / id, question and answers): {type(error).__name__} {error}."
            ) from error

    def _question(self, paragraph: Any, item: Any, split: str, path: str) -> Question:
        answers = None
        if split not in self.unlabeled:
            answers = tuple(
                (a["text"], int(a["answer_start"])) for a in item["answers"]
            )
            if item.get("is_impossible"):
                # SQuAD 2.0 lists plausible wrong answers elsewhere; be sure.
                answers = ()
            if not answers and not self.unanswerable:
                raise ValueError(
                    f"{path}: question {item['id']!r} has no answer; use --task=squad2."
                )
        return Question(
            str(item["id"]),
            whole_characters(item["question"]),
            whole_characters(paragraph["context"]),
            answers,
        )

    def _trainable(self, questions: list[Question]) -> list[Question]:
        found = [question for question in questions if _is_located(question)]
        if missing := len(questions) - len(found):
            self.log(
                f"warning: {missing} training questions are left out, because the "
                "answer is not where the file says"
            )
        if not found:
            raise ValueError(
                f"{', '.join(self.files['train'])}: no training question is left. Does "
                "answer_start count characters of context, from 0?"
            )
        return found


def whole_characters(text: str) -> str:
    """Replaces halves of surrogate pairs, which UTF-8 cannot hold, by U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _is_located(question: Question) -> bool:
    # The first answer is the one that is trained.
    return all(
        text and question.context.startswith(text, start)
        for text, start in question.answers[:1]
    )


def find_squad_files(folder: str, version: str) -> dict[str, list[str]]:
    """The files of a folder: train-v1.1.json, or train.json, and so for dev and test.

    Args:
        folder: The folder.
        version: "1.1" or "2.0".

    Raises:
        ValueError: There is none for training.
    """
    found = {}
    for split in _SPLITS:
        names = [f"{split}-v{version}.json", f"{split}.json"]
        paths = [os.path.join(folder, name) for name in names]
        if existing := [path for path in paths if os.path.isfile(path)]:
            found[split] = existing[:1]
    if "train" not in found:
        raise ValueError(
            f"{folder} has neither train-v{version}.json nor train.json: name the "
            "files with --train, --eval and --test."
        )
    return found

"""From what task.json says back to the task: what a loaded model answers, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from electra_tf.tasks import glue
from electra_tf.tasks.base import Task
from electra_tf.tasks.question_answering import QuestionAnswering
from electra_tf.tasks.sentences import TagSet
from electra_tf.tasks.tagging import Tagging
from electra_tf.tasks.text import Classification, MultiLabel, Regression

KINDS: dict[str, type[Task]] = {
    kind.kind: kind
    for kind in (Classification, MultiLabel, Regression, Tagging, QuestionAnswering)
}


def from_json(about: Mapping[str, Any]) -> Task:
    """The task that ``Task.to_json`` described; its source reads nothing.

    Fields that are not said have their defaults, and what is no field is left out.
    ValueError: the kind is unknown, or the description lacks what is needed.
    """
    name, kind = about.get("task"), KINDS.get(about.get("kind"))
    if kind is None:
        raise ValueError(
            f"The task {name!r} is of the kind {about.get('kind')!r}; known are "
            f"{', '.join(KINDS)}."
        )
    names = {field.name for field in dataclasses.fields(kind)} - {"labels"}
    said = {key: _frozen(value) for key, value in about.items() if key in names}
    said |= {"name": name, "source": _no_source}
    if issubclass(kind, Tagging):
        said["tags"] = _tags(about)
    elif "labels" in about:
        said["labels"] = _frozen(about["labels"])
    if "pair" in names:
        said["pair"] = len(about.get("text_names", ())) == 2
    if kind is Classification and name in glue.ROWS:
        scores = glue.ROWS[name].scores
        said |= {"main_metric": scores[0], "score_names": scores}
    return kind(**said)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tags(about: Mapping[str, Any]) -> TagSet:
    learned = tuple(about["labels"])
    # Descriptions of older runs say neither of the two.
    fallback = about.get("fallback", "O" if "O" in learned else learned[0])
    is_bioes = about.get("encoding") == "bioes"
    return TagSet(learned, fallback, about.get("rewritten", is_bioes))


def _no_source(split: str) -> list[Any]:
    raise FileNotFoundError(f"A loaded model has no {split} data.")

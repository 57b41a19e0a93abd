"""From what task.json says back to the task: what a loaded model answers, and how."""

from __future__ import annotations

import collections
import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from electra_tf import files
from electra_tf.errors import UserError
from electra_tf.tasks import glue
from electra_tf.tasks.base import Task
from electra_tf.tasks.encoding import LONG_TEXTS
from electra_tf.tasks.heads import ClassificationHead, TaggingHead
from electra_tf.tasks.question_answering import QuestionAnswering
from electra_tf.tasks.sentences import TagSet
from electra_tf.tasks.span_head import SpanHead
from electra_tf.tasks.tagging import Tagging
from electra_tf.tasks.text import (
    Classification,
    LabeledTask,
    MultiLabel,
    Regression,
)

KINDS: dict[str, type[Task]] = {
    kind.kind: kind
    for kind in (Classification, MultiLabel, Regression, Tagging, QuestionAnswering)
}


# Fields of tasks that are described under another name, or not at all.
_NOT_SAID = {"labels", "name", "source", "submission", "tags"}


def _check(about: Mapping[str, Any]) -> None:
    """Refuses what no ``Task.to_json`` has said: files may come from anywhere.

    What is not said has its default, but labels.
    """
    where = "the task"
    name = about.get("kind")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UserError(f"{where}: kind is {name!r}; known are {', '.join(KINDS)}.")
    hints = typing.get_type_hints(kind)
    shape: dict[str, Any] = {
        field.name: hints[field.name]
        for field in dataclasses.fields(kind)
        if field.name in about.keys() - _NOT_SAID
    }
    allowed = {
        name: typing.get_args(hint)
        for name, hint in shape.items()
        if typing.get_origin(hint) is typing.Literal
    }
    if "long_texts" in shape:
        allowed["long_texts"] = tuple(LONG_TEXTS)
    counts = [name for name, hint in shape.items() if hint is int]
    shape |= {"task": str, "text_names": list[str] | None}
    if issubclass(kind, LabeledTask | Tagging):
        shape["labels"] = list[str]
    if kind is Tagging:
        shape |= {"fallback": str | None, "rewritten": bool | None}
    files.check_shape(about, shape, where)
    for name, values in allowed.items():
        if about[name] not in values:
            known = ", ".join(values)
            raise UserError(f"{where}: {name} is {about[name]!r}, not of {known}.")
    for name in counts:
        if about[name] < 1:
            raise UserError(f"{where}: {name} is {about[name]}, not positive.")
    if "labels" in shape:
        _check_labels(about["labels"], where)
    if kind is Regression and about.get("label_range") is None:
        raise UserError(f"{where}: label_range is missing.")


def _check_labels(labels: Sequence[str], where: str) -> None:
    if not labels:
        raise UserError(f"{where}: labels is empty.")
    counts = collections.Counter(labels)
    if twice := [label for label in labels if counts[label] > 1]:
        raise UserError(f"{where}: labels has {twice[0]!r} twice.")
    # Half of a surrogate pair, which JSON can name and no file can hold.
    if broken := [x for x in labels if any("\ud800" <= c <= "\udfff" for c in x)]:
        raise UserError(f"{where}: labels has {broken[0]!r}, which is no text.")


def check_head(task: Task, head: keras.layers.Layer) -> None:
    """ValueError if the head of a model does not answer what the task asks."""
    wanted: type = ClassificationHead
    outputs = None
    if isinstance(task, QuestionAnswering):
        wanted = SpanHead
    elif isinstance(task, Tagging):
        wanted, outputs = TaggingHead, len(task.tags.learned)
    else:
        outputs = task.num_outputs
    is_other = isinstance(head, TaggingHead) and wanted is not TaggingHead
    found = getattr(head, "num_outputs", None)
    if is_other or not isinstance(head, wanted) or found != outputs:
        has = f" with {found} outputs" if found else ""
        needs = f" with {outputs}" if outputs else ""
        raise UserError(
            f"the task: {task.kind} needs a {wanted.__name__}{needs}, and the model "
            f"has a {type(head).__name__}{has}."
        )


def from_json(about: Mapping[str, Any]) -> Task:
    """The task that ``Task.to_json`` described; its source reads nothing.

    Fields that are not said have their defaults, and what is no field is left out.
    ValueError: no task has described itself so.
    """
    _check(about)
    name, kind = about["task"], KINDS[about["kind"]]
    names = {field.name for field in dataclasses.fields(kind)} - _NOT_SAID
    said = {key: _frozen(value) for key, value in about.items() if key in names}
    said |= {"name": name, "source": _no_source}
    if issubclass(kind, Tagging):
        said["tags"] = _tags(about)
    elif issubclass(kind, LabeledTask):
        said["labels"] = _frozen(about["labels"])
    if "pair" in names:
        said["pair"] = len(about.get("text_names") or ()) == 2
    if kind is Classification and name in glue.ROWS:
        scores = glue.ROWS[name].scores
        said |= {"main_metric": scores[0], "score_names": scores}
    return kind(**said)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tags(about: Mapping[str, Any]) -> TagSet:
    learned = tuple(about["labels"])
    # Descriptions of older runs say neither of the two.
    fallback = about.get("fallback") or ("O" if "O" in learned else learned[0])
    is_bioes = about.get("encoding") == "bioes"
    return TagSet(learned, fallback, about.get("rewritten", is_bioes))


def _no_source(split: str) -> list[Any]:
    raise FileNotFoundError(f"A loaded model has no {split} data.")

"""Rebuilds a task from task.json."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

import keras

from electra_tf import files
from electra_tf.errors import UserError
from electra_tf.tasks import glue
from electra_tf.tasks.base import Task
from electra_tf.tasks.heads import ClassificationHead, TaggingHead
from electra_tf.tasks.question_answering import QuestionAnswering
from electra_tf.tasks.span_head import SpanHead
from electra_tf.tasks.tagging import Tagging
from electra_tf.tasks.text import Classification, MultiLabel, Regression

_HEADS: dict[type[Task], type[keras.layers.Layer]] = {
    Classification: ClassificationHead,
    MultiLabel: ClassificationHead,
    Regression: ClassificationHead,
    Tagging: TaggingHead,
    QuestionAnswering: SpanHead,
}


def kinds() -> dict[str, type[Task]]:
    """Returns all imported task classes that define ``kind``, by kind."""
    classes, waiting = {}, [Task]
    while waiting:
        cls = waiting.pop()
        waiting += reversed(cls.__subclasses__())
        if "kind" in vars(cls):
            classes[cls.kind] = cls
    return classes


def check_head(task: Task, head: keras.layers.Layer) -> None:
    """Raises ValueError if a model's head does not fit a built-in task."""
    wanted = _HEADS.get(type(task))
    if wanted is None:
        return
    outputs = getattr(task, "num_outputs", None)
    num_outputs = getattr(head, "num_outputs", None)
    is_other = isinstance(head, TaggingHead) and wanted is not TaggingHead
    if is_other or not isinstance(head, wanted) or num_outputs != outputs:
        has = f" with {num_outputs} outputs" if num_outputs else ""
        needs = f" with {outputs}" if outputs else ""
        raise UserError(
            f"the task: {task.kind} needs a {wanted.__name__}{needs}, and the model "
            f"has a {type(head).__name__}{has}."
        )


def from_json(about: Mapping[str, Any]) -> Task:
    """Returns a task without data from the output of ``Task.to_json``.

    Classes without their own ``from_json`` must be dataclasses. Missing fields get
    their defaults, and unknown ones are ignored. Raises ValueError if ``about`` is
    invalid or its class is not imported.
    """
    files.check_shape(about, {"kind": str}, "the task")
    name, known = about["kind"], kinds()
    if name not in known:
        raise UserError(
            f"the task: kind is {name!r}; known are {', '.join(known)}. Import the "
            "module of a custom task first."
        )
    kind = known[name]
    if hasattr(kind, "from_json"):
        return kind.from_json(about)
    hints = typing.get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)} & about.keys()
    names -= {"name", "source"}
    shape: dict[str, Any] = {name: hints[name] for name in names}
    shape |= {"task": str, "text_names": list[str] | None}
    files.check_shape(about, shape, "the task")
    values = {key: _frozen(about[key]) for key in names}
    values |= {"name": about["task"], "source": _no_source}
    has_labels = issubclass(kind, Classification | MultiLabel | Tagging)
    if has_labels and not values.get("labels"):
        raise UserError("the task: labels is missing.")
    if issubclass(kind, Tagging):
        if about.get("rewritten", about.get("encoding") == "bioes"):
            raise UserError("tag_encoding=bioes is not supported any more.")
        # task.json of older runs lacks the fallback.
        labels = values["labels"]
        values.setdefault("fallback", "O" if "O" in labels else labels[0])
    if hasattr(kind, "pair"):
        values["pair"] = len(about.get("text_names") or ()) == 2
    if kind is Classification and about["task"] in glue.ROWS:
        scores = glue.ROWS[about["task"]].scores
        values |= {"main_metric": scores[0], "score_names": scores}
    return kind(**values)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _no_source(split: str) -> list[Any]:
    raise FileNotFoundError(f"A loaded model has no {split} data.")

"""Rebuilds a task from task.json."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from electra_tf import files
from electra_tf.errors import UserError
from electra_tf.tasks import glue
from electra_tf.tasks.base import Task
from electra_tf.tasks.heads import TaggingHead, TaskModel
from electra_tf.tasks.tagging import Tagging
from electra_tf.tasks.text import Classification, MultiLabel


def kinds(base: type[Task] = Task) -> dict[str, type[Task]]:
    """Returns all imported subclasses that define ``kind``, by kind."""
    classes = {base.kind: base} if "kind" in vars(base) else {}
    for cls in base.__subclasses__():
        classes |= kinds(cls)
    return classes


def check_head(task: Task, model: TaskModel) -> None:
    """Raises ValueError if the head of a model does not fit the task."""
    wanted, head = task.head(model.encoder), model.head
    sizes = [getattr(each, "num_outputs", None) for each in (wanted, head)]
    is_other = isinstance(head, TaggingHead) and not isinstance(wanted, TaggingHead)
    if is_other or not isinstance(head, type(wanted)) or sizes[0] != sizes[1]:
        needs, has = (f" with {size} outputs" if size else "" for size in sizes)
        raise UserError(
            f"the task: {task.kind} needs a {type(wanted).__name__}{needs}, and the "
            f"model has a {type(head).__name__}{has}."
        )


def from_json(about: Mapping[str, Any]) -> Task:
    """Returns a task without data from the output of ``Task.to_json``.

    Missing fields get their defaults, and unknown ones are ignored.
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
    shape: dict[str, Any] = {"task": str, "text_names": list[str] | None}
    files.check_shape(about, shape | {n: hints[n] for n in names}, "the task")
    values: dict[str, Any] = {"name": about["task"], "source": _no_source}
    for name in names:
        # JSON has lists in place of tuples.
        is_list = isinstance(about[name], list)
        values[name] = tuple(about[name]) if is_list else about[name]
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


def _no_source(split: str) -> list[Any]:
    raise FileNotFoundError(f"A loaded model has no {split} data.")

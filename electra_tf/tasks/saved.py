"""Rebuilds a task from task.json."""

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

_HEADS: dict[type[Task], type[keras.layers.Layer]] = {
    Classification: ClassificationHead,
    MultiLabel: ClassificationHead,
    Regression: ClassificationHead,
    Tagging: TaggingHead,
    QuestionAnswering: SpanHead,
}
# Fields of tasks that task.json omits or stores under another name.
_EXCLUDED = {"labels", "name", "source", "submission", "tags"}


def kinds() -> dict[str, type[Task]]:
    """Returns all imported task classes that define ``kind``, by kind."""
    classes, waiting = {}, [Task]
    while waiting:
        cls = waiting.pop()
        waiting += reversed(cls.__subclasses__())
        if "kind" in vars(cls):
            classes[cls.kind] = cls
    return classes


def _kind(about: Mapping[str, Any]) -> type[Task]:
    name, known = about.get("kind"), kinds()
    if not isinstance(name, str) or name not in known:
        raise UserError(
            f"the task: kind is {name!r}; known are {', '.join(known)}. Import the "
            "module of a custom task first."
        )
    return known[name]


def _check(about: Mapping[str, Any], kind: type[Task]) -> None:
    """Raises ValueError unless ``Task.to_json`` could have written this."""
    where, hints = "the task", typing.get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)} - _EXCLUDED
    shape: dict[str, Any] = {name: hints[name] for name in names & about.keys()}
    shape |= {"task": str, "text_names": list[str] | None}
    if issubclass(kind, LabeledTask | Tagging):
        shape["labels"] = list[str]
    if kind is Tagging:
        shape |= {"fallback": str | None, "rewritten": bool | None}
    files.check_shape(about, shape, where)
    for name, hint in shape.items():
        allowed = LONG_TEXTS if name == "long_texts" else typing.get_args(hint)
        is_choice = name == "long_texts" or typing.get_origin(hint) is typing.Literal
        if is_choice and about[name] not in allowed:
            known = ", ".join(allowed)
            raise UserError(f"{where}: {name} is {about[name]!r}, not of {known}.")
        if hint is int and about[name] < 1:
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
    # Lone surrogates are valid in JSON escapes but not in UTF-8 files.
    if broken := [x for x in labels if any("\ud800" <= c <= "\udfff" for c in x)]:
        raise UserError(
            f"{where}: labels has {broken[0]!r}, which is not valid Unicode."
        )


def check_head(task: Task, head: keras.layers.Layer) -> None:
    """Raises ValueError if a model's head does not fit a built-in task."""
    wanted = _HEADS.get(type(task))
    if wanted is None:
        return
    outputs = None
    if isinstance(task, Tagging):
        outputs = len(task.tags.learned)
    elif isinstance(task, LabeledTask | Regression):
        outputs = task.num_outputs
    is_other = isinstance(head, TaggingHead) and wanted is not TaggingHead
    num_outputs = getattr(head, "num_outputs", None)
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
    kind = _kind(about)
    if hasattr(kind, "from_json"):
        return kind.from_json(about)
    _check(about, kind)
    name = about["task"]
    names = {field.name for field in dataclasses.fields(kind)} - _EXCLUDED
    values = {key: _frozen(value) for key, value in about.items() if key in names}
    values |= {"name": name, "source": _no_source}
    if issubclass(kind, Tagging):
        values["tags"] = _tags(about)
    elif issubclass(kind, LabeledTask):
        values["labels"] = _frozen(about["labels"])
    if "pair" in names:
        values["pair"] = len(about.get("text_names") or ()) == 2
    if kind is Classification and name in glue.ROWS:
        scores = glue.ROWS[name].scores
        values |= {"main_metric": scores[0], "score_names": scores}
    return kind(**values)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tags(about: Mapping[str, Any]) -> TagSet:
    learned = tuple(about["labels"])
    # task.json of older runs lacks fallback and rewritten.
    fallback = about.get("fallback") or ("O" if "O" in learned else learned[0])
    is_bioes = about.get("encoding") == "bioes"
    return TagSet(learned, fallback, about.get("rewritten", is_bioes))


def _no_source(split: str) -> list[Any]:
    raise FileNotFoundError(f"A loaded model has no {split} data.")

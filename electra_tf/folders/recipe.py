"""Recommended fine-tuning settings in an encoder's folder."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.config.finetuning import RecipeConfig
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import RECIPE, named

_NO_EXPORT = " (not exportable to Hugging Face, which has pooling=cls alone)"
# Flags that kinds of tasks do not have.
_OMITTED = {
    "question_answering": ("head_dropout", "head_init", "pooling"),
    "tagging": ("pooling",),
}


def recommended(encoder: files.AnyPath, kind: str = "") -> dict[str, Any]:
    """Returns the fine-tuning flags that an encoder's folder recommends, or {}.

    ``encoder`` is a folder, a file in it, or the name of a shipped model. Flags without
    effect on the ``kind`` of task are omitted. Raises ValueError for a damaged file.
    """
    path = named(encoder)
    path = (path.parent if path.is_file() else path) / RECIPE
    flags = files.read_json(path, default={})
    hints = typing.get_type_hints(RecipeConfig)
    if unknown := sorted(flags.keys() - hints.keys()):
        raise UserError(f"{path} is damaged: {unknown[0]} is not a flag of a recipe.")
    files.check_shape(flags, {name: hints[name] for name in flags}, str(path))
    try:
        RecipeConfig(**flags)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    omitted = _OMITTED.get(kind, ())
    return {name: value for name, value in flags.items() if name not in omitted}


def completion(
    encoder: files.AnyPath, kind: str, given: Mapping[str, Any], log: Log
) -> dict[str, Any]:
    """Returns and logs the ``recommended`` flags that are not ``given``.

    Also logs whether the pooling excludes a later export to Hugging Face.
    """
    recipe = recommended(encoder, kind)
    flags = {name: value for name, value in recipe.items() if name not in given}
    if flags:
        settings = ", ".join(f"{name}={value}" for name, value in flags.items())
        if flags.get("pooling", "cls") != "cls":
            settings += _NO_EXPORT
        log(f"recipe of {encoder}: {settings}")
    if given.get("pooling", "cls") != "cls":
        log(f"pooling={given['pooling']}{_NO_EXPORT}")
    return flags

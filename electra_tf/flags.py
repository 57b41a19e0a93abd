"""Dataclass <-> absl flags, both directions."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from absl import flags

from electra_tf import config as config_lib


def define(config_class: type, flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines one flag per field of every group of ``config_class``.

    ``Literal`` becomes an enum, a tuple of strings a comma list (with the metadata
    ``repeated`` a flag that is given several times), ``X | None`` an optional X, bool
    a switch (``--name`` / ``--noname``).
    """
    for group in dataclasses.fields(config_class):
        hints = typing.get_type_hints(group.default_factory)
        for leaf in dataclasses.fields(group.default_factory):
            if leaf.metadata.get("repeated"):
                flags.DEFINE_multi_string(
                    leaf.name,
                    list(leaf.default),
                    leaf.metadata["help"],
                    flag_values=flag_values,
                )
                continue
            _define_one(
                leaf.name,
                hints[leaf.name],
                leaf.default,
                leaf.metadata["help"],
                flag_values,
            )


def _define_one(
    name: str, hint: Any, default: Any, help_text: str, flag_values: flags.FlagValues
) -> None:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        flags.DEFINE_enum(
            name,
            default,
            list(typing.get_args(hint)),
            help_text,
            flag_values=flag_values,
        )
        return
    if origin is tuple:
        flags.DEFINE_list(name, list(default), help_text, flag_values=flag_values)
        return
    if origin is types.UnionType:
        (hint,) = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    definers = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    definers[hint](name, default, help_text, flag_values=flag_values)


def read(config_class: type, flag_values: flags.FlagValues = flags.FLAGS):
    """Builds the frozen config from parsed flags.

    Raises:
        ValueError: if a value or a combination is not allowed.
    """
    values = {
        leaf.name: flag_values[leaf.name].value
        for _, leaf in config_lib.fields(config_class)
    }
    return config_lib.from_flat(values, config_class)

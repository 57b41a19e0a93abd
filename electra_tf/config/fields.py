"""Fields, groups and validation of flag dataclasses; standard library only.

A group is a frozen dataclass of ``field``s, one per command-line flag. A config is a
frozen dataclass of groups, or a single group.
"""

import dataclasses
import functools
import math
import operator
import os
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from electra_tf.errors import UserError, did_you_mean

# TensorFlow stores seeds as int32.
MAX_SEED = 2**31 - 1
# Tokenizer normalization options.
CASING = ("lower_case", "strip_accents")


def field(
    help: str,
    default: Any = None,
    *,
    min: float | None = None,
    max: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Mapping[str, str] | None = None,
    only_with: str = "",
    flag: str | None = None,
    repeated: bool = False,
    required: bool = False,
    resumable: bool = False,
) -> Any:
    """Returns a dataclass field that defines a command-line flag.

    ``min`` and ``max`` are inclusive limits, ``above`` and ``below`` exclusive ones;
    ``max=math.inf`` allows infinity. ``choices`` maps names to help texts; without
    texts, annotate a ``Literal``. ``flag`` replaces a reserved name ("from"). A
    ``repeated`` flag may occur several times. A resume may change ``resumable`` values.

    ``only_with`` is a condition on another flag without which this one has no effect:
    "name=a|b", "name!=a|b", "name" for any value except the default, or "!name" for the
    default. Several are separated by commas.
    """
    metadata = {
        "help": help,
        "limits": (min, max, above, below),
        "choices": choices,
        "only_with": only_with,
        "flag": flag,
        "repeated": repeated,
        "required": required,
        "resumable": resumable,
    }
    return dataclasses.field(default=default, metadata=metadata)


# A field whose value may change when a run is resumed.
resumable_field = functools.partial(field, resumable=True)
# A field of comma-separated values, empty by default.
list_field = functools.partial(field, default=())


def callbacks() -> Any:
    """Returns the field of the flag ``callback``."""
    return resumable_field(
        "module:Class of a Keras callback without arguments, or module:function that "
        "returns a callback.",
        (),
        repeated=True,
    )


def require(condition: bool, message: str) -> None:
    """Raises UserError unless the condition holds."""
    if not condition:
        raise UserError(message)


# Flags whose paths must be local.
_LOCAL = ("model_dir", "data_dir", "output_dir", "output", "report", "html", "to")


class Group:
    """Base class of flag groups; raises UserError if a value is not allowed."""

    def __post_init__(self) -> None:
        for name in _LOCAL:
            path = getattr(self, name, None)
            # For example from an unset shell variable.
            require(path != "", f"--{name} is empty: name a path.")
            is_local = "://" not in str(path or "")
            require(is_local, f"--{name}={path} is remote: name a local path.")
        for leaf in dataclasses.fields(self):
            value = getattr(self, leaf.name)
            if isinstance(value, str) and isinstance(leaf.default, int | float):
                # Possible in Python, where "false" would be true.
                name = type(leaf.default).__name__
                raise UserError(f"--{leaf.name} must be of type {name}, got {value!r}.")
            if isinstance(value, int | float) and not isinstance(value, bool):
                _check_number(leaf, value)
            kind = kinds(type(self))[leaf.name]
            names = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
            choices = leaf.metadata["choices"] or names
            for each in value if isinstance(value, tuple) else (value,):
                if choices and each not in (leaf.default, *choices):
                    raise UserError(
                        f"--{flag_name(leaf)}={each} is unknown."
                        f"{did_you_mean(str(each), choices)} Allowed are "
                        f"{', '.join(choices)}."
                    )


def _check_number(leaf: dataclasses.Field, value: float) -> None:
    name = flag_name(leaf)
    # TensorFlow lacks wider integers, and ``math.isfinite`` raises OverflowError.
    fits = isinstance(value, float) or abs(value) < 2**63
    require(fits, f"--{name} must fit into 64 bits.")
    low, high, above, below = leaf.metadata["limits"]
    finite = math.isfinite(value) or value == high
    require(finite, f"--{name} must be a finite number, got {value}.")
    rules = {
        "at least": (low, operator.ge),
        "above": (above, operator.gt),
        "at most": (high, operator.le),
        "below": (below, operator.lt),
    }
    for words, (limit, holds) in rules.items():
        if limit is not None and not holds(value, limit):
            raise UserError(f"--{name} must be {words} {limit:.15g}, got {value}.")


def check_dependencies(config: Any) -> None:
    """Raises UserError if a flag is set that has no effect without another one."""
    leaves = {flag_name(leaf): leaf for _, leaf in fields(type(config))}
    values = to_flat(config)
    for name, leaf in leaves.items():
        value = values[leaf.name]
        if value == leaf.default:
            continue
        shown = f"--no{name}" if value is False else f"--{name}"
        for rule in filter(None, leaf.metadata["only_with"].split(",")):
            other, equals, allowed = rule.partition("=")
            is_excluded, other = "!" in other, other.strip("!")
            given, default = values[leaves[other].name], leaves[other].default
            holds = given in allowed.split("|") if equals else given != default
            if holds and is_excluded:
                raise UserError(f"{shown} cannot be used with --{other}={given}.")
            if not holds and not is_excluded:
                needed, now = rule.replace("|", " or "), f", and --{other} is {given}"
                raise UserError(f"{shown} needs --{needed}{now if equals else ''}.")


def flag_name(leaf: dataclasses.Field) -> str:
    """Returns the name of the flag of a field."""
    return leaf.metadata["flag"] or leaf.name


def groups(config_class: type) -> Iterator[tuple[str | None, type]]:
    """Yields (field name, group class), or (None, config_class) for a single group."""
    if issubclass(config_class, Group):
        yield None, config_class
        return
    for group in dataclasses.fields(config_class):
        yield group.name, group.default_factory


def fields(config_class: type) -> Iterator[tuple[str | None, dataclasses.Field]]:
    """Yields (group name, dataclass field) per flag, in order of definition."""
    for name, group in groups(config_class):
        for leaf in dataclasses.fields(group):
            yield name, leaf


@functools.cache
def hints(config_class: type) -> dict[str, Any]:
    """Returns the type annotations of all fields by name."""
    every = (typing.get_type_hints(group) for _, group in groups(config_class))
    return {name: hint for own in every for name, hint in own.items()}


@functools.cache
def kinds(config_class: type) -> dict[str, Any]:
    """Returns the types of all fields by name, without ``| None``."""
    # ``Literal[...] | None`` is a typing.Union, ``int | None`` a UnionType.
    unions = (typing.Union, types.UnionType)
    return {
        name: typing.get_args(hint)[0] if typing.get_origin(hint) in unions else hint
        for name, hint in hints(config_class).items()
    }


def to_flat(config: Any) -> dict[str, Any]:
    """Returns the fields of all groups as one dict."""
    return {
        leaf.name: getattr(getattr(config, group) if group else config, leaf.name)
        for group, leaf in fields(type(config))
    }


def from_flat(values: dict[str, Any], config_class: type) -> Any:
    """Builds a config from the dict of ``to_flat``; missing fields take their defaults.

    Raises UserError if a name is unknown, a value or combination is not allowed, or a
    removed flag (``REMOVED`` of the class) differs from its default.
    """
    removed = getattr(config_class, "REMOVED", {})
    known = [leaf.name for _, leaf in fields(config_class)]
    for name, value in values.items():
        if name in removed and value != removed[name]:
            raise UserError(f"{name}={value} is not supported any more.")
        if name not in (*known, *removed):
            hint = did_you_mean(name, known)
            raise UserError(f"{name} is not a flag of this command.{hint}")
    kind = kinds(config_class)
    values = {name: _plain(value, kind.get(name)) for name, value in values.items()}
    built = {}
    for name, group in groups(config_class):
        own = [leaf.name for leaf in dataclasses.fields(group) if leaf.name in values]
        built[name] = group(**{n: values[n] for n in own})
    if issubclass(config_class, Group):
        return built[None]
    config = config_class(**built)
    object.__setattr__(config, "given", frozenset(values))
    return config


def _plain(value: Any, kind: Any = None) -> Any:
    """Returns a value as the command line gives it, which config.json can hold."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    # A number may name a column.
    if isinstance(value, os.PathLike) or (kind is str and type(value) is int):
        return str(value)
    return value.item() if hasattr(value, "item") else value


def resumable_fields(config_class: type) -> frozenset[str]:
    """Returns the fields that may change when a run is resumed."""
    leaves = (leaf for _, leaf in fields(config_class))
    return frozenset(leaf.name for leaf in leaves if leaf.metadata["resumable"])

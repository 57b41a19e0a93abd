"""What the dataclasses of flags are made of; standard library only.

A config is a frozen dataclass whose fields are groups, or a group itself. A group is a
frozen dataclass of ``field``s, each of which is one command-line flag (``cli.py``).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterator
from typing import Any

from electra_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class Allowed:
    """Numbers that a flag may have.

    Attributes:
        rule: ends the sentence "--flag must ...".
        holds: whether a number is one of them.
        infinite: whether infinity may be one.
    """

    rule: str
    holds: Callable[[float], bool]
    infinite: bool = False


ANY = Allowed("be a number", lambda value: True)
POSITIVE = Allowed("be positive", lambda value: value > 0)
NOT_NEGATIVE = Allowed("not be negative", lambda value: value >= 0)
SHARE = Allowed("be in (0, 1]", lambda value: 0 < value <= 1)
WEIGHT = Allowed("be in [0, 1]", lambda value: 0 <= value <= 1)
HELD_OUT = Allowed("be in [0, 0.999]", lambda value: 0 <= value <= 0.999)
BELOW_1 = Allowed("be in [0, 1)", lambda value: 0 <= value < 1)
# TensorFlow keeps seeds in 32 bits, with a sign.
SEED = Allowed("be in [0, 2147483647]", lambda value: 0 <= value < 2**31)
CLIP = Allowed("be positive (inf: clip nothing)", lambda value: value > 0, True)


def at_least(lowest: int) -> Allowed:
    """Numbers from ``lowest`` on."""
    return Allowed(f"be at least {lowest}", lambda value: value >= lowest)


class Choices(dict[str, Any]):
    """Names that a flag may have, and what each means: a text, or an object of it.

    Open: a row that is registered from outside the package adds its name here before
    the flags are parsed (``electra_tf.systems``).
    """


def field(
    default: Any,
    help_text: str,
    *,
    allowed: Allowed | None = None,
    choices: Choices | None = None,
    flag: str | None = None,
    repeated: bool = False,
    required: bool = False,
    resumable: bool = False,
) -> Any:
    """A dataclass field that is a command-line flag.

    Args:
        default: of the flag.
        help_text: what ``--help`` says.
        allowed: numbers that the flag may have; None, an open optional, always may.
        choices: names that the flag may have, where outsiders may add some; names that
            are fixed are a ``Literal`` annotation.
        flag: the flag's name where it is no Python name ("from").
        repeated: whether the flag may be given several times.
        required: whether a command refuses to run without it.
        resumable: whether it may differ between a run and its resumption.
    """
    metadata = {
        "help": help_text,
        "allowed": allowed,
        "choices": choices,
        "flag": flag,
        "repeated": repeated,
        "required": required,
        "resumable": resumable,
    }
    return dataclasses.field(default=default, metadata=metadata)


def require(condition: bool, message: str) -> None:
    """Raises ValueError with the message unless the condition holds."""
    if not condition:
        raise UserError(message)


class Group:
    """Base of every group: checks what each field can know alone.

    Raises:
        ValueError: a number is not ``allowed``, or a name is none of the ``choices``.
    """

    def __post_init__(self) -> None:
        for leaf in dataclasses.fields(self):
            value = getattr(self, leaf.name)
            if value is None:
                continue
            if leaf.metadata["allowed"]:
                _check_number(flag_name(leaf), leaf.metadata["allowed"], value)
            if leaf.metadata["choices"] is not None:
                _check_choice(flag_name(leaf), leaf.metadata["choices"], value)


# How a tokenizer changes letters.
CASING = ("lower_case", "strip_accents")


def callbacks() -> Any:
    """The flag ``callback`` of runs that train."""
    return field(
        (),
        "module:Class, a Keras callback of yours or of a library, made without "
        "arguments (or module:function, which returns one). May be given several "
        "times.",
        repeated=True,
        resumable=True,
    )


def tokenization(config: Any) -> dict[str, Any]:
    """What a config says of the tokenizer: arguments of a folder's ``tokenizer``."""
    return {name: getattr(config, name) for name in ("vocab_file", *CASING)}


def _check_number(name: str, allowed: Allowed, value: float) -> None:
    if isinstance(value, int):
        # TensorFlow has no wider integers, and Python no float for some of them.
        require(abs(value) < 2**63, f"--{name} must fit into 64 bits.")
    finite = math.isfinite(value) or (allowed.infinite and not math.isnan(value))
    require(finite, f"--{name} must be a finite number, got {value}.")
    require(allowed.holds(value), f"--{name} must {allowed.rule}, got {value}.")


def _check_choice(name: str, choices: Choices, value: str) -> None:
    close = difflib.get_close_matches(value, choices, 3)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    require(
        value in choices,
        f"--{name}={value} is unknown.{hint} Allowed are {', '.join(choices)}.",
    )


def flag_name(leaf: dataclasses.Field) -> str:
    """Name of the flag of a field."""
    return leaf.metadata["flag"] or leaf.name


def groups(config_class: type) -> Iterator[tuple[str | None, type]]:
    """Yields (field name, dataclass) of the groups of a config, in order.

    A config that is a group itself yields itself, under the name None.
    """
    if issubclass(config_class, Group):
        yield None, config_class
        return
    for group in dataclasses.fields(config_class):
        yield group.name, group.default_factory


def fields(config_class: type) -> Iterator[tuple[str | None, dataclasses.Field]]:
    """Yields (group name, dataclass field) for every flag, in order of definition."""
    for name, group in groups(config_class):
        for leaf in dataclasses.fields(group):
            yield name, leaf


def to_flat(config: Any) -> dict[str, Any]:
    """All fields of a config as one flat dict, by field name."""
    return {
        leaf.name: getattr(getattr(config, group) if group else config, leaf.name)
        for group, leaf in fields(type(config))
    }


def from_flat(values: dict[str, Any], config_class: type) -> Any:
    """Builds a config from a flat dict; missing names take their defaults.

    Flags that the class lists as ``REMOVED`` may have the value given there only.

    Raises:
        ValueError: a value or a combination is not allowed.
    """
    for name, default in getattr(config_class, "REMOVED", {}).items():
        if values.get(name, default) != default:
            raise UserError(f"{name}={values[name]} is not supported any more.")
    built: dict[str | None, dict[str, Any]] = {}
    for group, leaf in fields(config_class):
        if leaf.name in values:
            value = values[leaf.name]
            value = tuple(value) if isinstance(value, list) else value
            built.setdefault(group, {})[leaf.name] = value
    if issubclass(config_class, Group):
        return config_class(**built.get(None, {}))
    return config_class(
        **{name: group(**built.get(name, {})) for name, group in groups(config_class)}
    )


def resumable_fields(config_class: type) -> frozenset[str]:
    """Fields that may differ between a run and its resumption."""
    return frozenset(
        leaf.name for _, leaf in fields(config_class) if leaf.metadata["resumable"]
    )

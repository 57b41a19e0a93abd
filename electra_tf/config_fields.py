"""What the dataclasses of flags are made of; standard library only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any


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
BELOW_1 = Allowed("be in [0, 1)", lambda value: 0 <= value < 1)
# TensorFlow keeps seeds in 32 bits, with a sign.
SEED = Allowed("be in [0, 2147483647]", lambda value: 0 <= value < 2**31)
CLIP = Allowed("be positive (inf: clip nothing)", lambda value: value > 0, True)


def at_least(lowest: int) -> Allowed:
    """Numbers from ``lowest`` on."""
    return Allowed(f"be at least {lowest}", lambda value: value >= lowest)


def field(default: Any, help_text: str, **metadata: Any) -> Any:
    """A dataclass field that is a command-line flag.

    Args:
        default: of the flag.
        help_text: what ``--help`` says.
        **metadata: ``allowed=`` the ``Allowed`` numbers; ``resumable=True`` for what
            may differ between a run and its resumption, ``repeated=True`` for a flag
            that is given several times.
    """
    return dataclasses.field(default=default, metadata={"help": help_text, **metadata})


def require(condition: bool, message: str) -> None:
    """Raises ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def check_numbers(group: Any) -> None:
    """Raises ValueError for the first field of a group that is not ``allowed``.

    Args:
        group: a dataclass of ``field``s; those that are None are left out.
    """
    for leaf in dataclasses.fields(group):
        allowed, value = leaf.metadata.get("allowed"), getattr(group, leaf.name)
        if allowed is None or value is None:
            continue
        finite = math.isfinite(value) or (allowed.infinite and not math.isnan(value))
        require(finite, f"--{leaf.name} must be a finite number, got {value}.")
        require(
            allowed.holds(value), f"--{leaf.name} must {allowed.rule}, got {value}."
        )

"""What ``--search`` says: which flags are searched, and between which values."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any

from electra_tf.config.fields import require


@dataclasses.dataclass(frozen=True)
class Axis:
    """A flag that is searched.

    Attributes:
        values: the only ones; empty for all from ``low`` to ``high``.
        is_log: whether ratios count, not differences.
        is_whole: whether there is nothing between whole numbers.
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    values: tuple[float, ...] = ()
    is_log: bool = False
    is_whole: bool = False

    def has(self, value: float) -> bool:
        """Whether a trial may have this value."""
        if self.values:
            return value in self.values
        return self.low <= value <= self.high and (value % 1 == 0 or not self.is_whole)


# Flags of fine-tuning that can be searched: the axis of a flag that is named alone,
# from the value that the run has without a search.
_DEFAULTS = {
    "learning_rate": lambda x: Axis("", x / 5, x * 5, is_log=True),
    "epochs": lambda x: Axis(
        "", max(1, round(x / 3)), max(2, round(x * 3)), is_log=True, is_whole=True
    ),
    "dropout": lambda x: Axis("", 0.0, max(0.3, x)),
    "attention_dropout": lambda x: Axis("", 0.0, max(0.3, x)),
    "head_dropout": lambda x: Axis("", 0.0, max(0.3, x)),
    "layerwise_decay": lambda x: Axis("", min(0.6, x), max(1.0, x)),
    "weight_decay": lambda x: Axis("", 0.0, max(0.1, x)),
    "warmup_proportion": lambda x: Axis("", 0.0, max(0.3, x)),
    "seed": lambda x: Axis("", x, x + 9, is_whole=True),
}


def parse_axis(text: str) -> tuple[str, tuple[float, ...], bool]:
    """Reads NAME, NAME=LOW:HIGH or NAME=VALUE/VALUE...

    Returns the name, the numbers (none for the flag's own axis), and whether they are
    two ends.

    Raises:
        ValueError: the flag cannot be searched, or these are no such numbers.
    """
    name, equals, given = text.partition("=")
    close = difflib.get_close_matches(name, _DEFAULTS, 3)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    require(
        name in _DEFAULTS,
        f"--search={text}: {name} is none of the flags that can be searched.{hint} "
        f"They are {', '.join(_DEFAULTS)}.",
    )
    if not equals:
        return name, (), True
    is_range = ":" in given
    try:
        numbers = tuple(map(float, given.split(":" if is_range else "/")))
    except ValueError:
        numbers = ()
    least = 0 if name in ("learning_rate", "epochs") else -math.inf
    wanted = len(numbers) == 2 if is_range else len(set(numbers)) == len(numbers) > 1
    require(
        wanted
        and all(least < number < math.inf for number in numbers)
        and (not is_range or numbers[0] < numbers[1])
        and (name != "seed" or all(number % 1 == 0 for number in numbers)),
        f"--search={text}: after {name}= come two ends, the smaller one first, such as "
        "1e-4:1e-3, or several values with slashes between them, such as 2/4/8.",
    )
    return name, numbers, is_range


def axes(texts: tuple[str, ...], own: Mapping[str, Any]) -> list[Axis]:
    """The axes of ``--search``; ``own`` are the values of the run without it."""
    found = []
    for text in texts:
        name, numbers, is_range = parse_axis(text)
        axis = dataclasses.replace(_DEFAULTS[name](own[name]), name=name)
        if numbers and is_range:
            low, high = numbers
            whole = axis.is_whole and low % 1 == high % 1 == 0
            axis = Axis(name, low, high, is_log=axis.is_log, is_whole=whole)
        elif numbers:
            axis = dataclasses.replace(axis, values=numbers)
        found.append(axis)
    return found

"""Search space of ``--search``: hyperparameters and their ranges or values."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from electra_tf.config.fields import require
from electra_tf.errors import did_you_mean


@dataclasses.dataclass(frozen=True)
class Axis:
    """A hyperparameter: its ``values``, or else a range, which may be logarithmic."""

    name: str
    low: float = 0.0
    high: float = 1.0
    values: tuple[float, ...] = ()
    is_log: bool = False
    is_whole: bool = False

    def has(self, value: float) -> bool:
        """Whether a value is in the range or list."""
        if self.values:
            return value in self.values
        return self.low <= value <= self.high and (value % 1 == 0 or not self.is_whole)


# Searchable fine-tuning flags: the default axis as a function of the flag's value.
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
    """Parses NAME, NAME=LOW:HIGH or NAME=VALUE/VALUE/...

    Returns the name, the numbers (empty for the default axis), and whether they are a
    range. Raises ValueError for other text.
    """
    name, equals, given = text.partition("=")
    require(
        name in _DEFAULTS,
        f"--search={text}: {name} cannot be searched.{did_you_mean(name, _DEFAULTS)} "
        f"Allowed are {', '.join(_DEFAULTS)}.",
    )
    if not equals:
        return name, (), True
    is_range = ":" in given
    try:
        numbers = tuple(map(float, given.split(":" if is_range else "/")))
    except ValueError:
        numbers = ()
    least = 0 if name in ("learning_rate", "epochs") else -math.inf
    has_length = (
        len(numbers) == 2 if is_range else len(set(numbers)) == len(numbers) > 1
    )
    require(
        has_length
        and all(least < number < math.inf for number in numbers)
        and (not is_range or numbers[0] < numbers[1])
        and (name != "seed" or all(number % 1 == 0 for number in numbers)),
        f"--search={text}: {name}= needs a range with the smaller end first, such as "
        "1e-4:1e-3, or several values, such as 2/4/8.",
    )
    return name, numbers, is_range


def axes(texts: tuple[str, ...], own: Mapping[str, Any]) -> list[Axis]:
    """Returns the axes of ``--search``; ``own`` holds the values without a search."""
    result = []
    for text in texts:
        name, numbers, is_range = parse_axis(text)
        axis = dataclasses.replace(_DEFAULTS[name](own[name]), name=name)
        if numbers and is_range:
            low, high = numbers
            whole = axis.is_whole and low % 1 == high % 1 == 0
            axis = Axis(name, low, high, is_log=axis.is_log, is_whole=whole)
        elif numbers:
            axis = dataclasses.replace(axis, values=numbers)
        result.append(axis)
    return result

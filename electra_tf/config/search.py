"""Search space of ``--search``: hyperparameters and their ranges or values."""

import dataclasses
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
        """Returns True if a value is in the range or list."""
        if self.values:
            return value in self.values
        return self.low <= value <= self.high and (value % 1 == 0 or not self.is_whole)


# Searchable fine-tuning flags.
_NAMES = (
    *("learning_rate", "epochs", "dropout", "attention_dropout", "head_dropout"),
    *("layerwise_decay", "weight_decay", "warmup_proportion", "seed"),
)


def _default_axis(name: str, value: float) -> Axis:
    """Returns the axis without a given range or values, around the flag's value."""
    if name == "learning_rate":
        return Axis(name, value / 5, value * 5, is_log=True)
    if name == "epochs":
        low, high = max(1, round(value / 3)), max(2, round(value * 3))
        return Axis(name, low, high, is_log=True, is_whole=True)
    if name == "layerwise_decay":
        return Axis(name, min(0.6, value), max(1.0, value))
    if name == "seed":
        return Axis(name, value, value + 9, is_whole=True)
    return Axis(name, 0.0, max(0.1 if name == "weight_decay" else 0.3, value))


def parse_axis(text: str) -> tuple[str, tuple[float, ...], bool]:
    """Parses NAME, NAME=LOW:HIGH or NAME=VALUE/VALUE/...

    Returns the name, the numbers (empty for the default axis), and whether they are a
    range. Raises UserError for other text.
    """
    name, equals, given = text.partition("=")
    require(
        name in _NAMES,
        f"--search={text}: {name} cannot be searched.{did_you_mean(name, _NAMES)} "
        f"Allowed are {', '.join(_NAMES)}.",
    )
    if not equals:
        return name, (), True
    is_range = ":" in given
    try:
        numbers = tuple(map(float, given.split(":" if is_range else "/")))
    except ValueError:
        numbers = ()
    is_ascending = len(numbers) == 2 and numbers[0] < numbers[1]
    is_list = len({*numbers}) == len(numbers) > 1
    require(
        (is_ascending if is_range else is_list)
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
        axis = _default_axis(name, own[name])
        if numbers and is_range:
            low, high = numbers
            whole = axis.is_whole and low % 1 == high % 1 == 0
            axis = Axis(name, low, high, is_log=axis.is_log, is_whole=whole)
        elif numbers:
            axis = dataclasses.replace(axis, values=numbers)
        result.append(axis)
    return result

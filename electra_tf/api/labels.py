"""Label names, and lookup of labels by name, number or boolean."""

import math
import numbers
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from electra_tf.api.inputs import is_missing, plain, text_of
from electra_tf.errors import UserError, did_you_mean
from electra_tf.tasks.tables import finite

_NUMBERS = numbers.Real | np.bool_


def label_names(values: Any, argument: str, least: int) -> tuple[str, ...]:
    """Returns label names as strings.

    Raises ValueError, with the name of the ``argument``, for values other than strings,
    numbers and booleans, duplicates and fewer than ``least`` names.
    """
    if values is None:
        raise UserError(f"{argument} are missing: list at least {least}.")
    names = []
    for value in plain(values, argument):
        if is_missing(value) or not isinstance(value, str | bytes | _NUMBERS):
            raise UserError(f"{argument} has {value!r:.100}, which is not a name.")
        names.append(_name(value))
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{argument} has {twice[0]!r} twice: list each name once.")
    if len(names) < least:
        given = ", ".join(names) or "empty"
        raise UserError(
            f"{argument} are {given}; the task needs at least {least} different ones."
        )
    return tuple(names)


def _name(value: Any) -> str:
    """Returns the name of a label; whole floats are integers, as in tables."""
    if isinstance(value, bytes):
        return text_of(value, "labels")
    if isinstance(value, float | np.floating) and value.is_integer():
        value = int(value)
    return str(value)


class LabelLookup:
    """Maps label values to indices.

    A string is a name. A number is the label of that number if any label is a number,
    and otherwise an index. A boolean is a label of its name, or 0 or 1.
    """

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        self._indices = {name: index for index, name in enumerate(self.names)}
        # Words such as "nan" and "infinity" are names, not numbers.
        self._has_numbers = not all(math.isnan(finite(name)) for name in self.names)

    def index(self, value: Any, row: int) -> int:
        """Returns the index of a label; errors name the ``row``."""
        if is_missing(value):
            raise UserError(f"Row {row} has no label (it is {value!r}).")
        if isinstance(value, list | tuple | np.ndarray):
            if len(value) != 1:
                raise UserError(
                    f"Row {row}: one label is needed, got {value!r:.100}. Turn one-hot "
                    "rows into positions with numpy.argmax(y, axis=1)."
                )
            return self.index(value[0], row)
        if not isinstance(value, str | bytes | _NUMBERS):
            raise self._unknown(repr(value), row)
        if (index := self._named(value)) is not None:
            return index
        if isinstance(value, str | bytes):
            name = _name(value)
            raise self._unknown(repr(name), row, did_you_mean(name, self.names))
        if self._has_numbers or float(value) not in range(len(self.names)):
            raise self._unknown(repr(value), row)
        lower = [name.lower() for name in self.names]
        if lower != ["false", "true"] and {"false", "true"} & {*lower}:
            raise UserError(
                f"Row {row}: {value!r} may be a position or a boolean; give the label "
                f"as one of {', '.join(self.names)}."
            )
        return int(value)

    def several(self, values: Any, row: int) -> np.ndarray:
        """Returns the multi-label target of labels or of C numbers, float32 [C]."""
        if is_missing(values) or isinstance(values, str | bytes | numbers.Real):
            raise UserError(f"Row {row}: {values!r:.100} is not a list of labels.")
        values = sorted(values) if isinstance(values, Set) else plain(values, "labels")
        target = np.zeros([len(self.names)], np.float32)
        if values and all(isinstance(value, _NUMBERS) for value in values):
            is_flags = len(values) == len(target) and all(0 <= x <= 1 for x in values)
            indices = {self._named(value) for value in values}
            is_labels = len(indices) == len(values) and None not in indices
            is_labels &= self._has_numbers
            if is_flags and is_labels:
                raise UserError(
                    f"Row {row}: {values!r:.100} may be labels or a row of 0 and 1; "
                    "give the labels as strings."
                )
            if is_flags:
                return np.array(values, np.float32)
            if not is_labels:
                raise UserError(
                    f"Row {row}: {values!r:.100} is neither a list of labels nor "
                    f"{len(target)} numbers from 0 to 1, one for each label."
                )
        target[[self.index(value, row) for value in values]] = 1
        return target

    def _named(self, value: Any) -> int | None:
        """Returns the index of the label of this name, if any."""
        # Whole floats are labels of integers, or of their own string such as "1.0".
        names = [_name(value), str(value)]
        if isinstance(value, bool | np.bool_):
            names += [names[0].lower(), names[0].upper(), str(int(value))]
        return next((self._indices[n] for n in names if n in self._indices), None)

    def _unknown(self, value: str, row: int, hint: str = "") -> UserError:
        known = ", ".join(self.names[:20]) + (", ..." if self.names[20:] else "")
        positions = "" if self._has_numbers else f", or 0 to {len(self.names) - 1}"
        return UserError(
            f"Row {row}: {value} is not a label.{hint} Give one of {known}{positions}."
        )

"""Label names, and lookup of labels by name, number or boolean."""

import contextlib
import math
import numbers
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from electra_tf.api.texts import is_missing, plain, text_of
from electra_tf.errors import UserError, did_you_mean

_BOOLEANS = {"False": False, "True": True}
_BOOLEANS |= {"FALSE": False, "TRUE": True, "false": False, "true": True}


def label_names(values: Any, argument: str, least: int) -> tuple[str, ...]:
    """Returns label names as strings; whole floats are integers, as in tables.

    Raises ValueError, with the name of the ``argument``, for values other than strings,
    numbers and booleans, duplicates and fewer than ``least`` names.
    """
    if values is None:
        raise UserError(f"{argument} are missing: list at least {least}.")
    names = []
    for value in plain(values, argument):
        is_name = isinstance(value, str | bytes | numbers.Real | np.bool_)
        if is_missing(value) or not is_name:
            raise UserError(f"{argument} has {value!r:.100}, which is not a name.")
        if isinstance(value, bytes):
            value = text_of(value, argument)
        elif isinstance(value, float | np.floating) and value.is_integer():
            value = int(value)
        names.append(str(value))
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{argument} has {twice[0]!r} twice: list each name once.")
    if len(names) < least:
        given = ", ".join(names) or "empty"
        raise UserError(
            f"{argument} are {given}; the task needs at least {least} different ones."
        )
    return tuple(names)


class LabelLookup:
    """Maps label values to indices.

    A string is a name. A number is the label of that number if any label is a number,
    and otherwise an index. A boolean is a label of its name, or 0 or 1.
    """

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        self._by_name = {name: index for index, name in enumerate(self.names)}
        self._by_number: dict[float, list[int]] = {}
        self._by_boolean: dict[bool, list[int]] = {}
        for index, name in enumerate(self.names):
            if name in _BOOLEANS:
                self._by_boolean.setdefault(_BOOLEANS[name], []).append(index)
            # Words such as "nan" and "infinity" are names, not numbers.
            with contextlib.suppress(ValueError):
                if math.isfinite(number := float(name)):
                    self._by_number.setdefault(number, []).append(index)

    def index(self, value: Any, row: int) -> int:
        """Returns the index of a label; errors name the ``row``."""
        if is_missing(value):
            raise UserError(f"Row {row} has no label (it is {value!r}).")
        if isinstance(value, str | bytes):
            name = text_of(value, "labels")
            if name not in self._by_name:
                raise self._unknown(repr(name), row, did_you_mean(name, self.names))
            return self._by_name[name]
        if isinstance(value, list | tuple | np.ndarray) and len(value) == 1:
            return self.index(value[0], row)
        if isinstance(value, list | tuple | np.ndarray):
            raise UserError(
                f"Row {row}: one label is needed, got {value!r:.100}. Turn one-hot "
                "rows into positions with numpy.argmax(y, axis=1)."
            )
        if isinstance(value, bool | np.bool_) and self._by_boolean:
            return self._only(self._by_boolean.get(bool(value), []), value, row)
        if not isinstance(value, numbers.Real | np.bool_):
            raise self._unknown(repr(value), row)
        if self._by_number:
            return self._only(self._by_number.get(float(value), []), value, row)
        is_ordered = [*map(_BOOLEANS.get, self.names)] == [False, True]
        if self._by_boolean and not is_ordered:
            raise UserError(
                f"Row {row}: {value!r} may be a position or a boolean; give the label "
                f"as one of {', '.join(self.names)}."
            )
        if float(value) not in range(len(self.names)):
            raise self._unknown(repr(value), row)
        return int(value)

    def several(self, values: Any, row: int) -> np.ndarray:
        """Returns the multi-label target of labels or of C numbers, float32 [C]."""
        if is_missing(values) or isinstance(values, str | bytes | numbers.Real):
            raise UserError(f"Row {row}: {values!r:.100} is not a list of labels.")
        values = sorted(values) if isinstance(values, Set) else plain(values, "labels")
        is_numbers = bool(values) and all(
            isinstance(value, numbers.Real | np.bool_) for value in values
        )
        is_labels = not is_numbers or (
            len(set(values)) == len(values)
            and all(float(value) in self._by_number for value in values)
        )
        is_flags = is_numbers and len(values) == len(self.names)
        is_flags = is_flags and all(0 <= value <= 1 for value in values)
        if is_labels and is_flags:
            raise UserError(
                f"Row {row}: {values!r:.100} may be labels or a row of 0 and 1; give "
                "the labels as strings."
            )
        if is_flags:
            return np.array(values, np.float32)
        if not is_labels:
            raise UserError(
                f"Row {row}: {values!r:.100} is neither a list of labels nor "
                f"{len(self.names)} numbers from 0 to 1, one for each label."
            )
        target = np.zeros([len(self.names)], np.float32)
        target[[self.index(value, row) for value in values]] = 1
        return target

    def _only(self, indices: Sequence[int], value: Any, row: int) -> int:
        if len(indices) == 1:
            return indices[0]
        if not indices:
            raise self._unknown(repr(value), row)
        several = ", ".join(repr(self.names[index]) for index in indices)
        raise UserError(f"Row {row}: {value!r} may be any of {several}; give its name.")

    def _unknown(self, value: str, row: int, hint: str = "") -> UserError:
        known = ", ".join(self.names[:20]) + (", ..." if self.names[20:] else "")
        positions = "" if self._by_number else f", or 0 to {len(self.names) - 1}"
        return UserError(
            f"Row {row}: {value} is not a label.{hint} Give one of {known}{positions}."
        )

"""Unexpected values for every place of a valid JSON value."""

import copy
import json
from collections.abc import Iterator

# JSON of every type, of extreme size, and literals that only Python accepts.
STRANGE = (
    *("null", "true", "0", "-1", "1.5", "1e400", "NaN", "9" * 400, "9" * 5000),
    *('""', '"x"', '"../../x"', '"\\ud800"', "[]", "[1]", "[[]]", "{}", '{"x": 1}'),
    "[" * 100_000,
)
_MARK = "a place that is replaced"


def places(value: object, path: tuple = ()) -> Iterator[tuple]:
    """Paths to every value inside, root first; only two items of each list."""
    yield path
    if isinstance(value, dict):
        inside = value.items()
    else:
        inside = list(enumerate(value))[:2] if isinstance(value, list) else ()
    for key, inner in list(inside)[:40]:
        yield from places(inner, (*path, key))


def texts(value: object, below: tuple = ()) -> Iterator[str]:
    """JSON texts with one value at or below ``below`` replaced or removed."""
    for path in places(value):
        if path[: len(below)] != below:
            continue
        for strange in STRANGE:
            yield json.dumps(_put(value, path, _MARK)).replace(f'"{_MARK}"', strange)
        if path:
            changed = copy.deepcopy(value)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            del inner[path[-1]]
            yield json.dumps(changed)


def _put(value: object, path: tuple, new: object) -> object:
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = _put(value[path[0]], path[1:], new)
    return changed

"""Values that nobody writes, put into every place of a file that is well."""

import copy
import json
from collections.abc import Iterator

# JSON texts: of every kind, of absurd size, and what only Python takes for JSON.
STRANGE = (
    *("null", "true", "0", "-1", "1.5", "1e400", "NaN", "9" * 400, "9" * 5000),
    *('""', '"x"', '"../../x"', '"\\ud800"', "[]", "[1]", "[[]]", "{}", '{"x": 1}'),
    "[" * 100_000,
)
_MARK = "a place that is replaced"


def places(value: object, path: tuple = ()) -> Iterator[tuple]:
    """The way to every place inside, the whole first; of long lists, two items."""
    yield path
    if isinstance(value, dict):
        inside = value.items()
    else:
        inside = list(enumerate(value))[:2] if isinstance(value, list) else ()
    for key, inner in list(inside)[:40]:
        yield from places(inner, (*path, key))


def texts(value: object, below: tuple = ()) -> Iterator[str]:
    """JSON texts of the value with one place (``below`` this) replaced, or left out."""
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

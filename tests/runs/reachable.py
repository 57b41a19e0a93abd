"""Objects reachable from a value, such as a prepared run."""

import functools

from electra_tf.config import fields


def assert_no_config(run, config_class, *held):
    """Asserts that a prepared run holds no config, but these objects."""
    found = [*reachable(run)]
    assert {*map(id, held)} <= {*map(id, found)}
    groups = (config_class, *(group for _, group in fields.groups(config_class)))
    assert not [value for value in found if isinstance(value, groups)]


def reachable(value, seen=None):
    """Yields a value and all objects reachable through dataclasses and closures."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return
    seen[id(value)] = value
    yield value
    inside = []
    if isinstance(value, dict):
        inside = [*value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inside = [*value]
    elif isinstance(value, functools.partial):
        inside = [value.func, value.args, value.keywords]
    elif hasattr(value, "cache_info"):
        inside = [value.__wrapped__]
    elif callable(value) and getattr(value, "__closure__", None):
        inside = [cell.cell_contents for cell in value.__closure__]
    elif type(value).__module__.startswith("electra_tf"):
        inside = [*getattr(value, "__dict__", {}).values()]
    for each in inside:
        yield from reachable(each, seen)

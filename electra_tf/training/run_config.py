"""The config a folder was started with, and the refusal to resume with another."""

import fnmatch
import json
import os
import pathlib
from collections.abc import Iterable, Mapping

_CONFIG = "config.json"
_ABSENT = "(absent)"


def write_config(directory: str | os.PathLike, config: Mapping) -> None:
    """Writes `config` (nested dict of plain values) to the folder's config.json."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    part = directory / f"{_CONFIG}.part"
    part.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
    part.replace(directory / _CONFIG)


def check_config(
    directory: str | os.PathLike, config: Mapping, *, ignore: Iterable[str] = ()
) -> bool:
    """Refuses a config that differs from the one the folder was started with.

    Args:
        directory: folder of `write_config`.
        config: nested dict of plain values.
        ignore: shell-style patterns of dotted field names that may differ.

    Returns:
        True if the folder has a config that agrees, False if it has none.

    Raises:
        ValueError: fields differ; each is listed with both values.
    """
    path = pathlib.Path(directory) / _CONFIG
    if not path.exists():
        return False
    was = dict(_fields(json.loads(path.read_text("utf-8"))))
    now = dict(_fields(json.loads(json.dumps(config))))
    changed = [
        f"{name}: was {was.get(name, _ABSENT)}, now {now.get(name, _ABSENT)}"
        for name in sorted(was.keys() | now.keys())
        if was.get(name, _ABSENT) != now.get(name, _ABSENT)
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignore)
    ]
    if changed:
        raise ValueError(
            f"{path} was written by a run with other settings:\n  "
            + "\n  ".join(changed)
            + "\nUse the old values to resume, or another folder for a new run."
        )
    return True


def _fields(value, name=""):
    if not isinstance(value, dict):
        yield name, value
        return
    for key, child in value.items():
        yield from _fields(child, f"{name}.{key}" if name else key)

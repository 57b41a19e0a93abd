"""Compares the settings of a run with its config.json."""

import fnmatch
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from electra_tf import files
from electra_tf.config import fields
from electra_tf.errors import UserError

CONFIG, RESULTS = "config.json", "results.json"
# Only fine-tuned models have it.
TASK = "task.json"
_ABSENT = "(absent)"
# Flags of earlier versions without effect on results.
_REMOVED = (
    *("config.cache_dir", "config.save_checkpoint_steps", "config.tfds_data_dir"),
    *("config.num_processes", "config.profile", "config.steps_per_execution"),
    "config.tpu",
)


def check_same(
    folder: Path,
    settings: Mapping[str, Any],
    config_class: type,
    may_differ: Iterable[str] = (),
    *,
    has_checkpoint: bool,
    absent: Mapping[str, Any] | None = None,
) -> bool:
    """Raises ValueError if settings differ from a folder's config.json.

    Ignores versions, the resumable flags of ``config_class`` and the dotted names that
    match patterns in ``may_differ``. ``absent`` has defaults for settings missing in
    config.json. Removed flags must have their default there. Returns True if it exists.
    """
    if not (folder / CONFIG).is_file():
        if has_checkpoint:
            raise UserError(
                f"{folder} has checkpoints but no {CONFIG}: restore it, or pass "
                "--overwrite to start a new run."
            )
        return False
    resumable = [f"config.{name}" for name in fields.resumable_fields(config_class)]
    patterns = (*may_differ, *resumable, "versions.*", *_REMOVED)
    now = dict(_leaves(json.loads(files.to_json(settings))))
    before = dict(_leaves(json.loads(json.dumps(absent or {}))))
    # Settings missing in an older config.json count as off.
    off = {name: value for name, value in now.items() if value == [] or value is False}
    assumed = off | {name: before[name] for name in now.keys() & before.keys()}
    was = assumed | dict(_leaves(files.read_json(folder / CONFIG)))
    for name, default in config_class.REMOVED.items():
        if was.get(f"config.{name}", _ABSENT) == default:
            del was[f"config.{name}"]
    changed = [
        f"{name}: was {was.get(name, _ABSENT)}, now {now.get(name, _ABSENT)}"
        for name in sorted(was.keys() | now.keys())
        if was.get(name, _ABSENT) != now.get(name, _ABSENT)
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    if changed:
        raise UserError(
            f"{folder / CONFIG} was written by a run with other settings:\n  "
            + "\n  ".join(changed)
            + "\nResume with the old values (absent flags need the earlier version) or "
            "use another folder for a new run."
        )
    return True


def check_keeps(
    home: Path, outputs: Iterable[str], inputs: Iterable[tuple[str, str]], flag: str
) -> None:
    """Raises ValueError if a run in ``home`` would delete an input (flag, path)."""
    doomed = [(home / name).resolve() for name in outputs]
    for name, path in inputs:
        place = Path(path).resolve()
        if place == home.resolve() or any(map(place.is_relative_to, doomed)):
            raise UserError(
                f"--{flag}={home}: the run would delete {path}, an input (--{name}). "
                f"Set --{name} to a copy elsewhere, or set another --{flag}."
            )


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) of a nested dict."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _leaves(child, f"{name}.{key}" if name else key)
    else:
        yield name, value

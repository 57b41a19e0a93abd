"""The folder that a conversion writes: what may be replaced, and that it is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from electra_tf.interop.imported import Imported

# What only a training run leaves: its folder is not written to.
_OF_A_RUN = ("checkpoints", "metrics.jsonl")


def listed(names: Sequence[str]) -> str:
    """The first eight names, and how many more there are."""
    rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + rest


def check_output(folder: Path, target: ModuleType, *, overwrite: bool) -> None:
    """Refuses a folder that holds something else, or anything without `overwrite`.

    Raises:
        ValueError: The folder must not be written to.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"--to={folder} is a file: name a folder.")
    if any((folder / name).exists() for name in _OF_A_RUN):
        raise ValueError(f"--to={folder} holds a training run: name another folder.")
    names = sorted(path.name for path in folder.iterdir())
    if names and not overwrite:
        raise ValueError(
            f"--to={folder} is not empty ({listed(names)}): pass --overwrite to "
            "replace what is there, or name another folder."
        )
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    inside = [path.relative_to(folder).as_posix() for path in files]
    foreign = [name for name in inside if name not in target.OUTPUTS]
    if foreign:
        raise ValueError(
            f"--to={folder} holds files that are not of this format "
            f"({listed(foreign)}): name another folder."
        )


def publish(folder: Path, target: ModuleType, model: Imported) -> Sequence[str]:
    """Writes into another folder first: this one is there whole or as it was.

    Returns:
        What the format cannot hold, a sentence each.
    """
    whole = folder.resolve()
    whole.parent.mkdir(parents=True, exist_ok=True)
    part = whole.with_name(f".{whole.name}.part-{os.getpid()}")
    old = whole.with_name(f".{whole.name}.old-{os.getpid()}")
    try:
        part.mkdir()
        notes = target.write(part, model)
        if whole.exists():
            # Holds nothing but an earlier conversion: `check_output` has looked.
            os.replace(whole, old)
        os.replace(part, whole)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return notes

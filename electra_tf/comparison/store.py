"""What is done: one JSON line per finished run and probe, and the settings they had.

``results.jsonl`` only grows, a whole line at a time, each on disk before the next one
begins; of two lines about the same thing the later one counts. ``ladder.json`` holds
the settings of every system and probe that ever ran here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = "results.jsonl"
SETTINGS = "ladder.json"
RUNS = "runs"
_ABSENT = "(absent)"

Row = dict[str, Any]
Key = tuple[Any, ...]


def key(row: Mapping[str, Any]) -> Key:
    """What a line is about: a pretraining run, or a probe of one of its points."""
    names = ("kind", "system", "seed", "point", "probe")
    return tuple(row.get(name) for name in names)


class Store:
    """The folder of a comparison.

    Args:
        folder: created if it is not there.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / RESULTS
        self._rows = {key(row): row for row in self._read()}

    def _read(self) -> list[Row]:
        """The whole lines; a line that a kill cut short is dropped from the file."""
        if not self.path.exists():
            return []
        text = self.path.read_text("utf-8")
        rows = []
        for line in text.splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        if text and not text.endswith("\n"):
            self._write(rows)
        return rows

    def _write(self, rows: Iterable[Row]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        _replace(self.path, text)

    def add(self, row: Row) -> None:
        """Appends a line; it is on disk when this returns."""
        line = (json.dumps(row) + "\n").encode()
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)
        self._rows[key(row)] = row

    def rows(self, kind: str) -> list[Row]:
        """Every finished thing of a kind, failed ones left out."""
        return [
            row
            for row in self._rows.values()
            if row["kind"] == kind and "failure" not in row
        ]

    def failures(self) -> list[Row]:
        """What failed and was not done since."""
        return [row for row in self._rows.values() if "failure" in row]

    def find(
        self, kind: str, system: str, seed: int, point: float | None, probe: str | None
    ) -> Row | None:
        """The finished line about something, or None."""
        row = self._rows.get((kind, system, seed, point, probe))
        return None if row is None or "failure" in row else row

    def run_folder(self, system: str, seed: int) -> Path:
        """Where a run is, or will be."""
        return self.folder / RUNS / system / f"seed-{seed}"

    def check(self, settings: Mapping[str, Mapping[str, Any]], *, overwrite: bool):
        """Refuses settings other than those that results were made with.

        With ``overwrite`` what they made is deleted instead: runs of a system that
        changed, lines of a probe that changed. Flags that were not noted then count
        as unchanged, and are noted now.

        Args:
            settings: "systems" and "probes", each name -> flag -> value; further
                entries are noted only.
            overwrite: whether to delete.

        Raises:
            ValueError: naming each flag that differs, with both values.
        """
        settings = json.loads(json.dumps(settings))
        path = self.folder / SETTINGS
        was = json.loads(path.read_text("utf-8")) if path.exists() else {}
        changed = {
            kind: {
                name: found
                for name, now in settings[kind].items()
                if name in was.get(kind, {})
                and (found := list(_differences(was[kind][name], now)))
            }
            for kind in ("systems", "probes")
        }
        if any(changed.values()) and not overwrite:
            lines = [
                f"{name}: --{line}"
                for kind in changed.values()
                for name, found in kind.items()
                for line in found
            ]
            raise ValueError(
                f"{path} was written with other settings:\n  "
                + "\n  ".join(lines)
                + "\nUse the old values to go on, another --output_dir for a new "
                "comparison, or --overwrite to delete the results that they made."
            )
        self._drop(changed)
        for kind in ("systems", "probes"):
            settings[kind] = {**was.get(kind, {}), **settings[kind]}
        _replace(path, json.dumps(settings, indent=2, sort_keys=True) + "\n")

    def _drop(self, changed) -> None:
        systems, probes = changed["systems"], changed["probes"]
        kept = [
            row
            for row in self._rows.values()
            if row["system"] not in systems and row.get("probe") not in probes
        ]
        if len(kept) < len(self._rows):
            self._write(kept)
            self._rows = {key(row): row for row in kept}
        for name in systems:
            shutil.rmtree(self.folder / RUNS / name, ignore_errors=True)


def _differences(was: Mapping[str, Any], now: Mapping[str, Any]):
    # What an older version did not note counts as unchanged.
    for name in sorted(was):
        old, new = was[name], now.get(name, _ABSENT)
        if old != new:
            yield f"{name} was {old}, now {new}"


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, "utf-8")
    os.replace(part, path)

"""What a comparison has done: a line per finished run and probe, and their settings.

``results.jsonl`` only grows, a whole line at a time, each on disk before the next one
begins; of two lines about the same run or probe the later one counts. ``ladder.json``
holds the settings of every system and probe that ever ran here.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra_tf import files
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.errors import UserError

RESULTS = "results.jsonl"
SETTINGS = "ladder.json"
RUNS = "runs"
ENCODER = "encoder.keras"
_ABSENT = "(absent)"

# Of every row, and of the rows that are not failures.
_SHAPE = {"kind": str, "system": str, "seed": int, "probe": str | None}
_NUMBERS = dict[str, float | None]  # None: not finite.
_HELD_OUT = {"held_out": (None, _NUMBERS), "trivial": (None, _NUMBERS)}

Row = dict[str, Any]


def encoder_folder(run_folder: str | os.PathLike, point: float) -> Path:
    """Folder of the encoder after a share of a run: the run's own after all of it."""
    folder = Path(run_folder)
    return folder if point == 1 else folder / "points" / f"{point:g}"


class Store:
    """The folder of a comparison, created if it does not exist.

    Raises UserError if a row of results.jsonl is not one of this library.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / RESULTS
        self._rows: dict[tuple[Any, ...], Row] = {}
        self._before = 0
        rows = self.refresh()
        if rows and not self.path.read_bytes().endswith(b"\n"):
            # A kill cut the last line short; other readers may not skip it as we do.
            files.write_json_lines(self.path, rows)
        self._before = len(rows)

    def refresh(self) -> list[Row]:
        """Reads the file again; returns the rows since this store was opened."""
        rows = files.read_json_lines(self.path)
        for number, row in enumerate(rows, 1):
            where = f"{self.path}: result {number}"
            files.check_shape(row, _SHAPE, where)
            known = {name: hint for name, hint in _HELD_OUT.items() if name in row}
            files.check_shape(row, known, where)
        self._rows = {key(row): row for row in rows}
        return rows[self._before :]

    def add(self, row: Row) -> None:
        """Appends a row, which is on disk when this returns."""
        files.append_json_line(self.path, row)
        self._rows[key(row)] = row

    def rows(self, kind: str) -> list[Row]:
        """The lines of all finished runs ("pretrain") or probes ("probe")."""
        rows = (row for row in self._rows.values() if row["kind"] == kind)
        return [row for row in rows if "failure" not in row]

    def failures(self) -> list[Row]:
        """The lines of what failed and has not been finished since."""
        return [row for row in self._rows.values() if "failure" in row]

    def find(
        self,
        kind: str,
        system: str,
        seed: int,
        point: float | None = None,
        probe: str | None = None,
    ) -> Row | None:
        """The line of a finished run or probe, or None."""
        row = self._rows.get((kind, system, seed, point, probe))
        return None if row is None or "failure" in row else row

    def run_folder(self, system: str, seed: int) -> Path:
        """Folder of a run, whether it is there or not."""
        return self.folder / RUNS / system / f"seed-{seed}"

    def check(
        self, settings: Mapping[str, Mapping[str, Any]], *, overwrite: bool
    ) -> None:
        """Rejects settings other than those that the results were made with.

        ``settings`` has "systems" and "probes", each name -> flag -> value; further
        entries are noted only. With ``overwrite``, runs of a system and lines of a
        probe that changed are deleted instead.
        """
        # As they will be read again: tuples become lists.
        settings = json.loads(json.dumps(settings))
        path = self.folder / SETTINGS
        both = {"systems": (None, dict[str, dict]), "probes": (None, dict[str, dict])}
        noted = files.read_json(path, {}, shape=both)
        changed = {
            kind: {
                name: lines
                for name, was in noted.get(kind, {}).items()
                if (lines := _differences(was, settings[kind].get(name, was)))
            }
            for kind in ("systems", "probes")
        }
        every = itertools.chain(*(names.items() for names in changed.values()))
        lines = [f"{name}: --{line}" for name, lines in every for line in lines]
        if lines and not overwrite:
            raise UserError(
                f"{path} was written with other settings:\n  "
                + "\n  ".join(lines)
                + "\nUse the old values to resume, another --output_dir for a new "
                "comparison, or --overwrite to delete the results that they made."
            )
        kept = {
            key: row
            for key, row in self._rows.items()
            if row["system"] not in changed["systems"]
            and row.get("probe") not in changed["probes"]
        }
        if len(kept) < len(self._rows):
            files.write_json_lines(self.path, kept.values())
            self._rows, self._before = kept, len(kept)
        for name in changed["systems"]:
            files.remove(self.folder / RUNS / name)
        for kind in changed:
            settings[kind] = noted.get(kind, {}) | settings[kind]
        files.write_json(path, settings, sort_keys=True)


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Identifies the run or probe of a row."""
    return tuple(row.get(name) for name in ("kind", "system", "seed", "point", "probe"))


def _differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    # Over the old names only: flags that are new since then count as unchanged.
    now = {**PretrainConfig.REMOVED, **now}
    return [
        f"{name} was {old}, now {now.get(name, _ABSENT)}"
        for name, old in sorted(was.items())
        if now.get(name, _ABSENT) != old
    ]

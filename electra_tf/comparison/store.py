"""Results of a comparison, one row per finished run or probe, and their settings.

``results.jsonl`` is append-only, and each row is flushed to disk. Later rows of a run
or probe replace earlier ones. ``ladder.json`` has the settings of systems and probes.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from electra_tf import files
from electra_tf.config.commands import ScoreConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.errors import UserError

RESULTS = "results.jsonl"
SETTINGS = "ladder.json"
RUNS = "runs"
ENCODER = "encoder.keras"
_ABSENT = "(absent)"
_KEY = ("kind", "system", "seed", "probe")
_NUMBERS = (None, dict[str, float | None])
_SHAPE = {"kind": str, "system": str, "seed": int, "probe": (None, str)}
_SHAPE |= {"held_out": _NUMBERS, "trivial": _NUMBERS}

Row = dict[str, Any]


class Store:
    """A comparison's folder, created if missing; raises UserError for invalid rows."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / RESULTS
        self._rows: dict[tuple[Any, ...], Row] = {}
        self._before = 0
        self._before = len(self.refresh())

    def refresh(self) -> list[Row]:
        """Reads the file again; returns the rows added since this store was opened."""
        rows = files.read_json_lines(self.path)
        for number, row in enumerate(rows, 1):
            files.check_shape(row, _SHAPE, f"{self.path}: result {number}")
        # Earlier versions also probed unfinished runs, at a ``point`` below 1.
        self._rows = {key(row): row for row in rows if row.get("point", 1) == 1}
        return rows[self._before :]

    def add(self, row: Row) -> None:
        """Appends a row and flushes it to disk."""
        files.append_json_line(self.path, row)
        self._rows[key(row)] = row

    def rows(self, kind: str) -> list[Row]:
        """Returns the rows of finished runs ("pretrain") or probes ("probe")."""
        rows = self._rows.values()
        return [row for row in rows if row["kind"] == kind and "failure" not in row]

    def failures(self) -> list[Row]:
        """Returns the rows of failed runs and probes."""
        return [row for row in self._rows.values() if "failure" in row]

    def find(self, system: str, seed: int, probe: str | None = None) -> Row | None:
        """Returns the row of a finished run or its probe, or None."""
        row = self._rows.get(("probe" if probe else "pretrain", system, seed, probe))
        return None if row is None or "failure" in row else row

    def run_folder(self, system: str, seed: int) -> Path:
        """Returns the folder of a run, which may not exist."""
        return self.folder / RUNS / system / f"seed-{seed}"

    def check(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises UserError if settings differ from the settings of earlier results.

        ``settings`` maps "systems" and "probes" to name -> flag -> value; other entries
        are only recorded.
        """
        settings = json.loads(files.to_json(settings))
        path = self.folder / SETTINGS
        both = {"systems": (None, dict[str, dict]), "probes": (None, dict[str, dict])}
        noted = files.read_json(path, {}, shape=both)
        lines = []
        for kind in both:
            known = noted.get(kind, {})
            for name, was in known.items():
                differences = _differences(was, settings[kind].get(name, was))
                lines += [f"{name}: --{line}" for line in differences]
            settings[kind] = known | settings[kind]
        if lines:
            raise UserError(
                f"{path} was written with other settings:\n  "
                + "\n  ".join(lines)
                + "\nUse the old values to resume, another name for a changed system "
                "or probe, or another --output_dir for a new comparison."
            )
        files.write_json(path, settings, sort_keys=True)


def identity(row: Mapping[str, Any]) -> Row:
    """Returns the identifying fields of a row or of a part of a job."""
    return {name: row[name] for name in _KEY if name in row}


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns a hashable key of the row's run or probe."""
    return tuple(row.get(name) for name in _KEY)


def describe(row: Row) -> str:
    """Formats a row of the results as one line."""
    about = f"{row['system']} seed {row['seed']}"
    what = row.get("probe") or "pretraining"
    if "failure" in row:
        return f"{about}: {what} FAILED: {row['failure']}"
    took = tqdm.format_interval(round(row["seconds"]))
    if row["kind"] == "probe":
        # NaN is null in the file.
        score = math.nan if row["score"] is None else row["score"]
        return f"{about}: {what} {score:.2f} ({row['metric']}), {took}"
    return f"{about}: {row['steps']:,} steps in {took}"


def _differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    # Compares the old names only, since new flags count as unchanged.
    for config in (PretrainConfig, FinetuneConfig, ScoreConfig):
        now = {**config.REMOVED, **now}
    # `unknown_tags` made runs fail, but did not change scores.
    was = {name: old for name, old in was.items() if name != "unknown_tags"}
    return [
        f"{name} was {old}, now {now.get(name, _ABSENT)}"
        for name, old in sorted(was.items())
        if now.get(name, _ABSENT) != old
    ]

"""Accuracy of a pretrained model on minimal pairs, without training.

Files are BLiMP's (Warstadt et al., 2020): JSON lines with ``sentence_good``,
``sentence_bad``, paradigm (``UID``) and ``field``.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.config.commands import ScoreConfig
from electra_tf.data.tables import json_rows
from electra_tf.errors import UserError
from electra_tf.runs import scores
from electra_tf.tasks.metrics import wilson
from electra_tf.tasks.tables import read_text

ALL = "all"
# Accuracy of guessing, in percent.
CHANCE = 50.0


@dataclasses.dataclass(frozen=True)
class Pair:
    """A correct and an incorrect sentence; ``field`` may be empty."""

    good: str
    bad: str
    paradigm: str
    field: str


def main(config: ScoreConfig) -> None:
    """Runs the command."""
    report = run(config, cli.note)
    cli.say(table(report))
    if config.report:
        files.write_json(config.report, report)


def run(config: ScoreConfig, log: Log) -> dict[str, Any]:
    """Scores all pairs; returns counts and accuracies by paradigm and field."""
    pairs = read_pairs(config.data, config.limit)
    method, model, tokenizer = scores.load(config, log)
    log(f"{len(pairs):,} pairs, {method} of {config.model}")
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    token_scores = scores.token_scores(method, model, tokenizer, texts, log=log)
    return {"method": method, "by": config.by, **count(pairs, token_scores)}


def read_pairs(patterns: Sequence[str], limit: int | None = None) -> list[Pair]:
    """Reads .jsonl files, or folders of them: at most ``limit`` pairs per file."""
    paths, pairs = [], []
    for place in map(Path, patterns):
        paths += sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"No file {path}: correct --data.")
        rows = json_rows(read_text(str(path)).split("\n"), str(path))
        for number, row in itertools.islice(rows, limit):
            sides = [row.get("sentence_good"), row.get("sentence_bad")]
            if not all(isinstance(side, str) and side for side in sides):
                raise UserError(
                    f"{path}, line {number} has no sentence_good and sentence_bad "
                    "(BLiMP's JSON lines)."
                )
            # BLiMP uses both spellings.
            field = str(row.get("field") or "").replace("/", "_")
            pairs.append(Pair(*sides, str(row.get("UID") or path.stem), field))
    if not pairs:
        raise UserError(
            f"--data={','.join(patterns)} has no pairs: name .jsonl files or a "
            "folder of them."
        )
    return pairs


def count(
    pairs: Sequence[Pair], values: Sequence[np.ndarray]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the accuracies under "paradigms", "fields" and ``ALL``, by name.

    ``values`` are token scores of the good and bad sentence of each pair in turn.
    Accuracies of their "sum" and "mean" are in percent, each with its 95 % interval
    over pairs (Wilson, 1927). A tie counts as half.
    """
    orders: dict[str, dict[str, list]] = {"paradigms": {}, "fields": {}, ALL: {}}
    for pair, good, bad in zip(pairs, values[::2], values[1::2], strict=True):
        scores = np.array([[x.sum(), x.mean()] for x in (good, bad)])
        # 1 for a correct order, 0.5 for a tie.
        order = (np.sign(scores[0] - scores[1]) + 1) / 2
        names = (pair.paradigm, pair.field, ALL)
        for by_name, name in zip(orders.values(), names, strict=True):
            if name:
                by_name.setdefault(name, []).append(order)
    return {
        kind: {name: _accuracies(rows) for name, rows in by_name.items()}
        for kind, by_name in orders.items()
    }


def _accuracies(orders: Sequence[np.ndarray]) -> dict[str, Any]:
    row: dict[str, Any] = {"pairs": len(orders)}
    shares = np.mean(orders, axis=0, dtype=np.float64)
    for by, share in zip(("sum", "mean"), shares, strict=True):
        ends = (share, *wilson(share, len(orders)))
        row[by] = tuple(100 * float(x) for x in ends)
    return row


def table(report: dict[str, Any]) -> str:
    """Formats the report: one line per paradigm, per field and for all pairs."""
    lines = [f"{'':<52}{'pairs':>8}  {'sum':>5} {'95 %':>13}  {'mean':>5} {'95 %':>13}"]
    for kind in ("paradigms", "fields", ALL):
        for name, row in sorted(report[kind].items()):
            cells = [f"{name:<52}{row['pairs']:>8,}"]
            for by in ("sum", "mean"):
                share, low, high = row[by]
                cells.append(f"{share:5.1f} {f'{low:.1f} - {high:.1f}':>13}")
            lines.append("  ".join(cells))
        lines += [""] if report[kind] else []
    return "\n".join(lines[:-1])

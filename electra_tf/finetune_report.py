"""What a fine-tuning run prints and writes about its seeds."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = "results.json"


@dataclasses.dataclass(frozen=True)
class SeedResult:
    """One seed.

    Attributes:
        seed: The seed.
        scores: Scores of each evaluation split, by split and name.
        failure: Why the run counts as failed; empty if it does not.
    """

    seed: int
    scores: Mapping[str, Mapping[str, float]]
    failure: str


def summary(
    results: Sequence[SeedResult],
    baseline: Mapping[str, Mapping[str, float]],
    main: tuple[str, str],
) -> dict[str, Any]:
    """Median, mean and standard deviation over the seeds, for each split and score.

    All seeds count, failed ones too: leaving them out would flatter the recipe.

    Args:
        results: The seeds.
        baseline: Scores of an answer that does not look at the text.
        main: Split and score that decide.
    """
    splits = {}
    for split, names in results[0].scores.items():
        splits[split] = {}
        for name in names:
            values = [result.scores[split][name] for result in results]
            splits[split][name] = {
                "median": statistics.median(values),
                "mean": statistics.fmean(values),
                "std": statistics.stdev(values) if len(values) > 1 else 0.0,
                "min": min(values),
                "max": max(values),
                "baseline": baseline[split][name],
            }
    return {
        "main_split": main[0],
        "main_metric": main[1],
        "summary": splits,
        "seeds": [dataclasses.asdict(result) for result in results],
        "failed_seeds": [result.seed for result in results if result.failure],
    }


def table(report: Mapping[str, Any]) -> str:
    """The seeds as a table for the terminal, the main split only."""
    split = report["main_split"]
    names = list(report["summary"][split])
    lines = [["seed", *names, ""]]
    for result in report["seeds"]:
        values = [f"{result['scores'][split][name]:.2f}" for name in names]
        failure = f"failed: {result['failure']}" if result["failure"] else ""
        lines.append([str(result["seed"]), *values, failure])
    for row in ("median", "mean", "std", "baseline"):
        values = [f"{report['summary'][split][name][row]:.2f}" for name in names]
        lines.append([row, *values, ""])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if index in (0, len(widths) - 1) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    failed = len(report["failed_seeds"])
    closing = [f"{failed} of {len(report['seeds'])} seeds failed"] if failed else []
    return "\n".join([f"{split}, main score {report['main_metric']}:", *text, *closing])


class MetricsFile:
    """Appends one JSON object per line, each at once on disk.

    Args:
        path: The file; what is in it is replaced.
    """

    def __init__(self, path: str | os.PathLike):
        self._path = Path(path)
        self._path.write_text("", "utf-8")

    def __call__(self, values: Mapping[str, Any]) -> None:
        """Appends a line."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def write_json(path: str | os.PathLike, values: Any) -> None:
    """Writes JSON; the file is there whole or not at all."""
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

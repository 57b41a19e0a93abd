"""Plots of fine-tuning runs: confusion matrix and learning curves."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from electra_tf import files

# Largest confusion matrix with numbers in the cells.
_MOST_NUMBERED = 30
_MOST_IN_LEGEND = 9


def confusion_matrix(
    labels: Sequence[str],
    predictions: Sequence[str],
    names: Sequence[str],
    folder: str,
) -> str:
    """Draws the shares of predictions by label (rows); returns the path."""
    from sklearn import metrics

    size = min(max(4.5, 0.6 * len(names) + 2.5), 20)
    figure = Figure(figsize=(size, size * 0.85), layout="constrained")
    metrics.ConfusionMatrixDisplay.from_predictions(
        labels,
        predictions,
        labels=names,
        # Dollar signs start math text.
        display_labels=[name.replace("$", r"\$") for name in names],
        normalize="true",
        values_format=".2f",
        include_values=len(names) <= _MOST_NUMBERED,
        xticks_rotation=45,
        cmap="Blues",
        colorbar=False,
        ax=figure.subplots(),
    )
    return _save(figure, folder, "confusion_matrix.png")


def curves(
    rows: Sequence[Mapping[str, Any]],
    metric: str,
    baseline: float | None,
    folder: str,
) -> str:
    """Draws training loss and held-out score of each seed; returns the path.

    ``rows`` are the rows of metrics.jsonl. ``baseline``, a dashed line, is the score
    of the majority baseline.
    """
    figure = Figure(figsize=(8.8, 3.3), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    for axes, name in zip(panels, ("loss", metric), strict=True):
        points: dict[int, list[tuple[int, float]]] = {}
        for row in rows:
            # A value that is not finite is null.
            if "step" in row and "seed" in row and row.get(name) is not None:
                points.setdefault(row["seed"], []).append((row["step"], row[name]))
        for seed, own in points.items():
            axes.plot(*zip(*own, strict=True), marker=".", label=f"seed {seed}")
        axes.grid(alpha=0.25)
    panels[0].set(xlabel="step (updates)", ylabel="training loss")
    panels[1].set(xlabel="step (updates)", ylabel=f"held-out {metric}")
    if baseline is not None and math.isfinite(baseline):
        label = f"majority baseline {baseline:.2f}"
        panels[1].axhline(baseline, color="0.4", linestyle="--", label=label)
    for axes in panels:
        if 0 < len(axes.get_legend_handles_labels()[0]) <= _MOST_IN_LEGEND:
            axes.legend(fontsize=8)
    return _save(figure, folder, "curves.png")


def _save(figure: Figure, folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    with files.replacing(path) as part:
        figure.savefig(part, dpi=120)
    return path

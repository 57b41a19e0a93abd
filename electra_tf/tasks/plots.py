"""Plots of fine-tuning runs: confusion matrix and learning curves."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from electra_tf import files

# Largest confusion matrices with numbers in the cells, and with all class names.
_MOST_NUMBERED, _MOST_NAMED = 30, 60
# Maximum number of seeds with a legend.
_MOST_SEEDS = 8


def confusion_matrix(
    labels: Sequence[str],
    predictions: Sequence[str],
    names: Sequence[str],
    folder: str,
) -> str:
    """Draws a confusion matrix of the classes ``names``; returns the path."""
    from sklearn import metrics

    counts = metrics.confusion_matrix(labels, predictions, labels=names)
    size = min(max(4.5, 0.6 * len(names) + 2.5), 20)
    figure = Figure(figsize=(size, size * 0.85), layout="constrained")
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    display = metrics.ConfusionMatrixDisplay(shares)
    numbers = len(names) <= _MOST_NUMBERED
    limits = {"vmin": 0, "vmax": 1}
    display.plot(
        ax=axes, cmap="Blues", include_values=numbers, colorbar=False, im_kw=limits
    )
    # Colors show shares per label, numbers show counts.
    if numbers:
        for text, count in zip(display.text_.flat, counts.flat, strict=True):
            text.set(text=count, size=8)
    ticks = range(0, len(names), math.ceil(len(names) / _MOST_NAMED))
    shown = [names[tick] for tick in ticks]
    # User labels may contain $, which starts math text.
    axes.set_xticks(ticks, shown, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(ticks, shown, parse_math=False)
    axes.set(xlabel="prediction", ylabel="label")
    axes.set_title(f"{np.trace(counts)} of {counts.sum()} right", size=10)
    return _save(figure, folder, "confusion_matrix.png")


def curves(
    rows: Sequence[Mapping[str, Any]], metric: str, baseline: float, folder: str
) -> str:
    """Draws training loss and held-out score of each seed; returns the path.

    ``rows`` are the rows of metrics.jsonl. ``baseline``, a dashed line, is the score
    of the majority baseline, or NaN.
    """
    rows = [row for row in rows if "seed" in row and "step" in row]
    seeds = dict.fromkeys(row["seed"] for row in rows)
    figure = Figure(figsize=(8.8, 3.3), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    looks = (
        ("loss", "Training loss", "mean over the window"),
        (metric, f"Held-out {metric}", "%"),
    )
    for axes, (name, title, unit) in zip(panels, looks, strict=True):
        for seed in seeds:
            own = [row for row in rows if row["seed"] == seed]
            # null stands for a value that is not finite.
            points = [(x["step"], x[name]) for x in own if x.get(name) is not None]
            marker = "o" if name == metric else None
            axes.plot(
                *np.reshape(points, [-1, 2]).T, marker=marker, label=f"seed {seed}"
            )
        axes.set_title(title, loc="left", fontweight="bold", size=10.5)
        axes.set(xlabel="step (updates)", ylabel=unit)
        axes.grid(alpha=0.25)
    if 1 < len(seeds) <= _MOST_SEEDS:
        panels[0].legend(fontsize=8)
    if math.isfinite(baseline):
        label = f"majority baseline {baseline:.2f}"
        line = panels[1].axhline(baseline, color="0.4", linestyle="--", label=label)
        panels[1].legend(handles=[line], fontsize=8)
    return _save(figure, folder, "curves.png")


def _save(figure: Figure, folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    with files.replacing(path) as part:
        figure.savefig(part, dpi=120)
    return path

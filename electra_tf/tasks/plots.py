"""Plots of scores."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from electra_tf import files

Floats = Sequence[float]
# All files that this module writes.
FILES = (
    *("confusion_matrix.png", "scatter.png", "search.png", "seeds.png"),
    "thresholds.png",
)
# Largest confusion matrices with numbers in the cells, and with all class names.
_MOST_NUMBERED, _MOST_NAMED = 30, 60


def confusion_matrix(
    labels: Sequence[str],
    predictions: Sequence[str],
    names: Sequence[str],
    folder: str,
) -> str:
    """Draws a confusion matrix of the classes ``names``; returns the path."""
    from sklearn import metrics

    counts = metrics.confusion_matrix(labels, predictions, labels=names)
    figure, axes = _figure(min(max(4.5, 0.6 * len(names) + 2.5), 20))
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


def scatter(labels: Floats, answers: Floats, limits: Floats, folder: str) -> str:
    """Draws predictions over labels; returns the path."""
    figure, axes = _figure(4.5)
    axes.plot(limits, limits, color="0.6", linewidth=1)
    axes.scatter(labels, answers, s=8, alpha=0.4, linewidths=0)
    axes.set(xlabel="label", ylabel="prediction")
    return _save(figure, folder, "scatter.png")


def seeds(
    scores: Mapping[int, float],
    failed: Sequence[int],
    baseline: float,
    name: str,
    folder: str,
) -> str:
    """Draws the score of each seed, the median and the baseline; returns the path."""
    figure, axes = _figure(4.5)
    colors = ["tab:red" if seed in failed else "tab:blue" for seed in scores]
    axes.scatter(range(len(scores)), list(scores.values()), c=colors, zorder=3)
    median = float(np.median(list(scores.values())))
    axes.axhline(median, color="tab:blue", linewidth=1, label=f"median {median:.2f}")
    label = f"baseline {baseline:.2f}"
    axes.axhline(baseline, color="0.5", linestyle="--", label=label)
    axes.set_xticks(range(len(scores)), list(scores))
    axes.set(xlabel="seed (red: failed)", ylabel=name)
    axes.margins(y=0.15)
    axes.legend(fontsize=8)
    return _save(figure, folder, "seeds.png")


def search(
    values: Mapping[str, Floats],
    scores: Floats,
    best: Floats,
    metric: str,
    folder: str,
    *,
    logarithmic: Sequence[str] = (),
) -> str:
    """Draws trial scores over each searched flag, and the best so far.

    ``values`` of each flag, ``scores`` and the ``best`` scores so far have one value
    per trial. ``metric`` is the axis label, and ``logarithmic`` the flags with a
    logarithmic axis. Returns the path.
    """
    count = len(values) + 1
    columns = 2 if count == 4 else min(count, 3)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(4 * columns, 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    winner = list(scores).index(best[-1])
    for axes, (name, column) in zip(panels, values.items(), strict=False):
        axes.scatter(column, scores, c=range(len(scores)), cmap="viridis", s=22)
        axes.plot(
            column[winner], scores[winner], "o", color="tab:red", mfc="none", ms=11
        )
        axes.set(xlabel=f"--{name}")
        if name in logarithmic:
            axes.set_xscale("log")
    last = panels[len(values)]
    last.plot(range(len(best)), best, drawstyle="steps-post", color="tab:red")
    last.scatter(range(len(scores)), scores, c=range(len(scores)), cmap="viridis", s=22)
    last.set(xlabel="trial (line: the best so far)")
    for axes in panels[::columns]:
        axes.set(ylabel=metric)
    for axes in panels[count:]:
        axes.remove()
    return _save(figure, folder, "search.png")


def threshold_curves(
    thresholds: Floats, curves: Mapping[str, Floats], chosen: float, folder: str
) -> str:
    """Draws scores over thresholds, and the chosen one; returns the path."""
    figure, axes = _figure(4.5)
    for name, values in curves.items():
        axes.plot(thresholds, values, label=name)
    axes.axvline(chosen, color="0.5", linestyle="--", label=f"threshold {chosen:.2f}")
    axes.set(xlabel="threshold of the no-answer logit", ylabel="score")
    axes.legend(fontsize=8)
    return _save(figure, folder, "thresholds.png")


def _figure(size: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(size, size * 0.85), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Figure, folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    with files.replacing(path) as part:
        figure.savefig(part, dpi=120)
    return path

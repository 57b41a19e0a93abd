"""Score against FLOPs, one line per system; and the final scores, one row each."""

from __future__ import annotations

import math
import os
import statistics
from pathlib import Path

import matplotlib.figure
import numpy as np
from scipy import stats

from electra_tf.comparison.ladder import UNTRAINED
from electra_tf.comparison.report import Scores
from electra_tf.comparison.statistics import CONFIDENCE

# Told apart by readers who do not see red and green (Okabe and Ito).
_COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#7F7F7F",
)
_MARKERS = "osD^vPX*"
PICTURE = "scores.png"


def draw(scores: Scores, path: str | os.PathLike) -> bool:
    """Draws what there is so far; the file is there whole or not at all.

    Means over the seeds with t intervals of the mean; each seed is a dot.

    Returns:
        False if there is no score yet, and then no file is written.
    """
    names = [row.name for row in scores.plan.rows]
    shown = [name for name in names if scores.all(name, scores.main)]
    if not shown:
        return False
    has_curves = len(scores.plan.config.points) > 1
    height = max(3.2, 0.42 * len(shown) + 1.6)
    figure = matplotlib.figure.Figure(
        figsize=(11 if has_curves else 6.5, max(height, 4.2 if has_curves else 0)),
        layout="constrained",
    )
    axes = figure.subplots(1, 2 if has_curves else 1, squeeze=False)[0]
    styles = {
        name: (_COLORS[i % len(_COLORS)], _MARKERS[i % len(_MARKERS)])
        for i, name in enumerate(names)
    }
    if has_curves:
        _curves(axes[0], scores, shown, styles)
    _finals(axes[-1], scores, shown, styles)
    for axis in axes:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    part = Path(f"{path}.part.png")
    figure.savefig(part, dpi=110)
    os.replace(part, path)
    return True


def interval(values: list[float]) -> float:
    """Half the width of the t interval of a mean; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * spread)


def _curves(axis, scores: Scores, shown, styles) -> None:
    rule = scores.plan.config.flops_rule
    rows = {row.name: row for row in scores.plan.rows}
    for name in shown:
        color, marker = styles[name]
        if name == UNTRAINED:
            level = statistics.fmean(scores.all(name, scores.main))
            axis.axhline(level, color=color, linestyle="--", label=name)
            continue
        points = [
            (scores.plan.flops(rows[name], point)[rule], values)
            for point in scores.plan.points(name)
            if (values := scores.all(name, scores.main, point))
        ]
        x, values = zip(*points, strict=True)
        axis.errorbar(
            x,
            [statistics.fmean(each) for each in values],
            yerr=[interval(each) for each in values],
            color=color,
            marker=marker,
            markersize=5,
            linewidth=1.4,
            elinewidth=0.8,
            capsize=2,
            label=name,
        )
    axis.set_xlabel(f"training FLOPs ({rule})")
    axis.set_ylabel(scores.main)
    axis.set_title("Score against FLOPs", loc="left", fontsize=10.5)
    axis.legend(fontsize=8, frameon=False)


def _finals(axis, scores: Scores, shown, styles) -> None:
    heights = np.arange(len(shown))[::-1]
    for height, name in zip(heights, shown, strict=True):
        color, marker = styles[name]
        values = scores.all(name, scores.main)
        axis.scatter(
            values, [height - 0.18] * len(values), s=10, color=color, alpha=0.5
        )
        axis.errorbar(
            statistics.fmean(values),
            height,
            xerr=interval(values),
            color=color,
            marker=marker,
            markersize=6,
            capsize=3,
        )
    axis.set_yticks(heights, shown)
    axis.set_ylim(-0.7, len(shown) - 0.3)
    axis.set_xlabel(f"{scores.main}, {CONFIDENCE:.0%} intervals of the mean over seeds")
    axis.set_title("At the end of training", loc="left", fontsize=10.5)

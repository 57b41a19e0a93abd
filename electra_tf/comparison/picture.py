"""A figure of scores: against FLOPs, and at the end of training."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import matplotlib.axes
import matplotlib.figure
import numpy as np
from scipy import stats

from electra_tf import files
from electra_tf.comparison.plan import UNTRAINED
from electra_tf.comparison.report import Scores
from electra_tf.comparison.statistics import CONFIDENCE
from electra_tf.runs.curves import PALETTE

_MARKERS = "osD^vPX*"
PICTURE = "scores.png"

# System name -> color and marker.
_Styles = Mapping[str, dict[str, str]]


def draw(scores: Scores, path: str | os.PathLike) -> bool:
    """Draws the scores into a PNG; returns False if there are none."""
    made = figure(scores)
    if made:
        with files.replacing(path) as part:
            made.savefig(part, dpi=110)
    return made is not None


def figure(scores: Scores) -> matplotlib.figure.Figure | None:
    """Draws means with t intervals and a dot per seed; returns None without scores."""
    # `scores.main` needs at least one probe.
    rows = scores.plan.rows if scores.columns else ()
    shown = [row.name for row in rows if scores.all(row.name, scores.main)]
    if not shown:
        return None
    names = [row.name for row in rows]
    looks = zip(names, itertools.cycle(PALETTE), itertools.cycle(_MARKERS))
    styles = {name: {"color": color, "marker": mark} for name, color, mark in looks}
    has_curves = len(scores.plan.config.points) > 1
    height = max(4.2 if has_curves else 3.2, 0.42 * len(shown) + 1.6)
    size = (11 if has_curves else 6.5, height)
    made = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axes = made.subplots(1, 2 if has_curves else 1, squeeze=False)[0]
    if has_curves:
        _curves(axes[0], scores, shown, styles)
    _finals(axes[-1], scores, shown, styles)
    for axis in axes:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    return made


def interval(values: Sequence[float]) -> float:
    """Returns half the width of the t interval of a mean; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    spread = stdev(values) / math.sqrt(len(values))
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * spread)


def _curves(
    axis: matplotlib.axes.Axes, scores: Scores, shown: Sequence[str], styles: _Styles
) -> None:
    rule = scores.plan.config.flops_rule
    rows = {row.name: row for row in scores.plan.rows}
    for name in shown:
        if name == UNTRAINED:
            level, color = fmean(scores.all(name, scores.main)), styles[name]["color"]
            axis.axhline(level, color=color, linestyle="--", label=name)
            continue
        points = {
            scores.plan.flops(rows[name], point)[rule]: values
            for point in scores.plan.points(name)
            if (values := scores.all(name, scores.main, point))
        }
        means, errors = (list(map(f, points.values())) for f in (fmean, interval))
        look = {"markersize": 5, "linewidth": 1.4, "elinewidth": 0.8, "capsize": 2}
        axis.errorbar([*points], means, errors, label=name, **look, **styles[name])
    axis.set_xlabel(f"training FLOPs ({rule})")
    axis.set_ylabel(scores.main)
    axis.set_title("Score against FLOPs", loc="left", fontsize=10.5)
    axis.legend(fontsize=8, frameon=False)


def _finals(
    axis: matplotlib.axes.Axes, scores: Scores, shown: Sequence[str], styles: _Styles
) -> None:
    heights = np.arange(len(shown))[::-1]
    for height, name in zip(heights, shown, strict=True):
        values = scores.all(name, scores.main)
        dots = [height - 0.18] * len(values)
        axis.scatter(values, dots, s=10, color=styles[name]["color"], alpha=0.5)
        look = {"markersize": 6, "capsize": 3, **styles[name]}
        axis.errorbar(fmean(values), height, xerr=interval(values), **look)
    axis.set_yticks(heights, shown)
    axis.set_ylim(-0.7, len(shown) - 0.3)
    axis.set_xlabel(f"{scores.main}, {CONFIDENCE:.0%} intervals of the mean over seeds")
    axis.set_title("At the end of training", loc="left", fontsize=10.5)

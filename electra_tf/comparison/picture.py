"""Figures of scores: against FLOPs, at the end, and against the training data."""

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

# The colorblind-safe palette of Okabe and Ito.
_COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#000000", "#7F7F7F"),
)
_MARKERS = "osD^vPX*"
PICTURE = "scores.png"
DATA_PICTURE = "data.png"

_CURVE = {"markersize": 5, "linewidth": 1.4, "elinewidth": 0.8, "capsize": 2}
_FINAL = {"markersize": 6, "capsize": 3}

# System name -> color and marker.
_Styles = Mapping[str, dict[str, str]]


def draw(scores: Scores, path: str | os.PathLike) -> bool:
    """Draws means with t intervals and a dot per seed; returns False without scores."""
    # `scores.main` needs at least one probe.
    shown = _shown(scores, scores.main) if scores.columns else []
    if not shown:
        return False
    has_curves = len(scores.plan.config.points) > 1
    height = max(4.2 if has_curves else 3.2, 0.42 * len(shown) + 1.6)
    size = (11 if has_curves else 6.5, height)
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, 2 if has_curves else 1, squeeze=False)[0]
    styles = _styles(scores)
    if has_curves:
        _curves(axes[0], scores, shown, styles)
    _finals(axes[-1], scores, shown, styles)
    _save(figure, axes, path)
    return True


def draw_data(scores: Scores, path: str | os.PathLike) -> bool:
    """Draws scores by fraction of training data; False if no task has several."""
    curves = {
        curve[max(curve)]: curve
        for curve in scores.data_curves
        if any(_shown(scores, probe) for probe in curve.values())
    }
    if not curves:
        return False
    width = 4.6 * len(curves) + 1.2
    figure = matplotlib.figure.Figure(figsize=(width, 4.2), layout="constrained")
    axes, styles = figure.subplots(1, len(curves), squeeze=False)[0], _styles(scores)
    for axis, (task, curve) in zip(axes, curves.items(), strict=True):
        for name, style in styles.items():
            points = [
                (100 * share, values)
                for share, probe in curve.items()
                if (values := scores.all(name, probe))
            ]
            if points:
                x, values = zip(*points, strict=True)
                means, errors = list(map(fmean, values)), list(map(interval, values))
                axis.errorbar(x, means, yerr=errors, label=name, **_CURVE, **style)
        shares = [100 * share for share in curve]
        axis.set_xscale("log")
        axis.set_xticks(shares, [f"{share:g} %" for share in shares])
        axis.minorticks_off()
        axis.set_xlabel("share of the training data")
        axis.set_title(task, loc="left", fontsize=10.5)
    axes[0].set_ylabel(f"score, {CONFIDENCE:.0%} intervals of the mean over seeds")
    axes[-1].legend(fontsize=8, frameon=False)
    _save(figure, axes, path)
    return True


def _shown(scores: Scores, column: str) -> list[str]:
    return [row.name for row in scores.plan.rows if scores.all(row.name, column)]


def _styles(scores: Scores) -> _Styles:
    names = [row.name for row in scores.plan.rows]
    looks = zip(names, itertools.cycle(_COLORS), itertools.cycle(_MARKERS))
    return {name: {"color": color, "marker": mark} for name, color, mark in looks}


def _save(
    figure: matplotlib.figure.Figure,
    axes: Sequence[matplotlib.axes.Axes],
    path: str | os.PathLike,
) -> None:
    for axis in axes:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    with files.replacing(path) as part:
        figure.savefig(part, dpi=110)


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
        points = [
            (scores.plan.flops(rows[name], point)[rule], values)
            for point in scores.plan.points(name)
            if (values := scores.all(name, scores.main, point))
        ]
        x, values = zip(*points, strict=True)
        means, errors = list(map(fmean, values)), list(map(interval, values))
        axis.errorbar(x, means, yerr=errors, label=name, **_CURVE, **styles[name])
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
        error = interval(values)
        axis.errorbar(fmean(values), height, xerr=error, **_FINAL, **styles[name])
    axis.set_yticks(heights, shown)
    axis.set_ylim(-0.7, len(shown) - 0.3)
    axis.set_xlabel(f"{scores.main}, {CONFIDENCE:.0%} intervals of the mean over seeds")
    axis.set_title("At the end of training", loc="left", fontsize=10.5)

"""Plots the metrics of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.axes
import matplotlib.figure
import matplotlib.ticker
import numpy as np

from electra_tf import files
from electra_tf.errors import UserError
from electra_tf.training.cards import MetricCard, Panel, metric_cards
from electra_tf.training.sinks import EVAL_PREFIX, TRIVIAL_PREFIX

# The color-blind safe palette of Okabe and Ito.
PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#000000", "#7F7F7F"),
)

_NOT_DRAWN = ("step", "time", "skipped_records")

Rows = Sequence[Mapping[str, Any]]
Baselines = Mapping[str, float | tuple[float, str]]


def plot_curves(
    metrics_jsonl: files.AnyPath,
    png_path: files.AnyPath,
    *,
    baselines: Baselines | None = None,
    title: str | None = None,
) -> None:
    """Plots the metrics of a run, one panel per group, into a PNG.

    Lines are means over training windows, lines with markers held-out results.
    ``baselines`` maps metric names to a number or (number, label), drawn as a dashed
    line: ``{"generator_loss": (7.1, "unigram")}``. The title defaults to the folder of
    ``metrics_jsonl``. Raises ValueError if this file, written by a ``MetricsLog``, has
    no metric to draw.
    """
    rows = files.read_json_lines(metrics_jsonl)
    figure = _figure(rows, baselines or {}, metrics_jsonl)
    title = title or f"Metrics of {Path(metrics_jsonl).absolute().parent.name}"
    figure.suptitle(title, fontsize=12, fontweight="bold", parse_math=False)
    with files.replacing(png_path) as part:
        figure.savefig(part, dpi=130)


def _figure(
    rows: Rows, baselines: Baselines, source: files.AnyPath
) -> matplotlib.figure.Figure:
    panels: dict[Panel, list[MetricCard]] = {}
    logged = dict.fromkeys(
        name.removeprefix(EVAL_PREFIX)
        for row in rows
        for name in row
        if name not in _NOT_DRAWN and not name.startswith(TRIVIAL_PREFIX)
    )
    for card in metric_cards(logged):
        names = (card.name, EVAL_PREFIX + card.name)
        if card.panel and any(series(rows, name).size for name in names):
            panels.setdefault(card.panel, []).append(card)
    if not panels:
        raise UserError(
            f"{source} has {len(rows)} lines without a metric to draw, such as loss: "
            "give a file of MetricsLog."
        )
    figure, axes = grid(len(panels))
    for axis, (panel, present) in zip(axes, panels.items(), strict=True):
        _draw(axis, panel, present, rows, baselines)
    if any(name.startswith(EVAL_PREFIX) for row in rows for name in row):
        figure.supxlabel(
            "Lines: means over training windows. Circles: held-out text.", fontsize=9
        )
    return figure


def grid(
    count: int, *, space: float = 0.0
) -> tuple[matplotlib.figure.Figure, np.ndarray]:
    """Returns a figure with ``count`` axes; ``space`` inches are for a legend."""
    columns = min(3, count)
    lines = math.ceil(count / columns)
    figure = matplotlib.figure.Figure(
        figsize=(4.6 * columns, 3.1 * lines + 0.5 + space), layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    axes = np.ravel(figure.subplots(lines, columns, squeeze=False))
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def _draw(
    axis: matplotlib.axes.Axes,
    panel: Panel,
    cards: Sequence[MetricCard],
    rows: Rows,
    baselines: Baselines,
) -> None:
    for card, color in zip(cards, itertools.cycle(PALETTE), strict=False):
        name = card.name
        steps, values = series(rows, name)
        axis.plot(steps, panel.scale * values, color=color, linewidth=1.3)
        steps, values = series(rows, EVAL_PREFIX + name)
        markers = {"marker": "o", "markersize": 4, "markerfacecolor": "white"}
        markers["markevery"] = max(1, len(steps) // 20)
        axis.plot(steps, panel.scale * values, color=color, linewidth=0.8, **markers)
        if len(cards) > 1:
            axis.plot([], [], color=color, label=card.series)
        if name in baselines:
            baseline = baselines[name]
            value, label = baseline if isinstance(baseline, tuple) else (baseline, "")
            value *= panel.scale
            text = f"{label or 'baseline'} {value:.3g}"
            dashes = {"linestyle": (0, (4, 3)), "linewidth": 1.0}
            axis.axhline(value, color=color, label=text, **dashes)
    entries = len(axis.get_legend_handles_labels()[1])
    if entries:
        # Above the plot, so that it covers no curve. A legend in the layout would
        # narrow the axes by its width.
        axis.legend(
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=2,
            borderaxespad=0.1,
            handlelength=1.3,
            columnspacing=1.1,
            labelspacing=0.2,
            fontsize=7.5,
            frameon=False,
        ).set_in_layout(False)
    style(axis, panel, panel.title, above=math.ceil(entries / 2))
    axis.set_xlabel("step (updates)", fontsize=9)
    axis.xaxis.set_major_formatter(steps_text)


def style(
    axis: matplotlib.axes.Axes, panel: Panel, title: str, *, above: int = 0
) -> None:
    """Sets title, unit and scale of a panel with ``above`` lines of legend."""
    axis.set_title(
        title, loc="left", pad=6 + 11 * above, fontsize=10.5, fontweight="bold"
    )
    axis.set_ylabel(panel.unit, fontsize=9)
    axis.tick_params(labelsize=8.5)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.02)
    if panel.is_log:
        axis.set_yscale("log")
        plain = matplotlib.ticker.LogFormatter(minor_thresholds=(1, 0.4))
        axis.yaxis.set_major_formatter(plain)
        axis.yaxis.set_minor_formatter(plain)
        axis.tick_params(which="minor", labelsize=8.5)
    else:
        axis.yaxis.set_major_formatter("{x:g}")
        axis.locator_params(axis="y", nbins=6)


def series(rows: Rows, name: str) -> np.ndarray:
    """Returns the steps and values of a metric, float64 [2, n]."""
    points = [(r["step"], r[name]) for r in rows if r.get(name) is not None]
    return np.array(points, float).reshape(-1, 2).T


def steps_text(value: float, position: int) -> str:
    """Formats a step as 500, 20k or 1.5M."""
    del position
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"

"""Plots the metrics of a run."""

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
from electra_tf.training.sinks import (
    EVAL_PREFIX,
    TRIVIAL_PREFIX,
    MetricCard,
    Panel,
    metric_cards,
)

# The color-blind safe palette of Okabe and Ito.
PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#000000", "#7F7F7F"),
)

_NOT_DRAWN = ("step", "time", "skipped_records")

Rows = Sequence[Mapping[str, Any]]
Baselines = Mapping[str, float]


def plot_curves(
    metrics_jsonl: files.AnyPath, png_path: files.AnyPath, baselines: Baselines
) -> None:
    """Plots the metrics of a run, one panel per group, into a PNG.

    Lines are means over training windows, lines with markers held-out results.
    ``baselines`` maps metric names to the value of a dashed line. Raises ValueError if
    ``metrics_jsonl``, written by a ``MetricsLog``, does not have a metric to draw.
    """
    rows = files.read_json_lines(metrics_jsonl)
    figure = _figure(rows, baselines, metrics_jsonl)
    title = f"Metrics of {Path(metrics_jsonl).absolute().parent.name}"
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
        if card.panel and any(_series(rows, name).size for name in names):
            panels.setdefault(card.panel, []).append(card)
    if not panels:
        raise UserError(
            f"{source} has {len(rows)} lines without a metric to draw, such as loss: "
            "give a file of MetricsLog."
        )
    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = matplotlib.figure.Figure(
        figsize=(4.6 * columns, 3.1 * lines + 0.5), layout="constrained"
    )
    for number, (panel, cards) in enumerate(panels.items(), start=1):
        axis = figure.add_subplot(lines, columns, number)
        _draw(axis, panel, cards, rows, baselines)
    if any(name.startswith(EVAL_PREFIX) for row in rows for name in row):
        figure.supxlabel(
            "Lines: means over training windows. Circles: held-out text.", fontsize=9
        )
    return figure


def _draw(
    axis: matplotlib.axes.Axes,
    panel: Panel,
    cards: Sequence[MetricCard],
    rows: Rows,
    baselines: Baselines,
) -> None:
    for card, color in zip(cards, itertools.cycle(PALETTE), strict=False):
        steps, values = _series(rows, card.name)
        axis.plot(steps, panel.scale * values, color=color, linewidth=1.3)
        steps, values = _series(rows, EVAL_PREFIX + card.name)
        markers = {"marker": "o", "markersize": 4, "markerfacecolor": "white"}
        markers["markevery"] = max(1, len(steps) // 20)
        axis.plot(steps, panel.scale * values, color=color, linewidth=0.8, **markers)
        if len(cards) > 1:
            axis.plot([], [], color=color, label=card.name.replace("_", " "))
        if card.name in baselines:
            value = panel.scale * baselines[card.name]
            label = f"baseline {value:.3g}"
            axis.axhline(value, color=color, label=label, linestyle="--", linewidth=1)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize=7.5)
    axis.set_title(panel.title, loc="left", fontsize=10.5, fontweight="bold")
    axis.set_ylabel(panel.unit, fontsize=9)
    axis.set_xlabel("step (updates)", fontsize=9)
    axis.tick_params(labelsize=8.5)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter())
    if panel.is_log:
        axis.set_yscale("log")


def _series(rows: Rows, name: str) -> np.ndarray:
    points = [(r["step"], r[name]) for r in rows if r.get(name) is not None]
    return np.array(points, float).reshape(-1, 2).T

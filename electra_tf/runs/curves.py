"""Plots the metrics of a run."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.folders.finetuning import CURVES, METRICS
from electra_tf.training import sinks

# The color-blind safe palette of Okabe and Ito.
PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#000000", "#7F7F7F"),
)

_STYLE = {
    **{"font.size": 9, "axes.labelsize": 9, "legend.fontsize": 7.5},
    **{"axes.titlesize": 10.5, "axes.titleweight": "bold", "figure.labelsize": 9},
    **{"axes.titlelocation": "left", "axes.grid": True, "grid.alpha": 0.25},
}
_MOST_IN_LEGEND = 9
_NOT_DRAWN = ("step", "time", "skipped_records")

Rows = Sequence[Mapping[str, Any]]
Baselines = Mapping[str, float]


def plot_curves(
    metrics_jsonl: files.AnyPath, png_path: files.AnyPath, baselines: Baselines
) -> None:
    """Plots the metrics of a run, one panel per group, into a PNG.

    ``baselines`` are values of dashed lines by metric name. Raises UserError if no line
    of ``metrics_jsonl`` has a metric to draw.
    """
    rows = files.read_json_lines(metrics_jsonl)
    figure = _figure(rows, baselines, metrics_jsonl)
    title = f"Metrics of {Path(metrics_jsonl).absolute().parent.name}"
    figure.suptitle(title, fontsize=12, fontweight="bold", parse_math=False)
    with files.replacing(png_path) as part:
        figure.savefig(part, dpi=130)


@matplotlib.rc_context(_STYLE)
def _figure(rows: Rows, baselines: Baselines, source: files.AnyPath) -> Figure:
    panels: dict[sinks.Panel, list[sinks.MetricCard]] = {}
    logged = dict.fromkeys(
        name.removeprefix(sinks.EVAL_PREFIX)
        for row in rows
        for name in row
        if name not in _NOT_DRAWN and not name.startswith(sinks.TRIVIAL_PREFIX)
    )
    for card in sinks.metric_cards(logged):
        names = (card.name, sinks.EVAL_PREFIX + card.name)
        if card.panel and any(_series(rows, name).size for name in names):
            panels.setdefault(card.panel, []).append(card)
    if not panels:
        raise UserError(f"{source} has {len(rows)} lines without a metric to draw.")
    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = Figure((4.6 * columns, 3.1 * lines + 0.5), layout="constrained")
    for number, (panel, cards) in enumerate(panels.items(), start=1):
        _draw(figure.add_subplot(lines, columns, number), panel, cards, rows, baselines)
    if any(name.startswith(sinks.EVAL_PREFIX) for row in rows for name in row):
        figure.supxlabel("Lines: means over training windows. Circles: held-out text.")
    return figure


def _draw(
    axis: Axes,
    panel: sinks.Panel,
    cards: Sequence[sinks.MetricCard],
    rows: Rows,
    baselines: Baselines,
) -> None:
    for card, color in zip(cards, itertools.cycle(PALETTE), strict=False):
        steps, values = _series(rows, card.name)
        axis.plot(steps, panel.scale * values, color=color, linewidth=1.3)
        steps, values = _series(rows, sinks.EVAL_PREFIX + card.name)
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
        axis.legend()
    axis.set(title=panel.title, ylabel=panel.unit, xlabel="step (updates)")
    axis.xaxis.set_major_formatter(EngFormatter())
    if panel.is_log:
        axis.set_yscale("log")


@matplotlib.rc_context(_STYLE)
def plot_seeds(folder: Path, metric: str, baseline: float | None, log: Log) -> None:
    """Plots training loss and held-out score of each seed; logs errors."""
    figure = Figure((8.8, 3.3), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    labels = {"loss": "training loss", metric: f"held-out {metric}"}
    try:
        rows = files.read_json_lines(folder / METRICS)
        rows = [row for row in rows if "step" in row]
        for axis, (name, label) in zip(panels, labels.items(), strict=True):
            for seed in sorted({row["seed"] for row in rows}):
                points = _series([row for row in rows if row["seed"] == seed], name)
                if points.size:
                    axis.plot(*points, marker=".", label=f"seed {seed}")
            axis.set(xlabel="step (updates)", ylabel=label)
            if name == metric and baseline is not None and math.isfinite(baseline):
                label = f"majority baseline {baseline:.2f}"
                axis.axhline(baseline, color="0.4", linestyle="--", label=label)
            if 0 < len(axis.get_legend_handles_labels()[0]) <= _MOST_IN_LEGEND:
                axis.legend()
        with files.replacing(folder / CURVES) as part:
            figure.savefig(part, dpi=120)
    except Exception as error:  # A failed plot must not lose a trained model.
        message = " ".join(str(error).split())[:200]
        log(f"warning: a picture is missing: {type(error).__name__} {message}")


def _series(rows: Rows, name: str) -> np.ndarray:
    points = [(r["step"], r[name]) for r in rows if r.get(name) is not None]
    return np.array(points, float).reshape(-1, 2).T

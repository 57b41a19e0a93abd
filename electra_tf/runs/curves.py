"""Plots the metrics of a run."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
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
_NOT_DRAWN = ("step", "time", "skipped_records", "steps_per_second")

Rows = Sequence[Mapping[str, Any]]
Baselines = Mapping[str, float]


def plot_curves(
    metrics_jsonl: files.AnyPath, png_path: files.AnyPath, baselines: Baselines
) -> None:
    """Plots the metrics of a run, each in a panel, into a PNG.

    ``baselines`` are values of dashed lines by metric name. Raises UserError if no line
    of ``metrics_jsonl`` has a metric to draw.
    """
    figure = _figure(files.read_json_lines(metrics_jsonl), baselines, metrics_jsonl)
    title = f"Metrics of {Path(metrics_jsonl).absolute().parent.name}"
    figure.suptitle(title, fontsize=12, fontweight="bold", parse_math=False)
    with files.replacing(png_path) as part:
        figure.savefig(part, dpi=130)


@matplotlib.rc_context(_STYLE)
def plot_seeds(folder: Path, metric: str, baseline: float | None, log: Log) -> None:
    """Plots training loss and held-out score of each seed; logs errors."""
    figure = Figure((8.8, 3.3), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    labels = {"loss": "training loss", metric: f"held-out {metric}"}
    try:
        rows = [row for row in files.read_json_lines(folder / METRICS) if "step" in row]
        for axis, (name, label) in zip(panels, labels.items(), strict=True):
            for seed in sorted({row["seed"] for row in rows}):
                points = _series([row for row in rows if row["seed"] == seed], name)
                if points.size:
                    axis.plot(*points, marker=".", label=f"seed {seed}")
            axis.set(xlabel="step (updates)", ylabel=label)
            if name == metric and baseline is not None and math.isfinite(baseline):
                label = f"majority baseline {baseline:.2f}"
                axis.axhline(baseline, color="0.4", linestyle="--", label=label)
            if 0 < len(axis.get_legend_handles_labels()[0]) <= len(PALETTE):
                axis.legend()
        with files.replacing(folder / CURVES) as part:
            figure.savefig(part, dpi=120)
    except Exception as error:  # A failed plot must not lose a trained model.
        message = " ".join(str(error).split())[:200]
        log(f"warning: a picture is missing: {type(error).__name__} {message}")


@matplotlib.rc_context(_STYLE)
def _figure(rows: Rows, baselines: Baselines, source: files.AnyPath) -> Figure:
    logged = dict.fromkeys(
        name.removeprefix(sinks.EVAL_PREFIX)
        for row in rows
        for name in row
        if name not in _NOT_DRAWN and not name.startswith(sinks.TRIVIAL_PREFIX)
    )
    drawn = {
        name: (_series(rows, name), _series(rows, sinks.EVAL_PREFIX + name))
        for name in logged
    }
    drawn = {name: pair for name, pair in drawn.items() if any(x.size for x in pair)}
    if not drawn:
        raise UserError(f"{source} has {len(rows)} lines without a metric to draw.")
    columns = min(4, len(drawn))
    lines = math.ceil(len(drawn) / columns)
    figure = Figure((3.4 * columns, 2.4 * lines + 0.9))
    # A constrained layout takes as long as drawing.
    width, height = figure.get_size_inches()
    margins = {"left": 0.6 / width, "right": 1 - 0.2 / width}
    margins |= {"bottom": 0.65 / height, "top": 1 - 0.75 / height}
    figure.subplots_adjust(wspace=0.27, hspace=0.38, **margins)
    for number, (name, (trained, held_out)) in enumerate(drawn.items(), start=1):
        axis = figure.add_subplot(lines, columns, number)
        axis.plot(*trained, color=PALETTE[0], linewidth=1.3)
        every = max(1, held_out.shape[1] // 20)
        axis.plot(*held_out, "o-", color=PALETTE[1], markersize=4, markevery=every)
        if name in baselines:
            label = f"baseline {baselines[name]:.3g}"
            axis.axhline(baselines[name], color="0.4", label=label, linestyle="--")
            axis.legend()
        axis.set_title(name.replace("_", " "))
        axis.xaxis.set_major_formatter(EngFormatter())
    figure.supxlabel(
        "Step. Lines: means over training windows. Circles: held-out text."
    )
    return figure


def _series(rows: Rows, name: str) -> np.ndarray:
    points = [(r["step"], r[name]) for r in rows if r.get(name) is not None]
    return np.array(points, float).reshape(-1, 2).T

"""Curves of a run: its metrics file as a picture."""

import dataclasses
import math
import os
from collections.abc import Mapping

import matplotlib.figure
import numpy as np

from electra_tf.training.sinks import EVAL_PREFIX, read_metrics

# Dark enough for white paper, told apart by readers who do not see red and green.
_BLUE, _ORANGE, _GREEN, _PURPLE = "#0B62A4", "#D1590A", "#11806A", "#7A3E9D"
_COLORS = (_BLUE, _ORANGE, _GREEN, _PURPLE)


@dataclasses.dataclass(frozen=True)
class _Panel:
    """One plot: its series as (name of the value, label), and how its axis reads."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]
    scale: float = 1.0
    is_log: bool = False


_PANELS = (
    _Panel("Total loss", "nats, weighted sum", (("loss", "total"),)),
    _Panel(
        "Generator loss",
        "nats per masked token",
        (("generator_loss", "generator"), ("masked_lm_loss", "masked LM")),
    ),
    _Panel(
        "Generator accuracy",
        "% of masked tokens",
        (
            ("generator_accuracy", "most likely token"),
            ("sampled_accuracy", "sampled token"),
            ("masked_lm_accuracy", "most likely token"),
        ),
        scale=100.0,
    ),
    _Panel("Replaced tokens", "% of real tokens", (("replaced_fraction", ""),), 100.0),
    _Panel(
        "Discriminator loss", "nats per token", (("discriminator_loss", "unweighted"),)
    ),
    _Panel(
        "Discriminator quality",
        "%",
        (
            ("discriminator_auc", "AUC"),
            ("discriminator_precision", "precision"),
            ("discriminator_recall", "recall"),
        ),
        scale=100.0,
    ),
    _Panel("Prediction loss", "nats per token", (("prediction_loss", "unweighted"),)),
    _Panel(
        "Predicted tokens",
        "%",
        (
            ("prediction_accuracy", "right"),
            ("corrected_accuracy", "corrected"),
            ("copy_auc", "copy gate AUC"),
        ),
        scale=100.0,
    ),
    _Panel("Sentence loss", "nats per row", (("sentence_loss", "unweighted"),)),
    _Panel(
        "Sentence level",
        "%",
        (("sentence_accuracy", "accuracy"), ("corrupted_fraction", "corrupted rows")),
        scale=100.0,
    ),
    _Panel(
        "Adversarial reward",
        "nats per masked token",
        (("reward", "reward"), ("reward_baseline", "learned baseline")),
    ),
    _Panel(
        "Schedules",
        "value",
        (("temperature", "temperature"), ("adversarial_weight", "adversarial weight")),
    ),
    _Panel("Learning rate", "per update", (("learning_rate", ""),)),
    _Panel(
        "Gradient norm",
        "before clipping",
        (("gradient_norm", "joint"), ("generator_gradient_norm", "generator's own")),
        is_log=True,
    ),
    _Panel("Speed", "tokens/s", (("tokens_per_second", ""),)),
)


def plot_curves(
    metrics_jsonl: str | os.PathLike,
    png_path: str | os.PathLike,
    *,
    baselines: Mapping[str, float | tuple[float, str]] | None = None,
    title: str | None = None,
) -> None:
    """Draws the metrics of a run, one panel per question, into a PNG.

    Training windows are lines, held-out results lines with markers; panels without any
    value are left out.

    Args:
        metrics_jsonl: file of a `MetricsLog`.
        png_path: picture to write.
        baselines: dict of value name to a number, or to (number, label), drawn as a
            dashed line: `{"generator_loss": (7.1, "unigram")}`.
        title: line above the panels.

    Raises:
        ValueError: the file has no value that could be drawn.
    """
    figure = _figure(read_metrics(metrics_jsonl), baselines or {}, metrics_jsonl)
    if title:
        figure.suptitle(title, fontsize=12, fontweight="bold")
    figure.savefig(png_path, dpi=130)


def _figure(rows, baselines, source):
    panels = [p for p in _PANELS if any(_has(rows, name) for name, _ in p.series)]
    if not panels:
        raise ValueError(
            f"{source} has none of the values that are drawn, such as loss: it "
            f"has {len(rows)} lines. Was it written by MetricsLog?"
        )
    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = matplotlib.figure.Figure(
        figsize=(4.4 * columns, 2.9 * lines + 0.4), layout="constrained"
    )
    axes = np.ravel(figure.subplots(lines, columns, squeeze=False, sharex=True))
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel, rows, baselines)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis in axes[max(0, len(panels) - columns) : len(panels)]:
        axis.set_xlabel("step (updates)")
        axis.tick_params(labelbottom=True)
    if any(name.startswith(EVAL_PREFIX) for row in rows for name in row):
        figure.supxlabel(
            "Lines: means over training windows. Circles: held-out text.", fontsize=9
        )
    return figure


def _draw(axis, panel, rows, baselines):
    present = [pair for pair in panel.series if _has(rows, pair[0])]
    for (name, label), color in zip(present, _COLORS, strict=False):
        steps, values = _series(rows, name)
        axis.plot(steps, panel.scale * values, color=color, linewidth=1.3)
        steps, values = _series(rows, EVAL_PREFIX + name)
        axis.plot(
            steps,
            panel.scale * values,
            color=color,
            linewidth=0.8,
            marker="o",
            markersize=4,
            markerfacecolor="white",
            markevery=max(1, len(steps) // 20),
        )
        if len(present) > 1:
            axis.plot([], [], color=color, label=label)
        if name in baselines:
            _draw_baseline(axis, panel, baselines[name], color)
    _style(axis, panel)


def _style(axis, panel):
    axis.set_ylabel(panel.unit, fontsize=9)
    axis.tick_params(labelsize=8.5)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.02)
    axis.xaxis.set_major_formatter(_steps_text)
    if panel.is_log:
        axis.set_yscale("log")
    if panel.scale != 1.0:
        axis.set_ylim(bottom=0.0)
    entries = len(axis.get_legend_handles_labels()[1])
    if entries:
        # Between title and plot, where it cannot cover a curve.
        axis.legend(
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=entries,
            borderaxespad=0.1,
            handlelength=1.3,
            columnspacing=1.1,
            fontsize=8,
            frameon=False,
        )
    axis.set_title(
        panel.title,
        fontsize=10.5,
        fontweight="bold",
        loc="left",
        pad=18 if entries else 5,
    )


def _draw_baseline(axis, panel, baseline, color):
    value, label = baseline if isinstance(baseline, tuple | list) else (baseline, "")
    value = panel.scale * value
    axis.axhline(
        value,
        color=color,
        linestyle=(0, (4, 3)),
        linewidth=1.0,
        label=f"{label or 'baseline'} {value:.3g}",
    )


def _has(rows, name):
    return any(len(_series(rows, prefix + name)[0]) for prefix in ("", EVAL_PREFIX))


def _series(rows, name):
    found = [(r["step"], r[name]) for r in rows if r.get(name) is not None]
    return np.array(found, float).reshape(-1, 2).T


def _steps_text(value, position):
    del position
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"

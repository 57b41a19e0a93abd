"""Learning curves of several runs in one figure."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.axes
import matplotlib.figure

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.config import fields
from electra_tf.config.commands import InspectConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import METRICS, PretrainingFolder, named
from electra_tf.runs.curves import PALETTE, Rows, grid, series, steps_text, style
from electra_tf.systems import costs
from electra_tf.training.cards import FIT, MetricCard, Panel, metric_cards
from electra_tf.training.sinks import EVAL_PREFIX

# Runs beyond the palette differ in dashes.
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_LABELS = {
    "steps": "step (updates)",
    "tokens": "positions read",
    "flops": "training FLOPs",
}
_WRITTEN = (".png", ".pdf", ".svg")


@dataclasses.dataclass(frozen=True)
class Learned:
    """The logged metrics of a run.

    Attributes:
        name: short and unique.
        rows: of metrics.jsonl.
        progress: maps a step to its position on the x axis.
    """

    name: str
    rows: Rows
    progress: Callable[[float], float]


def read(
    paths: Sequence[str | Path], by: str = "steps", log: Log = cli.note
) -> list[Learned]:
    """Reads the metrics of runs; ``by`` is "steps", "tokens" or "flops".

    Tokens are batch positions; ``systems.costs`` counts FLOPs (matmul). Both come
    from config.json and exclude the training of ``--init_from`` weights.

    Skips runs without metrics and logs them. Raises UserError if no run has metrics or
    a config.json is missing, OSError if a run does not exist.
    """
    folders = []
    for given in paths:
        path = named(given)
        path = path.parent if path.name == METRICS else path
        if not path.exists():
            raise FileNotFoundError(f"no run at {given}: name folders of runs.")
        folders.append(PretrainingFolder(path))
    folders = list(dict.fromkeys(folders))
    short = collections.Counter(folder.path.name for folder in folders)
    found = []
    for folder in folders:
        rows = folder.metrics()
        if not rows:
            log(f"left out: {folder.path} has no {METRICS} with steps")
            continue
        name = folder.path.name
        name = name if short[name] == 1 else str(folder.path)
        found.append(Learned(name, rows, _progress(folder, by)))
    if not found:
        raise UserError(
            f"none of {', '.join(map(str, paths))} has a {METRICS} with steps: name "
            "folders of pretraining runs."
        )
    return found


def _progress(folder: PretrainingFolder, by: str) -> Callable[[float], float]:
    if by == "steps":
        return lambda step: step
    flags = folder.flags
    if not flags:
        raise UserError(
            f"{folder.path} has no config.json, which --by={by} needs: use --by=steps."
        )
    try:
        config = fields.from_flat(flags, PretrainConfig)
    except ValueError as error:
        raise UserError(f"{folder.path}: {error}") from error
    if by == "tokens":
        positions = config.run.train_batch_size * config.data.max_seq_length
        return lambda step: step * positions
    vocabulary = folder.vocabulary()
    size = len(vocabulary) if vocabulary else config.data.vocab_size
    whole = config.run.num_train_steps
    return lambda step: costs.run_flops(config, size, done=step / whole)


def choose(runs: Sequence[Learned], names: Sequence[str]) -> list[MetricCard]:
    """Returns the display settings of the metrics to draw.

    The default is all metrics with a panel, except optimizer and timing metrics.
    Raises UserError if no run has logged one of ``names``.
    """
    logged = {
        name.removeprefix(EVAL_PREFIX)
        for run in runs
        for row in run.rows
        for name, value in row.items()
        if value is not None and name not in ("step", "time")
    }
    cards = {card.name: card for card in metric_cards() if card.name in logged}
    usual = {card.name for card in FIT}
    chosen = names or [n for n, card in cards.items() if card.panel and n not in usual]
    unknown = [name for name in chosen if name not in logged]
    if unknown or not chosen:
        raise UserError(
            f"no run has logged {', '.join(unknown) or 'a loss or score'}: choose "
            f"--metrics from {', '.join(sorted(logged)) or 'none'}."
        )
    return [cards.get(name, MetricCard(name)) for name in chosen]


def draw(
    axis: matplotlib.axes.Axes, runs: Sequence[Learned], card: MetricCard, by: str
) -> None:
    """Draws a metric of all runs; training metrics are paler than held-out ones."""
    panel = card.panel or Panel(card.name, "")
    styles = itertools.product(_DASHES, PALETTE)
    for run, (dashes, color) in zip(runs, itertools.cycle(styles), strict=False):
        curves = [
            series(run.rows, name) for name in (EVAL_PREFIX + card.name, card.name)
        ]
        marks = {"marker": "o", "markersize": 3.5, "linewidth": 1.6}
        label = run.name
        for (steps, values), look in zip(curves, (marks, {}), strict=True):
            if not steps.size:
                continue
            if look:
                look["markevery"] = max(1, len(steps) // 20)
            is_pale = not look and label is None
            axis.plot(
                [run.progress(step) for step in steps],
                panel.scale * values,
                color=color,
                linestyle=dashes,
                label=label,
                **({"alpha": 0.4, "linewidth": 0.9} if is_pale else look),
            )
            # One legend entry per run.
            label = None
    title = [card.panel.title, card.series] if card.panel else [card.name]
    style(axis, panel, ": ".join(filter(None, title)))
    axis.set_xlabel(_LABELS[by], fontsize=9)
    if by != "flops":
        axis.xaxis.set_major_formatter(steps_text)


def figure(
    runs: Sequence[Learned], cards: Sequence[MetricCard], by: str
) -> matplotlib.figure.Figure:
    """Draws one panel per metric, with a legend of the runs."""
    columns = min(3, len(cards))
    made, axes = grid(len(cards), space=0.22 * math.ceil(len(runs) / columns))
    for axis, card in zip(axes, cards, strict=True):
        draw(axis, runs, card, by)
    handles = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    named_runs = [run.name for run in runs if run.name in handles]
    legend = made.legend(
        [handles[name] for name in named_runs],
        named_runs,
        loc="outside lower center",
        ncols=columns,
        fontsize=9,
        frameon=False,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    made.suptitle(
        "Learning curves. Circles: held-out text. Pale lines: training windows.",
        fontsize=10.5,
    )
    return made


def main(config: InspectConfig, paths: Sequence[str], log: Log = cli.note) -> None:
    """Draws the runs into an image; raises as `read` and `choose` do."""
    output = Path(config.curves)
    if output.suffix.lower() not in _WRITTEN:
        raise UserError(f"--curves={output} must end in one of {', '.join(_WRITTEN)}.")
    if output.exists() and not config.overwrite:
        raise UserError(f"{output} exists: pass --overwrite to replace it.")
    if not paths:
        raise UserError("no run: name the folders of runs, as in runs/*.")
    runs = read(paths, config.by, log)
    cards = choose(runs, config.metrics)
    made = figure(runs, cards, config.by)
    with files.replacing(output) as part:
        made.savefig(part, dpi=130, format=output.suffix[1:].lower())
    log(f"{len(runs)} runs, {len(cards)} metrics; wrote {output}")

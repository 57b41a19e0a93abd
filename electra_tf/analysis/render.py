"""Renders sections and answers as HTML and figures."""

import base64
import dataclasses
import io
import itertools
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jinja2
import matplotlib as mpl
import matplotlib.axes
import matplotlib.colors
import matplotlib.figure
import numpy as np
import pandas as pd

from electra_tf import cli
from electra_tf.analysis.inspector import Fills, Verdicts
from electra_tf.runs.curves import PALETTE
from electra_tf.runs.samples import VERDICTS

# From P(replaced) 0 to 1; dark text is readable on all.
_COLORS = matplotlib.colors.LinearSegmentedColormap.from_list(
    "", ["#fff", "#f06e5a"]
).with_extremes(bad="#fff")


@dataclasses.dataclass(frozen=True)
class Chart:
    """A figure of a section's table; its columns low and high become error bars."""

    table: str
    x: str
    y: str
    panel: str = ""  # Column with a panel per value.
    series: str = ""  # Column with a series per value.
    # "points" are shares by categorical x.
    kind: Literal["line", "points", "heat"] = "line"
    color: str = ""  # Column with the values of a heat map.
    diagonal: bool = False  # Whether to draw x = y.


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a report: title, one sentence, tables by caption, and charts."""

    title: str
    sentence: str
    tables: Mapping[str, pd.DataFrame]
    charts: Sequence[Chart] = ()

    def numbers(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the tables as records; NaN and infinity become None."""
        return {
            name: json.loads(table.to_json(orient="records", double_precision=15))
            for name, table in self.tables.items()
        }

    @property
    def images(self) -> list[str]:
        """The charts as PNG files in base64."""
        images = []
        for chart in self.charts:
            image = io.BytesIO()
            figure(self.tables[chart.table], chart).savefig(image, dpi=110)
            images.append(base64.b64encode(image.getvalue()).decode())
        return images


def page(
    sections: Sequence[Section] = (),
    answers: Sequence[Verdicts | Fills] = (),
    *,
    title: str,
    about: str,
) -> str:
    """Renders a self-contained HTML document; escapes all texts.

    Tokens are colored by P(replaced); above 50 % they are also bold and underlined.
    """
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda x: cli.visible(x) if type(x) is str else x,
    )
    environment.filters |= {
        "cell": _cell,
        "color": lambda probability: matplotlib.colors.to_hex(_COLORS(probability)),
    }
    source = Path(__file__).with_name("page.html.j2").read_text("utf-8")
    return environment.from_string(source).render(
        title=title,
        about=about,
        sections=sections,
        answers=answers,
        kinds={type(answer).__name__ for answer in answers},
        corrupted=any(getattr(a, "original", None) is not None for a in answers),
        tokens=_tokens,
        verdicts=[verdict for verdict in VERDICTS.values() if verdict.mark.strip()],
    )


def _cell(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int | np.integer) else str(value)


def _tokens(answer: Verdicts) -> list[dict[str, Any]]:
    originals = answer.original or answer.tokens
    masked = answer.is_masked or [False] * len(answer.tokens)
    columns = (answer.tokens, originals, answer.probabilities, masked)
    cells = []
    for token, original, probability, is_masked in zip(*columns, strict=True):
        title = f"{token}: {probability:.1%} replaced"
        mark = VERDICTS[token != original, probability > 0.5].mark.strip()
        cells.append(
            {
                "token": token,
                "text": token.removeprefix("##"),
                "title": title + (f"; was {original}" if is_masked else ""),
                "space": bool(cells) and not token.startswith("##"),
                "original": original,
                "probability": probability,
                "masked": is_masked,
                "mark": mark if answer.original else "",
            }
        )
    return cells


# Names in a table are plain text, not TeX.
@mpl.rc_context({"text.parse_math": False})
def figure(table: pd.DataFrame, chart: Chart) -> matplotlib.figure.Figure:
    """Draws a chart; its title is the caption of the table."""
    panels = [*table.groupby(chart.panel, sort=False)] if chart.panel else [("", table)]
    # More columns would make the text smaller than the page's.
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    size = (4.9 * columns, 3.6 * lines + 0.6)
    made = matplotlib.figure.Figure(figsize=size, layout="constrained")
    title = textwrap.fill(chart.table, 45 * columns)
    made.suptitle(title, fontsize=11, fontweight="bold")
    axes = np.ravel(made.subplots(lines, columns, squeeze=False))
    for axis, (name, part) in zip(axes, panels, strict=False):
        (_heat if chart.kind == "heat" else _series)(axis, part, chart)
        axis.set_title(textwrap.fill(str(name), 50), loc="left", fontsize=10.5)
        is_share = chart.kind == "points"
        axis.set_xlabel("" if is_share else chart.x)
        axis.set_ylabel("share" if is_share else chart.y)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(panels) :]:
        axis.remove()
    if chart.series:
        handles = {
            label: handle
            for axis in axes[: len(panels)]
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        # Below the panels, so that it does not cover points.
        look = {"ncols": 2 * columns, "fontsize": 9, "frameon": False}
        made.legend(handles.values(), handles, loc="outside lower center", **look)
    return made


def _series(axis: matplotlib.axes.Axes, table: pd.DataFrame, chart: Chart) -> None:
    parts = table.groupby(chart.series, sort=False) if chart.series else [("", table)]
    names = list(dict.fromkeys(table[chart.x].astype(str)))
    if chart.kind == "points":
        axis.set_xticks(range(len(names)), names, rotation=35, ha="right")
    elif pd.api.types.is_integer_dtype(table[chart.x]):
        axis.xaxis.get_major_locator().set_params(integer=True)
    looks = zip(parts, itertools.cycle(PALETTE), strict=False)
    for number, ((name, part), color) in enumerate(looks):
        style: dict[str, Any] = {"label": str(name), "markersize": 4, "marker": "o"}
        x = part[chart.x]
        if chart.kind == "points":
            x = [names.index(str(value)) + 0.12 * number for value in x]
            style["linestyle"] = "none"
        elif len(table) > 120:
            style["marker"] = ""
        if "low" in part:
            # Rounding can put a bound on the wrong side of 0 or 1.
            below, above = part[chart.y] - part["low"], part["high"] - part[chart.y]
            style["yerr"] = np.maximum([below, above], 0)
        axis.errorbar(x, part[chart.y], **style, color=color, elinewidth=0.7)
    if chart.diagonal:
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    axis.grid(alpha=0.25, linewidth=0.6)


def _heat(axis: matplotlib.axes.Axes, table: pd.DataFrame, chart: Chart) -> None:
    square = table.pivot(index=chart.y, columns=chart.x, values=chart.color)
    image = axis.imshow(square, cmap="viridis", origin="lower", aspect="auto")
    axis.figure.colorbar(image, ax=axis, label=chart.color)
    axis.set_xticks(range(len(square.columns)), square.columns)
    axis.set_yticks(range(len(square.index)), square.index)

"""Renders the sections of a report and answers as HTML and figures."""

import base64
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import matplotlib.axes
import matplotlib.figure
import numpy as np
import pandas as pd

from electra_tf import cli
from electra_tf.runs.curves import PALETTE


@dataclasses.dataclass(frozen=True)
class Chart:
    """A figure of a section's table; its columns low and high become error bars."""

    table: str
    x: str
    y: str
    panel: str = ""  # Column with a panel per value.
    series: str = ""  # Column with a series per value.
    color: str = ""  # Column with the values, for a heat map.
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


def page(sections: Sequence[Section], about: str, answers: Sequence[Any] = ()) -> str:
    """Renders a self-contained HTML document; escapes all texts.

    Tokens of ``answers`` are shaded by P(replaced), and underlined above 50 %.
    """
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda x: cli.visible(x) if type(x) is str else x,
    )
    source = Path(__file__).with_name("page.html.j2").read_text("utf-8")
    page = environment.from_string(source)
    return page.render(about=about, sections=sections, answers=answers)


# Names in a table are plain text, not TeX.
@mpl.rc_context({"text.parse_math": False})
def figure(table: pd.DataFrame, chart: Chart) -> matplotlib.figure.Figure:
    """Draws a chart with one panel per row; its title is the caption of the table."""
    panels = [*table.groupby(chart.panel, sort=False)] if chart.panel else [("", table)]
    made = matplotlib.figure.Figure((9, 3.6 * len(panels) + 0.6), layout="constrained")
    made.suptitle(chart.table, fontsize=11, fontweight="bold", wrap=True)
    axes = made.subplots(len(panels), squeeze=False)[:, 0]
    for axis, (name, part) in zip(axes, panels, strict=True):
        axis.set(title=str(name), xlabel=chart.x, ylabel=chart.y)
        if chart.color:
            square = part.pivot(index=chart.y, columns=chart.x, values=chart.color)
            image = axis.imshow(square, cmap="viridis", origin="lower", aspect="auto")
            made.colorbar(image, ax=axis, label=chart.color)
        else:
            _series(axis, part, chart)
    return made


def _series(axis: matplotlib.axes.Axes, table: pd.DataFrame, chart: Chart) -> None:
    parts = table.groupby(chart.series, sort=False) if chart.series else [("", table)]
    axis.set_prop_cycle(color=PALETTE)
    style = {"marker": "o", "markersize": 4, "elinewidth": 0.7}
    if not pd.api.types.is_numeric_dtype(table[chart.x]):
        # Matplotlib spaces names evenly.
        style["linestyle"] = "none"
        axis.tick_params("x", rotation=35)
    for name, part in parts:
        errors = None
        if "low" in part:
            # Rounding can put a bound on the wrong side of 0 or 1.
            below, above = part[chart.y] - part["low"], part["high"] - part[chart.y]
            errors = np.maximum([below, above], 0)
        axis.errorbar(part[chart.x], part[chart.y], errors, label=str(name), **style)
    if chart.diagonal:
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    if chart.series:
        axis.legend(fontsize=9, frameon=False)
    axis.grid(alpha=0.25, linewidth=0.6)

"""A part of an analysis as words, tables and pictures, and parts as one HTML page."""

from __future__ import annotations

import base64
import dataclasses
import io
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from electra_tf.analysis import page

# Draws on the axes that it is given.
Draw = Callable[[Axes], None]
_WIDTH, _HEIGHT = 5.0, 3.9


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells are texts or numbers; ``header`` names the columns."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Picture:
    """Panels side by side, by title; ``caption`` says what they show.

    ``height`` is in inches.
    """

    caption: str
    panels: Mapping[str, Draw]
    height: float = _HEIGHT

    def figure(self) -> Figure:
        """Draws all panels."""
        size = (_WIDTH * len(self.panels), self.height)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, len(self.panels), squeeze=False)[0]
        for axis, (title, draw) in zip(axes, self.panels.items(), strict=True):
            draw(axis)
            axis.set_title(title, loc="left", fontsize=10.5, parse_math=False)
            axis.spines[["top", "right"]].set_visible(False)
        return figure


@dataclasses.dataclass(frozen=True)
class Section:
    """A part: its ``numbers`` are what the JSON file holds.

    ``html`` is shown as it is, so texts in it are escaped already.
    """

    title: str
    notes: Sequence[str]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    numbers: Mapping[str, Any]
    html: str = ""


def html(sections: Sequence[Section], *, title: str, about: str) -> str:
    """The whole page; texts are escaped, pictures are inside."""
    parts = []
    for section in sections:
        parts.append(f"<section>\n<h2>{escape(section.title)}</h2>")
        parts += [f"<p>{escape(note)}</p>" for note in section.notes]
        parts.append(section.html)
        parts += map(_picture, section.pictures)
        parts += map(_table, section.tables)
        parts.append("</section>")
    return page.document(title, about, "\n".join(parts))


def _picture(picture: Picture) -> str:
    image = io.BytesIO()
    picture.figure().savefig(image, format="png", dpi=110)
    data = base64.b64encode(image.getvalue()).decode()
    caption = escape(picture.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    lines = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows)
    return (
        f'<div class="scroll"><table><caption>{escape(table.caption)}</caption>\n'
        f"<tr>{head}</tr>\n{lines}\n</table></div>"
    )


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    shown = f"{value:,}" if isinstance(value, int | np.integer) else f"{value:.4f}"
    return f'<td class="number">{shown}</td>'


def plain(value: Any) -> Any:
    """Dataclasses and arrays as what JSON has; numbers that are not finite are null."""
    if dataclasses.is_dataclass(value):
        value = {x.name: getattr(value, x.name) for x in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

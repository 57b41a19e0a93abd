"""Metric cards: how a metric is shown, said once, beside what computes it.

The console line, the held-out table, the curves and the trivial predictor's column all
read these; they are handed to the sinks by whoever knows the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot of a run's curves; all metrics whose cards name it share it.

    Attributes:
        scale: what values are multiplied by, 100 for percent; then the axis begins
            at 0.
        is_log: whether the axis is logarithmic.
    """

    title: str
    unit: str
    scale: float = 1.0
    is_log: bool = False


@dataclasses.dataclass(frozen=True)
class Trivial:
    """A predictor that learned nothing but frequencies, for one held-out metric.

    Attributes:
        value: its value, from the ``TrivialBaselines`` of the held-out text and the
            held-out metrics of the model by name.
        copying: the same for one that also copies tokens that show at masked
            positions; None: there is no such predictor.
    """

    means: str
    value: Callable[[Any, Mapping[str, float]], float]
    copying: Callable[[Any], float] | None = None


@dataclasses.dataclass(frozen=True)
class MetricCard:
    """How one metric is shown.

    Attributes:
        column: its part of the console line, a format string such as "gen {:.3f}";
            empty leaves it out.
        label: its row in the held-out table; empty leaves it out.
        series: its name in a panel of several metrics.
    """

    name: str
    column: str = ""
    label: str = ""
    format: str = "{:.3f}"
    panel: Panel | None = None
    series: str = ""
    trivial: Trivial | None = None


LOSS = MetricCard(
    "loss",
    column="loss {:.3f}",
    panel=Panel("Total loss", "nats, weighted sum"),
    series="total",
)
_GRADIENT_NORM = Panel("Gradient norm", "before clipping", is_log=True)
# What optimizer and clock know of every run.
FIT = (
    MetricCard(
        "learning_rate", column="lr {:.2e}", panel=Panel("Learning rate", "per update")
    ),
    MetricCard(
        "gradient_norm", column="grad {:.2f}", panel=_GRADIENT_NORM, series="joint"
    ),
    MetricCard(
        "generator_gradient_norm", panel=_GRADIENT_NORM, series="generator's own"
    ),
    MetricCard("tokens_per_second", panel=Panel("Speed", "tokens/s")),
)

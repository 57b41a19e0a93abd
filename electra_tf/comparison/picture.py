"""A figure of the scores at the end of training."""

from __future__ import annotations

from statistics import fmean

import matplotlib.figure
from scipy import stats

from electra_tf.comparison.report import Scores
from electra_tf.comparison.statistics import CONFIDENCE

PICTURE = "scores.png"


def figure(scores: Scores) -> matplotlib.figure.Figure | None:
    """Draws a dot per seed, means and t intervals; returns None without scores."""
    # `scores.main` needs at least one probe.
    rows = scores.plan.rows if scores.columns else ()
    shown = [row.name for row in rows if scores.all(row.name, scores.main)]
    if not shown:
        return None
    size = (6.5, max(3.2, 0.42 * len(shown) + 1.6))
    made = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axis = made.subplots()
    for height, name in enumerate(reversed(shown)):
        values = scores.all(name, scores.main)
        axis.scatter(values, [height - 0.18] * len(values), s=10, color="0.6")
        error = None
        if len(values) > 1:
            quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
            error = quantile * stats.sem(values)
        axis.errorbar(fmean(values), height, xerr=error, fmt="o", color="C0", capsize=3)
    axis.set_yticks(range(len(shown)), shown[::-1])
    axis.set_ylim(-0.7, len(shown) - 0.3)
    axis.set_xlabel(f"{scores.main}, mean over seeds with {CONFIDENCE:.0%} interval")
    axis.set_title("At the end of training", loc="left", fontsize=10.5)
    axis.grid(alpha=0.25, linewidth=0.6)
    return made

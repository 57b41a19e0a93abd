"""Plot of a confusion matrix."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from electra_tf import files

# Largest confusion matrices with numbers in the cells, and with all class names.
_MOST_NUMBERED, _MOST_NAMED = 30, 60


def confusion_matrix(
    labels: Sequence[str],
    predictions: Sequence[str],
    names: Sequence[str],
    folder: str,
) -> str:
    """Draws a confusion matrix of the classes ``names``; returns the path."""
    from sklearn import metrics

    counts = metrics.confusion_matrix(labels, predictions, labels=names)
    size = min(max(4.5, 0.6 * len(names) + 2.5), 20)
    figure = Figure(figsize=(size, size * 0.85), layout="constrained")
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    display = metrics.ConfusionMatrixDisplay(shares)
    numbers = len(names) <= _MOST_NUMBERED
    limits = {"vmin": 0, "vmax": 1}
    display.plot(
        ax=axes, cmap="Blues", include_values=numbers, colorbar=False, im_kw=limits
    )
    # Colors show shares per label, numbers show counts.
    if numbers:
        for text, count in zip(display.text_.flat, counts.flat, strict=True):
            text.set(text=count, size=8)
    ticks = range(0, len(names), math.ceil(len(names) / _MOST_NAMED))
    shown = [names[tick] for tick in ticks]
    # User labels may contain $, which starts math text.
    axes.set_xticks(ticks, shown, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(ticks, shown, parse_math=False)
    axes.set(xlabel="prediction", ylabel="label")
    axes.set_title(f"{np.trace(counts)} of {counts.sum()} right", size=10)
    path = os.path.join(folder, "confusion_matrix.png")
    with files.replacing(path) as part:
        figure.savefig(part, dpi=120)
    return path

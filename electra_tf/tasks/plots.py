"""Confusion matrix of a fine-tuning run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from matplotlib.figure import Figure

from electra_tf import files

# Largest confusion matrix with numbers in the cells.
_MOST_NUMBERED = 30


def confusion_matrix(
    labels: Sequence[str],
    predictions: Sequence[str],
    names: Sequence[str],
    folder: str,
) -> str:
    """Draws the shares of predictions by label (rows); returns the path."""
    from sklearn import metrics

    size = min(max(4.5, 0.6 * len(names) + 2.5), 20)
    figure = Figure(figsize=(size, size * 0.85), layout="constrained")
    metrics.ConfusionMatrixDisplay.from_predictions(
        labels,
        predictions,
        labels=names,
        # Dollar signs start math text.
        display_labels=[name.replace("$", r"\$") for name in names],
        normalize="true",
        values_format=".2f",
        include_values=len(names) <= _MOST_NUMBERED,
        xticks_rotation=45,
        cmap="Blues",
        colorbar=False,
        ax=figure.subplots(),
    )
    path = os.path.join(folder, "confusion_matrix.png")
    with files.replacing(path) as part:
        figure.savefig(part, dpi=120)
    return path

"""Scores in NumPy, written from their definitions.

All take arrays or sequences of N values, labels first, and return a Python float;
shares and correlations are in [-1, 1], not in percent.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

# Of the normal distribution: 95 % lie between minus this and this.
NORMAL_QUANTILE = 1.959964


def rank(score: float, *, greater_is_better: bool = True) -> float:
    """Key to compare scores by: the larger, the better; NaN is the worst."""
    if not math.isfinite(score):
        return -math.inf
    return score if greater_is_better else -score


def wilson(share: float, count: float) -> tuple[float, float]:
    """The ends of the 95 % interval of a share of ``count`` trials (Wilson, 1927)."""
    z = NORMAL_QUANTILE
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low, high = ((middle + side * half) / (1 + z * z / count) for side in (-1, 1))
    return low, high


def accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Share of equal entries."""
    return float(np.mean(np.asarray(labels) == np.asarray(predictions)))


def confusion_matrix(
    labels: ArrayLike, predictions: ArrayLike, num_classes: int
) -> np.ndarray:
    """Counts [C, C]: row is the label, column the prediction."""
    cells = np.asarray(labels) * num_classes + np.asarray(predictions)
    counts = np.bincount(cells, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def matthews_correlation(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Matthews correlation, for two or more classes (Gorodkin 2004).

    0 where labels or predictions are all the same.
    """
    classes, coded = np.unique(
        np.concatenate([labels, predictions]), return_inverse=True
    )
    half = len(coded) // 2
    counts = confusion_matrix(coded[:half], coded[half:], len(classes)).astype(float)
    actual, predicted, total = counts.sum(1), counts.sum(0), counts.sum()
    covariance = np.trace(counts) * total - actual @ predicted
    variances = (total**2 - actual @ actual) * (total**2 - predicted @ predicted)
    return float(covariance / np.sqrt(variances)) if variances > 0 else 0.0


def f1(labels: ArrayLike, predictions: ArrayLike, positive: int = 1) -> float:
    """Harmonic mean of precision and recall of one class; 0 without true positives."""
    labels = np.asarray(labels) == positive
    predictions = np.asarray(predictions) == positive
    hits = np.sum(labels & predictions)
    either = np.sum(labels) + np.sum(predictions)
    return float(2 * hits / either) if either else 0.0


def macro_f1(labels: ArrayLike, predictions: ArrayLike, num_classes: int) -> float:
    """Mean of the F1 of all classes that labels or predictions have."""
    present = np.union1d(labels, predictions)
    scores = [f1(labels, predictions, c) for c in range(num_classes) if c in present]
    return float(np.mean(scores))


def pearson(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Linear correlation; 0 where one side is constant."""
    labels = np.asarray(labels, np.float64)
    predictions = np.asarray(predictions, np.float64)
    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    labels = labels - labels.mean()
    predictions = predictions - predictions.mean()
    scale = np.sqrt((labels @ labels) * (predictions @ predictions))
    return float(labels @ predictions / scale)


def spearman(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Linear correlation of the ranks; equal values share their mean rank."""

    def ranks(values: ArrayLike) -> np.ndarray:
        _, inverse, counts = np.unique(
            np.asarray(values, np.float64), return_inverse=True, return_counts=True
        )
        return (np.cumsum(counts) - (counts - 1) / 2)[inverse]

    return pearson(ranks(labels), ranks(predictions))


def mean_squared_error(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Mean of the squared differences."""
    difference = np.asarray(labels, np.float64) - np.asarray(predictions, np.float64)
    return float(np.mean(difference**2))


def multilabel_f1(labels: ArrayLike, predictions: ArrayLike) -> tuple[float, float]:
    """Micro and macro F1 of boolean arrays [N, C].

    A class without labels and predictions counts 0 in the macro mean, as in
    scikit-learn.
    """
    labels, predictions = np.asarray(labels, bool), np.asarray(predictions, bool)
    hits = (labels & predictions).sum(0)
    either = labels.sum(0) + predictions.sum(0)
    macro = np.mean(2 * hits / np.maximum(either, 1))
    return float(2 * hits.sum() / max(either.sum(), 1)), float(macro)


def per_class(labels: ArrayLike, predictions: ArrayLike) -> list[dict[str, float]]:
    """Precision, recall and F1 of each column of boolean arrays [N, C], and support.

    0 where there is nothing to divide by, as in scikit-learn.
    """
    labels, predictions = np.asarray(labels, bool), np.asarray(predictions, bool)
    hits, support = (labels & predictions).sum(0), labels.sum(0)
    precision = hits / np.maximum(predictions.sum(0), 1)
    recall = hits / np.maximum(support, 1)
    f1s = 2 * hits / np.maximum(support + predictions.sum(0), 1)
    names = ("precision", "recall", "f1", "support")
    rows = zip(precision, recall, f1s, support, strict=True)
    return [dict(zip(names, (x.item() for x in row), strict=True)) for row in rows]


def calibration_error(
    right: ArrayLike, probabilities: ArrayLike, bins: int = 15
) -> float:
    """Expected calibration error (Guo et al., 2017): by bins of equal width.

    The mean distance between how often an answer is ``right`` and how probable it was
    said to be, weighted by the answers of a bin.
    """
    right = np.asarray(right, np.float64).ravel()
    probabilities = np.asarray(probabilities, np.float64).ravel()
    number = np.minimum((probabilities * bins).astype(int), bins - 1)
    gaps = np.bincount(number, right - probabilities, bins)
    return float(np.abs(gaps).sum() / len(right))

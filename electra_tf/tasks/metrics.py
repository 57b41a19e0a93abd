"""Metrics of N labels and predictions, in [-1, 1], and bootstrap confidence intervals.

As in scikit-learn, ratios with denominator 0 are 0. NumPy computes them: the bootstrap
calls each of them hundreds of times, and a call of scikit-learn takes 5 to 12 ms.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

Scorer = Callable[[np.ndarray], dict[str, float]]
Intervals = dict[str, tuple[float, float]]
RESAMPLES = 300
_INTERVAL = (2.5, 97.5)


def first_best(scores: Sequence[float], *, greater_is_better: bool) -> int:
    """Returns the index of the first best score; NaN and infinity are worst."""
    values = np.array(scores) if greater_is_better else -np.array(scores)
    return int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))


def wilson(share: float, count: float) -> tuple[float, float]:
    """Returns the 95 % Wilson score interval (1927) of a share of ``count`` trials."""
    z = 1.959964  # 97.5 % quantile of the standard normal distribution.
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low, high = ((middle + side * half) / (1 + z * z / count) for side in (-1, 1))
    # Rounding can exceed [0, 1].
    return max(low, 0.0), min(high, 1.0)


def confusion_matrix(labels: ArrayLike, predictions: ArrayLike) -> np.ndarray:
    """Counts of (label, prediction), float64 [C, C], over the classes that occur."""
    classes, codes = np.unique([labels, predictions], return_inverse=True)
    counts = np.zeros([len(classes), len(classes)])
    np.add.at(counts, tuple(codes.reshape(2, -1)), 1)
    return counts


def matthews_correlation(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Matthews correlation (Gorodkin, 2004); 0 if an input is constant."""
    counts = confusion_matrix(labels, predictions)
    support, predicted, total = counts.sum(1), counts.sum(0), counts.sum()
    covariance = np.trace(counts) * total - support @ predicted
    variances = (total**2 - support @ support) * (total**2 - predicted @ predicted)
    return float(covariance / math.sqrt(variances)) if variances > 0 else 0.0


def f1(labels: ArrayLike, predictions: ArrayLike) -> float:
    """F1 of class 1, or of True; 0 without true positives."""
    is_label, is_predicted = (np.asarray(each) == 1 for each in (labels, predictions))
    either = np.sum(is_label) + np.sum(is_predicted)
    return float(2 * np.sum(is_label & is_predicted) / max(either, 1))


def macro_f1(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Mean F1 over all classes in labels or predictions."""
    counts = confusion_matrix(labels, predictions)
    return float(np.mean(2 * np.diag(counts) / (counts.sum(0) + counts.sum(1))))


def pearson(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Pearson correlation; 0 if an input is constant, NaN if it contains NaN."""
    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return float(stats.pearsonr(labels, predictions).statistic)


def spearman(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Spearman correlation; 0 if an input is constant, NaN if it contains NaN."""
    return pearson(stats.rankdata(labels), stats.rankdata(predictions))


def per_class(labels: ArrayLike, predictions: ArrayLike) -> list[dict[str, float]]:
    """Precision, recall, F1 and support of each column of boolean arrays [N, C]."""
    labels, predictions = np.asarray(labels, bool), np.asarray(predictions, bool)
    counts = [each.sum(0) for each in (labels & predictions, labels, predictions)]
    return [precision_recall_f1(row) for row in np.transpose(counts)]


def precision_recall_f1(counts: np.ndarray) -> dict[str, float]:
    """Precision, recall, F1, support from right, labeled and predicted counts, [3]."""
    right, labeled, predicted = counts.tolist()
    return {
        "precision": right / max(predicted, 1),
        "recall": right / max(labeled, 1),
        "f1": 2 * right / max(labeled + predicted, 1),
        "support": labeled,
    }


def calibration_error(
    right: ArrayLike, probabilities: ArrayLike, bins: int = 15
) -> float:
    """Expected calibration error (Guo et al., 2017); NaN if a probability is NaN."""
    right = np.asarray(right, np.float64).ravel()
    probabilities = np.asarray(probabilities, np.float64).ravel()
    if np.isnan(probabilities).any():
        return math.nan
    number = np.minimum((probabilities * bins).astype(int), bins - 1)
    gaps = np.bincount(number, right - probabilities, bins)
    return float(np.abs(gaps).sum() / len(right))


def intervals(
    model: Scorer, baseline: Scorer, examples: int
) -> tuple[Intervals, Intervals]:
    """Returns 95 % intervals of the scores, and of the differences to the baseline.

    The percentile bootstrap over N examples (Efron, 1979). A scorer maps a resample,
    int64 [N], to scores, and may omit some. One example has no interval.
    """
    if examples < 2:
        return {}, {}
    scores, differences = [], []
    for rows in _draws(examples):
        scores.append(model(rows))
        other = baseline(rows)
        differences.append({name: x - other[name] for name, x in scores[-1].items()})
    return _ends(scores), _ends(differences)


def bootstrap(
    statistic: Callable[..., float],
    clusters: np.ndarray,
    *columns: np.ndarray,
    seed: int = 0,
) -> tuple[float, float]:
    """Returns the 95 % interval of a statistic, by resampling whole clusters.

    ``statistic`` maps resampled ``columns`` [N] to a number; NaN is ignored. One
    cluster gives NaN.
    """
    order = np.argsort(clusters, kind="stable")
    places = np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1)
    if len(places) < 2:
        return math.nan, math.nan
    values = []
    for chosen in _draws(len(places), seed):
        rows = np.concatenate([places[number] for number in chosen])
        values.append(statistic(*(column[rows] for column in columns)))
    low, high = np.nanpercentile(values, _INTERVAL)
    return float(low), float(high)


def _draws(count: int, seed: int = 0) -> Iterator[np.ndarray]:
    random = np.random.default_rng(seed)
    for _ in range(RESAMPLES):
        yield random.integers(0, count, count)


def _ends(scores: Sequence[dict[str, float]]) -> Intervals:
    names = dict.fromkeys(name for each in scores for name in each)
    values = {name: [x[name] for x in scores if name in x] for name in names}
    return {n: tuple(np.percentile(x, _INTERVAL).tolist()) for n, x in values.items()}

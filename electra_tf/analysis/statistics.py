"""Rates of N tokens or words by group, with confidence intervals."""

import numpy as np
import pandas as pd
from scipy import stats
from sklearn import metrics

from electra_tf.tasks.metrics import wilson


def rates(
    values: np.ndarray, groups: np.ndarray | pd.Categorical, clusters: np.ndarray
) -> pd.DataFrame:
    """Computes the mean and 95 % interval of values [N] in [0, 1] by group.

    ``groups`` [N] are labels; NaN is not a group. ``clusters`` [N] are sentences:
    their tokens are not independent, so the Wilson interval uses the effective sample
    size (linearized variance of a ratio, with degrees of freedom; Korn and Graubard,
    1998), or the number of sentences if the values do not vary between sentences.
    Returns a row per nonempty group: group, count, rate, low, high.
    """
    rows = []
    tokens = pd.DataFrame({"group": groups, "value": np.asarray(values, np.float64)})
    tokens["cluster"] = np.asarray(clusters)
    for name, chosen in tokens.groupby("group", observed=True):
        # The mean of a pandas Series skips NaN.
        own, size = chosen["value"].to_numpy(), len(chosen)
        mean = own.mean()
        _, cluster = np.unique(chosen["cluster"], return_inverse=True)
        sums = np.bincount(cluster, own - mean)
        variance = np.square(sums).sum() / size**2
        trials = sentences = cluster.max() + 1
        # One sentence and constant values have no design effect to estimate.
        if sentences > 1 and np.abs(sums).max() > 1e-9:
            unbiased = size * (sentences - 1) / ((size - 1) * sentences)
            trials = unbiased * mean * (1 - mean) / variance
            # Few sentences estimate the variance badly.
            by_token, by_sentence = stats.t.ppf(0.975, [size - 1, sentences - 1])
            trials *= (by_token / by_sentence) ** 2
        ends = wilson(mean, min(trials, size))
        rows.append((name, size, float(mean), *map(float, ends)))
    return pd.DataFrame(rows, columns=["group", "count", "rate", "low", "high"])


def roc_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve; NaN if all labels are equal."""
    if len(np.unique(labels)) < 2:
        return float("nan")
    return float(metrics.roc_auc_score(labels, scores))


def halves(rows: np.ndarray, seed: int = 0) -> np.ndarray:
    """Returns a boolean mask [N] of the half to fit on; does not split texts."""
    names = np.unique(rows)
    chosen = np.random.default_rng(seed).permutation(names)[: len(names) // 2]
    return np.isin(rows, chosen)

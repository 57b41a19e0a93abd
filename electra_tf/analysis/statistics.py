"""Rates by group with confidence intervals.

Letters: N tokens or words.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn import metrics

from electra_tf.tasks.metrics import wilson


def rates(
    values: np.ndarray, groups: np.ndarray, clusters: np.ndarray, names: Sequence[str]
) -> pd.DataFrame:
    """Computes the mean and 95 % interval of values [N] in [0, 1] by group.

    ``groups`` [N] index ``names``; -1 is not a group. ``clusters`` [N] are sentences:
    their tokens are not independent, so the Wilson interval uses the effective sample
    size (linearized variance of a ratio; Korn and Graubard, 1998). Returns a row per
    nonempty group: group, count, rate, low, high.
    """
    rows = []
    for group, name in enumerate(names):
        chosen = groups == group
        own = values[chosen].astype(np.float64)
        if not own.size:
            continue
        mean = own.mean()
        _, cluster = np.unique(clusters[chosen], return_inverse=True)
        variance = np.square(np.bincount(cluster, own - mean)).sum() / own.size**2
        # Constant values have no design effect to estimate.
        trials = mean * (1 - mean) / variance if variance > 0 else own.size
        ends = wilson(mean, min(trials, own.size))
        rows.append((name, own.size, float(mean), *map(float, ends)))
    return pd.DataFrame(rows, columns=["group", "count", "rate", "low", "high"])


def frequency_bins(counts: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Returns the bins of token counts, [N], and their names: 0, 1-9, 10-99..."""
    edges = [0, 1, 10, 100, 1_000, 10_000, 100_000]
    names = [f"{edge:,}-{10 * edge - 1:,}" for edge in edges[1:-1]]
    return np.digitize(counts, edges) - 1, ["0", *names, f"{edges[-1]:,}+"]


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

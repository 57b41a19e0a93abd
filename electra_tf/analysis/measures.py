"""Measures of scores of tokens, in NumPy, from their definitions.

Letters: N tokens or words, G groups, T thresholds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from electra_tf.errors import UserError
from electra_tf.tasks.metrics import wilson


@dataclasses.dataclass(frozen=True)
class Rate:
    """A mean over the ``count`` tokens of a group, with the ends of its interval."""

    name: str
    count: int
    rate: float
    low: float
    high: float


def rates(
    values: np.ndarray, groups: np.ndarray, clusters: np.ndarray, names: Sequence[str]
) -> list[Rate]:
    """Mean and 95 % interval of values in [0, 1] by group; empty groups are left out.

    Takes values, group numbers (below 0: none) and numbers of the sentences, each [N].
    Tokens of a sentence are not independent: the interval is Wilson's for as many
    independent trials as would vary as much as the means of these sentences do
    (linearized variance of a ratio; Korn and Graubard, 1998).
    """
    found = []
    for group, name in enumerate(names):
        chosen = groups == group
        own = values[chosen].astype(np.float64)
        if not own.size:
            continue
        mean = own.mean()
        _, cluster = np.unique(clusters[chosen], return_inverse=True)
        variance = np.square(np.bincount(cluster, own - mean)).sum() / own.size**2
        spread = mean * (1 - mean)
        # Where all values are the same, nothing says how far they are dependent.
        trials = spread / variance if variance > 0 else own.size
        low, high = wilson(mean, min(trials, own.size))
        found.append(Rate(name, int(own.size), float(mean), float(low), float(high)))
    return found


def bars(found: Sequence[Rate]) -> np.ndarray:
    """How far the intervals reach below and above the rates, [2, G], for error bars."""
    ends = np.array([(r.rate - r.low, r.high - r.rate) for r in found]).T
    # Rounding may put an end on the wrong side of a share of 0 or 1.
    return np.maximum(ends, 0)


def binned(values: np.ndarray, edges: Sequence[int]) -> tuple[np.ndarray, list[str]]:
    """Numbers of the bins of whole values, [N], and the names of the bins.

    ``edges`` are the first values of the bins; values below the first are in none (-1).
    """
    names = [
        f"{first:,}" if last == first else f"{first:,}-{last:,}"
        for first, last in zip(edges, (edge - 1 for edge in edges[1:]), strict=False)
    ]
    return np.digitize(values, edges) - 1, [*names, f"{edges[-1]:,}+"]


def frequency_bins(counts: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Bins of how often a token occurs: 0, 1-9, 10-99 and so on."""
    return binned(counts, (0, 1, 10, 100, 1_000, 10_000, 100_000))


def position_bins(positions: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Bins of the position in a row: 1, 2-3, 4-7 and so on."""
    return binned(positions, (1, 2, 4, 8, 16, 32, 64, 128, 256))


def roc_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Share of pairs of a true and a false item in the right order; ties are half.

    nan where all labels are the same.
    """
    labels = np.asarray(labels, bool)
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    true, false = int(labels.sum()), int((~labels).sum())
    if not true or not false:
        return float("nan")
    return float((ranks[labels].sum() - true * (true + 1) / 2) / (true * false))


@dataclasses.dataclass(frozen=True)
class Detection:
    """What comes of calling every item wrong whose score is at least a threshold.

    Arrays [T], thresholds falling: every score that occurs is one.
    """

    thresholds: np.ndarray
    precision: np.ndarray
    recall: np.ndarray

    def f_score(self, beta: float = 0.5) -> np.ndarray:
        """F measure at each threshold; beta below 1 weighs precision more, [T]."""
        weight = beta**2
        sums = weight * self.precision + self.recall
        product = (1 + weight) * self.precision * self.recall
        return np.divide(product, sums, out=np.zeros_like(sums), where=sums > 0)

    @property
    def average_precision(self) -> float:
        """Mean precision, weighted by the recall that each threshold adds."""
        gained = np.diff(self.recall, prepend=0.0)
        return float(gained @ self.precision)

    def thinned(self, most: int = 200) -> Detection:
        """At most as many of the thresholds, the first and the last among them."""
        kept = np.linspace(0, len(self.thresholds) - 1, most).round().astype(int)
        kept = np.unique(kept)
        return Detection(self.thresholds[kept], self.precision[kept], self.recall[kept])


def detection(labels: np.ndarray, scores: np.ndarray) -> Detection:
    """Precision and recall at all thresholds, of labels and scores [N].

    ValueError: no label is true, so that there is nothing to find.
    """
    labels = np.asarray(labels, bool)
    if not labels.any():
        raise UserError("not one word is marked as wrong: there is nothing to detect.")
    order = np.argsort(-scores, kind="stable")
    found, ranked = np.cumsum(labels[order]), scores[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    hits = found[last].astype(np.float64)
    return Detection(ranked[last], hits / (last + 1), hits / labels.sum())

"""Is the difference real? Paired statistics over seeds.

System and reference are paired by seed: the same seed has the same data order, the
same held-out masks and the same fine-tuning seeds. All tests look at the differences.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
# Resamples of the bootstrap; sign patterns up to which the permutation test is exact.
_RESAMPLES = 9999
_MAX_PATTERNS = 2**13


@dataclasses.dataclass(frozen=True)
class Difference:
    """System minus reference.

    Attributes:
        pairs: seeds that both have.
        mean: of the differences; nan without pairs.
        low: lower end of the bootstrap interval; nan below two pairs.
        high: upper end.
        p_permutation: two-sided, of all sign patterns of the differences; it cannot
            be below 2 / 2**pairs. nan below two pairs.
        p_t: two-sided, of the paired t-test, which assumes normal differences.
    """

    pairs: int
    mean: float
    low: float
    high: float
    p_permutation: float
    p_t: float


def paired_difference(
    scores: Sequence[float],
    reference: Sequence[float],
    *,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Difference:
    """Compares two systems whose scores are paired by position.

    The interval is the bias-corrected and accelerated bootstrap of the mean difference
    (Efron, 1987), by percentiles where its correction is undefined. With few pairs it
    is too narrow; the p-values are not affected.

    Args:
        scores: n scores of the system.
        reference: n scores of the reference.
        confidence: of the interval.
        seed: of the resampling.

    Raises:
        ValueError: the lengths differ.
    """
    if len(scores) != len(reference):
        raise ValueError(
            f"Paired scores must be as many as the reference's {len(reference)}, got "
            f"{len(scores)}."
        )
    values = np.asarray(scores, float) - np.asarray(reference, float)
    pairs = len(values)
    if pairs < 2:
        mean = float(values.mean()) if pairs else math.nan
        return Difference(pairs, mean, *[math.nan] * 4)
    low, high = _interval(values, confidence, seed)
    return Difference(
        pairs,
        float(values.mean()),
        low,
        high,
        sign_flip_p_value(values, seed=seed),
        _t_p_value(values),
    )


def _interval(values: np.ndarray, confidence: float, seed: int) -> tuple[float, float]:
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = stats.bootstrap(
                (values,),
                np.mean,
                confidence_level=confidence,
                n_resamples=_RESAMPLES,
                method=method,
                rng=np.random.default_rng(seed),
            ).confidence_interval
        if np.isfinite([found.low, found.high]).all():
            break
    return float(found.low), float(found.high)


def sign_flip_p_value(values: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p-value of a mean of differences, under random signs.

    Exact up to 13 differences, from 8,192 random patterns above.
    """
    values = np.asarray(values, float)
    if not values.any():
        return 1.0
    return float(
        stats.permutation_test(
            (values,),
            np.mean,
            permutation_type="samples",
            vectorized=True,
            n_resamples=_MAX_PATTERNS,
            rng=np.random.default_rng(seed),
        ).pvalue
    )


def _t_p_value(values: np.ndarray) -> float:
    if np.ptp(values) == 0:
        return 1.0 if values[0] == 0 else 0.0
    return float(stats.ttest_1samp(values, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts the p-values of a family of tests (Holm, 1979); nan stays nan.

    An adjusted value below alpha keeps the chance of any false claim in the family
    below alpha.
    """
    adjusted = [math.nan] * len(p_values)
    order = sorted(
        (i for i, p in enumerate(p_values) if not math.isnan(p)),
        key=lambda i: p_values[i],
    )
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, (len(order) - rank) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted


def smallest_p_value(pairs: int) -> float:
    """What the exact permutation test gives when all differences have one sign."""
    return 2.0 / 2**pairs if pairs >= 1 else 1.0

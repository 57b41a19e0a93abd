"""Paired significance tests over seeds.

Systems are paired by seed: data order, held-out masks and fine-tuning seeds agree.
"""

import dataclasses
import math
import warnings
from collections.abc import Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
# Bootstrap resamples; largest number of sign patterns for an exact permutation test.
_RESAMPLES = 9999
_MAX_PATTERNS = 2**13
# Decimals of equal means, relative to the largest difference.
_DIGITS = 9


@dataclasses.dataclass(frozen=True)
class Difference:
    """System minus reference, over their common seeds.

    ``low`` and ``high`` bound the bootstrap interval. The p-values are two-sided:
    ``p_permutation`` flips signs and is at least 2 / 2**pairs; ``p_t`` is from the
    paired t-test. Without pairs ``mean`` is NaN. Below two pairs all others are NaN.
    """

    pairs: int
    mean: float
    low: float
    high: float
    p_permutation: float
    p_t: float


def paired_difference(
    scores: Sequence[float], reference: Sequence[float]
) -> Difference:
    """Compares paired scores of two systems.

    The interval is the bias-corrected and accelerated bootstrap of the mean difference
    (Efron, 1987), or the percentile bootstrap if that is undefined. It is too narrow
    with few pairs. Raises ValueError if the numbers of scores differ.
    """
    values = np.array([a - b for a, b in zip(scores, reference, strict=True)], float)
    pairs = len(values)
    if pairs < 2:
        mean = float(values.mean()) if pairs else math.nan
        return Difference(pairs, mean, *[math.nan] * 4)
    if np.ptp(values) == 0:
        p_t = 1.0 if values[0] == 0 else 0.0
    else:
        p_t = float(stats.ttest_1samp(values, 0.0).pvalue)
    p_values = (sign_flip_p_value(values), p_t)
    return Difference(pairs, float(values.mean()), *_interval(values), *p_values)


def _interval(values: np.ndarray) -> tuple[float, float]:
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            # SciPy warns and returns NaN if the BCa correction is undefined.
            warnings.simplefilter("ignore")
            interval = stats.bootstrap(
                (values,),
                np.mean,
                confidence_level=CONFIDENCE,
                n_resamples=_RESAMPLES,
                method=method,
                rng=np.random.default_rng(0),
            ).confidence_interval
        if np.isfinite([interval.low, interval.high]).all():
            break
    return float(interval.low), float(interval.high)


def sign_flip_p_value(values: Sequence[float]) -> float:
    """Returns a mean's two-sided sign-flip p-value; exact up to 13 differences."""
    # For a single sample, "samples" flips signs. Many patterns tie, as scores count
    # examples: floating-point noise must not break these ties.
    values = np.asarray(values) / (np.abs(values).max() or 1)
    test = stats.permutation_test(
        (values,),
        lambda signed, axis: signed.mean(axis).round(_DIGITS),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_MAX_PATTERNS,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts the p-values of a family of tests (Holm, 1979); NaN stays NaN."""
    known = [index for index, p in enumerate(p_values) if not math.isnan(p)]
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, index in enumerate(sorted(known, key=lambda index: p_values[index])):
        largest = max(largest, (len(known) - rank) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted

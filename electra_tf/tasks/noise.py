"""Bootstrap confidence intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

Scorer = Callable[[np.ndarray], dict[str, float]]
Intervals = dict[str, tuple[float, float]]
RESAMPLES = 300
_INTERVAL = (2.5, 97.5)


def intervals(
    model: Scorer, baseline: Scorer, examples: int
) -> tuple[Intervals, Intervals]:
    """Returns 95 % intervals of the scores, and of the differences to the baseline.

    The percentile bootstrap over N examples (Efron, 1979), with ``RESAMPLES``
    resamples. A scorer maps a resample, int64 [N], to scores. It may omit scores, such
    as those of a group without examples.
    """
    scores, differences = [], []
    for rows in draws(examples):
        scores.append(model(rows))
        other = baseline(rows)
        differences.append({name: x - other[name] for name, x in scores[-1].items()})
    return ends(scores), ends(differences)


def draws(examples: int) -> Iterator[np.ndarray]:
    """Yields ``RESAMPLES`` resamples of N examples, int64 [N], with a fixed seed."""
    random = np.random.default_rng(0)
    for _ in range(RESAMPLES):
        yield random.integers(0, examples, examples)


def ends(scores: Sequence[dict[str, float]]) -> Intervals:
    """Returns the 95 % interval of each score over all resamples."""
    names = dict.fromkeys(name for each in scores for name in each)
    values = {name: [x[name] for x in scores if name in x] for name in names}
    return {n: tuple(np.percentile(x, _INTERVAL).tolist()) for n, x in values.items()}

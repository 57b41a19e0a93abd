"""How far scores would move on other examples of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from electra_tf.tasks.base import Scores

RESAMPLES = 300
_INTERVAL = (2.5, 97.5)


def intervals(
    score: Callable[[np.ndarray, Sequence[Any]], Scores],
    answers: np.ndarray,
    constant: np.ndarray,
    examples: Sequence[Any],
) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[float, float]]]:
    """95 % intervals of the scores, and of their difference to the baseline's.

    The bootstrap over examples (Efron, 1979), by percentiles; model and baseline are
    scored on the same ``RESAMPLES`` draws, so what makes a draw easy for both is no
    difference. ``answers`` are one per example, ``constant`` is the baseline's one
    answer to all.
    """
    random = np.random.default_rng(0)
    same = np.stack([constant] * len(examples))
    found, differences = [], []
    for _ in range(RESAMPLES):
        rows = random.integers(0, len(examples), len(examples))
        chosen = [examples[row] for row in rows]
        found.append(score(answers[rows], chosen))
        baseline = score(same, chosen)
        differences.append({n: x - baseline[n] for n, x in found[-1].items()})
    return _ends(found), _ends(differences)


def _ends(draws: Sequence[Scores]) -> dict[str, tuple[float, float]]:
    return {
        name: tuple(np.percentile([draw[name] for draw in draws], _INTERVAL).tolist())
        for name in draws[0]
    }

"""How far scores would move on other examples of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from electra_tf.tasks.base import Scores

RESAMPLES = 300
_INTERVAL = (2.5, 97.5)


def intervals(
    score: Callable[[np.ndarray], tuple[Scores, Scores]], examples: int
) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[float, float]]]:
    """95 % intervals of the scores, and of their difference to the baseline's.

    The bootstrap over examples (Efron, 1979), by percentiles; model and baseline are
    scored on the same ``RESAMPLES`` draws, so what makes a draw easy for both is no
    difference.

    Args:
        score: the scores of the model and of the baseline on these examples, int64 [N],
            of which some come several times. A score that a draw does not have, such
            as one of a group of which nothing was drawn, is left out of that draw.
        examples: N, how many there are.
    """
    random = np.random.default_rng(0)
    found, differences = [], []
    for _ in range(RESAMPLES):
        model, baseline = score(random.integers(0, examples, examples))
        found.append(model)
        differences.append({name: x - baseline[name] for name, x in model.items()})
    return _ends(found), _ends(differences)


def _ends(draws: Sequence[Scores]) -> dict[str, tuple[float, float]]:
    names = dict.fromkeys(name for draw in draws for name in draw)
    return {
        name: tuple(
            np.percentile([d[name] for d in draws if name in d], _INTERVAL).tolist()
        )
        for name in names
    }

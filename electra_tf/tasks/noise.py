"""How far scores would move on other examples of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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
    found, differences = [], []
    for rows in draws(examples):
        model, baseline = score(rows)
        found.append(model)
        differences.append({name: x - baseline[name] for name, x in model.items()})
    return ends(found), ends(differences)


def draws(examples: int) -> Iterator[np.ndarray]:
    """Yields ``RESAMPLES`` draws of N examples out of N, int64 [N], always the same."""
    random = np.random.default_rng(0)
    for _ in range(RESAMPLES):
        yield random.integers(0, examples, examples)


def ends(found: Sequence[Scores]) -> dict[str, tuple[float, float]]:
    """The ends of the 95 % interval of each score, of the scores of all draws."""
    names = dict.fromkeys(name for scores in found for name in scores)
    values = {name: [x[name] for x in found if name in x] for name in names}
    return {n: tuple(np.percentile(x, _INTERVAL).tolist()) for n, x in values.items()}

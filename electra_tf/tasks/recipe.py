"""Learning rates by depth, and the recipes of the paper and of the original code."""

from __future__ import annotations

import dataclasses
from typing import Any

EXPONENTS = {"exact": 0, "original": 1}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What the paper and the code do differently when fine-tuning.

    Attributes:
        learning_rate: Peak rate by size of the encoder.
        layerwise_decay: Factor per layer by size of the encoder.
        weight_decay: Decoupled weight decay.
        layerwise_exponent: "exact" or "original", see `layerwise_multipliers`.
        reduction: How the loss is reduced over the batch, "sum" or "mean".
    """

    learning_rate: dict[str, float]
    layerwise_decay: dict[str, float]
    weight_decay: float
    layerwise_exponent: str
    reduction: str


_DECAY = {"small": 0.8, "base": 0.8, "large": 0.9}
RECIPES = {
    # Table 7 of the paper; it does not say how the loss is reduced.
    "paper": Recipe(
        {"small": 3e-4, "base": 1e-4, "large": 5e-5}, _DECAY, 0.0, "exact", "mean"
    ),
    # The defaults of the code that all published scores of the released models use.
    "code": Recipe(
        {"small": 1e-4, "base": 1e-4, "large": 5e-5}, _DECAY, 0.01, "original", "sum"
    ),
}


def encoder_size(hidden_size: int) -> str:
    """Which of the paper's sizes an encoder counts as: small, base or large."""
    if hidden_size >= 1024:
        return "large"
    return "base" if hidden_size >= 768 else "small"


def layerwise_multipliers(
    model: Any, decay: float, exponent: str = "exact"
) -> list[tuple[list, float]]:
    """Learning-rate factors of a `TaskModel`, for `AdamW(learning_rate_multipliers=)`.

    The head has factor 1. Below it, `exact` gives block k of n (counted from 0)
    decay ** (n - k) and the embeddings decay ** (n + 1), which is what the paper
    describes. `original` has one power more everywhere, which is what the code does:
    its numbering kept a place for a pooler that had been removed.

    Args:
        model: Has `encoder.variables_by_depth()` and `head`.
        decay: Factor per layer, in (0, 1].
        exponent: "exact" or "original".

    Raises:
        ValueError: `decay` or `exponent` is not allowed.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"decay is {decay}; it must be above 0, and 1 turns it off.")
    if exponent not in EXPONENTS:
        raise ValueError(
            f"exponent is {exponent!r}; allowed are {', '.join(EXPONENTS)}."
        )
    groups = model.encoder.variables_by_depth()
    skipped = EXPONENTS[exponent]
    factors = [
        (variables, decay ** (len(groups) - depth + skipped))
        for depth, variables in enumerate(groups)
    ]
    return [*factors, (model.head.trainable_variables, 1.0)]

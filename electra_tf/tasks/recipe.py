"""Layer-wise learning rates, and fine-tuning recipes of paper and original code."""

import dataclasses

from electra_tf.errors import UserError
from electra_tf.layers.weights import check_choice
from electra_tf.tasks.heads import TaskModel

EXPONENTS = {"exact": 0, "original": 1}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Fine-tuning hyperparameters, by ``encoder_size``; paper and code differ.

    Examples:
        >>> et.tasks.RECIPES["paper"].learning_rate["small"]
        0.0003
    """

    learning_rate: dict[str, float]
    layerwise_decay: dict[str, float]
    weight_decay: float
    layerwise_exponent: str
    reduction: str


_DECAY = {"small": 0.8, "base": 0.8, "large": 0.9}
RECIPES = {
    # Table 7 of the paper, which does not specify the reduction.
    "paper": Recipe(
        {"small": 3e-4, "base": 1e-4, "large": 5e-5}, _DECAY, 0.0, "exact", "mean"
    ),
    # Defaults of the original code, which produced the published scores.
    "code": Recipe(
        {"small": 1e-4, "base": 1e-4, "large": 5e-5}, _DECAY, 0.01, "original", "sum"
    ),
}


def encoder_size(hidden_size: int) -> str:
    """Returns the paper's size for a hidden size: "small", "base" or "large"."""
    if hidden_size >= 1024:
        return "large"
    return "base" if hidden_size >= 768 else "small"


def layerwise_multipliers(
    model: TaskModel, decay: float, exponent: str = "exact"
) -> list[tuple[list, float]]:
    """Returns learning-rate factors for ``AdamW(learning_rate_multipliers=)``.

    The head has factor 1. With "exact", as in the paper, block k of n (from 0) has
    decay ** (n - k) and the embeddings have decay ** (n + 1). "original", as in the
    code, has one more power throughout, for a pooler that was removed.

    Examples:
        >>> head = et.tasks.ClassificationHead(256, 2)
        >>> model = et.tasks.TaskModel(et.load("mini").encoder, head)
        >>> factors = et.tasks.layerwise_multipliers(model, decay=0.8)
        >>> [round(factor, 3) for _, factor in factors]  # embeddings, 4 blocks, head
        [0.328, 0.41, 0.512, 0.64, 0.8, 1.0]
    """
    if not 0 < decay <= 1:
        raise UserError(f"decay is {decay}; it must be above 0, and 1 turns it off.")
    check_choice("exponent", exponent, EXPONENTS)
    groups = model.encoder.variables_by_depth()
    top = len(groups) + EXPONENTS[exponent]
    factors = [(group, decay ** (top - depth)) for depth, group in enumerate(groups)]
    return [*factors, (model.head.trainable_variables, 1.0)]

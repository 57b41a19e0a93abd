"""Scores of predictors that use only token frequencies and base rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

# Suffix of the scores of copying visible tokens.
COPYING = "_copying"


def log_frequencies(counts: np.ndarray) -> np.ndarray:
    """Returns the log unigram distribution, float64 [V], from token counts [V].

    Add-one smoothing gives unseen tokens a probability above 0.
    """
    smoothed = np.asarray(counts, np.float64) + 1.0
    return np.log(smoothed / smoothed.sum())


def trivial_scores(
    counts: np.ndarray,
    batches: Iterable[Mapping[str, np.ndarray]],
    logs: Mapping[str, float],
    mask_id: int | None = None,
) -> dict[str, float]:
    """Returns the trivial score of each held-out metric in ``logs`` that has one.

    Args:
        counts: token counts [V] of the training text without special tokens.
        batches: the held-out batches.
        logs: the held-out metrics, which also have the base rates.
        mask_id: id of [MASK] if the generator reads masked text. Adds the scores of
            copying visible tokens, with the suffix COPYING.

    Raises ValueError if the training text has no tokens.
    """
    if counts.sum() == 0:
        raise ValueError("The training text has no tokens.")
    targets, shown = [], []
    for batch in batches:
        used = batch["masked_lm_weights"] > 0
        targets.append(batch["masked_lm_ids"][used])
        if mask_id is not None:
            read, where = batch["masked_input_ids"], batch["masked_lm_positions"]
            shown.append(np.take_along_axis(read, where, axis=1)[used])
    target = np.concatenate(targets)
    chances = np.exp(log_frequencies(counts))[target]
    right = target == np.argmax(counts)
    unigram = _likelihood(chances, right)
    predictors = {"": unigram}
    if mask_id is not None:
        # A visible token is the target with the rate at which visible tokens are; the
        # rest of the mass is the unigram distribution.
        token = np.concatenate(shown)
        visible, kept = token != mask_id, token == target
        rate = kept[visible].mean() if visible.any() else 0.0
        chances = np.where(visible, rate * kept + (1 - rate) * chances, chances)
        predictors[COPYING] = _likelihood(chances, np.where(visible, kept, right))
    values = {
        f"{prefix}_{score}{suffix}": value
        for prefix in ("generator", "masked_lm")
        for suffix, scores in predictors.items()
        for score, value in scores.items()
    }
    # Rate among the positions in the loss.
    everywhere = logs.get("replaced_fraction", 0.0)
    rate = logs.get("replaced_masked_fraction", everywhere)
    replaceable = logs.get("replaced_replaceable_fraction", rate)
    corrupted = logs.get("corrupted_fraction", 0.0)
    values |= {
        "discriminator_loss": entropy(rate),
        "discriminator_accuracy": max(rate, 1 - rate),
        "discriminator_auc": 0.5,
        "replaceable_loss": entropy(replaceable),
        "replaceable_auc": 0.5,
        "copy_auc": 0.5,
        "sentence_loss": entropy(corrupted),
        "sentence_accuracy": max(corrupted, 1 - corrupted),
        # Keeps a token with probability 1 - rate, else samples the unigram
        # distribution, ignoring samples that equal the token.
        "prediction_loss": entropy(rate) + rate * unigram["loss"],
        "prediction_accuracy": 1 - rate,
        "corrected_accuracy": 0.0,
    }
    return {n: x for n, x in values.items() if n.removesuffix(COPYING) in logs}


def entropy(rate: float) -> float:
    """Returns the entropy of a binary label in nats, the loss of the base rate."""
    rate = min(max(rate, 1e-12), 1 - 1e-12)
    return -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))


def _likelihood(chances: np.ndarray, right: np.ndarray) -> dict[str, float]:
    return {"loss": float(-np.log(chances).mean()), "accuracy": float(right.mean())}

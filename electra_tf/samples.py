"""Text samples: held-out rows, how they were corrupted, what the model made of it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from electra_tf.pretraining import PretrainingModel
from electra_tf.training.verdicts import verdict_table

_ROWS = 6


def text_sample(
    model: PretrainingModel, tokens: Sequence[str], dataset: tf.data.Dataset
) -> str:
    """Held-out rows: original, corrupted, and the answer on every token.

    Args:
        model: whose ``examine`` is asked.
        tokens: the vocabulary.
        dataset: held-out batches; rows of the first one are shown.
    """
    batch = next(iter(dataset))
    found = {"original_ids": batch["input_ids"], "input_mask": batch["input_mask"]}
    found |= model.examine(batch, seed=tf.constant([0, 0]))
    found = {name: value.numpy() for name, value in found.items()}
    tokens = np.array(tokens, dtype=object)
    (render,) = [r for name, r in _RENDERERS.items() if name in found] or [_fills]
    texts = []
    for row in range(min(_ROWS, len(found["input_mask"]))):
        real = found["input_mask"][row] > 0
        if real.any():
            texts.append(render(tokens, {k: v[row][real] for k, v in found.items()}))
    return "\n\n\n".join(texts) + "\n"


def _verdicts(tokens: np.ndarray, row: Mapping[str, np.ndarray]) -> str:
    return verdict_table(
        list(tokens[row["original_ids"]]),
        list(tokens[row["corrupted_ids"]]),
        probabilities=list(row["replaced_probability"]),
        is_masked=list(row["is_masked"]),
    )


def _fills(tokens: np.ndarray, row: Mapping[str, np.ndarray]) -> str:
    """The text with every masked token as [original -> most probable]."""
    columns = (row["original_ids"], row["corrupted_ids"], row["is_masked"])
    return " ".join(
        f"[{tokens[original]} -> {tokens[filled]}]" if masked else tokens[original]
        for original, filled, masked in zip(*columns, strict=True)
    )


def _predictions(tokens: np.ndarray, row: Mapping[str, np.ndarray]) -> str:
    """The text with its predictions, and how many of them are right.

    Masked tokens are shown as [original > sampled > predicted], others only if their
    prediction is wrong, as {original > predicted}.
    """
    right = row["predicted_ids"] == row["original_ids"]
    others = ~row["is_masked"]
    summary = f"; elsewhere: {(right & others).sum()} of {others.sum()} right"
    return _masked_predictions(tokens, row | {_MASKED: row["predicted_ids"]}) + summary


def _masked_predictions(tokens: np.ndarray, row: Mapping[str, np.ndarray]) -> str:
    """As ``_predictions``, of objectives that predict at masked positions only."""
    masked, predicted = row["is_masked"], row[_MASKED]
    elsewhere = row.get("predicted_ids", row["original_ids"])
    columns = (row["original_ids"], row["corrupted_ids"], predicted, elsewhere, masked)
    texts = [_prediction(tokens, *token) for token in zip(*columns, strict=True)]
    right = predicted == row["original_ids"]
    replaced = row["corrupted_ids"] != row["original_ids"]
    kept = masked & ~replaced
    text = textwrap.fill(" ".join(texts), 88, break_on_hyphens=False)
    return (
        f"{text}\nreplaced: {(right & replaced).sum()} of {replaced.sum()} corrected; "
        f"sampled right: {(right & kept).sum()} of {kept.sum()} confirmed"
    )


def _prediction(tokens, original, shown, predicted, elsewhere, is_masked):
    if is_masked:
        return f"[{tokens[original]} > {tokens[shown]} > {tokens[predicted]}]"
    if elsewhere != original:
        return f"{{{tokens[original]} > {tokens[elsewhere]}}}"
    return tokens[original]


_MASKED = "predicted_masked_ids"
# What a model's `examine` returns decides how it is shown.
_RENDERERS = {
    "replaced_probability": _verdicts,
    "predicted_ids": _predictions,
    _MASKED: _masked_predictions,
}

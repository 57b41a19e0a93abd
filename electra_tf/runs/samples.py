"""Renders samples of original text, corrupted text and predictions."""

import collections
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from electra_tf.pretraining import PretrainingModel

_ROWS = 6


def text_sample(
    model: PretrainingModel, tokens: Sequence[str], dataset: tf.data.Dataset
) -> str:
    """Renders rows of the first batch with the predictions of replaced tokens.

    Returns "" for a model that does not detect single tokens.
    """
    batch = next(iter(dataset))
    if not hasattr(model, "examine"):
        return ""
    found = model.examine(batch, seed=tf.constant([0, 0]))
    if "replaced_probability" not in found:
        return ""
    tokens, texts = np.array(tokens, dtype=object), []
    for number, real in enumerate(batch["input_mask"].numpy()[:_ROWS] > 0):
        row = {name: value.numpy()[number][real] for name, value in found.items()}
        if real.any():
            text = verdict_table(
                tokens[batch["input_ids"].numpy()[number][real]],
                tokens[row["corrupted_ids"]],
                probabilities=row["replaced_probability"],
                is_masked=row["is_masked"],
            )
            texts.append(text)
    return "\n\n\n".join(texts) + "\n"


# (replaced, predicted as replaced) -> (mark, meaning).
VERDICTS: Mapping[tuple[bool, bool], tuple[str, str]] = {
    (True, True): ("+", "found: replaced, and called replaced"),
    (True, False): ("-", "missed: replaced, but called real"),
    (False, True): ("!", "false alarm: real, but called replaced"),
    (False, False): (" ", "real, and called real"),
}


def verdict_table(
    original: Sequence[str],
    corrupted: Sequence[str],
    *,
    probabilities: Sequence[float],
    is_masked: Sequence[bool],
    width: int = 88,
) -> str:
    """Renders original and corrupted text with the discriminator's probabilities.

    Each token is a column. ``masked`` marks the positions filled by the generator.
    ``sampled`` shows sampled tokens that differ from the original, and = for equal
    ones. The last row is P(replaced) in %, after the mark of ``VERDICTS``. ``width`` is
    the number of columns to fill, without the row names.
    """
    names = ("original", "masked", "sampled", "P(replaced) %")
    columns, counts = [], collections.Counter()
    tokens = zip(original, corrupted, probabilities, is_masked, strict=True)
    for token, other, probability, masked in tokens:
        verdict = (token != other, bool(probability > 0.5))
        counts[verdict] += 1
        sampled = other if token != other else "=" if masked else ""
        score = f"{VERDICTS[verdict][0]}{100 * probability:.0f}"
        columns.append((token, "^" if masked else "", sampled, score))
    summary = (
        f"{counts[verdict]:4}  {mark}  {meaning}"
        for verdict, (mark, meaning) in VERDICTS.items()
    )
    return f"{wrapped(names, columns, width)}\n\n" + "\n".join(summary)


def wrapped(names: Sequence[str], columns: Iterable[Sequence[str]], width: int) -> str:
    """Renders columns with a cell per row name, in blocks of at most ``width``."""
    blocks, used = [], width
    for cells in columns:
        size = max(map(len, cells))
        if used + size > width:
            blocks.append([f"{name:>13} " for name in names])
            used = 0
        rows = zip(blocks[-1], cells, strict=True)
        blocks[-1] = [f"{row} {cell:<{size}}" for row, cell in rows]
        used += size + 1
    return "\n\n".join("\n".join(map(str.rstrip, rows)) for rows in blocks)

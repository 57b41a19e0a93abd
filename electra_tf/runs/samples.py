"""Renders samples of original text, corrupted text and predictions."""

import collections
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from electra_tf.pretraining import PretrainingModel

_ROWS = 6


def text_sample(
    model: PretrainingModel, tokens: Sequence[str], dataset: tf.data.Dataset
) -> str:
    """Renders rows of the first batch: original, corrupted and predicted tokens."""
    batch = next(iter(dataset))
    tensors = {"original_ids": batch["input_ids"], "input_mask": batch["input_mask"]}
    tensors |= model.examine(batch, seed=tf.constant([0, 0]))
    arrays = {name: value.numpy() for name, value in tensors.items()}
    tokens = np.array(tokens, dtype=object)
    texts = []
    for number in range(min(_ROWS, len(arrays["input_mask"]))):
        real = arrays["input_mask"][number] > 0
        row = {name: values[number][real] for name, values in arrays.items()}
        if real.any() and "replaced_probability" in row:
            texts.append(
                verdict_table(
                    tokens[row["original_ids"]],
                    tokens[row["corrupted_ids"]],
                    probabilities=row["replaced_probability"],
                    is_masked=row["is_masked"],
                )
            )
        elif real.any():
            texts.append(_predictions(tokens, row))
    return "\n\n\n".join(texts) + "\n"


def _predictions(tokens: np.ndarray, row: Mapping[str, np.ndarray]) -> str:
    """Renders masked tokens as [original > sampled > predicted].

    Other tokens appear as {original > predicted} if the prediction is wrong. A masked
    LM has no third token, and some objectives predict masked positions only.
    """
    original, sampled = row["original_ids"], row["corrupted_ids"]
    masked, everywhere = row["is_masked"], row.get("predicted_ids")
    columns = [original, sampled]
    if everywhere is not None or "predicted_masked_ids" in row:
        predicted = row["predicted_masked_ids"] if everywhere is None else everywhere
        columns.append(predicted)
    texts = list(tokens[original])
    for index, ids in enumerate(zip(*columns, strict=True)):
        if masked[index]:
            texts[index] = f"[{' > '.join(tokens[list(ids)])}]"
        elif everywhere is not None and ids[0] != ids[-1]:
            texts[index] = f"{{{tokens[ids[0]]} > {tokens[ids[-1]]}}}"
    return textwrap.fill(" ".join(texts), 88, break_on_hyphens=False)


class Verdict(NamedTuple):
    """Display of a discriminator's prediction."""

    mark: str
    meaning: str


# (replaced, predicted as replaced) -> verdict.
VERDICTS: Mapping[tuple[bool, bool], Verdict] = {
    (True, True): Verdict("+", "found: replaced, and called replaced"),
    (True, False): Verdict("-", "missed: replaced, but called real"),
    (False, True): Verdict("!", "false alarm: real, but called replaced"),
    (False, False): Verdict(" ", "real, and called real"),
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
    ones. The last row is P(replaced) in %, after a mark: + found, - missed, ! false
    alarm, none for a real token predicted as real.

    All sequences have one entry per token. ``width`` is the number of columns to fill,
    without the row names. The lines end in a summary.
    """
    names = ("original", "masked", "sampled", "P(replaced) %")
    columns, counts = [], collections.Counter()
    tokens = zip(original, corrupted, probabilities, is_masked, strict=True)
    for token, other, probability, masked in tokens:
        verdict = (token != other, bool(probability > 0.5))
        counts[verdict] += 1
        sampled = other if token != other else "=" if masked else ""
        score = f"{VERDICTS[verdict].mark}{100 * probability:.0f}"
        columns.append((token, "^" if masked else "", sampled, score))
    summary = (
        f"{counts[key]:4}  {verdict.mark}  {verdict.meaning}"
        for key, verdict in VERDICTS.items()
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

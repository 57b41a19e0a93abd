"""Renders samples of original text, corrupted text and predictions."""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Mapping, Sequence
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
    render = _verdicts if "replaced_probability" in arrays else _predictions
    texts = []
    for row in range(min(_ROWS, len(arrays["input_mask"]))):
        real = arrays["input_mask"][row] > 0
        if real.any():
            texts.append(render(tokens, {k: v[row][real] for k, v in arrays.items()}))
    return "\n\n\n".join(texts) + "\n"


def _verdicts(tokens: np.ndarray, row: Mapping[str, np.ndarray]) -> str:
    return verdict_table(
        list(tokens[row["original_ids"]]),
        list(tokens[row["corrupted_ids"]]),
        probabilities=list(row["replaced_probability"]),
        is_masked=list(row["is_masked"]),
    )


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
    cells = [
        _cell(*token)
        for token in zip(original, corrupted, probabilities, is_masked, strict=True)
    ]
    lines, used = [[]], 0
    for cell in cells:
        if lines[-1] and used + cell.width > width:
            lines.append([])
            used = 0
        lines[-1].append(cell)
        used += cell.width + 1
    blocks = [_block(line) for line in lines]
    counts = collections.Counter(cell.verdict for cell in cells)
    summary = (
        f"{counts[key]:4}  {verdict.mark}  {verdict.meaning}"
        for key, verdict in VERDICTS.items()
    )
    return "\n\n".join([*blocks, "\n".join(summary)])


class _Cell(NamedTuple):
    """The four rows of one token, its verdict, and its width in characters."""

    rows: tuple[str, str, str, str]
    verdict: tuple[bool, bool]
    width: int


def _cell(original: str, corrupted: str, probability: float, is_masked: bool) -> _Cell:
    is_replaced = original != corrupted
    verdict = (is_replaced, bool(probability > 0.5))
    score = f"{VERDICTS[verdict].mark}{100 * probability:.0f}"
    sampled = corrupted if is_replaced else ("=" if is_masked else "")
    rows = (original, "^" if is_masked else "", sampled, score)
    return _Cell(rows, verdict, max(map(len, rows)))


def _block(cells: Sequence[_Cell]) -> str:
    names = ("original", "masked", "sampled", "P(replaced) %")
    rows = []
    for index, name in enumerate(names):
        texts = [cell.rows[index].ljust(cell.width) for cell in cells]
        rows.append(f"{name:>13}  {' '.join(texts)}".rstrip())
    return "\n".join(rows)

"""Traps in the values: damaged, zero, or never trained."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from electra_tf.doctor.subject import (
    Finding,
    Subject,
    Tower,
    is_offset,
    is_scale,
    ok,
    part_of,
    problem,
    warning,
)

# A normal distribution cut at two standard deviations: largest value over the root
# mean square. The ratio stays when weight decay shrinks rows that get no gradient.
_CUT = 2 / 0.8796
# Fewer values than these do not tell a cut distribution from a whole one.
_LEAST_VALUES = 400
_LAST_ROWS = 8
# Standard deviation of a plain normal initializer, with room for chance.
_PLAIN = 0.021


def finite(subject: Subject) -> Iterator[Finding]:
    """NaN and infinity."""
    for tower in subject.towers.values():
        bad = [n for n, s in tower.statistics.items() if not s.is_finite]
        if bad:
            yield problem(
                f"{tower.name}: values that are not finite in {_some(bad)}",
                "The run diverged or the file is damaged. Go back to a checkpoint from "
                "before, and lower the learning rate (base and large: 2e-4).",
            )
        else:
            yield ok(f"{tower.name}: {len(tower.tensors)} tensors are finite")


def zeros(subject: Subject) -> Iterator[Finding]:
    """Kernels, tables and LayerNorm factors that are 0 everywhere."""
    for tower in subject.towers.values():
        bad = [
            name
            for name, statistics in tower.statistics.items()
            if statistics.is_zero and not is_offset(name)
        ]
        if bad:
            yield problem(
                f"{tower.name}: all zeros in {_some(bad)}",
                "They were never filled: an import that missed them, or a file that "
                "was written before its weights were there. Import or save again.",
            )
        elif tower.tensors:
            yield ok(f"{tower.name}: no kernel or table is zero")


def untrained(subject: Subject) -> Iterator[Finding]:
    """Parts whose biases are all 0 and whose LayerNorms are all 1, as at the start."""
    for tower in subject.towers.values():
        parts = _parts(tower)
        fresh = [part for part, is_fresh in parts.items() if is_fresh]
        if not fresh:
            yield ok(f"{tower.name}: all {len(parts)} parts have left their start")
            continue
        what = "nothing was ever trained" if len(fresh) == len(parts) else "untrained"
        yield problem(
            f"{tower.name}: {what}: {_some(fresh)} "
            f"(biases 0, LayerNorm 1; kernels have std {_spread(tower, fresh)}, those "
            "of --initializer_range=0.02 0.0176)",
            "These are initial values: the weights were not loaded, or the part was "
            "added afterwards. Take the checkpoint that has them.",
        )


def positions(subject: Subject) -> Iterator[Finding]:
    """Rows of the position table beyond the longest example of pretraining."""
    trained = subject.flags.get("max_seq_length")
    if subject.kind == "config" and trained:
        yield from _positions_of_config(trained, subject.flags["max_positions"])
        return
    for tower in subject.towers.values():
        table = tower.table("position_embeddings")
        if table is None or (tower.name == "encoder" and len(subject.towers) > 1):
            continue
        rows, first = len(table), untrained_rows(table)
        if first < rows:
            yield (problem if first == 0 else warning)(
                f"{tower.name}: rows {first} to {rows - 1} of {rows} look as "
                "initialised",
                f"Use it with at most {first or trained} tokens, or pretrain on longer "
                "sequences first.",
            )
        elif trained and trained < rows:
            yield warning(
                f"{tower.name}: pretraining had at most {trained} tokens, the table "
                f"has {rows} rows",
                f"Use it with at most {trained} tokens, or pretrain on longer "
                "sequences first.",
            )
        else:
            yield ok(f"{tower.name}: all {rows} rows are trained")


def _positions_of_config(trained, rows):
    if trained < rows:
        yield warning(
            f"examples have at most {trained} tokens, so rows {trained} to {rows - 1} "
            "of the position table stay untrained",
            f"Fine-tune with at most {trained} tokens, end with a phase of longer "
            f"sequences, or set --max_positions={trained}.",
        )
    else:
        yield ok(f"all {rows} positions occur in training")


def untrained_rows(table: np.ndarray) -> int:
    """First row from which on all look as initialised; the number of rows if none.

    Initial rows are equally large and do not resemble their neighbours, as trained
    ones do. Moreover those of a truncated normal (Google's code, Keras) have no value
    above 2.27 times their root mean square, a ratio that weight decay keeps; those of
    a plain normal (PyTorch) have a standard deviation of 0.02, or less by decay.

    Args:
        table: float32 [T, E].
    """
    count, size = table.shape
    last = table[-_LAST_ROWS:]
    if last.size < _LEAST_VALUES or not np.isfinite(table).all() or not last.any():
        return count
    scale = float(np.sqrt(np.mean(np.square(last))))
    slack = 1 + 4 / np.sqrt(2 * last.size)
    is_cut = np.abs(last).max() <= _CUT * scale * slack
    if _likeness(last, scale) > 4 or not (is_cut or scale <= _PLAIN):
        return count
    spread = np.sqrt(np.mean(np.square(table), axis=1)) / scale
    is_fresh = np.abs(spread - 1) <= 5 / np.sqrt(2 * size)
    if is_cut:
        is_fresh &= np.abs(table).max(axis=1) <= _CUT * scale * slack
    if not is_fresh[-_LAST_ROWS:].all():
        return count
    trained = np.flatnonzero(~is_fresh)
    return int(trained[-1]) + 1 if len(trained) else 0


def _likeness(rows, scale):
    """How much rows resemble their neighbours, in standard errors of noise."""
    products = rows[1:] * rows[:-1]
    return abs(np.mean(products)) / scale**2 * np.sqrt(products.size)


def _parts(tower: Tower) -> dict[str, bool]:
    """Whether each part with biases or LayerNorms is as at the start."""
    found: dict[str, bool] = {}
    for name, statistics in tower.statistics.items():
        part = part_of(name)
        if part == "pooler" or not (is_scale(name) or is_offset(name)):
            continue
        at_start = statistics.is_one if is_scale(name) else statistics.is_zero
        found[part] = found.get(part, True) and at_start
    return found


def _spread(tower, parts) -> str:
    kernels = [
        statistics.std
        for name, statistics in tower.statistics.items()
        if part_of(name) in parts and len(tower.tensors[name].shape) > 1
    ]
    if not kernels:
        return "?"
    low, high = f"{min(kernels):.3f}", f"{max(kernels):.3f}"
    return low if low == high else f"{low} to {high}"


def _some(names) -> str:
    names = list(names)
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more

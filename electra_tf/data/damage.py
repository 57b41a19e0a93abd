"""Records that were damaged on their way: named, counted, and skipped in their place.

A damaged record becomes one without tokens, which weighs nothing: so all others stay
in the batches they were in, and a run that met the damage can go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.data import paths, pipeline, records
from electra_tf.errors import UserError

_READ_AT_ONCE = 1000
_SHOWN = 3
_ERRORS = (tf.errors.OpError, UnicodeDecodeError)


def skip(
    given: Sequence[str],
    folder: files.AnyPath,
    *,
    vocab_size: int,
    max_seq_length: int,
    log: Log,
) -> tuple[dict[str, str], int]:
    """Reads all files; makes copies of those with damage in ``folder``.

    Returns the copy of each damaged file, and how many records are skipped in all.
    ``log`` is told which. Raises ValueError: no record at all is whole.
    """
    known = pipeline.known_counts(given, damaged=given)
    copies: dict[str, str] = {}
    skipped = left = 0
    for number, path in enumerate(given):
        limits = vocab_size, max_seq_length
        whole = _count_if_whole(path, *limits)
        if whole and whole >= known.get(path, 0):
            left += whole
            continue
        copy = Path(folder, f"{number}-{Path(path).name}")
        lost, total = _copy(path, copy, known.get(path, 0), *limits)
        copies[path] = str(copy)
        skipped += len(lost)
        left += total - len(lost)
        shown = ", ".join(f"{n}" for n in lost[:_SHOWN])
        more = ", ..." if len(lost) > _SHOWN else ""
        log(
            f"warning: {path} is damaged: {len(lost)} of {total} records are skipped "
            f"(number {shown}{more})"
        )
    if not left:
        raise UserError(
            f"None of the records in {len(given)} files is whole, {given[0]} first: "
            "copy the files again, or build the records again."
        )
    return copies, skipped


def _count_if_whole(path: str, vocab_size: int, max_seq_length: int) -> int:
    """Records of a file if all of them can be trained on, else 0."""
    count = 0
    try:
        for batch in tf.data.TFRecordDataset(path).batch(_READ_AT_ONCE):
            lengths = pipeline.parse_batch(batch, vocab_size).row_lengths().numpy()
            if lengths.max() > max_seq_length:
                return 0
            count += len(lengths)
        # TensorFlow takes a length that is cut off for the end of the file.
        return count if records.count_records(path) == count else 0
    except (*_ERRORS, ValueError):
        return 0


def _copy(
    path: str, copy: Path, count: int, vocab_size: int, max_seq_length: int
) -> tuple[list[int], int]:
    """Writes a copy without damage; (numbers of the lost records from 1, all)."""
    found = records.salvage(paths.read_bytes(path))
    # What the manifest counts and the file has no more; and no file is without records.
    found += [None] * (max(count, 1) - len(found))
    bad = set()
    for start in range(0, len(found), _READ_AT_ONCE):
        some = range(start, min(start + _READ_AT_ONCE, len(found)))
        bad.update(_unusable(found, some, vocab_size, max_seq_length))
    feature = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=[0]))
        for name in ("input_ids", "input_mask")
    }
    empty = tf.train.Example(features=tf.train.Features(feature=feature))
    nothing = empty.SerializeToString()
    with files.replacing(copy) as part, tf.io.TFRecordWriter(str(part)) as writer:
        for number, record in enumerate(found):
            writer.write(nothing if number in bad else record)
    return [number + 1 for number in sorted(bad)], len(found)


def _unusable(
    found: Sequence[bytes | None], some: range, vocab_size: int, max_seq_length: int
) -> Iterator[int]:
    """Numbers of the records among ``some`` that cannot be trained on."""
    there = [number for number in some if found[number] is not None]
    yield from (number for number in some if found[number] is None)
    if not there:
        return
    try:
        batch = tf.constant([found[number] for number in there])
        lengths = pipeline.parse_batch(batch, vocab_size).row_lengths().numpy()
        too_long = np.flatnonzero(lengths > max_seq_length)
        yield from (there[index] for index in too_long)
    except _ERRORS:
        if len(some) == 1:
            yield some[0]
            return
        for number in there:
            one = range(number, number + 1)
            yield from _unusable(found, one, vocab_size, max_seq_length)

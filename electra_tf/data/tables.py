"""Streaming readers of tables: CSV (RFC 4180), TSV (no quoting), JSON Lines, Parquet.

Readers yield the line number and the cells of each row by column name, and raise
ValueError with the line if a row is invalid.
"""

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from electra_tf import files
from electra_tf.errors import UserError

csv.field_size_limit(max(1 << 24, csv.field_size_limit()))
Rows = Iterator[tuple[int, dict[str, Any]]]


def csv_rows(lines: Iterable[str], path: str) -> Rows:
    """Reads CSV."""
    reader = csv.reader(lines, strict=True)
    try:
        rows = ((reader.line_num, cells) for cells in reader if cells)
        yield from _named(rows, path)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}.") from error


def tsv_rows(lines: Iterable[str], path: str) -> Rows:
    """Reads TSV."""
    rows = (
        (number, line.removesuffix("\n").removesuffix("\r").split("\t"))
        for number, line in enumerate(lines, 1)
        if "\t" in line or line.strip()
    )
    yield from _named(rows, path)


def _named(rows: Iterable[tuple[int, list[str]]], path: str) -> Rows:
    header: list[str] = []
    for line, cells in rows:
        if not header:
            header = cells
            if doubled := {name for name in header if header.count(name) > 1}:
                raise UserError(f"{path}: the header names {sorted(doubled)} twice.")
            continue
        if cells == header:
            raise UserError(f"{path}, line {line} repeats the header: delete it.")
        if len(cells) != len(header):
            raise UserError(
                f"{path}, line {line}: {len(cells)} cells, but the header has "
                f"{len(header)} columns ({listed(header)}): quote the separator in "
                "texts (CSV), or use JSON Lines."
            )
        yield line, dict(zip(header, cells, strict=True))


def json_rows(lines: Iterable[str], path: str) -> Rows:
    """Reads JSON Lines; skips blank lines."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = files.parse_json(line, f"{path}, line {number}")
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: must be a JSON object")
        yield number, row


READERS: dict[str, Callable[[Iterable[str], str], Rows]] = {
    ".csv": csv_rows,
    ".tsv": tsv_rows,
    ".jsonl": json_rows,
    ".json": json_rows,
    ".ndjson": json_rows,
}


def parquet_rows(file: BinaryIO, path: str, column: str | None = None) -> Rows:
    """Reads a column of a Parquet file, or all columns if it is missing."""
    import pyarrow
    from pyarrow import parquet

    try:
        if not file.seekable():
            file = io.BytesIO(file.read())
        table = parquet.ParquetFile(file)
        columns = [column] if column in table.schema_arrow.names else None
        batches = table.iter_batches(1024, columns=columns)
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
        yield from enumerate(rows, 1)
    # Arrow does not check whether strings are UTF-8.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None):
            raise
        raise UserError(f"{path}: not a whole Parquet file ({error}).") from error


def listed(names: Sequence[str]) -> str:
    """Joins names; escapes their line breaks, since errors have one line."""
    return ", ".join(json.dumps(name, ensure_ascii=False)[1:-1] for name in names)


def load_passive() -> tuple[tuple[list[str], list[str]], tuple[list[str], list[str]]]:
    """Returns English sentences and their voices, for training and for evaluation.

    Each of the two is (texts, labels). The sentences are from UD English EWT, CC BY-SA
    4.0; see ``samples/passive/README.md``.

    Examples:
        >>> (texts, labels), dev = et.data.load_passive()
        >>> len(texts), len(dev[0]), sorted(set(labels))
        (1266, 316, ['active', 'passive'])
    """
    splits = []
    for name in ("train.csv", "dev.csv"):
        path = Path(__file__).parent.parent / "samples" / "passive" / name
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        splits.append(([row["text"] for row in rows], [row["label"] for row in rows]))
    return tuple(splits)

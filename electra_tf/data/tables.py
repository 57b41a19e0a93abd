"""Streaming readers of tables: CSV, TSV, JSON Lines and Parquet.

CSV follows RFC 4180 (quotes, line breaks in quotes). TSV has no quoting. JSON Lines
have one object per line. Readers yield the line number and the cells of each row by
column name, and raise ValueError with the line if a row is invalid.
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
_SEPARATORS = {"\t": "tab", ";": "semicolon", ",": "comma"}
_ROWS_AT_ONCE = 1024


def csv_rows(lines: Iterable[str], path: str) -> Rows:
    """Reads CSV."""
    lines = iter(lines)
    first = next(lines, "")
    # Checked before parsing, which fails on quotes with another separator.
    _require_separator([first.rstrip("\r\n")] if "," not in first else [], path)
    reader = csv.reader(itertools.chain([first], lines), strict=True)
    try:
        header = _checked_header(next(reader, []), path)
        for cells in filter(None, reader):
            yield reader.line_num, _named(header, cells, reader.line_num, path)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}.") from error


def tsv_rows(lines: Iterable[str], path: str) -> Rows:
    """Reads TSV."""
    header: list[str] | None = None
    for number, line in enumerate(lines, 1):
        cells = line.removesuffix("\n").removesuffix("\r").split("\t")
        if header is None:
            header = _checked_header(cells, path)
        elif cells[1:] or line.strip():
            yield number, _named(header, cells, number, path)


def _require_separator(header: list[str], path: str) -> None:
    """Raises ValueError if the only column contains another separator."""
    for separator, name in _SEPARATORS.items():
        if len(header) == 1 and separator in header[0]:
            raise UserError(
                f"{path}: the header {header[0]!r} seems to be separated by {name}s, "
                "but .csv files are read as separated by commas, .tsv files by tabs. "
                "Save it as .csv, such as with pandas: read_csv(path, "
                f"sep={separator!r}).to_csv('new.csv', index=False)."
            )


def _checked_header(header: list[str], path: str) -> list[str]:
    _require_separator(header, path)
    if doubled := {name for name in header if header.count(name) > 1}:
        raise UserError(f"{path}: the header names {sorted(doubled)} twice.")
    return header


def _named(header: list[str], cells: list[str], line: int, path: str) -> dict[str, str]:
    if len(cells) != len(header):
        raise UserError(
            f"{path}, line {line}: {len(cells)} cells, but the header has "
            f"{len(header)} columns ({listed(header)}). A text that holds the "
            "separator must be quoted (CSV), or use JSON Lines."
        )
    return dict(zip(header, cells, strict=True))


def json_rows(lines: Iterable[str], path: str) -> Rows:
    """Reads JSON Lines; skips blank lines.

    A line ends with a line feed only, since strings may contain U+2028.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = files.parse_json(line, f"{path}, line {number}")
        if not isinstance(row, dict):
            raise UserError(
                f"{path}, line {number}: each line must be a JSON object such as "
                '{"text": "...", "label": "..."}.'
            )
        yield number, row


READERS: dict[str, Callable[[Iterable[str], str], Rows]] = {
    ".csv": csv_rows,
    ".tsv": tsv_rows,
    ".jsonl": json_rows,
    ".json": json_rows,
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
        batches = table.iter_batches(_ROWS_AT_ONCE, columns=columns)
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

    Each of the two is (texts, labels), with the labels "active" and "passive". The
    sentences are from UD English EWT, CC BY-SA 4.0; see ``samples/passive/README.md``.

    Examples:
        >>> (texts, labels), dev = et.data.load_passive()
        >>> len(texts), len(dev[0]), sorted(set(labels))
        (1266, 316, ['active', 'passive'])
    """
    folder = Path(__file__).parent.parent / "samples" / "passive"
    splits = []
    for path in (folder / "train.csv", folder / "dev.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for _, row in csv_rows(file, str(path))]
        splits.append(tuple([row[name] for row in rows] for name in ("text", "label")))
    return tuple(splits)

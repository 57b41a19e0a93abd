"""Readers of user tables (CSV, TSV, JSON Lines) and held-out splits.

CSV follows RFC 4180 (quotes, line breaks in quotes). TSV has no quoting. JSON Lines
have one object per line. Files with the suffix .gz are decompressed.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import difflib
import functools
import gzip
import io
import itertools
import json
import math
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra_tf import files
from electra_tf.errors import UserError
from electra_tf.tasks.base import Example

csv.field_size_limit(1 << 24)
# Rejects gzip bombs: text compresses far less.
_MOST_TIMES_UNPACKED, _SMALL_UNPACKED = 500, 1 << 28
# (line number, cells by column name) of each row.
Numbered = list[tuple[int, dict[str, Any]]]
_SEPARATORS = {"\t": "tab", ";": "semicolon", ",": "comma"}


@dataclasses.dataclass(frozen=True)
class Table:
    """A file's columns and rows."""

    path: str
    columns: tuple[str, ...]
    rows: Numbered


def read_text(path: str) -> str:
    """Reads a UTF-8 text file without its byte order mark.

    Raises ValueError if it is empty, binary or not UTF-8, OSError if unreadable.
    """
    raw = Path(path).read_bytes()
    if path.endswith(".gz"):
        raw = _unpacked(raw, path)
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in raw:
        raise UserError(
            f"{path}: it holds UTF-16 or binary data, not UTF-8. Save text as UTF-8, "
            "for example with: iconv -f utf-16 -t utf-8"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}: not UTF-8 at byte {error.start} (line {line}). Convert it, for "
            "example with: iconv -f latin1 -t utf-8"
        ) from error
    if not text.strip():
        raise UserError(f"{path}: the file is empty.")
    return text


def _unpacked(packed: bytes, path: str) -> bytes:
    most = max(_SMALL_UNPACKED, _MOST_TIMES_UNPACKED * len(packed))
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            raw = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be unpacked ({error}).") from error
    if len(raw) > most:
        raise UserError(
            f"{path}: {len(packed):,} bytes unpack to over {most:,}. Unpack the file "
            "first if it holds text."
        )
    return raw


def read_table(path: str) -> Table:
    """Reads a table in the format of its suffix."""
    kind = Path(path.removesuffix(".gz")).suffix
    if kind not in READERS:
        raise UserError(
            f"{path}: unknown kind of table {kind!r}; it must end in "
            f"{', '.join(READERS)} (or that with .gz)."
        )
    columns, rows = READERS[kind](read_text(path), path)
    if not rows:
        raise UserError(f"{path}: there is a header but not a single row.")
    return Table(path, tuple(columns), rows)


def _csv(text: str, path: str) -> tuple[list[str], Numbered]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    first = text.partition("\n")[0]
    try:
        # Checked before parsing, which fails on quotes with another separator.
        _require_separator([first] if "," not in first else [], path)
        header = next(reader)
        rows = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}.") from error
    return header, _named(header, rows, path)


def _tsv(text: str, path: str) -> tuple[list[str], Numbered]:
    header, *lines = text.removesuffix("\n").split("\n")
    header = header.removesuffix("\r").split("\t")
    numbered = ((n, line) for n, line in enumerate(lines, 2) if line.strip())
    rows = [(n, line.removesuffix("\r").split("\t")) for n, line in numbered]
    return header, _named(header, rows, path)


def _require_separator(header: list[str], path: str) -> None:
    """Raises ValueError if the only column contains another separator."""
    for separator, name in _SEPARATORS.items():
        if len(header) == 1 and separator in header[0]:
            raise UserError(
                f"{path}: the header {header[0]!r} seems to be separated by {name}s, "
                "but .csv files are read as separated by commas, .tsv files by tabs. "
                "Convert the file, or rename it."
            )


def _named(header: list[str], rows: list[tuple[int, list[str]]], path: str) -> Numbered:
    _require_separator(header, path)
    doubled = {name for name in header if header.count(name) > 1}
    if doubled:
        raise UserError(f"{path}: the header names {sorted(doubled)} twice.")
    for number, cells in rows:
        if len(cells) != len(header):
            raise UserError(
                f"{path}, line {number}: {len(cells)} cells, but the header has "
                f"{len(header)} columns ({_listed(header)}). A text that holds the "
                "separator must be quoted (CSV), or use JSON Lines."
            )
    return [(number, dict(zip(header, cells, strict=True))) for number, cells in rows]


def json_lines(text: str, path: str) -> tuple[list[str], Numbered]:
    """Parses JSON Lines into column names and numbered rows.

    Lines end with a line feed only, since strings may contain U+2028. Blank lines are
    skipped. Raises ValueError with the line number if a line is not a JSON object.
    """
    columns: dict[str, None] = {}
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        row = files.parse_json(line, f"{path}, line {number}")
        if not isinstance(row, dict):
            raise UserError(
                f"{path}, line {number}: each line must be a JSON object such as "
                '{"text": "...", "label": "..."}.'
            )
        columns.update(dict.fromkeys(row))
        rows.append((number, row))
    return list(columns), rows


READERS = {".csv": _csv, ".tsv": _tsv, ".jsonl": json_lines, ".json": json_lines}


def require_columns(table: Table, names: Sequence[str], flag: str) -> None:
    """Raises ValueError if a column is missing."""
    for name in names:
        if name not in table.columns:
            hint = did_you_mean(name, table.columns)
            raise UserError(
                f"{table.path} has no column {name!r}{hint}. Its columns are "
                f"{_listed(table.columns)}: change --{flag}. The first line must name "
                "the columns."
            )


def _listed(names: Sequence[str]) -> str:
    # Escapes newlines in quoted names: an error message has one line.
    return ", ".join(json.dumps(name, ensure_ascii=False)[1:-1] for name in names)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Returns " (did you mean 'label'?)" for the closest known name, or ""."""
    close = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSource:
    r"""Reads the splits of a user's task, one table each.

    ``text`` are one or two columns, and ``label`` is one. For "multilabel", ``label``
    is one column of labels joined with ``separator``, or one 0/1 column per label.
    ``kind`` is "classification", "multilabel" or "regression". Labels of ``unlabeled``
    splits are not read.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("dev.csv").write_text("text,label\nI liked it.,good\n")
        >>> source = et.tasks.TableSource(
        ...     files={"dev": "dev.csv"},
        ...     text=("text",),
        ...     label=("label",),
        ...     kind="classification",
        ... )
        >>> source("dev")[0].label
        'good'
    """

    files: Mapping[str, str]
    text: tuple[str, ...]
    label: tuple[str, ...]
    kind: str
    separator: str = "|"
    unlabeled: tuple[str, ...] = ("test",)

    def __call__(self, split: str) -> list[Example]:
        """Reads a split; raises ValueError with the line if the table is invalid."""
        if not self.files.get(split):
            raise FileNotFoundError(f"No file was given for {split}: set --{split}.")
        table = read_table(self.files[split])
        require_columns(table, self.text, "text")
        labeled = split not in self.unlabeled
        if labeled:
            require_columns(table, self.label, "label")
        examples = []
        for count, (line, row) in enumerate(table.rows):
            where = f"{table.path}, line {line}"
            texts = tuple(_text(row.get(name), name, where) for name in self.text)
            label = self._label(row, where) if labeled else None
            examples.append(Example(str(row.get("id", count)), texts, label))
        return examples

    def _label(self, row: dict, where: str) -> Any:
        if self.kind == "multilabel":
            return self._labels(row, where)
        value = row.get(self.label[0])
        if value is None or not str(value).strip():
            raise UserError(
                f"{where}: the label (column {self.label[0]}) is empty. Fill it in or "
                "remove the row; for texts to predict use --test."
            )
        if self.kind != "regression":
            return _name(value)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise UserError(
                f"{where}: the label {value!r} (column {self.label[0]}) is not a "
                "number; regression needs numbers, for names use --task=classification."
            )
        return number

    def _labels(self, row: dict, where: str) -> tuple[str, ...]:
        if len(self.label) > 1:
            return tuple(n for n in self.label if self._flag(row.get(n), n, where))
        parts = row.get(self.label[0])
        if not isinstance(parts, list):
            parts = _name("" if parts is None else parts).split(self.separator)
        return tuple(dict.fromkeys(filter(None, map(_name, parts))))

    def _flag(self, value: Any, name: str, where: str) -> bool:
        flag = str(value).strip().lower()
        if flag not in ("1", "0", "true", "false"):
            raise UserError(f"{where}: column {name} must be 0 or 1, got {value!r}.")
        return flag in ("1", "true")


def _name(value: Any) -> str:
    """Returns a label as a stripped string; integral floats of JSON lose ".0"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: column {name} must hold a text, got {value!r}.")
    return value


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Holds out an evaluation split, ``name``, from the training table.

    A random 1/``period`` of the examples is held out. Examples with the same
    ``context`` stay together. Other splits come from ``source``.
    """

    source: Callable[[str], list[Example]]
    name: str = "eval"
    period: int = 10

    def __call__(self, split: str) -> list[Example]:
        """Reads a split; raises ValueError if the table is too short."""
        if split not in ("train", self.name):
            return self.source(split)
        examples = self.whole
        # Questions on one paragraph form a group; other examples are single.
        groups: dict[Any, list[int]] = {}
        for index, example in enumerate(examples):
            groups.setdefault(getattr(example, "context", index), []).append(index)
        if len(examples) < 2 * self.period or len(groups) < 2:
            raise UserError(
                f"{len(examples)} training examples are too few to hold some out: "
                "give a table to evaluate on (--eval)."
            )
        order = list(groups.values())
        # Shuffled: tables are often sorted by label.
        random.Random(0).shuffle(order)
        held_out = order.pop(0)
        while len(held_out) < len(examples) // self.period and len(order) > 1:
            held_out += order.pop(0)
        chosen = held_out if split == self.name else itertools.chain(*order)
        return [examples[index] for index in sorted(chosen)]

    @functools.cached_property
    def whole(self) -> list[Any]:
        """The complete training table, including held-out examples."""
        return self.source("train")

"""The user's own data: CSV, TSV and JSON Lines, by column name.

CSV follows RFC 4180 (quotes, line breaks inside of quotes). TSV is split at tabs and
nothing else: a quotation mark is a character like any other. JSON Lines hold one object
per line. A name that ends in .gz is unpacked on the way.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import functools
import gzip
import io
import json
import math
import os
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from electra_tf.tasks.base import Example

csv.field_size_limit(1 << 30)
_SEPARATORS = {"\t": "tab", ";": "semicolon", ",": "comma"}


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of named cells.

    Attributes:
        path: Where they come from.
        columns: Names of the columns.
        rows: (line number, cells by name) of each row.
    """

    path: str
    columns: tuple[str, ...]
    rows: list[tuple[int, dict[str, Any]]]


def read_text(path: str) -> str:
    """A whole text file, without its byte order mark.

    Raises:
        ValueError: It is empty, binary, or not UTF-8.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        raw = file.read()
    if path.endswith(".gz"):
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: cannot be unpacked ({error}).") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: not UTF-8 at byte {error.start} (line {line}). Convert it, for "
            "example with: iconv -f latin1 -t utf-8"
        ) from error
    if not text.strip():
        raise ValueError(f"{path}: the file is empty.")
    return text


def read_table(path: str) -> Table:
    """Reads a table; the name says which kind it is.

    Raises:
        ValueError: The kind is unknown, the file is empty or damaged.
        OSError: It cannot be read.
    """
    name = path.removesuffix(".gz")
    kind = os.path.splitext(name)[1]
    if kind not in _READERS:
        raise ValueError(
            f"{path}: unknown kind of table {kind!r}; it must end in "
            f"{', '.join(_READERS)} (or that with .gz)."
        )
    columns, rows = _READERS[kind](read_text(path), path)
    if not rows:
        raise ValueError(f"{path}: there is a header but not a single row.")
    return Table(path, tuple(columns), rows)


def _csv(text: str, path: str):
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader)
        found = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}.") from error
    return header, _named(header, found, path)


def _tsv(text: str, path: str):
    header, *lines = text.removesuffix("\n").split("\n")
    header = header.removesuffix("\r").split("\t")
    found = [
        (number, line.removesuffix("\r").split("\t"))
        for number, line in enumerate(lines, 2)
        if line.strip()
    ]
    return header, _named(header, found, path)


def _named(header, found, path):
    # One column is none of a table with texts and labels: another program's habit.
    for separator, name in _SEPARATORS.items():
        if len(header) == 1 and separator in header[0]:
            raise ValueError(
                f"{path}: the header {header[0]!r} seems to be separated by {name}s, "
                "but .csv files are read as separated by commas, .tsv files by tabs. "
                "Convert the file, or rename it."
            )
    doubled = {name for name in header if header.count(name) > 1}
    if doubled:
        raise ValueError(f"{path}: the header names {sorted(doubled)} twice.")
    for number, cells in found:
        if len(cells) != len(header):
            raise ValueError(
                f"{path}, line {number}: {len(cells)} cells, but the header has "
                f"{len(header)} columns ({', '.join(header)}). A text that holds the "
                "separator must be quoted (CSV), or use JSON Lines."
            )
    return [(number, dict(zip(header, cells, strict=True))) for number, cells in found]


def _jsonl(text: str, path: str):
    columns: dict[str, None] = {}
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: {error}.") from error
        if not isinstance(row, dict):
            raise ValueError(
                f"{path}, line {number}: each line must be a JSON object such as "
                '{"text": "...", "label": "..."}.'
            )
        columns.update(dict.fromkeys(row))
        rows.append((number, row))
    return list(columns), rows


_READERS: dict[str, Callable[[str, str], tuple[list[str], list]]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _jsonl,
    ".json": _jsonl,
}


def require_columns(table: Table, names: Sequence[str], flag: str) -> None:
    """Checks that columns are there.

    Raises:
        ValueError: One is missing; the message lists those that exist.
    """
    for name in names:
        if name not in table.columns:
            close = difflib.get_close_matches(name, table.columns, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(
                f"{table.path} has no column {name!r}{hint}. Its columns are "
                f"{', '.join(table.columns)}: change --{flag}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSource:
    """Splits of a user's task: one table for each of them.

    Attributes:
        files: Path of each split.
        text: One or two columns with the texts.
        label: One column with the label, or, for several labels, one column with all
            of them or one column of 0 and 1 for each of them.
        kind: What labels are: "classification", "multilabel" or "regression".
        separator: What separates several labels in one cell.
        unlabeled: Splits whose labels are not read.
    """

    files: Mapping[str, str]
    text: tuple[str, ...]
    label: tuple[str, ...]
    kind: str
    separator: str = "|"
    unlabeled: tuple[str, ...] = ("test",)

    def __call__(self, split: str) -> list[Example]:
        """Reads a split.

        Raises:
            ValueError: A column is missing, a cell is empty, or a label is no number.
            FileNotFoundError: There is no file for it.
        """
        if not self.files.get(split):
            raise FileNotFoundError(f"No file was given for {split}: set --{split}.")
        table = read_table(self.files[split])
        require_columns(table, self.text, "text")
        labeled = split not in self.unlabeled
        if labeled:
            require_columns(table, self.label, "label")
        return list(self._examples(table, labeled))

    def _examples(self, table: Table, labeled: bool) -> Iterator[Example]:
        for count, (line, row) in enumerate(table.rows):
            where = f"{table.path}, line {line}"
            texts = tuple(_text(row.get(name), name, where) for name in self.text)
            label = self._label(row, where) if labeled else None
            yield Example(str(row.get("id", count)), texts, label)

    def _label(self, row: dict, where: str) -> Any:
        if self.kind == "multilabel":
            return self._labels(row, where)
        value = row.get(self.label[0])
        if value is None or not str(value).strip():
            raise ValueError(
                f"{where}: the label (column {self.label[0]}) is empty. Fill it in or "
                "remove the row; for texts to predict use --test."
            )
        return self._number(value, where) if self.kind == "regression" else _name(value)

    def _number(self, value: Any, where: str) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(
                f"{where}: the label {value!r} (column {self.label[0]}) is not a "
                "number; regression needs numbers, for names use --task=classification."
            )
        return number

    def _labels(self, row: dict, where: str) -> tuple[str, ...]:
        if len(self.label) > 1:
            return tuple(n for n in self.label if self._flag(row.get(n), n, where))
        value = row.get(self.label[0])
        if isinstance(value, list):
            parts = value
        else:
            parts = _name("" if value is None else value).split(self.separator)
        return tuple(dict.fromkeys(filter(None, map(_name, parts))))

    def _flag(self, value: Any, name: str, where: str) -> bool:
        flags = {"1": True, "0": False, "true": True, "false": False}
        if str(value).strip().lower() not in flags:
            raise ValueError(f"{where}: column {name} must be 0 or 1, got {value!r}.")
        return flags[str(value).strip().lower()]


def _name(value: Any) -> str:
    """A label as it is compared: without blanks around it; 1.0 in JSON is 1."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: column {name} must hold a text, got {value!r}.")
    return value


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Takes an evaluation split out of the training table: a random tenth.

    Attributes:
        source: Reads "train", and every other split.
        name: What the held-out split is called.
        period: One example in so many is held out.
    """

    source: Callable[[str], list[Example]]
    name: str = "eval"
    period: int = 10

    def __call__(self, split: str) -> list[Example]:
        """Reads a split.

        Raises:
            ValueError: The table is too short, or is not what it should be.
            FileNotFoundError: There is no file for it.
        """
        if split not in ("train", self.name):
            return self.source(split)
        examples = self.whole
        if len(examples) < 2 * self.period:
            raise ValueError(
                f"{len(examples)} training examples are too few to hold some out: "
                "give a table to evaluate on (--eval)."
            )
        order = list(range(len(examples)))
        # Tables are often sorted by label.
        random.Random(0).shuffle(order)
        cut = len(examples) // self.period
        chosen = order[:cut] if split == self.name else order[cut:]
        return [examples[index] for index in sorted(chosen)]

    @functools.cached_property
    def whole(self) -> list[Any]:
        """The training table, held-out examples included: it has all labels."""
        return self.source("train")

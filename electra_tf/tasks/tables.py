"""Readers of user tables (CSV, TSV, JSON Lines) and held-out splits."""

import codecs
import dataclasses
import functools
import io
import itertools
import json
import math
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from electra_tf.data import paths
from electra_tf.data.tables import READERS, listed
from electra_tf.errors import UserError, did_you_mean
from electra_tf.tasks.base import Example


@dataclasses.dataclass(frozen=True)
class Table:
    """A file's columns; ``rows`` have the line number and the cells by column."""

    path: str
    columns: tuple[str, ...]
    rows: list[tuple[int, dict[str, Any]]]


def read_text(path: str) -> str:
    """Reads a UTF-8 text file without its byte order mark.

    Raises ValueError if it is empty, binary or not UTF-8, OSError if unreadable.
    """
    with paths.open_unpacked(path) as file:
        raw = file.read()
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in raw:
        raise UserError(f"{path}: UTF-16 or binary data; save the text as UTF-8.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"{path}: not UTF-8 at byte {error.start} (line {line}); convert it."
        raise UserError(message) from error
    if not text.strip():
        raise UserError(f"{path}: the file is empty.")
    return text


# Patterns in the names of files, by split.
SPLITS = {"train": "train", "dev": "dev|valid|testa", "test": "test(?!a)"}


def find_files(folder: str, patterns: Mapping[str, str] = SPLITS) -> dict[str, str]:
    """Finds one file per split by its name; only that of train must exist."""
    by_split: dict[str, str] = {}
    for split, pattern in patterns.items():
        names = [n for n in sorted(os.listdir(folder)) if re.search(pattern, n.lower())]
        if len(names) > 1 or (split == "train" and not names):
            found = " and ".join(names) or "no file"
            raise UserError(
                f"{folder} has {found} for {split} ({pattern}): name the files with "
                "--train, --eval and --test."
            )
        if names:
            by_split[split] = os.path.join(folder, names[0])
    return by_split


def read_table(path: str) -> Table:
    """Reads a table in the format of its suffix."""
    kind = paths.suffix(path)
    if kind not in READERS:
        allowed = ", ".join(READERS)
        raise UserError(f"{path}: unknown kind of table {kind!r}; use {allowed}.")
    # A carriage return alone can end a line of CSV, but not of JSON.
    lines = io.StringIO(read_text(path), newline="" if kind == ".csv" else "\n")
    rows = list(READERS[kind](lines, path))
    if not rows:
        raise UserError(f"{path}: the table has a header but no rows.")
    columns = dict.fromkeys(itertools.chain.from_iterable(row for _, row in rows))
    return Table(path, tuple(columns), rows)


def require_columns(table: Table, names: Sequence[str], flag: str) -> None:
    """Raises ValueError if a column is missing."""
    for name in names:
        if name not in table.columns:
            raise UserError(
                f"{table.path} has no column {name!r}."
                f"{did_you_mean(name, table.columns)} Its columns are "
                f"{listed(table.columns)}: change --{flag}. The first line must name "
                "the columns."
            )


def finite(value: Any) -> float:
    """Returns a label as a number, NaN if it is not a finite one."""
    try:
        # Python reads 1_0 as 10.
        number = math.nan if "_" in str(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSource:
    r"""Reads the splits of a user's task, one table each.

    ``text`` are one or two columns, and ``label`` is one. For "multilabel", ``label``
    is one column of labels joined with ``separator``, or one 0/1 column per label.
    ``kind`` is that of the task. Labels of ``unlabeled`` splits are not read.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("dev.csv").write_text("text,label\nI liked it.,good\n")
        >>> options = {"text": ("text",), "label": ("label",), "kind": "classification"}
        >>> source = et.tasks.TableSource(files={"dev": "dev.csv"}, **options)
        >>> source("dev")[0].label
        'good'
    """

    files: Mapping[str, str]
    text: tuple[str, ...]
    label: tuple[str, ...]
    kind: str
    separator: str = "|"
    unlabeled: tuple[str, ...] = ("test",)

    def __post_init__(self) -> None:
        is_labeled = bool({*self.files} - {*self.unlabeled})
        if not self.separator or (is_labeled and not self.label):
            raise UserError("--label and --label_separator must not be empty.")
        if len(self.label) > 1 and self.kind != "multilabel":
            raise UserError(
                f"--label names {len(self.label)} columns ({', '.join(self.label)}), "
                f"but --task={self.kind} has one: use --task=multilabel."
            )
        columns = (*self.text, *self.label)
        if doubled := {name for name in columns if columns.count(name) > 1}:
            raise UserError(f"--text and --label name {sorted(doubled)} twice.")

    def __call__(self, split: str) -> list[Example]:
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
            texts = tuple(row.get(name) for name in self.text)
            for name, text in zip(self.text, texts, strict=True):
                if not isinstance(text, str):
                    raise UserError(
                        f"{where}: column {name} must hold a text, got {text!r}."
                    )
            label = self._label(row, where) if labeled else None
            examples.append(Example(str(row.get("id", count)), texts, label))
        return examples

    def _label(self, row: dict, where: str) -> Any:
        if self.kind == "multilabel":
            return self._labels(row, where)
        value = row.get(self.label[0])
        if value is None or not str(value).strip():
            raise UserError(
                f"{where}: the label (column {self.label[0]}) is empty; for texts to "
                "predict use --test."
            )
        if self.kind != "regression":
            return self._name(value, where)
        number = finite(value)
        if math.isnan(number):
            raise UserError(
                f"{where}: the label {value!r} is not a number; for names use "
                "--task=classification."
            )
        return number

    def _labels(self, row: dict, where: str) -> tuple[str, ...]:
        if len(self.label) > 1:
            return tuple(n for n in self.label if self._flag(row.get(n), n, where))
        # JSON Lines rows may lack columns.
        if self.label[0] not in row:
            raise UserError(f"{where}: no {self.label[0]}; without labels, write [].")
        parts = row[self.label[0]]
        if not isinstance(parts, list):
            text = "" if parts is None else self._name(parts, where)
            # Such as ['a'] or [1, 2], which pandas writes into CSV files.
            if re.match(r"""\[(['"]|[-\d.,\s]*\]$)""", text):
                raise UserError(
                    f"{where}: the labels {text} are a list in one string: join them "
                    f"with {self.separator} (--label_separator), or use JSON Lines."
                )
            parts = text.split(self.separator)
        names = (self._name(part, where) for part in parts)
        return tuple(dict.fromkeys(filter(None, names)))

    def _name(self, value: Any, where: str) -> str:
        """Returns a label as a stripped string; integral floats of JSON lose ".0"."""
        is_number = isinstance(value, float) and math.isfinite(value)
        if not is_number and not isinstance(value, str | int):
            shown, column = json.dumps(value)[:60], self.label[0]
            raise UserError(f"{where}: {shown} in column {column} is not a label.")
        return str(int(value) if is_number and value.is_integer() else value).strip()

    def _flag(self, value: Any, name: str, where: str) -> bool:
        flag = str(value).strip().lower()
        if flag not in ("1", "0", "true", "false"):
            raise UserError(f"{where}: column {name} must be 0 or 1, got {value!r}.")
        return flag in ("1", "true")


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Holds out a random 1/``period`` of the training examples as the split ``name``.

    Equal texts and questions on one context stay together; ``source`` has other splits.
    """

    source: Callable[[str], list[Example]]
    name: str = "eval"
    period: int = 10

    def __call__(self, split: str) -> list[Example]:
        if split not in ("train", self.name):
            return self.source(split)
        examples = self.whole
        groups: dict[Any, list[int]] = {}
        for index, example in enumerate(examples):
            texts = getattr(example, "texts", None) or getattr(example, "words", index)
            key = str(getattr(example, "context", texts))
            groups.setdefault(key, []).append(index)
        total = len(examples)
        if total < 2 * self.period or len(groups) < 2:
            raise UserError(f"{total} training examples are too few: set --eval.")
        order = list(groups.values())
        # Shuffled: tables are often sorted by label.
        random.Random(0).shuffle(order)
        # One group at least stays for training.
        sizes = itertools.accumulate(map(len, order[:-2]))
        count = 1 + sum(size < total // self.period for size in sizes)
        chosen = order[:count] if split == self.name else order[count:]
        return [examples[index] for index in sorted(itertools.chain(*chosen))]

    @functools.cached_property
    def whole(self) -> list[Any]:
        """The complete training table, including held-out examples."""
        return self.source("train")

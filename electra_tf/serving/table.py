"""Predicts and scores the rows of a table."""

import csv
import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from electra_tf import cli, files
from electra_tf.config.commands import PredictConfig
from electra_tf.errors import UserError
from electra_tf.tasks.tables import read_table, require_columns

_KINDS = (".csv", ".tsv", ".jsonl")


def predict_table(config: PredictConfig, predictor: Any) -> None:
    """Predicts every row of ``config.input`` and keeps its columns.

    The prefix "predicted_" is added to the name of a prediction until it is new.
    """
    target = Path(config.output) if config.output else None
    if target and target.suffix not in _KINDS:
        raise UserError(f"--output={target} must end in {', '.join(_KINDS)}.")
    files.check_new(target, overwrite=config.overwrite)
    table, names = read_table(config.input), predictor.text_names
    flags = _run_flags(config.model)
    own = tuple(flags.get("text") or ())
    fits = len(own) == len(names) and {*own} <= {*table.columns}
    columns = config.text or (own if fits else names)
    if len(columns) != len(names):
        raise UserError(
            f"--text={','.join(columns)} names {len(columns)} columns, but the model "
            f"reads {' and '.join(names)}: name {len(names)}."
        )
    require_columns(table, columns, "text")
    rows = [row for _, row in table.rows]
    texts = [
        {name: row.get(column) for name, column in zip(names, columns, strict=True)}
        for row in rows
    ]
    if empty := sum(not all(str(x or "").strip() for x in t.values()) for t in texts):
        cli.note(f"warning: {empty} of {len(texts)} rows have no text")
    progress = cli.Progress(len(texts), unit="text")
    answers: list[dict[str, Any]] = []
    for start in range(0, len(texts), config.batch_size):
        answers += predictor(texts[start : start + config.batch_size])
        progress.update(len(answers), "")
    progress.close()
    kind = target.suffix if target else ".jsonl"
    if kind != ".jsonl":
        separator = config.label_separator or flags.get("label_separator") or "|"
        rows = [_flat(row, separator) for row in rows]
        answers = [_flat(row, separator) for row in answers]
    taken = {*table.columns, *(name for row in rows for name in row)}
    for row, answer in zip(rows, answers, strict=True):
        for name, value in answer.items():
            while name in taken:
                name = f"predicted_{name}"
            row[name] = value
    # JSON can hold lone surrogates, UTF-8 cannot.
    text = _text(kind, rows).encode("utf-8", "replace").decode("utf-8")
    if target:
        files.write_text(target, text)
    else:
        sys.stdout.write(cli.visible(text))


def _run_flags(model: str) -> dict[str, Any]:
    """Returns the flags of a run's folder that are defaults of its predictions."""
    known = {"text": (None, tuple[str, ...]), "label_separator": str | None}
    shape = {"config": (None, known)}
    flags = files.read_json(Path(model) / "config.json", {}, shape=shape)
    return flags.get("config") or {}


def _text(kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if kind == ".jsonl":
        return "".join(files.to_json(row, ensure_ascii=False) + "\n" for row in rows)
    # JSON Lines rows may lack columns.
    header = list(dict.fromkeys(name for row in rows for name in row))
    cells = [header, *([row.get(name, "") for name in header] for row in rows)]
    if kind == ".csv":
        text = io.StringIO()
        for line in cells:
            # Python 3.11 does not quote carriage returns, which end a line for readers.
            quotes = any("\r" in cell for cell in line)
            quoting = csv.QUOTE_ALL if quotes else csv.QUOTE_MINIMAL
            csv.writer(text, lineterminator="\n", quoting=quoting).writerow(line)
        return text.getvalue()
    # Tabs and line breaks would break the table; each becomes one space.
    lines = ([re.sub(r"[\t\r\n]", " ", cell) for cell in line] for line in cells)
    return "".join("\t".join(line) + "\n" for line in lines)


def _flat(row: Mapping[str, Any], separator: str) -> dict[str, str]:
    cells: dict[str, str] = {}
    for name, value in row.items():
        kind = name.removeprefix("predicted_")
        if kind == "probabilities" and isinstance(value, dict):
            # A column of the input may hold other values than numbers.
            shares = {
                f"p({label})": f"{x:.6f}" if isinstance(x, int | float) else x
                for label, x in value.items()
            }
            cells |= _flat(shares, separator)
        elif kind == "labels" and isinstance(value, list):
            cells[name] = separator.join(map(str, value))
        elif isinstance(value, str | int | float) or value is None:
            cells[name] = "" if value is None else str(value)
        else:
            cells[name] = json.dumps(value, ensure_ascii=False)
    return cells

"""Predicts and scores the rows of a table."""

import csv
import io
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import cli, files
from electra_tf.config.commands import EvaluateConfig, PredictConfig
from electra_tf.errors import UserError
from electra_tf.tasks.tables import Table, TableSource, read_table, require_columns
from electra_tf.tasks.text import Classification, MultiLabel, Regression, TextTask

_KINDS = (".csv", ".tsv", ".jsonl")


def predict_table(config: PredictConfig, predictor: Any) -> None:
    """Predicts every row of ``config.input``; prints scores if labels are named.

    ``predictor`` is a ``Predictor``; its module imports this one. The output keeps all
    columns. The prefix "predicted_" is added to a prediction's name until it differs
    from all columns. Raises ValueError if columns are missing, or the table's labels
    are not labels of this model.
    """
    target = Path(config.output) if config.output else None
    if target and target.suffix not in _KINDS:
        raise UserError(
            f"--output={target} must end in {', '.join(_KINDS)}: rename it."
        )
    files.check_new(target, overwrite=config.overwrite)
    columns, table, answers = answer_table(config, predictor)
    rows = [row for _, row in table.rows]
    # Before writing, so that wrong labels leave no file.
    scores = score_table(config, columns, answers) if config.label else {}
    kind = target.suffix if target else ".jsonl"
    if kind != ".jsonl":
        separator = config.label_separator
        rows, answers = (
            [_flat(row, separator) for row in each] for each in (rows, answers)
        )
    columns = {*table.columns, *(name for row in rows for name in row)}
    predicted = [
        row | {_unused(name, columns): value for name, value in answer.items()}
        for row, answer in zip(rows, answers, strict=True)
    ]
    # JSON can hold lone surrogates, UTF-8 cannot.
    text = _text(kind, predicted).encode("utf-8", "replace").decode("utf-8")
    if target:
        files.write_text(target, text)
    else:
        sys.stdout.write(cli.visible(text))
    for name, value in scores.items():
        cli.note(f"{name} {value:.2f}")


def answer_table(
    config: PredictConfig | EvaluateConfig, predictor: Any
) -> tuple[tuple[str, ...], Table, list[dict[str, Any]]]:
    """Predicts every row of ``config.input``.

    Returns the names of the text columns, the table and the predictions.
    """
    table, names = read_table(config.input), predictor.text_names
    columns = config.text or names
    if len(columns) != len(names):
        raise UserError(
            f"--text={','.join(columns)} names {len(columns)} columns, but the model "
            f"reads {' and '.join(names)}: name {len(names)}."
        )
    require_columns(table, columns, "text")
    require_columns(table, config.label, "label")
    rows = [row for _, row in table.rows]
    texts = [
        {name: row.get(column) for name, column in zip(names, columns, strict=True)}
        for row in rows
    ]
    progress = cli.Progress(len(rows), unit="text")
    answers: list[dict[str, Any]] = []
    for start in range(0, len(rows), config.batch_size):
        answers += predictor(texts[start : start + config.batch_size])
        progress.update(len(answers), "")
    return columns, table, answers


def _unused(name: str, columns: Collection[str]) -> str:
    while name in columns:
        name = f"predicted_{name}"
    return name


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
    # Tabs and line ends in a cell would break the table.
    lines = ("\t".join(" ".join(str(x).split()) for x in line) for line in cells)
    return "".join(f"{line}\n" for line in lines)


def _flat(row: Mapping[str, Any], separator: str) -> dict[str, str]:
    cells: dict[str, str] = {}
    for name, value in row.items():
        if name in ("probabilities", "predicted_probabilities") and isinstance(
            value, dict
        ):
            # A column of the input may hold other values than numbers.
            shares = {
                f"p({label})": f"{x:.6f}" if isinstance(x, int | float) else x
                for label, x in value.items()
            }
            cells |= _flat(shares, separator)
        elif name in ("labels", "predicted_labels") and isinstance(value, list):
            cells[name] = separator.join(map(str, value))
        elif isinstance(value, str | int | float) or value is None:
            cells[name] = "" if value is None else str(value)
        else:
            cells[name] = json.dumps(value, ensure_ascii=False)
    return cells


def score_table(
    config: PredictConfig | EvaluateConfig,
    columns: Sequence[str],
    answers: Sequence[dict[str, Any]],
) -> dict[str, float]:
    """Computes the scores of predictions, as fine-tuning runs do.

    Raises UserError if the predictions cannot be compared with the labels.
    """
    task, predictions = _comparable(answers)
    source = TableSource(
        files={"eval": config.input},
        text=tuple(columns),
        label=config.label,
        kind=task.kind,
        separator=config.label_separator,
    )
    return task.score(predictions, source("eval"))


def _comparable(answers: Sequence[dict[str, Any]]) -> tuple[TextTask, np.ndarray]:
    first = answers[0]
    if "probabilities" in first and isinstance(first["probabilities"], dict):
        labels = tuple(first["probabilities"])
        if "label" in first:
            values = [list(answer["probabilities"].values()) for answer in answers]
            task = Classification(name="--input", source=None, labels=labels)
            return task, np.array(values, np.float32)
        # Labels predicted at the model's own threshold.
        given = [[label in answer["labels"] for label in labels] for answer in answers]
        task = MultiLabel(name="--input", source=None, labels=labels)
        return task, np.array(given, np.float32)
    if set(first) == {"score"}:
        task = Regression(name="--input", source=None)
        return task, np.array([answer["score"] for answer in answers], np.float32)
    raise UserError(
        "--label compares classes, labels and numbers of whole texts; this model "
        f"predicts {', '.join(first)}: use electra-tf predict without --label."
    )

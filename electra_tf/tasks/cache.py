"""Feature rows on disk, under a key that holds everything they depend on."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.tasks.base import Ragged, Rows, Task

_FORMAT = 1


def cache_key(
    task: Task,
    examples: Sequence[Any],
    tokenizer: Any,
    max_seq_length: int,
    *,
    training: bool,
) -> str:
    """A hash of task options, texts, labels, vocabulary, casing and length.

    Args:
        task: The task.
        examples: What is featurized; dataclasses, whose `repr` holds all they are.
        tokenizer: A `WordPiece`.
        max_seq_length: Most tokens of a row.
        training: Whether the rows are trained on.
    """
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    options = {
        "format": _FORMAT,
        "task": task.fingerprint(),
        "data": digest.hexdigest(),
        "vocabulary": tokenizer.vocabulary.sha256,
        "lower_case": tokenizer.lower_case,
        "strip_accents": tokenizer.strip_accents,
        "max_seq_length": max_seq_length,
        "training": training,
    }
    text = json.dumps(options, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def cached_rows(
    task: Task,
    examples: Sequence[Any],
    tokenizer: Any,
    max_seq_length: int,
    *,
    training: bool = False,
    folder: str | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Rows:
    """`task.featurize`, from `folder` if it was done before.

    Args:
        task: The task.
        examples: What to featurize.
        tokenizer: A `WordPiece`.
        max_seq_length: Most tokens of a row.
        training: Whether the rows are trained on.
        folder: Where rows are kept; None for nowhere.
        log: Told when rows are taken from the folder.
    """

    def fresh():
        return task.featurize(examples, tokenizer, max_seq_length, training=training)

    if folder is None:
        return fresh()
    key = cache_key(task, examples, tokenizer, max_seq_length, training=training)
    path = Path(folder, f"{task.name}-{key}.npz")
    try:
        rows = load_rows(path)
        log(f"tokenized before: {path}")
        return rows
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
        log(f"{path} is damaged and made anew")
    rows = fresh()
    save_rows(rows, path)
    return rows


def save_rows(rows: Rows, path: Path) -> None:
    """Writes rows; the file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"pad_id": np.array(rows.pad_id)}
    for name, column in rows.columns().items():
        if isinstance(column, Ragged):
            arrays[f"{name}:values"] = column.values
            arrays[f"{name}:splits"] = column.splits
        else:
            arrays[name] = column
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_rows(path: Path) -> Rows:
    """Reads what `save_rows` wrote.

    Raises:
        OSError, ValueError, KeyError, EOFError or BadZipFile: The file is missing or
            damaged.
    """
    with np.load(path, allow_pickle=False) as stored:
        columns = {}
        for name in stored.files:
            base, _, part = name.partition(":")
            if part == "values":
                columns[base] = Ragged(stored[name], stored[f"{base}:splits"])
            elif not part and base != "pad_id":
                columns[base] = stored[name]
        return Rows.from_columns(columns, int(stored["pad_id"]))

"""Feature rows on disk, under a key that holds everything they depend on."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.data.tokenizer import WordPiece
from electra_tf.tasks.base import Ragged, Rows, Task

_FORMAT = 1


def cache_key(
    task: Task,
    examples: Sequence[Any],
    tokenizer: WordPiece,
    max_seq_length: int,
    *,
    training: bool,
) -> str:
    """Hashes task options, texts, labels, vocabulary, casing and length.

    Examples are dataclasses, whose ``repr`` holds all they are.
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
    tokenizer: WordPiece,
    max_seq_length: int,
    *,
    training: bool = False,
    folder: str | None = None,
    log: Log = lambda line: None,
) -> Rows:
    """Does ``task.featurize``, or reads from ``folder`` what it gave before.

    ``log`` is told when rows are taken from the folder; None keeps them nowhere.
    """
    path = None
    if folder is not None:
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
    rows = task.featurize(examples, tokenizer, max_seq_length, training=training)
    if path is not None:
        save_rows(rows, path)
    return rows


def save_rows(rows: Rows, path: Path) -> None:
    """Writes rows; the file is there whole or not at all."""
    arrays = {"pad_id": np.array(rows.pad_id)}
    for name, column in rows.columns().items():
        if isinstance(column, Ragged):
            arrays[f"{name}:values"] = column.values
            arrays[f"{name}:splits"] = column.splits
        else:
            arrays[name] = column
    with files.open_new(path, "wb") as file:
        np.savez(file, **arrays)


def load_rows(path: Path) -> Rows:
    """Reads what ``save_rows`` wrote; a damaged file raises one of several errors."""
    with np.load(path, allow_pickle=False) as stored:
        columns = {}
        for name in stored.files:
            base, _, part = name.partition(":")
            if part == "values":
                columns[base] = Ragged(stored[name], stored[f"{base}:splits"])
            elif not part and base != "pad_id":
                columns[base] = stored[name]
        return Rows.from_columns(columns, int(stored["pad_id"]))

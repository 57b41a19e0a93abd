"""Flags of a fine-tuning run that its task does not read, and files that are missing.

A flag without effect is a misunderstanding, and better one before the training.
"""

from __future__ import annotations

import os

from electra_tf.finetune_config import FinetuneConfig, FinetuneDataConfig
from electra_tf.finetune_tasks import SQUAD, TAGGING
from electra_tf.tasks.glue_rows import ROWS

_FILES = ("train", "eval", "test")
_TABLES = ("classification", "multilabel", "regression")
_CLASSES = tuple(name for name, row in ROWS.items() if row.labels)
# Flags to the tasks that read them.
_READ_BY = {
    **dict.fromkeys(_FILES, (*_TABLES, *TAGGING, *SQUAD)),
    "data_dir": (*ROWS, *TAGGING, *SQUAD),
    **dict.fromkeys(("text", "label"), _TABLES),
    "label_separator": ("multilabel",),
    "label_range": ("regression",),
    "class_weights": ("classification", *_CLASSES, "documentation"),
}


def check(config: FinetuneConfig) -> None:
    """Looks at the flags and at the file system, and reads nothing.

    Raises:
        FileNotFoundError: A file of --train, --eval or --test does not exist.
        ValueError: The task does not read a flag that was given.
    """
    data, task = config.data, config.run.task
    for name in _FILES:
        given = getattr(data, name) or ""
        for path in given.split(",") if task in SQUAD else [given]:
            if path and not os.path.exists(path):
                raise FileNotFoundError(f"No file {path}: correct --{name}.")
    unset = FinetuneDataConfig()
    for name, tasks in _READ_BY.items():
        value = getattr(data, name)
        value = tuple(value) if isinstance(value, list) else value
        if value and value != getattr(unset, name) and task not in tasks:
            raise ValueError(
                f"--task={task} does not read --{name}: leave it out. It is for "
                f"{', '.join(tasks)}."
            )
    files = [f"--{name}" for name in _FILES if getattr(data, name)]
    if data.data_dir and files:
        raise ValueError(
            f"--data_dir and {', '.join(files)} exclude each other: name the folder, "
            "or all files with --train, --eval and --test."
        )
    if len(data.label) > 1 and task != "multilabel":
        raise ValueError(
            f"--label names {len(data.label)} columns ({', '.join(data.label)}), but "
            f"--task={task} has one: name one, or use --task=multilabel."
        )

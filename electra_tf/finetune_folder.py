"""The folder of a fine-tuning run: who may write to it, and what is in it.

A file is the run's own only if its whole name is: a user's notes stay where they are.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from electra_tf import config as config_lib
from electra_tf.finetune_config import FinetuneConfig
from electra_tf.finetune_report import RESULTS, write_json
from electra_tf.overwrite import remove
from electra_tf.tasks import plots
from electra_tf.tasks.base import Task
from electra_tf.tasks.glue_rows import ROWS

_SPLITS = {"dev", "eval", "test"}.union(*(row.files for row in ROWS.values()))
_PREDICTIONS = (
    "predictions{}.tsv",
    "predictions{}.conll",
    "predictions{}.json",
    "nbest_predictions{}.json",
    "null_odds{}.json",
)
OUTPUTS = (
    RESULTS,
    "config.json",
    "task.json",
    "metrics.jsonl",
    "labels.txt",
    "vocab.txt",
    "model.keras",
    "model.tflite",
    "model.onnx",
    "saved_model",
    "submission",
    *plots.FILES,
    *(
        name.format(suffix)
        for name in _PREDICTIONS
        for suffix in ("", *(f"_{split}" for split in sorted(_SPLITS)))
    ),
)


def check_output(output_dir: str, task: str, *, overwrite: bool) -> None:
    """Refuses a folder that holds something else, or a finished run.

    Raises:
        ValueError: The folder must not be written to.
    """
    folder = Path(output_dir)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output_dir={folder} is a file: name a folder.")
    if (folder / "encoder.keras").exists():
        raise ValueError(
            f"{folder} holds a pretraining run: set --output_dir to another folder."
        )
    known = folder / "task.json"
    if not known.exists():
        _check_foreign(folder, overwrite)
        return
    try:
        other = json.loads(known.read_text("utf-8")).get("task")
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{known} is damaged ({error}): set --output_dir to another folder."
        ) from error
    if other != task and not overwrite:
        raise ValueError(
            f"{folder} holds a run of another task, {other!r}, not {task!r}: set "
            "--output_dir to another folder, or pass --overwrite."
        )
    if (folder / RESULTS).exists() and not overwrite:
        raise ValueError(
            f"{folder} holds a finished run: pass --overwrite to replace it, or set "
            "--output_dir to another folder."
        )


def _check_foreign(folder, overwrite):
    """Refuses files that the run would replace and no run has written."""
    found = sorted(name for name in OUTPUTS if (folder / name).exists())
    if found and not overwrite:
        raise ValueError(
            f"{folder} holds no fine-tuning run, but {', '.join(found[:5])}: set "
            "--output_dir to another folder, or pass --overwrite."
        )


def new_folder(config: FinetuneConfig, task: Task, settings: Any, start: Any) -> Path:
    """Makes the folder, without what an earlier run left, and describes the run.

    Args:
        config: The run.
        task: Its task, prepared.
        settings: `finetune_build.Settings`.
        start: `finetune_build.Pretrained`.

    Returns:
        The folder; it holds task.json, config.json, vocab.txt and labels.txt.
    """
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    remove(folder, OUTPUTS)
    tokenizer = start.tokenizer
    described = task.to_json() | {
        "max_seq_length": settings.max_seq_length,
        "lower_case": tokenizer.lower_case,
        "strip_accents": tokenizer.strip_accents,
        "vocabulary_sha256": tokenizer.vocabulary.sha256,
    }
    write_json(folder / "task.json", described)
    packages = ("tensorflow", "keras", "tensorflow-text", "numpy")
    write_json(
        folder / "config.json",
        {
            "config": config_lib.to_flat(config),
            "settings": settings.__dict__,
            "versions": {name: importlib.metadata.version(name) for name in packages},
        },
    )
    tokenizer.vocabulary.save(folder / "vocab.txt")
    if described.get("labels"):
        lines = "".join(f"{label}\n" for label in described["labels"])
        (folder / "labels.txt").write_text(lines, "utf-8")
    return folder

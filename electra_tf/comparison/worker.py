"""Pretrains a system with one seed and probes its encoder, in its own process.

The process exits when stdin closes: its parent is dead. The same job resumes a run.
"""

import functools
import gc
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras

from electra_tf import cli, files
from electra_tf.comparison.plan import Job
from electra_tf.comparison.store import ENCODER, Row, identity
from electra_tf.config import fields
from electra_tf.config.commands import ScoreConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import PretrainingFolder
from electra_tf.runs import finetuning, pretraining, scores
from electra_tf.training.sinks import EVAL_PREFIX, TRIVIAL_PREFIX

_WORK_FILES = ("checkpoints", "tensorboard")


def run(job: Job, emit: Callable[[Row], None]) -> int:
    """Emits a row per part of a job; returns 0, or ``cli.STOPPED`` after a signal."""
    for part in job["parts"]:
        start, is_run = time.monotonic(), part["kind"] == "pretrain"
        # Earlier models leave memory and a global dtype policy behind.
        keras.backend.clear_session()
        gc.collect()
        keras.mixed_precision.set_global_policy("float32")
        try:
            if is_run:
                row = _pretrained(job, part)
            elif part["command"] == "score":
                row = _paired(job, part)
            else:
                row = _finetuned(job, part)
        except Exception as error:  # A failure must not stop other runs.
            traceback.print_exception(error)
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0][:500]
            row = {"failure": text}
        if row is None:
            return cli.STOPPED
        emit({**identity(part), **row, "seconds": round(time.monotonic() - start, 2)})
        if is_run and "failure" in row:
            return 0
        # After the row is written: without these files, an unfinished run starts anew.
        for name in _WORK_FILES if is_run else ():
            files.remove(Path(job["folder"], name))
    return 0


def _pretrained(job: Job, part: Mapping[str, Any]) -> Row | None:
    config = fields.from_flat(part["config"], PretrainConfig)
    home = PretrainingFolder(Path(job["folder"]))
    if not home.has_checkpoint():
        # The row of a finished run is missing: it starts anew.
        home.delete(["encoder.keras"])
    if pretraining.run(config, cli.note) == cli.STOPPED:
        return None
    done, steps = max(row["step"] for row in home.metrics()), config.run.num_train_steps
    if done < steps:
        raise UserError(f"a callback stopped the run after step {done}")
    per_step = config.run.train_batch_size * config.data.max_seq_length
    held_out, trivial = home.held_out(), home.held_out(TRIVIAL_PREFIX)
    return {
        "steps": steps,
        "flops": job["flops"],
        "train_seconds": training_seconds(home.metrics(), per_step),
        "held_out": {n.removeprefix(EVAL_PREFIX): x for n, x in held_out.items()},
        "trivial": {n.removeprefix(TRIVIAL_PREFIX): x for n, x in trivial.items()},
    }


def training_seconds(rows: list[Row], tokens_per_step: int) -> float:
    """Sums the time in training steps over all processes of a run, from its metrics."""
    seconds, previous = 0.0, 0
    for row in rows:
        if any(name.startswith(EVAL_PREFIX) for name in row):
            # An evaluation row may lie within a window of steps.
            continue
        if row.get("tokens_per_second"):
            done = (row["step"] - previous) * tokens_per_step
            seconds += done / row["tokens_per_second"]
        previous = row["step"]
    return seconds


def _paired(job: Job, part: Mapping[str, Any]) -> Row:
    config = fields.from_flat(part["config"] | {"model": job["folder"]}, ScoreConfig)
    report = scores.score_pairs(config, cli.note)
    score, _, _ = report[scores.ALL][scores.ALL][config.by]
    return {
        "metric": f"accuracy by the {config.by} of {report['method']}",
        "score": score,
        "scores": [score],
        "baseline": scores.CHANCE,
        "failed_seeds": [],
    }


def _finetuned(job: Job, part: Mapping[str, Any]) -> Row | None:
    folder = Path(job["folder"], "probes", "1", part["probe"])
    config = part["config"] | {
        "encoder": str(Path(job["folder"], ENCODER)),
        "output_dir": str(folder),
        "overwrite": True,
        "export_saved_model": False,
    }
    report = finetuning.run(fields.from_flat(config, FinetuneConfig), cli.note)
    if report is None:
        return None
    split, metric = report["main_split"], report["main_metric"]
    files.remove(folder / "model.keras")
    summary = report["summary"][split][metric]
    return {
        "metric": f"{split} {metric}",
        "score": summary["mean"],
        "scores": [seed["scores"][split][metric] for seed in report["seeds"]],
        "baseline": summary["baseline"],
        "failed_seeds": report["failed_seeds"],
    }


def main() -> int:
    """Runs the job from stdin."""
    job = json.loads(sys.stdin.buffer.readline())

    def end_with_parent() -> None:
        # Returns once the parent is dead. Reading sys.stdin would hold a lock that
        # Python needs at exit, and a finished job would abort.
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    return run(job, functools.partial(files.append_json_line, job["results"]))


if __name__ == "__main__":
    sys.exit(main())

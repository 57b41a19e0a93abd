"""Pretrains a system with one seed and probes its encoders, in its own process.

Reads a job (a line of JSON) from stdin and appends a row to the results for each
finished part. The process exits when stdin closes, since its parent is dead then. The
same job resumes a stopped run.
"""

from __future__ import annotations

import dataclasses
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
from electra_tf.comparison.store import ENCODER, Row, encoder_folder
from electra_tf.config import fields
from electra_tf.config.commands import ScoreConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.folders.pretraining import PretrainingFolder
from electra_tf.pretraining import PretrainingModel
from electra_tf.runs import finetuning, minimal_pairs, pretraining
from electra_tf.systems import build
from electra_tf.training.callbacks import StepCallback
from electra_tf.training.sinks import EVAL_PREFIX, TRIVIAL_PREFIX

Emit = Callable[[Row], None]
_WORK_FILES = ("checkpoints", "tensorboard")


class EncoderAt(StepCallback):
    """Saves models, vocabulary and config in ``folders``, by step; the encoder last.

    Must precede the checkpoint callback: a resumed run does not repeat the steps before
    its checkpoint, so their encoders must be saved already.
    """

    def __init__(self, folders: Mapping[int, Path], run_folder: Path, first_step: int):
        super().__init__(first_step=first_step)
        self._folders = folders
        self._run_folder = run_folder

    def after_step(self, previous: int, step: int, logs: Mapping[str, Any]) -> None:
        """Saves at the due steps since the last call."""
        for due in range(previous + 1, step + 1):
            if due in self._folders:
                home = PretrainingFolder(self._folders[due])
                if home.path != self._run_folder:
                    PretrainingFolder(self._run_folder).copy_description(home)
                _save(home, self.model)


def _save(home: PretrainingFolder, model: PretrainingModel) -> None:
    models = model.artifacts()
    home.save(dict(sorted(models.items(), key=lambda named: named[0] == "encoder")))


def run(job: Job, emit: Emit) -> int:
    """Runs a job of ``plan.jobs`` and emits a row per part; continues after failures.

    Returns 0, or ``cli.STOPPED`` after a signal.
    """
    about = {"system": job["system"], "seed": job["seed"]}
    if job["pretrain"]:
        make = _untrained if job["is_untrained"] else _pretrained
        try:
            row = make(job)
        except Exception as error:  # A failure must not stop other runs.
            emit({"kind": "pretrain", **about, "failure": _failure(error)})
            return 0
        if row is None:
            return cli.STOPPED
        emit({"kind": "pretrain", **about, **row})
        if job["keep"] != "all":
            for name in _WORK_FILES:
                files.remove(Path(job["folder"], name))
    for probe in job["probes"]:
        part = {"kind": "probe", **about}
        part |= {"point": probe["point"], "probe": probe["name"]}
        try:
            row = _probed(job, probe)
        except Exception as error:
            row = {"failure": _failure(error)}
        if row is None:
            return cli.STOPPED
        emit({**part, **row})
    if job["keep"] == "results":
        files.remove(job["folder"])
    return 0


def _failure(error: Exception) -> str:
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:500]


def _pretrained(job: Job) -> Row | None:
    config = fields.from_flat(job["pretrain"], PretrainConfig)
    folder = Path(job["folder"])
    steps = config.run.num_train_steps
    points = [point for point in job["points"] if point < 1]
    folders = {round(point * steps): encoder_folder(folder, point) for point in points}

    def saving(first_step: int) -> list[keras.callbacks.Callback]:
        return [EncoderAt(folders, folder, first_step)]

    code = pretraining.run(config, cli.note, saving)
    encoders = [place / ENCODER for place in folders.values()]
    if code != cli.STOPPED and not all(encoder.exists() for encoder in encoders):
        # The run is past a new point, so only a restart can save its encoder.
        again = dataclasses.replace(config.run, overwrite=True)
        config = dataclasses.replace(config, run=again)
        code = pretraining.run(config, cli.note, saving)
    if code == cli.STOPPED:
        return None
    home = PretrainingFolder(folder)
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


def _untrained(job: Job) -> Row:
    config = fields.from_flat(job["pretrain"], PretrainConfig)
    home = PretrainingFolder(Path(job["folder"]))
    words = build.pretraining_data(config, cli.note).vocabulary
    model = build.compiled_model(config, len(words), build.special_ids(words))
    home.describe({"config": dict(job["pretrain"])}, words)
    _save(home, model)
    nothing = dict.fromkeys(job["flops"], 0.0)
    return {"steps": 0, "flops": nothing, "train_seconds": 0.0, "held_out": {}}


def _probed(job: Job, probe: Mapping[str, Any]) -> Row | None:
    # Earlier models leave memory and a global dtype policy behind.
    keras.backend.clear_session()
    gc.collect()
    keras.mixed_precision.set_global_policy("float32")
    return (_paired if probe["kind"] == "pairs" else _finetuned)(job, probe)


def _paired(job: Job, probe: Mapping[str, Any]) -> Row:
    folder = encoder_folder(job["folder"], probe["point"])
    config = fields.from_flat(probe["config"] | {"model": str(folder)}, ScoreConfig)
    report = minimal_pairs.run(config, cli.note)
    score, _, _ = report[minimal_pairs.ALL][minimal_pairs.ALL][config.by]
    return {
        "task": "minimal pairs",
        "metric": f"accuracy by the {config.by} of {report['method']}",
        "score": score,
        "scores": [score],
        "baseline": minimal_pairs.CHANCE,
        "failed_seeds": [],
    }


def _finetuned(job: Job, probe: Mapping[str, Any]) -> Row | None:
    folder = Path(job["folder"], "probes", f"{probe['point']:g}", probe["name"])
    config = probe["config"] | {
        "encoder": str(encoder_folder(job["folder"], probe["point"]) / ENCODER),
        "output_dir": str(folder),
        "overwrite": True,
        "export_saved_model": False,
    }
    report = finetuning.run(fields.from_flat(config, FinetuneConfig), cli.note)
    if report is None:
        return None
    split, metric = report["main_split"], report["main_metric"]
    if job["keep"] != "all":
        files.remove(folder / "model.keras")
    summary = report["summary"][split][metric]
    return {
        "task": report["task"],
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
    start = time.monotonic()

    def emit(row: Row) -> None:
        nonlocal start
        now = time.monotonic()
        row = row | {"seconds": round(now - start, 2), "time": round(time.time(), 2)}
        files.append_json_line(job["results"], row)
        start = now

    return run(job, emit)


if __name__ == "__main__":
    sys.exit(main())

"""One run in a process of its own: pretrain a system with one seed, probe its encoders.

Reads a job (one line of JSON) from stdin and writes a line of JSON to stdout for
whatever is finished; everything else that is printed goes to stderr. When stdin closes,
its parent is gone, and the process ends at once. A run that was stopped goes on where
it was when it gets the same job again.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras

from electra_tf import build, finetune, pretrain, results
from electra_tf import config as config_lib
from electra_tf.config import PretrainConfig
from electra_tf.finetune_config import FinetuneConfig
from electra_tf.training.callbacks import StepCallback
from electra_tf.training.sinks import EVAL_PREFIX, read_metrics

Emit = Callable[[dict[str, Any]], None]
ENCODER = "encoder.keras"
_POINTS, _PROBES = "points", "probes"
# What a resumed run needs, and nothing else does.
_WORK_FILES = ("checkpoints", "tensorboard")


def encoder_folder(run_folder: str | os.PathLike, point: float) -> Path:
    """Where the encoder of a point is: beside the run's files at the end, else below.

    Args:
        run_folder: of the run.
        point: share of the run, in (0, 1].
    """
    folder = Path(run_folder)
    return folder if point == 1 else folder / _POINTS / f"{point:g}"


class EncoderAt(StepCallback):
    """Saves the encoder at some steps, each whole or not at all.

    Must come before the callback that saves checkpoints: then whatever a resumed run
    does not pass again was saved.

    Args:
        folders: step -> folder, which also gets the run's vocabulary and config.
        run_folder: where these are.
        first_step: steps done before this ``fit``.
    """

    def __init__(self, folders: Mapping[int, Path], run_folder: Path, first_step: int):
        super().__init__(first_step=first_step)
        self._folders = folders
        self._run_folder = run_folder

    def after_step(self, previous, step, logs):
        """Saves at each step that was asked for."""
        for due in range(previous + 1, step + 1):
            if due in self._folders:
                encoder = self.model.artifacts()["encoder"]
                _save_encoder(encoder, self._folders[due], self._run_folder)


def _save_encoder(encoder: keras.Model, folder: Path, described_in: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("vocab.txt", "config.json"):
        if folder != described_in:
            shutil.copyfile(described_in / name, folder / name)
    part = folder / f"part-{ENCODER}"
    encoder.save(part)
    os.replace(part, folder / ENCODER)


def run(job: Mapping[str, Any], emit: Emit) -> int:
    """Does the job; every failure is emitted, none ends it but a signal.

    Args:
        job: of ``jobs.make``.
        emit: receives a line for each finished or failed part.

    Returns:
        0, or ``pretrain.EXIT_STOPPED`` after a signal.
    """
    about = {"system": job["system"], "seed": job["seed"]}
    if job["pretrain"]:
        make = _untrained if job["is_untrained"] else _pretrained
        try:
            stopped, row = make(job)
        except Exception as error:  # Whatever it is, the other runs go on.
            traceback.print_exc()
            emit({"kind": "pretrain", **about, "failure": _line(error)})
            return 0
        if stopped:
            return pretrain.EXIT_STOPPED
        emit({"kind": "pretrain", **about, **row})
        if job["keep"] != "all":
            for name in _WORK_FILES:
                shutil.rmtree(Path(job["folder"]) / name, ignore_errors=True)
    for probe in job["probes"]:
        what = {"kind": "probe", **about}
        what |= {"point": probe["point"], "probe": probe["name"]}
        try:
            emit({**what, **_probed(job, probe)})
        except Exception as error:
            traceback.print_exc()
            emit({**what, "failure": _line(error)})
    if job["keep"] == "results":
        shutil.rmtree(job["folder"], ignore_errors=True)
    return 0


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:500]


def _pretrained(job) -> tuple[bool, dict[str, Any]]:
    """Whether a signal stopped it, and the run's numbers."""
    config = config_lib.from_flat(job["pretrain"], PretrainConfig)
    folder = Path(job["folder"])
    steps = config.run.num_train_steps
    points = {
        round(point * steps): encoder_folder(folder, point)
        for point in job["points"]
        if point < 1
    }

    def saving(first_step: int) -> list[keras.callbacks.Callback]:
        return [EncoderAt(points, folder, first_step)]

    if pretrain.run(config, _say, saving) == pretrain.EXIT_STOPPED:
        return True, {}
    if not all((place / ENCODER).exists() for place in points.values()):
        # It went past a point that was not asked for then: once more, from the start.
        again = dataclasses.replace(config.run, overwrite=True)
        config = dataclasses.replace(config, run=again)
        if pretrain.run(config, _say, saving) == pretrain.EXIT_STOPPED:
            return True, {}
    rows = read_metrics(folder / results.METRICS)
    per_step = config.run.train_batch_size * config.data.max_seq_length
    return False, {
        "steps": steps,
        "flops": job["flops"],
        "train_seconds": training_seconds(rows, per_step),
        "held_out": {
            name.removeprefix(EVAL_PREFIX): value
            for name, value in rows[-1].items()
            if name.startswith(EVAL_PREFIX)
        },
    }


def training_seconds(rows: list[dict[str, Any]], tokens_per_step: int) -> float:
    """Time in training steps, over all the processes that a run took.

    Args:
        rows: of the run's metrics file, ascending steps.
        tokens_per_step: that ``tokens_per_second`` counts.
    """
    seconds, previous = 0.0, 0
    for row in rows:
        if any(name.startswith(EVAL_PREFIX) for name in row):
            # Of an evaluation, which may lie within a window.
            continue
        if row.get("tokens_per_second"):
            done = (row["step"] - previous) * tokens_per_step
            seconds += done / row["tokens_per_second"]
        previous = row["step"]
    return seconds


def _untrained(job) -> tuple[bool, dict[str, Any]]:
    """The encoder as the run would begin, in the run's folder."""
    config = config_lib.from_flat(job["pretrain"], PretrainConfig)
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    data = build.pretraining_data(config, _say)
    words = data.vocabulary
    model = build.compiled_model(config, len(words), build.special_ids(words))
    data.vocabulary.save(folder / "vocab.txt")
    settings = {"config": dict(job["pretrain"])}
    (folder / "config.json").write_text(json.dumps(settings) + "\n", "utf-8")
    _save_encoder(model.artifacts()["encoder"], folder, folder)
    nothing = dict.fromkeys(job["flops"], 0.0)
    return False, {"steps": 0, "flops": nothing, "train_seconds": 0.0, "held_out": {}}


def _probed(job, probe) -> dict[str, Any]:
    """Fine-tunes as run_finetuning.py does, and returns the scores."""
    keras.backend.clear_session()
    gc.collect()
    keras.mixed_precision.set_global_policy("float32")
    folder = Path(job["folder"]) / _PROBES / f"{probe['point']:g}" / probe["name"]
    values = {
        **probe["config"],
        "encoder": str(encoder_folder(job["folder"], probe["point"]) / ENCODER),
        "output_dir": str(folder),
        "overwrite": True,
        "export_saved_model": False,
    }
    report = finetune.run(config_lib.from_flat(values, FinetuneConfig), _say)
    split, metric = report["main_split"], report["main_metric"]
    if job["keep"] != "all":
        for name in ("model.keras", "cache"):
            _remove(folder / name)
    summary = report["summary"][split][metric]
    return {
        "task": report["task"],
        "metric": f"{split} {metric}",
        "score": summary["mean"],
        "scores": [seed["scores"][split][metric] for seed in report["seeds"]],
        "baseline": summary["baseline"],
        "failed_seeds": report["failed_seeds"],
    }


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _say(text: str) -> None:
    if text:
        sys.stderr.write(f"{text}\n")


def _end_with_parent() -> None:
    """Waits for the end of stdin, which only comes when the parent is gone."""
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> int:
    """Runs the job that stdin holds."""
    job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(row: dict[str, Any]) -> None:
        events.write(json.dumps(row) + "\n")
        events.flush()

    return run(job, emit)


if __name__ == "__main__":
    sys.exit(main())

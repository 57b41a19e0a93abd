"""Where logged values go: the terminal, a JSON-lines file, TensorBoard.

A sink is a callable `(step, values)`; `values` is a dict of float. Training windows
come from `StepLogger`, held-out results, prefixed `eval_`, from `EvaluateEvery`.
"""

import json
import math
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

import tensorflow as tf

EVAL_PREFIX = "eval_"

# Name of the value, what the line calls it, how it is written.
_COLUMNS = (
    ("loss", "loss", "{:.3f}"),
    ("generator_loss", "gen", "{:.3f}"),
    ("generator_accuracy", "acc", "{:.1%}"),
    ("masked_lm_loss", "mlm", "{:.3f}"),
    ("masked_lm_accuracy", "acc", "{:.1%}"),
    ("replaced_fraction", "replaced", "{:.1%}"),
    ("discriminator_loss", "disc", "{:.4f}"),
    ("discriminator_precision", "prec", "{:.1%}"),
    ("discriminator_recall", "rec", "{:.1%}"),
    ("discriminator_auc", "auc", "{:.3f}"),
    ("prediction_loss", "pred", "{:.4f}"),
    ("prediction_accuracy", "right", "{:.1%}"),
    ("corrected_accuracy", "corrected", "{:.1%}"),
    ("copy_auc", "auc", "{:.3f}"),
    ("sentence_loss", "sent", "{:.3f}"),
    ("sentence_accuracy", "sent acc", "{:.1%}"),
    ("reward", "reward", "{:.3f}"),
    ("adversarial_weight", "adv", "{:.2f}"),
    ("temperature", "temp", "{:.2f}"),
    ("learning_rate", "lr", "{:.2e}"),
    ("gradient_norm", "grad", "{:.2f}"),
)


class Progress:
    """One live status line on a terminal, an occasional plain line elsewhere.

    The line shows the share done, the time left, the speed and the values of the last
    window. Time left is total steps to go times the mean time per step since the first
    execution, which is left out because it compiles; evaluations and checkpoints count.

    Args:
        total_steps: steps of the whole run.
        first_step: steps done before the first `fit`.
        stream: text stream; None is standard error.
        min_seconds: least time between plain lines; the first and the last training
            window are always written.
        clock: callable giving seconds.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        first_step: int = 0,
        stream: TextIO | None = None,
        min_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total_steps = total_steps
        self.min_seconds = min_seconds
        self._stream = stream or sys.stderr
        self._clock = clock
        self._step = first_step
        self._is_live = self._stream.isatty()
        self._values = {}
        self._base = None
        self._written_at = -math.inf
        self._unwritten = False

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Shows the values of a window; held-out results get a line that stays."""
        if any(name.startswith(EVAL_PREFIX) for name in values):
            held_out = {n.removeprefix(EVAL_PREFIX): v for n, v in values.items()}
            self._write_line(f"step {step:,}: held out  {_columns(held_out)}")
            return
        self._step = step
        self._values = values
        self._unwritten = True
        self._show()

    def tick(self, step: int) -> None:
        """Moves the bar after each execution."""
        if self._base is None:
            self._base = step, self._clock()
        self._step = step
        if self._is_live and self._clock() - self._written_at >= 0.1:
            self._show()

    def finish(self) -> None:
        """Writes the last window if it was not, and ends the live line."""
        if self._is_live:
            self._stream.write("\n")
        elif self._unwritten:
            self._write_line(self._line())
        self._stream.flush()

    def _show(self):
        if self._is_live:
            width = shutil.get_terminal_size().columns
            bar = _bar(self._step / self.total_steps)
            self._stream.write(f"\r\x1b[K{f'{bar} {self._line()}'[: width - 1]}")
            self._stream.flush()
            self._written_at = self._clock()
        elif self._clock() - self._written_at >= self.min_seconds:
            self._write_line(self._line())
            self._written_at = self._clock()
            self._unwritten = False

    def _write_line(self, line):
        start = "\r\x1b[K" if self._is_live else ""
        self._stream.write(f"{start}{line}\n")
        self._stream.flush()

    def _line(self):
        done = (
            f"{self._step:,}/{self.total_steps:,} {self._step / self.total_steps:.1%}"
        )
        speed = self._values.get("tokens_per_second")
        parts = [done, f"eta {self._time_left()}"]
        parts += [f"{speed:,.0f} tok/s"] if speed else []
        return "  ".join([*parts, _columns(self._values)]).rstrip()

    def _time_left(self):
        if self._base is None or self._step <= self._base[0]:
            return "-"
        step, start = self._base
        seconds_per_step = (self._clock() - start) / (self._step - step)
        return _duration(seconds_per_step * max(0, self.total_steps - self._step))


class MetricsLog:
    """Appends each dict as a JSON line with `step` and `time` (seconds since 1970).

    Opening drops lines of steps after `first_step`, which a resumed run writes again,
    and a last line that a crash cut short. Values that are not finite become null.

    Args:
        path: the file; its folder is created.
        first_step: steps done before this run.
    """

    def __init__(self, path: str | os.PathLike, *, first_step: int = 0):
        self.path = pathlib.Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._drop_after(first_step)

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Appends one line, on disk when this returns."""
        finite = {n: v if math.isfinite(v) else None for n, v in values.items()}
        line = json.dumps({"step": step, "time": round(time.time(), 3), **finite})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _drop_after(self, first_step):
        kept = [row for row in read_metrics(self.path) if row["step"] <= first_step]
        part = self.path.with_name(f"{self.path.name}.part")
        part.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")
        part.replace(self.path)


def read_metrics(path: str | os.PathLike) -> list[dict]:
    """Reads the rows of a `MetricsLog` file, skipping lines that are not whole."""
    rows = []
    for line in pathlib.Path(path).read_text("utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


class TensorBoardScalars:
    """Writes scalars for TensorBoard, under train/ and eval/ of one folder.

    Args:
        log_dir: folder of the event files.
    """

    def __init__(self, log_dir: str | os.PathLike):
        self.log_dir = pathlib.Path(log_dir)
        self._writers = {}

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Writes all values and flushes."""
        for name, value in values.items():
            kind = "eval" if name.startswith(EVAL_PREFIX) else "train"
            with self._writer(kind).as_default():
                tf.summary.scalar(name.removeprefix(EVAL_PREFIX), value, step=step)
        for writer in self._writers.values():
            writer.flush()

    def _writer(self, kind):
        if kind not in self._writers:
            folder = str(self.log_dir / kind)
            self._writers[kind] = tf.summary.create_file_writer(folder)
        return self._writers[kind]


def _columns(values):
    return "  ".join(
        f"{label} {pattern.format(values[name])}"
        for name, label, pattern in _COLUMNS
        if name in values
    )


def _bar(share, width=20):
    full = min(width, max(0, round(width * share)))
    return f"[{'#' * full}{'.' * (width - full)}]"


def _duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"

"""Metric loggers: console, JSON-lines file, TensorBoard.

A sink is a callable ``(step, values)`` with a dict of float. ``StepLogger`` calls it
with training metrics, ``EvaluateEvery`` with held-out metrics (prefix ``eval_``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TextIO

import tensorflow as tf

from electra_tf import cli, files
from electra_tf.training.cards import MetricCard

Sink = Callable[[int, dict[str, float]], None]

EVAL_PREFIX = "eval_"
# Prefix of the trivial predictor's value of a held-out metric.
TRIVIAL_PREFIX = "trivial_"


class Progress:
    """Console progress bar with the metrics of the last window.

    The remaining time includes evaluations and checkpoints, but not the first
    execution, which compiles.

    ``cards`` selects and orders the metrics; ``stream`` and ``clock`` are arguments of
    ``cli.Progress``. The first and the last window are always written.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        cards: Iterable[MetricCard],
        first_step: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._cards = [card for card in cards if card.column]
        self._progress = cli.Progress(
            total_steps, done=first_step, stream=stream, clock=clock
        )

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Shows training metrics in the bar and held-out metrics on a line above."""
        if any(name.startswith(EVAL_PREFIX) for name in values):
            held_out = {n.removeprefix(EVAL_PREFIX): v for n, v in values.items()}
            self._progress.say(f"step {step:,}: held out  {self._columns(held_out)}")
            return
        speed = values.get("tokens_per_second")
        parts = [f"{speed:,.0f} tok/s"] if speed else []
        self._progress.update(step, "  ".join([*parts, self._columns(values)]))

    def tick(self, step: int) -> None:
        """Advances the bar."""
        self._progress.move(step)

    def finish(self) -> None:
        """Shows the last window and ends the line."""
        self._progress.close()

    def _columns(self, values: Mapping[str, float]) -> str:
        return "  ".join(
            card.column.format(values[card.name])
            for card in self._cards
            if card.name in values
        )


class MetricsLog:
    """Appends metrics as JSON lines with ``step`` and ``time`` (seconds since 1970).

    Opening the file drops a truncated line and the steps after ``first_step``, which a
    resumed run writes again. Values that are not finite become null. Creates the
    folder.
    """

    def __init__(self, path: str | os.PathLike, *, first_step: int = 0):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            rows = files.read_json_lines(self.path)
            rows = [row for row in rows if files.fits(row.get("step"), int)]
            kept = (row for row in rows if row["step"] <= first_step)
            files.write_json_lines(self.path, kept)

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Appends one line and syncs the file."""
        files.append_json_line(
            self.path, {"step": step, "time": round(time.time(), 3), **values}
        )


class TensorBoardScalars:
    """Writes TensorBoard scalars to train/ and eval/ of a folder."""

    def __init__(self, log_dir: str | os.PathLike):
        self.log_dir = Path(log_dir)
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def __call__(self, step: int, values: dict[str, float]) -> None:
        """Writes all values and flushes."""
        for name, value in values.items():
            kind = "eval" if name.startswith(EVAL_PREFIX) else "train"
            # Created on first use, because TensorBoard shows empty folders as runs.
            if kind not in self._writers:
                folder = str(self.log_dir / kind)
                self._writers[kind] = tf.summary.create_file_writer(folder)
            with self._writers[kind].as_default():
                tf.summary.scalar(name.removeprefix(EVAL_PREFIX), value, step=step)
        for writer in self._writers.values():
            writer.flush()

"""Metric loggers (console, JSON-lines file, TensorBoard) and display of metrics.

A sink is a callable ``(step, values)`` with a dict of float. ``StepLogger`` calls it
with training metrics, ``EvaluateEvery`` with held-out metrics (prefix ``eval_``).
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from electra_tf import cli, files

Sink = Callable[[int, dict[str, float]], None]

EVAL_PREFIX = "eval_"
# Prefix of the trivial predictor's value of a held-out metric.
TRIVIAL_PREFIX = "trivial_"


class MetricCard(NamedTuple):
    """Display of one metric; an empty setting omits it there."""

    name: str
    column: str = ""  # Format string in the console, such as "gen {:.3f}".
    format: str = ""  # Format string in the held-out table.
    baseline: str = ""  # Name of the predictor of ``trivial_scores``.


_PERCENT, _FIXED = "{:.2%}", "{:.4f}"
_UNIGRAM, _COMMON = "unigram frequencies", "most common token"
_MAJORITY, _KEPT = "majority class", "keep or unigram"

# In the order of display.
_CARDS = (
    MetricCard("loss", "loss {:.3f}"),
    MetricCard("generator_loss", "gen {:.3f}", _FIXED, _UNIGRAM),
    MetricCard("generator_accuracy", "acc {:.1%}", _PERCENT, _COMMON),
    MetricCard("sampled_accuracy"),
    MetricCard("replaced_fraction", "replaced {:.1%}", _PERCENT),
    MetricCard("replaced_masked_fraction"),
    MetricCard("replaced_replaceable_fraction"),
    MetricCard("discriminator_loss", "disc {:.4f}", _FIXED, "base rate"),
    MetricCard("replaceable_loss", "", _FIXED, "base rate"),
    MetricCard("discriminator_accuracy", "", _PERCENT, _MAJORITY),
    MetricCard("discriminator_precision", "prec {:.1%}", _PERCENT),
    MetricCard("discriminator_recall", "rec {:.1%}", _PERCENT),
    MetricCard("discriminator_auc", "auc {:.3f}", _FIXED, "chance"),
    MetricCard("replaceable_auc", "replaceable auc {:.3f}", _FIXED, "chance"),
    MetricCard("prediction_loss", "pred {:.4f}", _FIXED, _KEPT),
    MetricCard("prediction_accuracy", "right {:.1%}", _PERCENT, "keep all"),
    MetricCard("corrected_accuracy", "corrected {:.1%}", _PERCENT, "keep all"),
    MetricCard("copy_auc", "auc {:.3f}", _FIXED, "chance"),
    MetricCard("masked_lm_loss", "mlm {:.3f}", _FIXED, _UNIGRAM),
    MetricCard("masked_lm_accuracy", "acc {:.1%}", _PERCENT, _COMMON),
    MetricCard("sentence_loss", "sent {:.3f}", _FIXED, "base rate"),
    MetricCard("sentence_accuracy", "sent acc {:.1%}", _PERCENT, _MAJORITY),
    MetricCard("corrupted_fraction"),
    *(
        MetricCard(name, f"{name} {{:.3f}}")
        for name in ("adversarial_weight", "reward", "reward_baseline", "temperature")
    ),
    # ``StepLogger`` adds these to every run.
    MetricCard("learning_rate", "lr {:.2e}"),
    MetricCard("gradient_norm", "grad {:.2f}"),
    MetricCard("tokens_per_second"),
    MetricCard("steps_per_second"),
)


def metric_cards(names: Iterable[str] = ()) -> list[MetricCard]:
    """Returns the cards of all known metrics, then default cards of other ``names``."""
    known = {card.name for card in _CARDS}
    others = [
        MetricCard(name, f"{name} {{:.4f}}", _FIXED)
        for name in dict.fromkeys(names)
        if name not in known
    ]
    return [*_CARDS, *others]


class Progress(cli.Progress):
    """Console progress bar with the last window's metrics, those of ``cards``."""

    # Called by ``StepLogger``.
    tick, finish = cli.Progress.update, cli.Progress.close

    def __init__(self, total: int, *, cards: Iterable[MetricCard], first_step: int = 0):
        super().__init__(total, done=first_step)
        self._cards = [card for card in cards if card.column]

    def __call__(self, step: int, values: dict[str, float]) -> None:
        if any(name.startswith(EVAL_PREFIX) for name in values):
            held_out = {n.removeprefix(EVAL_PREFIX): v for n, v in values.items()}
            self.say(f"step {step:,}: held out  {self._columns(held_out)}")
            return
        speed = values.get("tokens_per_second")
        parts = [f"{speed:,.0f} tok/s"] if speed else []
        self.update(step, "  ".join([*parts, self._columns(values)]))

    def _columns(self, values: Mapping[str, float]) -> str:
        shown = (card for card in self._cards if card.name in values)
        return "  ".join(card.column.format(values[card.name]) for card in shown)


class MetricsLog:
    """Appends metrics as JSON lines with ``step`` and ``time`` (seconds since 1970).

    Opening the file drops a truncated line, and steps that a resumed run repeats.
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
        files.append_json_line(
            self.path, {"step": step, "time": round(time.time(), 3), **values}
        )


class TensorBoardScalars:
    """Writes TensorBoard scalars to train/ and eval/ of a folder."""

    def __init__(self, log_dir: str | os.PathLike):
        self.log_dir = Path(log_dir)
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def __call__(self, step: int, values: dict[str, float]) -> None:
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

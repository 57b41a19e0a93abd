"""Where the time of a training step goes: a trace of a few steps, and a table of it.

The trace is TensorFlow's own, for TensorBoard (with its profile plugin) or any reader
of ``.xplane.pb`` files. The table adds up, over all threads, the operations of the
executor and the kernels that XLA compiled, by what they are for. A thread that waits
inside an operation for another one counts as busy, so shares say where to look and not
what would be saved.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from electra_tf.cli import Log
from electra_tf.training.callbacks import Logs, StepCallback

# What an operation is for, by its type, its name and, where XLA compiled it, the
# function it comes from: the first row of which one pattern is found in
# "type name function". Later rows are more general.
CATEGORIES: tuple[tuple[str, str], ...] = (
    ("input", r"^(Iterator|OneShot|Prefetch|ParseExample)"),
    ("optimizer", r"adamw|ApplyAdam"),
    ("sampling", r"Multinomial|stateless_categorical|token_at"),
    ("matrix products", r"^_?\w*(MatMul|Einsum)"),
    ("attention, without products", r"_softmax|_heads|Transpose .*transformer"),
    ("heads, losses, metrics", r"cross_entropy|CrossEntropy|ArgMax|_head|objective"),
    ("embeddings", r"UnsortedSegmentSum|Gather|embeddings"),
    ("LayerNorm, dropout, residual", r"bias_drop_add_norm|norm_drop|XLA +drop"),
    ("activations", r"bias_activation"),
)
OTHER = "other"


@dataclasses.dataclass(frozen=True)
class Event:
    """One operation or compiled kernel: how long a thread was in it."""

    kind: str
    name: str
    function: str
    seconds: float


def category(event: Event) -> str:
    """What an event is for: a name of ``CATEGORIES``, or ``OTHER``."""
    text = f"{event.kind} {event.name} {event.function}"
    return next((n for n, pattern in CATEGORIES if re.search(pattern, text)), OTHER)


def read_events(folder: Path) -> Iterator[Event]:
    """Operations and compiled kernels in the newest trace below a folder.

    FileNotFoundError if there is none.
    """
    traces = sorted(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise FileNotFoundError(f"no .xplane.pb file lies below {folder}")
    space = xplane_pb2.XSpace.FromString(traces[-1].read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                seconds = event.duration_ps * 1e-12
                module = _module(plane, event)
                if module is not None:
                    yield Event("XLA", name, module, seconds)
                # Operations are "path/of/the/op:Type"; other events are of the runtime.
                elif operation := re.fullmatch(r"(.*[^:]):(_?[A-Z]\w*)", name):
                    path, kind = operation.groups()
                    yield Event(kind, path, "", seconds)


def _module(plane: Any, event: Any) -> str | None:
    """Name of the function that XLA compiled a kernel of; None of other events."""
    for stat in event.stats:
        if plane.stat_metadata[stat.metadata_id].name == "hlo_module":
            value = stat.str_value or plane.stat_metadata[stat.ref_value].name
            return re.sub(r"^a_inference_|_\d+.*$", "", value)
    return None


def shares(events: Iterable[Event]) -> dict[str, float]:
    """Share of all time in each category, the largest first; empty without events."""
    seconds: dict[str, float] = collections.Counter()
    for event in events:
        seconds[category(event)] += event.seconds
    total = sum(seconds.values())
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return {name: value / total for name, value in ordered} if total else {}


def table(found: Mapping[str, float], step_seconds: float) -> str:
    """The shares as lines of text, with milliseconds of a step."""
    lines = [f"{'where the time of a step goes':34}{'share':>8}{'ms':>10}"]
    for name, share in found.items():
        lines.append(f"{name:34}{share:8.1%}{1e3 * share * step_seconds:10.1f}")
    lines.append(f"{'a step':34}{'':8}{1e3 * step_seconds:10.1f}")
    return "\n".join(lines)


class ProfileSteps(StepCallback):
    """Traces some steps of a ``fit`` into a folder and logs where their time went.

    The first two executions are left out: they trace and compile. A ``fit`` that ends
    before logs what it has. ``steps`` are counted as elsewhere, in updates.
    """

    _WARM_UP = 2

    def __init__(self, folder: Path, log: Log, *, steps: int = 5, first_step: int = 0):
        super().__init__(first_step=first_step)
        self.folder = folder
        self.log = log
        self.steps = steps
        self._executions = 0
        self._began: tuple[int, float] | None = None
        self._is_done = False

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Starts the trace when everything is compiled."""
        self._executions += 1
        if self._executions == self._WARM_UP + 1:
            tf.profiler.experimental.start(str(self.folder))
            self._began = self.step, time.perf_counter()

    def after_step(self, previous: int, step: int, logs: Logs) -> None:
        """Stops the trace after the last step of it."""
        if self._began is not None and step - self._began[0] >= self.steps:
            # Reading a log waits until the device is done.
            for value in logs.values():
                float(value)
            self._finish()

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Stops a trace that a short training did not fill."""
        if self._began is not None:
            self._finish()
        elif not self._is_done:
            self.log("profile: too few steps; the first two compile and do not count")

    def _finish(self) -> None:
        step, began = self._began
        seconds = (time.perf_counter() - began) / max(1, self.step - step)
        self._began, self._is_done = None, True
        tf.profiler.experimental.stop()
        self.log(table(shares(read_events(self.folder)), seconds))
        self.log(f"profile: tensorboard --logdir={self.folder}")

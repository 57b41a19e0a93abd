"""Runs jobs, some at a time, each in a process of its own; says how far it is."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from electra_tf import cli
from electra_tf.cli import Log
from electra_tf.comparison.plan import Job, parts
from electra_tf.comparison.store import Row, Store
from electra_tf.folders.pretraining import PretrainingFolder
from electra_tf.training.callbacks import GracefulStop

LOG = "log.txt"
_HEARTBEAT_SECONDS = 30.0


class Progress(cli.Progress):
    """Counts finished parts, and estimates the time that the others take.

    A part is expected to take what parts of its kind (pretraining, or one probe) took
    on average, because a run takes minutes and a probe seconds; as long as none of its
    kind is finished, the average of all. ``options`` are those of ``cli.Progress``.
    """

    def __init__(self, jobs: list[Job], workers: int, **options: Any):
        kinds = (_kind(part) for job in jobs for part in parts(job))
        self._left = collections.Counter(kinds)
        total = self._left.total()
        super().__init__(total, seconds=_HEARTBEAT_SECONDS, **options)
        self._workers = workers
        self._began = self._clock()
        self._took: dict[str, list[float]] = collections.defaultdict(list)

    def finish(self, part: Row, seconds: float | None) -> None:
        """Counts a part as done, after so many seconds.

        None: it failed or cannot be done, which says nothing of others of its kind.
        """
        self.done += 1
        self._left[_kind(part)] -= 1
        if seconds is not None:
            self._took[_kind(part)].append(seconds)

    def seconds_left(self) -> float | None:
        """The time that is still expected; None before any part is finished."""
        if not self._took:
            return None
        known = {kind: statistics.fmean(took) for kind, took in self._took.items()}
        every = statistics.fmean(x for took in self._took.values() for x in took)
        work = sum(count * known.get(kind, every) for kind, count in self._left.items())
        return work / self._workers

    def line(self) -> str:
        """Parts done, time taken, time expected, text."""
        left = self.seconds_left()
        share = self.done / max(1, self.total)
        took = cli.duration(self._clock() - self._began)
        expected = "?" if left is None else cli.duration(left)
        count = f"[{self.done}/{self.total} {share:.0%}]"
        return f"{count} {took} {expected} left  {self.text}".rstrip()


@dataclasses.dataclass
class Runner:
    """Hands jobs to processes, their lines to the store, then calls ``after_job``."""

    store: Store
    workers: int
    log: Log
    after_job: Callable[[], object]

    def __post_init__(self) -> None:
        self._waiting: collections.deque[Job] = collections.deque()
        self._running: dict[int, tuple[Job, subprocess.Popen]] = {}
        # (process id, a line of it or its exit code, seconds since its last one).
        self._events: queue.Queue[tuple[int, Row | int, float]] = queue.Queue()
        self._is_stopping = False

    def run(self, jobs: list[Job]) -> str | None:
        """Runs all jobs; returns the name of the signal that stopped it, or None."""
        self._waiting.extend(jobs)
        self._progress = Progress(jobs, self.workers, log=self.log)
        try:
            with GracefulStop() as stop:
                while self._running or (self._waiting and not stop.requested):
                    if stop.requested:
                        self._terminate()
                    elif self._waiting and len(self._running) < self.workers:
                        self._start(self._waiting.popleft())
                        continue
                    try:
                        self._handle(*self._events.get(timeout=1.0))
                    except queue.Empty:
                        # Shown only after a silence.
                        self._progress.update(self._progress.done, self._now())
            return stop.requested
        finally:
            for _, process in self._running.values():
                process.kill()

    def _start(self, job: Job) -> None:
        folder = Path(job["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / LOG, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "electra_tf.comparison.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(self.workers),
                # Ctrl-C reaches this process only, which then stops the others.
                start_new_session=True,
            )
        # Stays open: its end tells the worker that this process is dead.
        process.stdin.write((json.dumps(job) + "\n").encode())
        process.stdin.flush()
        self._running[process.pid] = (job, process)
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen) -> None:
        began = time.monotonic()
        for line in process.stdout:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                # Printed by a library before the worker took over its stdout.
                continue
            now = time.monotonic()
            self._events.put((process.pid, row, now - began))
            began = now
        self._events.put((process.pid, process.wait(), time.monotonic() - began))

    def _handle(self, pid: int, event: Row | int, seconds: float) -> None:
        """A process finished a part (the event is its line) or ended (its code)."""
        job, process = self._running[pid]
        if not isinstance(event, int):
            self._record(job, event, seconds)
            return
        del self._running[pid]
        process.stdin.close()
        left = parts(job)
        if left and not self._is_stopping and event != cli.STOPPED:
            # Killed from outside, out of memory, or a crash of the runtime.
            failure = f"the process ended with code {event}; see {LOG}"
            self._record(job, {**left[0], "failure": failure}, 0.0)
            if parts(job):
                self._waiting.appendleft(job)
        self.after_job()

    def _record(self, job: Job, row: Row, seconds: float) -> None:
        """Stores a line and takes the part that it is about off the job."""
        row = row | {"seconds": round(seconds, 2), "time": round(time.time(), 2)}
        self.store.add(row)
        has_failed = "failure" in row
        first, *rest = parts(job)
        self._progress.finish(first, None if has_failed else seconds)
        if not job["pretrain"]:
            job["probes"] = job["probes"][1:]
        elif has_failed:
            # There is no encoder to probe.
            job["probes"] = []
            for part in rest:
                self._progress.finish(part, None)
        job["pretrain"] = None
        self._progress.text = describe(row)
        self._progress.show()

    def _terminate(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            for _, process in self._running.values():
                process.terminate()

    def _now(self) -> str:
        """What each running job does."""
        texts = []
        for job, _ in self._running.values():
            probe = job["probes"][0]["name"] if job["probes"] else "ending"
            doing = _steps(job) if job["pretrain"] else probe
            texts.append(f"{job['system']} seed {job['seed']}: {doing}")
        return "; ".join(texts)


def _kind(part: Row) -> str:
    return part.get("probe") or part["kind"]


def _steps(job: Job) -> str:
    """Step and speed of a pretraining run, from its metrics file."""
    rows = PretrainingFolder(Path(job["folder"])).metrics()
    if not rows:
        return "starting"
    text = f"step {rows[-1]['step']:,}/{job['pretrain']['num_train_steps']:,}"
    speed = rows[-1].get("tokens_per_second")
    return f"{text}, {speed:,.0f} tokens/s" if speed else text


def describe(row: Row) -> str:
    """A line of the results as a sentence."""
    who = f"{row['system']} seed {row['seed']}"
    what = row.get("probe") or "pretraining"
    if row.get("point") not in (None, 1.0):
        what += f" at {row['point']:g}"
    if "failure" in row:
        return f"{who}: {what} FAILED: {row['failure']}"
    took = cli.duration(row["seconds"])
    if row["kind"] == "probe":
        return f"{who}: {what} {row['score']:.2f} ({row['metric']}), {took}"
    return f"{who}: {row['steps']:,} steps in {took}"


def _environment(workers: int) -> dict[str, str]:
    """Gives each process its share of the cores; what the user has set stays."""
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    if workers > 1:
        threads = str(max(1, len(os.sched_getaffinity(0)) // workers))
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
            variables.setdefault(name, threads)
    return variables

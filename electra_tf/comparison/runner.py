"""Runs jobs, some at a time, each in a process of its own; says how far it is."""

from __future__ import annotations

import collections
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from electra_tf import pretrain, results
from electra_tf.comparison.plan import Job
from electra_tf.comparison.store import Store
from electra_tf.training.sinks import read_metrics
from electra_tf.training.stepping import GracefulStop

Log = Callable[[str], None]
_HEARTBEAT_SECONDS = 30.0
LOG = "log.txt"


def items(job: Job) -> list[dict[str, Any]]:
    """The parts of a job that each become a line, in order."""
    about = {"system": job["system"], "seed": job["seed"]}
    first = [{"kind": "pretrain", **about}] if job["pretrain"] else []
    return first + [
        {"kind": "probe", **about, "point": probe["point"], "probe": probe["name"]}
        for probe in job["probes"]
    ]


class Progress:
    """Counts finished parts, and guesses the time that the others take.

    A part is taken to need what parts of its kind (pretraining, or one probe) needed
    on average, or all parts if none of its kind is finished.

    Args:
        jobs: all that there is to do.
        workers: jobs at a time.
        clock: gives seconds.
    """

    def __init__(
        self, jobs: list[Job], workers: int, clock: Callable[[], float] = time.monotonic
    ):
        self._left = collections.Counter(
            self._kind(item) for job in jobs for item in items(job)
        )
        self.total = sum(self._left.values())
        self._workers = workers
        self._clock = clock
        self._began = clock()
        self._seconds = collections.defaultdict(list)

    @staticmethod
    def _kind(item: dict[str, Any]) -> str:
        return item.get("probe") or item["kind"]

    def finish(self, item: dict[str, Any], seconds: float) -> None:
        """A part took so long."""
        self._left[self._kind(item)] -= 1
        self._seconds[self._kind(item)].append(seconds)

    def drop(self, item: dict[str, Any]) -> None:
        """A part will not be done."""
        self._left[self._kind(item)] -= 1

    @property
    def done(self) -> int:
        """Parts that are finished or given up."""
        return self.total - sum(self._left.values())

    def seconds_left(self) -> float | None:
        """Expected; None before anything is finished."""
        known = {kind: _mean(values) for kind, values in self._seconds.items()}
        if not known:
            return None
        every = _mean([value for values in self._seconds.values() for value in values])
        work = sum(count * known.get(kind, every) for kind, count in self._left.items())
        return work / self._workers

    def line(self) -> str:
        """How many parts are done, for how long, and for how long still."""
        left = self.seconds_left()
        parts = [
            f"[{self.done}/{self.total} {self.done / max(1, self.total):.0%}]",
            duration(self._clock() - self._began),
            "? left" if left is None else f"{duration(left)} left",
        ]
        return " ".join(parts)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def duration(seconds: float) -> str:
    """As 12s, 3m05s or 1h07m."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


class Runner:
    """Hands jobs to processes and their lines to the store.

    Args:
        store: gets every line.
        workers: processes at a time.
        log: receives messages.
        after_job: called after each job, with all its lines in the store.
    """

    def __init__(
        self, store: Store, workers: int, log: Log, after_job: Callable[[], None]
    ):
        self._store = store
        self._workers = workers
        self._log = log
        self._after_job = after_job
        self._events: queue.Queue = queue.Queue()
        self._running: dict[int, tuple[Job, subprocess.Popen]] = {}
        self._is_stopping = False

    def run(self, jobs: list[Job]) -> str | None:
        """Runs all jobs.

        Returns:
            The name of the signal that stopped it, or None.
        """
        waiting = collections.deque(jobs)
        progress = Progress(jobs, self._workers)
        spoken = time.monotonic()
        try:
            with GracefulStop() as stop:
                while self._running or (waiting and not stop.requested):
                    while len(self._running) < self._workers and waiting:
                        if stop.requested:
                            break
                        self._start(waiting.popleft())
                    try:
                        self._handle(*self._events.get(timeout=1.0), waiting, progress)
                        spoken = time.monotonic()
                    except queue.Empty:
                        if time.monotonic() - spoken > _HEARTBEAT_SECONDS:
                            self._log(f"{progress.line()}  {self._now()}")
                            spoken = time.monotonic()
                    if stop.requested:
                        self._terminate()
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
                env=_environment(self._workers),
                # Ctrl-C reaches this process, which then tells them.
                start_new_session=True,
            )
        process.stdin.write((json.dumps(job) + "\n").encode())
        process.stdin.flush()
        self._running[process.pid] = (job, process)
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen) -> None:
        began = time.monotonic()
        for line in process.stdout:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                # Printed by a library before the worker took over its stdout.
                continue
            now = time.monotonic()
            self._events.put((process.pid, event, now - began))
            began = now
        self._events.put((process.pid, process.wait(), time.monotonic() - began))

    def _handle(self, pid, event, seconds, waiting, progress: Progress) -> None:
        """A process ended (the event is its code) or finished a part (a line)."""
        job, process = self._running[pid]
        if isinstance(event, int):
            del self._running[pid]
            process.stdin.close()
            self._ended(job, event, waiting, progress)
            return
        self._note(job, event, progress, seconds)

    def _ended(self, job: Job, code: int, waiting, progress: Progress) -> None:
        left = items(job)
        stopped = self._is_stopping or code == pretrain.EXIT_STOPPED
        if left and not stopped:
            # Killed from outside, out of memory, or a crash of the runtime.
            failure = f"the process ended with code {code}; see {LOG}"
            self._note(job, {**left[0], "failure": failure}, progress)
            if items(job):
                waiting.appendleft(job)
        self._after_job()

    def _note(self, job: Job, row, progress: Progress, seconds: float = 0.0) -> None:
        """Stores a line and takes what it is about off the job."""
        row = row | {"seconds": round(seconds, 2), "time": round(time.time(), 2)}
        self._store.add(row)
        first, *rest = items(job)
        if "failure" in row:
            progress.drop(first)
        else:
            progress.finish(first, seconds)
        job["probes"] = job["probes"] if job["pretrain"] else job["probes"][1:]
        job["pretrain"] = None
        if row["kind"] == "pretrain" and "failure" in row:
            # There is no encoder to probe.
            job["probes"] = []
            for item in rest:
                progress.drop(item)
        self._log(f"{progress.line()}  {describe(row)}")

    def _terminate(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            for _, process in self._running.values():
                process.terminate()

    def _now(self) -> str:
        """What the running jobs do."""
        parts = []
        for job, _ in self._running.values():
            left = items(job)
            doing = left[0]["kind"] if left else "ending"
            if doing == "probe":
                doing = left[0]["probe"]
            elif doing == "pretrain":
                doing = _steps(job)
            parts.append(f"{job['system']} seed {job['seed']}: {doing}")
        return "; ".join(parts)


def _steps(job: Job) -> str:
    """Step and speed of a pretraining run, from its metrics file."""
    path = Path(job["folder"]) / results.METRICS
    rows = read_metrics(path) if path.exists() else []
    if not rows:
        return "starting"
    text = f"step {rows[-1]['step']:,}/{job['pretrain']['num_train_steps']:,}"
    speed = rows[-1].get("tokens_per_second")
    return f"{text}, {speed:,.0f} tokens/s" if speed else text


def describe(row: dict[str, Any]) -> str:
    """A line of the results as a sentence."""
    who = f"{row['system']} seed {row['seed']}"
    what = row.get("probe") or "pretraining"
    if row.get("point") not in (None, 1.0):
        what += f" at {row['point']:g}"
    if "failure" in row:
        return f"{who}: {what} FAILED: {row['failure']}"
    took = duration(row["seconds"])
    if row["kind"] == "probe":
        return f"{who}: {what} {row['score']:.2f} ({row['metric']}), {took}"
    return f"{who}: {row['steps']:,} steps in {took}"


def _environment(workers: int) -> dict[str, str]:
    """Each process gets its share of the cores; what the user has set stays."""
    found = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    if workers > 1:
        threads = str(max(1, len(os.sched_getaffinity(0)) // workers))
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
            found.setdefault(name, threads)
    return found

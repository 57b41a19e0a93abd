"""Runs jobs in parallel, each in a process that appends its own results."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.comparison.plan import Job, parts
from electra_tf.comparison.store import Row, Store, key
from electra_tf.training.callbacks import GracefulStop

LOG = "log.txt"
_HEARTBEAT_SECONDS = 30.0


class Runner:
    """Runs jobs in processes and calls ``after_job`` after each."""

    def __init__(
        self, store: Store, workers: int, log: Log, after_job: Callable[[], object]
    ):
        self._store, self._workers, self._log = store, workers, log
        self._after_job = after_job
        self._processes: set[subprocess.Popen] = set()
        self._lock = threading.Lock()
        self._is_stopping = False

    def run(self, jobs: list[Job]) -> str | None:
        """Runs all jobs; returns the name of the signal that stopped it, or None."""
        total = sum(len(parts(job)) for job in jobs)
        progress = cli.Progress(
            total, unit="part", seconds=_HEARTBEAT_SECONDS, log=self._log
        )
        progress.update(0)
        shown = 0
        pool = concurrent.futures.ThreadPoolExecutor(self._workers)
        try:
            with GracefulStop() as stop:
                pending = {pool.submit(self._finish, job) for job in jobs}
                while pending:
                    done, pending = concurrent.futures.wait(
                        pending, 1.0, concurrent.futures.FIRST_COMPLETED
                    )
                    for future in done:
                        future.result()
                    for row in self._store.refresh()[shown:]:
                        shown += 1
                        progress.text = describe(row)
                        progress.done = shown
                        progress.show()
                    if done:
                        self._after_job()
                    if stop.requested:
                        self._terminate()
            return stop.requested
        finally:
            self._is_stopping = True
            for process in [*self._processes]:
                process.kill()
            pool.shutdown()

    def _finish(self, job: Job) -> None:
        """Runs a job to its end; if the process dies, its current part fails."""
        while parts(job) and not self._is_stopping:
            code = self._execute(job)
            with self._lock:
                job = _left(job, self._store.refresh())
                if not parts(job) or self._is_stopping or code == cli.STOPPED:
                    return
                failure = f"the process ended with code {code}; see {LOG}"
                files.append_json_line(
                    self._store.path, {**parts(job)[0], "failure": failure}
                )
                job = _left(job, self._store.refresh())

    def _execute(self, job: Job) -> int:
        folder = Path(job["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        job = {**job, "results": str(self._store.path)}
        with open(folder / LOG, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "electra_tf.comparison.worker"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(self._workers),
                # Ctrl-C must reach this process only, which then stops the others.
                start_new_session=True,
            )
        self._processes.add(process)
        try:
            # Keep stdin open: the worker exits when it closes.
            process.stdin.write((json.dumps(job) + "\n").encode())
            process.stdin.flush()
            if self._is_stopping:
                process.terminate()
            return process.wait()
        finally:
            self._processes.discard(process)
            process.stdin.close()

    def _terminate(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            for process in [*self._processes]:
                process.terminate()


def _left(job: Job, rows: list[Row]) -> Job:
    """Removes the parts that have a row; a failed pretraining leaves none."""
    done = {key(row): row for row in rows}
    if job["pretrain"]:
        row = done.get(key(parts(job)[0]))
        if row and "failure" in row:
            return {**job, "pretrain": None, "probes": []}
    probes = [
        probe
        for part, probe in zip(
            parts({**job, "pretrain": None}), job["probes"], strict=True
        )
        if key(part) not in done
    ]
    is_trained = job["pretrain"] and key(parts(job)[0]) in done
    return {
        **job,
        "pretrain": None if is_trained else job["pretrain"],
        "probes": probes,
    }


def describe(row: Row) -> str:
    """Formats a row of the results as a sentence."""
    about = f"{row['system']} seed {row['seed']}"
    what = row.get("probe") or "pretraining"
    if row.get("point") not in (None, 1.0):
        what += f" at {row['point']:g}"
    if "failure" in row:
        return f"{about}: {what} FAILED: {row['failure']}"
    took = cli.duration(row["seconds"])
    if row["kind"] == "probe":
        return f"{about}: {what} {row['score']:.2f} ({row['metric']}), {took}"
    return f"{about}: {row['steps']:,} steps in {took}"


def _environment(workers: int) -> dict[str, str]:
    """Divides the cores between the processes, unless the user set the variables."""
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    if workers > 1:
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
            variables.setdefault(name, str(max(1, cores // workers)))
    return variables

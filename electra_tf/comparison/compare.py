"""The command `compare`: runs the missing jobs and writes tables and a figure.

Jobs run in parallel, each in a process that appends its own results.
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.comparison import plan, report
from electra_tf.comparison.plan import Job
from electra_tf.comparison.store import Store, describe, identity, key
from electra_tf.config.commands import CompareConfig
from electra_tf.data.pools import cores
from electra_tf.training.callbacks import GracefulStop

LOG, PICTURE, TABLE = "log.txt", "scores.png", "table.md"


def run(config: CompareConfig, log: Log = cli.say) -> int:
    """Runs the missing jobs, writes tables and a figure; returns the exit code.

    Raises UserError if the settings conflict with each other or with the output folder.
    """
    ready = plan.make(config, log)
    if config.dry_run:
        log(f"{report.cost_table(ready, {})}\n\ndry run: nothing was trained.")
        return cli.OK
    store = Store(config.output_dir)
    store.check(ready.settings(), overwrite=config.overwrite)

    def write() -> str:
        text = report.markdown(ready, store)
        files.write_text(store.folder / TABLE, text)
        if drawn := report.figure(report.Scores(ready, store)):
            with files.replacing(store.folder / PICTURE) as part:
                drawn.savefig(part, dpi=110)
        return text

    jobs = plan.jobs(ready, store)
    if jobs:
        log(f"runs to train or probe: {len(jobs)}; each writes a {LOG}")
    signal = run_jobs(jobs, store, config.workers, log, write)
    log(write())
    if signal:
        log(f"{signal}: stopped; the same command resumes from here.")
        return cli.STOPPED
    log(str(store.folder / TABLE))
    failed = sum(len(job["parts"]) for job in plan.jobs(ready, store))
    if failed:
        log(f"{failed} parts failed (see the table); the same command retries them.")
    return cli.ERROR if failed else cli.OK


def run_jobs(
    jobs: Sequence[Job],
    store: Store,
    workers: int,
    log: Log,
    after_job: Callable[[], object],
) -> str | None:
    """Runs all jobs; returns the name of the signal that stopped it, or None."""
    pool = _Pool(store, workers)
    total, shown = sum(len(job["parts"]) for job in jobs), 0
    with concurrent.futures.ThreadPoolExecutor(workers) as threads:
        try:
            with GracefulStop() as stop:
                pending = {threads.submit(pool.finish, job) for job in jobs}
                while pending:
                    done, pending = concurrent.futures.wait(
                        pending, 1.0, concurrent.futures.FIRST_COMPLETED
                    )
                    for future in done:
                        future.result()
                    for row in store.refresh()[shown:]:
                        shown += 1
                        log(f"[{shown}/{total}] {describe(row)}")
                    if done:
                        after_job()
                    if stop.requested:
                        pool.stop()
            return stop.requested
        finally:
            pool.stop(kill=True)


class _Pool:
    """The worker processes. One thread waits for each of them."""

    def __init__(self, store: Store, workers: int):
        self._store, self._workers = store, workers
        self._processes: set[subprocess.Popen] = set()
        self._lock = threading.Lock()
        self._is_stopping = False

    def finish(self, job: Job) -> None:
        """Runs a job to its end; if the process dies, its current part fails."""
        parts = job["parts"]
        while parts and not self._is_stopping:
            code = self._execute({**job, "parts": parts})
            with self._lock:
                rows = {key(row): row for row in self._store.refresh()}
                parts = [part for part in parts if key(part) not in rows]
                run = ("pretrain", job["system"], job["seed"], None, None)
                has_failed = "failure" in rows.get(run, {})
                if not parts or has_failed or self._is_stopping or code == cli.STOPPED:
                    return
                failure = f"the process ended with code {code}; see {LOG}"
                self._store.add({**identity(parts[0]), "failure": failure})
                parts = [] if parts[0]["kind"] == "pretrain" else parts[1:]

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

    def stop(self, *, kill: bool = False) -> None:
        """Terminates the processes once, or kills them."""
        if kill or not self._is_stopping:
            self._is_stopping = True
            for process in [*self._processes]:
                process.kill() if kill else process.terminate()


def _environment(workers: int) -> dict[str, str]:
    """Divides the cores between the processes, unless the user set the variables."""
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    if workers > 1:
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
            variables.setdefault(name, str(max(1, cores() // workers)))
    return variables

"""The command `compare`: runs the missing jobs in parallel and writes tables."""

import json
import os
import subprocess
import sys
import time
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

LOG, TABLE = "log.txt", "table.md"
# Between looks at the processes and their results.
_SECONDS = 0.5


def run(config: CompareConfig, log: Log = cli.say) -> int:
    """Runs the missing jobs and writes the tables; returns the exit code.

    Raises UserError if the settings conflict with each other or with the output folder.
    """
    ready = plan.make(config, log)
    if config.dry_run:
        log(f"{report.cost_table(ready, {})}\n\ndry run: nothing was trained.")
        return cli.OK
    store = Store(config.output_dir)
    store.check(ready.settings())

    def write() -> str:
        text = report.markdown(ready, store)
        files.write_text(store.folder / TABLE, text)
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
    waiting, running, shown = [*jobs], {}, 0
    total = sum(len(job["parts"]) for job in jobs)

    def show_results() -> None:
        nonlocal shown
        for row in store.refresh()[shown:]:
            shown += 1
            log(f"[{shown}/{total}] {describe(row)}")

    try:
        with GracefulStop() as stop:
            while (waiting or running) and not stop.requested:
                while waiting and len(running) < workers:
                    job = waiting.pop(0)
                    running[_start(job, store, workers)] = job
                time.sleep(_SECONDS)
                ended = [process for process in running if process.poll() is not None]
                for process in ended:
                    job = running.pop(process)
                    if not stop.requested:
                        waiting[:0] = _rest(job, process.returncode, store)
                show_results()
                if ended:
                    after_job()
            for process in running:
                process.terminate()
            while any(process.poll() is None for process in running):
                time.sleep(_SECONDS)
                show_results()
            show_results()
        return stop.requested
    finally:
        for process in running:
            process.kill()
            process.wait()


def _start(job: Job, store: Store, workers: int) -> subprocess.Popen:
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    if workers > 1:
        # Divides the cores between the processes, unless the user set the variables.
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
            environment.setdefault(name, str(max(1, cores() // workers)))
    with open(folder / LOG, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "electra_tf.comparison.worker"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            # Ctrl-C must reach this process only, which then stops the others.
            start_new_session=True,
        )
    # Keep stdin open: the worker exits when it closes.
    line = json.dumps({**job, "results": str(store.path)}) + "\n"
    process.stdin.write(line.encode())
    process.stdin.flush()
    return process


def _rest(job: Job, code: int, store: Store) -> list[Job]:
    """Returns a job for the parts after the one in which a process died, if any."""
    rows = {key(row): row for row in store.refresh()}
    parts = [part for part in job["parts"] if key(part) not in rows]
    run = ("pretrain", job["system"], job["seed"], None)
    if not parts or "failure" in rows.get(run, {}) or code == cli.STOPPED:
        return []
    failure = f"the process ended with code {code}; see {LOG}"
    store.add({**identity(parts[0]), "failure": failure})
    rest = [] if parts[0]["kind"] == "pretrain" else parts[1:]
    return [{**job, "parts": rest}] if rest else []

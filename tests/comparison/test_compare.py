import os
import sys

import pytest

from electra_tf.comparison import compare
from electra_tf.comparison.store import Store

# Replaces the worker; the job's name selects the behavior.
WORKER = """
import json, os, sys, time
job = json.loads(sys.stdin.readline())
name = job["system"]
about = {"system": name, "seed": job["seed"]}
def emit(row):
    with open(job["results"], "a") as file:
        file.write(json.dumps({**about, "seconds": 1.0, **row}) + "\\n")
for variable in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
    print(os.environ.get(variable), file=sys.stderr)
for part in job["parts"]:
    row = {n: part[n] for n in ("kind", "point", "probe") if n in part}
    if part["kind"] == "pretrain":
        if name == "crash":
            os._exit(3)
        if name == "fails":
            emit({**row, "failure": "ValueError: no"})
            sys.exit(0)
        emit({**row, "steps": 5})
        continue
    if name == "crash_in_probe" and part["probe"] == "a":
        os._exit(-9 % 256)
    if name == "waits":
        sys.stdin.read()
    score = None if name == "diverges" else 1.0
    emit({**row, "score": score, "metric": "eval accuracy"})
"""


def job(name, folder, seed=0):
    about = {"system": name, "seed": seed}
    probe = {"kind": "probe", **about, "point": 1.0}
    parts = [{"kind": "pretrain", **about}, *({**probe, "probe": x} for x in "ab")]
    return {**about, "folder": str(folder / name), "parts": parts}


@pytest.fixture
def worker(monkeypatch):
    real = compare.subprocess.Popen

    def start(command, **options):
        assert command[1:] == ["-m", "electra_tf.comparison.worker"]
        return real([sys.executable, "-S", "-c", WORKER], **options)

    monkeypatch.setattr(compare.subprocess, "Popen", start)


def run(jobs, folder, workers=1, after=lambda: None):
    store, lines = Store(folder), []
    assert compare.run_jobs(jobs, store, workers, lines.append, after) is None
    return store, lines


@pytest.mark.parametrize(("workers", "cores"), [(1, None), (3, 2), (20, 1)])
def test_every_part_becomes_a_line(worker, tmp_path, monkeypatch, workers, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    called = []
    jobs = [job(name, tmp_path) for name in ("one", "two", "three", "four")]
    store, lines = run(jobs, tmp_path, workers, lambda: called.append(1))
    assert len(store.rows("pretrain")) == 4
    assert len(store.rows("probe")) == 8
    assert called
    assert sum("seed 0: " in line for line in lines) == 12
    assert lines[-1].startswith("[12/12]")
    # The cores are shared by the workers, unless the user set the variable.
    assert (tmp_path / "one" / "log.txt").read_text() == f"5\n{cores}\n"
    assert Store(tmp_path).rows("probe") == store.rows("probe")


def test_failures_stop_nothing(worker, tmp_path):
    names = ("fails", "crash", "crash_in_probe", "diverges", "fine")
    store, lines = run([job(name, tmp_path) for name in names], tmp_path)
    failures = {(r["system"], r.get("probe")): r["failure"] for r in store.failures()}
    assert failures["fails", None] == "ValueError: no"
    assert "ended with code 3" in failures["crash", None]
    assert "ended with code 247" in failures["crash_in_probe", "a"]
    assert len(failures) == 3
    done = [row["system"] for row in store.rows("probe")]
    assert done == ["crash_in_probe", *["diverges"] * 2, *["fine"] * 2]
    assert sum("a nan (eval accuracy)" in line for line in lines) == 1
    assert any("FAILED: ValueError: no" in line for line in lines)


def test_a_signal_stops_the_processes_and_loses_nothing(worker, tmp_path):
    store, lines = Store(tmp_path), []

    def log(line):
        lines.append(line)
        if "5 steps" in line:
            os.kill(os.getpid(), 15)

    jobs = [job("waits", tmp_path), job("never", tmp_path)]
    assert compare.run_jobs(jobs, store, 1, log, lambda: None) == "SIGTERM"
    assert [row["system"] for row in store.rows("pretrain")] == ["waits"]
    assert not store.rows("probe")
    assert not store.failures()

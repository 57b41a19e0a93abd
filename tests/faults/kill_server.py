"""Runs pretraining in forked processes that kill themselves at a chosen instant.

The server imports the libraries once, in the environment of ``tests.conftest``. Each
line of standard input is a JSON object with ``flags`` and optionally

* ``at``: triples [place, n, seconds]. The process kills itself so many seconds after
  the n-th call of one of ``PLACES``; the first instant that occurs ends it.
* ``files``: the number of additional files that may be open.

Each line of the output holds the exit code (negative: a signal) and standard error.
"""

import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time

from electra_tf import cli, files
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data import units
from electra_tf.runs import pretraining
from electra_tf.training import callbacks
from electra_tf.training.checkpoints import CheckpointStore

# Functions in which a run may be killed.
PLACES = {
    "shard": (units, "write_shard"),
    "file": (files, "_put"),
    "step": (callbacks.StepLogger, "after_step"),
    "save": (CheckpointStore, "save"),
    "evaluation": (callbacks.EvaluateEvery, "_evaluate"),
    "end": (pretraining, "finish"),
}


def kill_at(place, count, seconds):
    """Sends SIGKILL ``seconds`` after the start of the call number ``count``."""
    owner, name = PLACES[place]
    called, calls = getattr(owner, name), []

    def kill():
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    def calling(*arguments, **options):
        calls.append(1)
        if len(calls) == count:
            threading.Thread(target=kill, daemon=True).start()
        return called(*arguments, **options)

    setattr(owner, name, calling)


def run(order, said):
    os.dup2(said, 2)
    os.dup2(said, 1)
    for instant in order.get("at", ()):
        kill_at(*instant)
    if "files" in order:
        used = len(os.listdir("/proc/self/fd"))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + order["files"], hard))
    with cli.clear_errors():
        sys.exit(pretraining.run(cli.parse(PretrainConfig, order["flags"]), cli.note))


def forked(order):
    """Runs a forked process; returns exit code and standard error."""
    with tempfile.TemporaryFile() as said:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=run, args=(order, said.fileno()))
        process.start()
        process.join()
        said.seek(0)
        return process.exitcode, said.read().decode(errors="replace")


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(forked(json.loads(line))), flush=True)

"""Pretraining that kills itself at a chosen instant."""

import os
import resource
import signal
import threading
import time

from electra_tf import cli
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data import units
from electra_tf.pretraining import Electra
from electra_tf.runs import pretraining
from electra_tf.training import callbacks
from electra_tf.training.checkpoints import CheckpointStore

# Functions in which a run may be killed.
PLACES = {
    "shard": (units, "write_shard"),
    "file": (os, "replace"),
    "step": (callbacks.StepLogger, "after_step"),
    "save": (CheckpointStore, "save"),
    "evaluation": (Electra, "evaluate"),
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


def run(flags, at=(), files=None):
    """Pretrains; returns the exit code.

    ``at``: triples [place, n, seconds]. The process kills itself so many seconds after
    the n-th call of one of ``PLACES``; the first instant that occurs ends it.
    ``files``: the number of additional files that may be open.
    """
    for instant in at:
        kill_at(*instant)
    if files is not None:
        used = len(os.listdir("/proc/self/fd"))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + files, hard))
    with cli.clear_errors():
        return pretraining.run(cli.parse(PretrainConfig, flags), cli.note)

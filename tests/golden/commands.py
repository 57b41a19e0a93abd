"""Runs commands in a separate process, or faster in this one.

Uses only public names: the two scripts and ``python -m electra_tf NAME``. The code
behind these names may move without a change here.
"""

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import typing
from pathlib import Path

from electra_tf import cli
from electra_tf.__main__ import main
from electra_tf.config import fields
from electra_tf.config.commands import (
    ConvertConfig,
    DoctorConfig,
    InspectConfig,
    PredictConfig,
)
from electra_tf.config.comparison import CompareConfig
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.config.records import RecordsConfig

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ("run_pretraining", "run_finetuning")


def line(name, *arguments):
    """Returns the command line that a user types."""
    if name in SCRIPTS:
        return [sys.executable, str(ROOT / f"{name}.py"), *arguments]
    return [sys.executable, "-m", "electra_tf", name, *arguments]


def start(command, folder):
    """Runs a command in a separate process; returns exit code and output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def call(name, *arguments, stdin=""):
    """Runs a command in this process, which saves importing TensorFlow.

    Returns:
        Exit code, standard output and standard error.
    """
    out, err = io.StringIO(), io.StringIO()
    saved = sys.argv, sys.stdin, sys.path[:]
    sys.argv, sys.stdin = [f"{name}.py", *arguments], io.StringIO(stdin)
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            _run(name)
    except SystemExit as stop:
        code = stop.code or 0
        if isinstance(code, str):
            err.write(f"{code}\n")
            code = 1
    finally:
        sys.argv, sys.stdin, sys.path[:] = saved
    return code, out.getvalue(), err.getvalue()


def _run(name):
    if name in SCRIPTS:
        runpy.run_path(str(ROOT / f"{name}.py"), run_name="__main__")
    else:
        sys.exit(main([name, *sys.argv[1:]]))


CONFIGS = {
    "run_pretraining": PretrainConfig,
    "run_finetuning": FinetuneConfig,
    "compare": CompareConfig,
    "records": RecordsConfig,
    "convert": ConvertConfig,
    "inspect": InspectConfig,
    "predict": PredictConfig,
    "doctor": DoctorConfig,
}


def options(name):
    """Returns option -> default and choices of a command, as plain values."""
    found = {}
    for leaf, hint in cli._leaves(CONFIGS[name]):
        flag = fields.flag_name(leaf)
        names = [n for n in typing.get_args(hint) if isinstance(n, str)]
        choices = leaf.metadata["choices"] or names
        found[f"--{flag}"] = {
            "default": leaf.default,
            "choices": sorted(choices) or None,
        }
        if leaf.type.startswith("bool"):
            found[f"--no{flag}"] = found[f"--no-{flag}"] = found[f"--{flag}"]
    return json.loads(json.dumps(found))

"""Runs commands in a separate process, or faster in this one."""

import contextlib
import io
import json
import os
import pkgutil
import subprocess
import sys
import typing

from electra_tf.__main__ import COMMANDS, main
from electra_tf.config import fields
from tests import ROOT

SCRIPTS = {"run_pretraining": "pretrain", "run_finetuning": "finetune"}


def python(*arguments, folder=ROOT, library=ROOT):
    """Runs Python in a separate process, in a folder, with the library of a folder."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(library)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def call(name, *arguments):
    """Runs a command in this process; returns exit code, output and error output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([SCRIPTS.get(name, name), *arguments])
        except SystemExit as stop:
            code = stop.code
    said = f"{code}\n" if isinstance(code, str) else ""
    return 1 if said else code, out.getvalue(), err.getvalue() + said


def run(name, *arguments, expect=0):
    """Runs a command in this process and checks the exit code; returns the outputs."""
    code, out, err = call(name, *arguments)
    assert code == expect, (out + err)[-3000:]
    return out, err


def options(name):
    """Returns option -> default and choices of a command, as plain values."""
    found = {}
    config = pkgutil.resolve_name(COMMANDS[SCRIPTS.get(name, name)].config)
    for _, leaf in fields.fields(config):
        flag, hint = fields.flag_name(leaf), fields.kinds(config)[leaf.name]
        names = [n for n in typing.get_args(hint) if isinstance(n, str)]
        choices = sorted(leaf.metadata["choices"] or names) or None
        found[f"--{flag}"] = {"default": leaf.default, "choices": choices}
        if bool in (hint, *typing.get_args(hint)):
            found[f"--no{flag}"] = found[f"--no-{flag}"] = found[f"--{flag}"]
    return json.loads(json.dumps(found))

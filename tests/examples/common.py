"""Scripts of examples/ as modules, and commands in another process."""

import importlib.util
import os
import subprocess
from pathlib import Path

from tests import ROOT

EXAMPLES = ROOT / "examples"


def output_of(command, folder, **variables):
    """Runs a command in a folder; returns its output and fails on an exit code."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def load(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

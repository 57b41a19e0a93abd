"""Fine-tuning does not import pretraining."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tasks import common

ROOT = Path(__file__).parents[2]
# Upper bound on imported modules of this package.
MOST = 75
LOADED = """
import json, sys
import electra_tf.runs.finetuning as finetuning
from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
values = {"encoder": sys.argv[1]} if sys.argv[1:] else {}
if values:
    finetuning.pretrained(fields.from_flat(values, FinetuneConfig), print)
print(json.dumps([name for name in sys.modules if name.startswith("electra_tf")]))
"""


def loaded(*arguments):
    """Returns the modules of this package that a fresh process imports."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("with_encoder", [False, True])
def test_fine_tuning_imports_no_pretraining(tmp_path, with_encoder):
    encoder = [str(common.save_pretrained(tmp_path))] if with_encoder else []
    modules = loaded(*encoder)
    foreign = ("pretraining", "systems", "interop", "comparison", "doctor")
    for package in foreign:
        assert not {m for m in modules if m.split(".")[1:2] == [package]}
    assert "electra_tf.runs.pretraining" not in modules
    assert len(modules) <= MOST

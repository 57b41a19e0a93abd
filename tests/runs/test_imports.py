"""Fine-tuning does not import pretraining."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Upper bound on imported modules of this package.
MOST = 75
LOADED = """
import json, sys
import electra_tf.runs.finetuning as finetuning
from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
finetuning.pretrained(fields.from_flat({"encoder": sys.argv[1]}, FinetuneConfig), print)
print(json.dumps([name for name in sys.modules if name.startswith("electra_tf")]))
"""


@pytest.mark.slow
def test_fine_tuning_imports_no_pretraining(pretrained):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, pretrained],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    foreign = ("pretraining", "systems", "interop", "comparison", "doctor")
    for package in foreign:
        assert not {m for m in modules if m.split(".")[1:2] == [package]}
    assert "electra_tf.runs.pretraining" not in modules
    assert len(modules) <= MOST

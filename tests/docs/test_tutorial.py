import csv
import json
import os
import re
import sys
from pathlib import Path

import pytest

from electra_tf import files
from tests.examples.common import ROOT, output_of
from tests.strategy import free_ports

PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
STEP = re.compile(
    r'```bash\n(?P<shell>.*?)```|```python title="(?P<name>[\w.]+)"\n(?P<code>.*?)```',
    re.DOTALL,
)
# Runs blocks of shell commands, with one process for all that Python alone runs.
PROGRAM = r"""
import runpy, shlex, subprocess, sys
from electra_tf.__main__ import main

for block in sys.argv[1:]:
    commands = block.replace("\\\n", " ").splitlines()
    if not all(command.startswith("python ") for command in commands):
        subprocess.run(["bash", "-euo", "pipefail", "-c", block], check=True)
        continue
    for command in commands:
        _, name, *arguments = shlex.split(command)
        if name == "-m":
            assert main(arguments[1:]) == 0, command
        else:
            runpy.run_path(name, run_name="__main__")
"""


def logged(path):
    """Training losses of a run."""
    return [row["loss"] for row in files.read_json_lines(path) if "loss" in row]


def test_every_block_is_a_step():
    assert len(STEP.findall(PAGE)) == len(re.findall(r"^```\w", PAGE, re.MULTILINE))


@pytest.mark.slow
def test_the_steps_run(installed, tmp_path):
    """With the wheel, in a folder with the files that the page names."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    for name in ("configs", "docs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    page = PAGE.replace("8000", str(free_ports(1)[0]))
    # A few steps are enough to test the commands.
    for long, short in (
        ("120 --warmup_steps=20", "8 --warmup_steps=2"),
        ("40 --warmup_steps=10", "8 --warmup_steps=2"),
        ("--epochs=10", "--epochs=2"),
    ):
        assert long in page
        page = page.replace(long, short)
    page = re.sub(r"(--(?:eval|save_checkpoint)_steps)=\d+", r"\1=8", page)
    blocks = []
    for step in STEP.finditer(page):
        if step["shell"]:
            blocks.append(step["shell"])
        else:
            (tmp_path / step["name"]).write_text(step["code"])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {"PYTHONPATH": str(installed), "PATH": path}
    program = [sys.executable, "-u", "-c", PROGRAM, *blocks]
    output = output_of(program, tmp_path, **variables)
    pattern = r'^\{"text": "the sailor rowed to the island \.".*$'
    (predicted,) = re.findall(pattern, output, re.MULTILINE)
    assert json.loads(predicted)["label"] == "sea"
    (served,) = re.findall(r'\{"predictions":.*?\]\}', output)
    labels = [answer["label"] for answer in json.loads(served)["predictions"]]
    assert labels == ["sea", "war"]
    assert "(2, 256)" in output
    losses = logged(tmp_path / "runs/mine/metrics.jsonl")
    assert losses[-1] < losses[0]
    # The probe of `--head_init` has fitted the table before the first step.
    assert max(logged(tmp_path / "runs/topics/metrics.jsonl")) < 0.1
    report = json.loads((tmp_path / "runs/topics/results.json").read_text())
    accuracy = report["summary"][report["main_split"]]["accuracy"]
    assert accuracy["min"] > accuracy["baseline"] + 30
    for folder, names in (
        ("topics", ("model_card.md", "saved_model")),
        ("mine", ("curves.png", "samples.txt", "checkpoints")),
        ("watched", ("encoder.keras",)),
    ):
        assert {*names} <= {
            path.name for path in (tmp_path / "runs" / folder).iterdir()
        }
    with open(tmp_path / "losses.csv") as file:
        assert list(csv.DictReader(file))

import csv
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.examples.common import ROOT, output_of
from tests.strategy import free_ports

PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
STEP = re.compile(
    r'```bash\n(?P<shell>.*?)```|```python title="(?P<name>[\w.]+)"\n(?P<code>.*?)```',
    re.DOTALL,
)


def steps():
    """Yields the page's commands, and a command that writes each of its files."""
    for step in STEP.finditer(PAGE):
        if step["shell"]:
            yield step["shell"]
        else:
            yield f"cat > {step['name']} <<'END_OF_FILE'\n{step['code']}END_OF_FILE\n"


def logged(path):
    """Training losses of a run."""
    rows = map(json.loads, path.read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def test_every_block_is_a_step():
    assert len(list(steps())) == len(re.findall(r"^```\w", PAGE, re.MULTILINE))


@pytest.mark.slow
def test_the_steps_run(installed, tmp_path):
    """With the wheel, in a folder with the files that the page names."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    for name in ("configs", "docs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = "\n".join(["set -euo pipefail", *steps()])
    script = script.replace("8000", str(free_ports(1)[0]))
    # A few steps are enough to test the commands.
    for long, short in (
        ("120 --warmup_steps=20", "8 --warmup_steps=2"),
        ("40 --warmup_steps=10", "8 --warmup_steps=2"),
        ("--epochs=10", "--epochs=2"),
    ):
        assert long in script
        script = script.replace(long, short)
    script = re.sub(r"(--(?:eval|save_checkpoint)_steps)=\d+", r"\1=8", script)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {"PYTHONPATH": str(installed), "PATH": path}
    output = output_of(["bash", "-c", script], tmp_path, **variables)
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
    files = [f"runs/topics/{name}" for name in ("curves.png", "model_card.md")]
    files += [f"runs/mine/{name}" for name in ("curves.png", "samples.txt")]
    files += ["runs/mine/checkpoints", "runs/watched/encoder.keras"]
    files += ["runs/topics/saved_model"]
    assert [name for name in files if not (tmp_path / name).exists()] == []
    with open(tmp_path / "losses.csv") as file:
        assert list(csv.DictReader(file))

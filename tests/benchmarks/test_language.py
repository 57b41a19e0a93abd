"""A small comparison on the synthetic language, from text to distances."""

import json
import subprocess
import sys

import pytest
from optimum import learned

from tests.end_to_end.test_pretraining import ROOT

pytestmark = pytest.mark.slow


def run(*command):
    command = [sys.executable, *command]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


# Each system takes a process; these three save different networks.
SYSTEMS = {"electra", "mlm", "electric"}


def ladder(folder):
    """Writes the shipped comparison with a subset of its systems."""
    lines = (ROOT / "configs" / "compare" / "grammar.cfg").read_text().splitlines()
    system = "--system="
    kept = [
        line
        for line in lines
        if not line.startswith(system)
        or line.removeprefix(system).partition(":")[0] in SYSTEMS
    ]
    path = folder / "ladder.cfg"
    path.write_text("\n".join(kept) + "\n")
    return path


def test_objectives_on_the_language(tmp_path):
    text, compared = tmp_path / "grammar", tmp_path / "compared"
    options = (f"--output_dir={text}", "--sentences=6000", "--tagged=300")
    run("benchmarks/grammar.py", *options)
    run(
        *(
            "-m",
            "electra_tf",
            "compare",
            f"--flagfile={ladder(tmp_path)}",
            f"--data_root={text}",
        ),
        *(f"--output_dir={compared}", "--budget=electra:100", "--seeds=1"),
        "--pretrain=--hidden_size=64 --num_heads=2 --intermediate_size=128 "
        "--learning_rate=3e-3 --train_batch_size=32 --eval_fraction=0.02",
    )
    rows = [json.loads(line) for line in (compared / "results.jsonl").open()]
    assert not [row for row in rows if "failure" in row]
    tags = {row["system"]: row["score"] for row in rows if row["kind"] == "probe"}
    assert set(tags) == SYSTEMS | {"untrained"}

    scores = tmp_path / "scores.json"
    model, some = f"--model={compared}", "--sentences=200"
    table = run("benchmarks/optimum.py", model, some, f"--output={scores}")
    found = {name: of[0] for name, of in json.loads(scores.read_text()).items()}
    print(table, tags)
    assert all(f"{system} (1)" in table for system in SYSTEMS)
    assert not found["electric"], "two towers and an energy have no such numbers"
    assert 0 < learned(found["mlm"]["masked_nats"]) < 1
    assert 0 < learned(found["electra"]["masked_nats"]) < 1
    assert learned(found["electra"]["detection_auc"]) < 1
    best = json.loads((text / "optimum.json").read_text())["best_tag_accuracy"]
    assert all(score < 100 * best for score in tags.values())

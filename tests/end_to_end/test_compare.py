"""``python -m electra_tf compare``, also killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import electra_tf.api  # noqa: F401 - registers the classes of encoder.keras
from electra_tf import files
from tests.end_to_end.test_pretraining import ROOT, SIZES, signal_after
from tests.golden import commands

pytestmark = pytest.mark.slow

# Durations and times of day differ between runs.
TIMES = ("seconds", "time", "train_seconds")


@pytest.fixture(scope="module")
def table(text):
    """Writes training and evaluation tables whose label depends on the verb."""
    rows = [line for line in (text / "text.txt").read_text().splitlines() if line]
    for name, part in (("train", rows[:160]), ("dev", rows[160:240])):
        lines = (f"{row},{'eats' if ' eats ' in row else 'other'}" for row in part)
        (text / f"{name}.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    return text


def command(text, output_dir, *flags):
    probe = (
        "--task=classification --train={data}/train.csv --eval={data}/dev.csv "
        "--max_seq_length=24 --epochs=4 --train_batch_size=8 --learning_rate=1e-2"
    )
    return [
        sys.executable,
        "-m",
        "electra_tf",
        "compare",
        f"--data_root={text}",
        f"--output_dir={output_dir}",
        f"--pretrain={' '.join(SIZES.split())}",
        "--pretrain=--corpus={data}/text.txt --vocab_file={data}/vocab.txt",
        "--system=electra:",
        "--system=mlm: --objective=mlm --mask_rule=bert",
        f"--probe=eats: {probe}",
        "--budget=electra:30",
        "--seeds=2",
        *flags,
    ]


def run(*arguments, expect=0):
    return "".join(commands.run("compare", *command(*arguments)[4:], expect=expect))


def rows(folder):
    found = files.read_json_lines(folder / "results.jsonl")
    return [{n: v for n, v in row.items() if n not in TIMES} for row in found]


def weights(path):
    return keras.saving.load_model(path, compile=False).get_weights()


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(table, folder)


def test_it_leaves_what_it_promises(table, whole):
    folder, output = whole
    found = rows(folder)
    # Per seed: two systems, each with one pretraining run and one probe.
    assert [row["kind"] for row in found] == ["pretrain", "probe"] * 4
    assert [row["seed"] for row in found] == [0] * 4 + [1] * 4
    steps = {row["system"]: row["steps"] for row in found if "steps" in row}
    assert steps["electra"] == 30
    assert steps["mlm"] > 30
    costs = [row["flops"]["matmul"] for row in found if "flops" in row]
    assert min(costs) == pytest.approx(max(costs), rel=0.02)
    text = (folder / "table.md").read_text()
    assert text in output
    # Thirty steps are too few for a ranking.
    assert "**Below threshold: electra (AUC " in text
    assert "## Against" not in text
    again = run(table, folder, "--threshold_auc=0", "--threshold_nats=0")
    assert rows(folder) == found
    assert "## Against electra" in again
    assert not list(folder.rglob("checkpoints"))
    assert not list(folder.rglob("model.keras"))


def test_a_probe_is_what_run_finetuning_gives(table, whole, tmp_path):
    about = {"kind": "probe", "system": "electra", "seed": 1}
    (row,) = [row for row in rows(whole[0]) if about.items() <= row.items()]
    flags = next(x for x in command(table, "") if x.startswith("--probe="))
    # A probe that does not beat the baseline exits with an error.
    commands.call(
        "run_finetuning",
        *flags.partition(": ")[2].replace("{data}", str(table)).split(),
        f"--encoder={whole[0] / 'runs/electra/seed-1/encoder.keras'}",
        f"--output_dir={tmp_path}",
        "--noexport_saved_model",
        "--seed=1",
    )
    report = json.loads((tmp_path / "results.json").read_text())
    assert report["summary"]["eval"]["accuracy"]["mean"] == row["score"]


def test_done_is_done_and_changes_are_refused(table, whole):
    folder, _ = whole
    before = (folder / "results.jsonl").read_bytes()
    output = run(table, folder)
    assert "to train or probe" not in output
    for flag, message in (
        ("--pretrain=--mask_rate=0.3", "electra: --mask_rate was 0.15, now 0.3"),
        ("--budget=electra:40", "electra: --num_train_steps was 30, now 40"),
        ("--probe_seeds=2", "eats: --probe_seeds was 1, now 2"),
    ):
        # The flag is refused before a worker starts.
        output = run(table, folder, flag, expect=1)
        assert message in output
        assert "--overwrite" in output
    assert (folder / "results.jsonl").read_bytes() == before


def workers_of(output_dir):
    """Returns ids of worker processes that log to a file in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = b"comparison.worker" in (process / "cmdline").read_bytes()
            log = os.readlink(process / "fd" / "2")
        except OSError:
            continue
        if is_worker and log.startswith(str(output_dir)):
            found.append(int(process.name))
    return found


def start_and_signal(table, folder, number, system):
    """Sends a signal after step 20 of a system; returns the exit code."""
    run = folder / "runs" / system / "seed-0"
    with subprocess.Popen(
        command(table, folder, "--seeds=1"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            return signal_after(process, run, 20, number)[0]
        finally:
            process.kill()


def test_killed_twice_and_rerun_equals_uninterrupted(table, whole, tmp_path):
    """SIGKILL in the first system's pretraining, SIGTERM in the second's."""
    code = start_and_signal(table, tmp_path, signal.SIGKILL, "electra")
    assert code == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while workers_of(tmp_path):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)
    assert start_and_signal(table, tmp_path, signal.SIGTERM, "mlm") == 75
    assert not workers_of(tmp_path)
    run(table, tmp_path, "--seeds=1")
    log = (tmp_path / "runs" / "electra" / "seed-0" / "log.txt").read_text()
    assert "resuming after step" in log
    assert "Fatal" not in log
    expected = [row for row in rows(whole[0]) if row["seed"] == 0]
    assert rows(tmp_path) == expected != []
    for name in ("electra", "mlm"):
        path = f"runs/{name}/seed-0/encoder.keras"
        np.testing.assert_equal(weights(tmp_path / path), weights(whole[0] / path))

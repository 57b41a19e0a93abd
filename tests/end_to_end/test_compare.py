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
from tests.end_to_end.test_pretraining import ROOT, SIZES
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


def run(*arguments):
    code, out, err = commands.call("compare", *command(*arguments)[4:])
    assert code == 0, (out + err)[-3000:]
    return out + err


def rows(folder):
    lines = (folder / "results.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
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
    (row,) = [
        row
        for row in rows(whole[0])
        if row["kind"] == "probe" and (row["system"], row["seed"]) == ("electra", 1)
    ]
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
    assert "runs are left" not in output
    for flag, message in (
        ("--pretrain=--mask_rate=0.3", "electra: --mask_rate was 0.15, now 0.3"),
        ("--budget=electra:40", "electra: --num_train_steps was 30, now 40"),
        ("--probe_seeds=2", "eats: --probe_seeds was 1, now 2"),
    ):
        # The flag is refused before a worker starts.
        code, out, err = commands.call("compare", *command(table, folder, flag)[4:])
        assert code == 1
        output = out + err
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


def kill_when(process, condition, number):
    deadline = time.monotonic() + 900
    while not condition():
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    return process.wait(timeout=120)


def start(table, folder, *flags):
    return subprocess.Popen(
        command(table, folder, *flags),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_killed_twice_and_rerun_equals_uninterrupted(table, whole, tmp_path):
    """SIGKILL in the first system's pretraining, SIGTERM in the second's."""
    runs, one_seed = tmp_path / "runs", "--seeds=1"

    def has_checkpoint(system):
        found = (runs / system / "seed-0" / "checkpoints").glob("ckpt-*.index")
        return any(int(path.stem.split("-")[1]) >= 20 for path in found)

    process = start(table, tmp_path, one_seed)
    code = kill_when(process, lambda: has_checkpoint("electra"), signal.SIGKILL)
    assert code == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while workers_of(tmp_path):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)
    process = start(table, tmp_path, one_seed)
    code = kill_when(process, lambda: has_checkpoint("mlm"), signal.SIGTERM)
    assert code == 75
    assert not workers_of(tmp_path)
    run(table, tmp_path, one_seed)
    log = (runs / "electra" / "seed-0" / "log.txt").read_text()
    assert "resuming after step" in log
    assert "Fatal" not in log
    expected = [row for row in rows(whole[0]) if row["seed"] == 0]
    assert rows(tmp_path) == expected != []
    for name in ("electra/seed-0/encoder.keras", "mlm/seed-0/encoder.keras"):
        pair = (weights(folder / "runs" / name) for folder in (whole[0], tmp_path))
        np.testing.assert_equal(*pair)

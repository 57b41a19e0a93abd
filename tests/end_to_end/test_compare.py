import json
import os
import signal
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import electra_tf.api  # noqa: F401 - registers the classes of encoder.keras
from electra_tf import files
from electra_tf.comparison import compare, worker
from tests.end_to_end.test_pretraining import SIZES, start_and_signal
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
        "--max_seq_length=24 --epochs=2 --train_batch_size=8 --learning_rate=1e-2"
    )
    return [
        "compare",
        f"--data_root={text}",
        f"--output_dir={output_dir}",
        f"--pretrain={' '.join(SIZES.split())}",
        "--pretrain=--corpus={data}/text.txt --vocab_file={data}/vocab.txt",
        "--system=electra:",
        "--system=mlm: --objective=mlm --mask_rule=bert",
        f"--probe=eats: {probe}",
        "--budget=electra:30",
        "--seed=1",
        "--seeds=1",
        *flags,
    ]


def run(*arguments, expect=0):
    return "".join(commands.run(*command(*arguments), expect=expect))


def rows(folder):
    found = files.read_json_lines(folder / "results.jsonl")
    return [{n: v for n, v in row.items() if n not in TIMES} for row in found]


def weights(path):
    return keras.saving.load_model(path, compile=False).get_weights()


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory):
    """Runs the workers' code in this process, which saves importing TensorFlow."""

    def run_jobs(jobs, store, *_):
        for job in json.loads(json.dumps(jobs)):
            assert worker.run(job, store.add) == 0

    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "run_jobs", run_jobs)
        return folder, run(table, folder)


def test_it_leaves_what_it_promises(table, whole):
    folder, output = whole
    found = rows(folder)
    # Two systems, each with one pretraining run and one probe.
    assert [row["kind"] for row in found] == ["pretrain", "probe"] * 2
    assert {row["seed"] for row in found} == {1}
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
    assert "to train or probe" not in again
    assert "## Against electra" in again
    refused = run(table, folder, "--pretrain=--mask_rate=0.3", expect=1)
    assert "electra: --mask_rate was 0.15, now 0.3" in refused
    assert rows(folder) == found
    assert not list(folder.rglob("checkpoints"))
    assert not list(folder.rglob("model.keras"))


def test_a_probe_is_what_run_finetuning_gives(table, whole, tmp_path):
    about = {"kind": "probe", "system": "electra"}
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


def test_killed_twice_and_rerun_equals_uninterrupted(table, whole, tmp_path):
    """SIGKILL in the first system's pretraining, SIGTERM in the second's."""
    arguments, runs = command(table, tmp_path), tmp_path / "runs"
    first, second = (runs / name / "seed-1" for name in ("electra", "mlm"))
    code, _ = start_and_signal(arguments, first, signal.SIGKILL, 20)
    assert code == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while workers_of(tmp_path):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)
    assert start_and_signal(arguments, second, signal.SIGTERM, 20)[0] == 75
    assert not workers_of(tmp_path)
    run(table, tmp_path)
    log = (first / "log.txt").read_text()
    assert "resuming after step" in log
    assert "Fatal" not in log
    assert rows(tmp_path) == rows(whole[0]) != []
    for name in ("electra", "mlm"):
        path = f"runs/{name}/seed-1/encoder.keras"
        np.testing.assert_equal(weights(tmp_path / path), weights(whole[0] / path))

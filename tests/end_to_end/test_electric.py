"""Electric, ELECTRA-TT and the masking rules as a user runs them."""

import json
import shutil

import pytest

from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.runs import finetuning
from tests.end_to_end.test_pretraining import (
    assert_same_bits,
    final_weights,
    run_here,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [["--objective=electric"], ["--generator=two_tower"]], ids=["nce", "tt"]
)
def test_a_run_and_fine_tuning(text, tmp_path, flags):
    folder = tmp_path / "run"
    output = run_here(text, folder, *flags, "--gradient_accumulation_steps=2")
    for word in ("generator loss (nats)", "discriminator AUC", "tokens replaced"):
        assert word in output
    for name in ("encoder", "generator", "discriminator"):
        assert (folder / f"{name}.keras").exists()
    assert "P(replaced)" in (folder / "samples.txt").read_text()
    assert (folder / "curves.png").stat().st_size > 0
    rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["generator_loss"] > rows[-1]["eval_generator_loss"] + 0.2

    table = tmp_path / "train.csv"
    lines = ["the cat sees a dog at night .,0", "my bird eats one horse .,1"] * 8
    table.write_text("text,label\n" + "\n".join(lines) + "\n")
    values = {
        "task": "classification",
        "train": str(table),
        "eval": str(table),
        "encoder": str(folder / "encoder.keras"),
        "output_dir": str(tmp_path / "tuned"),
        "max_seq_length": 16,
        "train_batch_size": 8,
        "epochs": 1.0,
        "export_saved_model": False,
    }
    tuned = fields.from_flat(values, FinetuneConfig)
    finetuning.run(tuned, lambda line: None)
    results = json.loads((tmp_path / "tuned" / "results.json").read_text())
    assert "accuracy" in results["summary"]["eval"]


@pytest.mark.slow
def test_the_mask_rate_of_a_resumed_run(text, tmp_path):
    """Stopped and rerun, with a schedule and spans: the same weights to the bit."""
    flags = [
        "--mask_select=spans",
        "--mask_rate=0.4",
        "--final_mask_rate=0.1",
        "--mask_rate_steps=20",
        "--gradient_accumulation_steps=2",
    ]
    run_here(text, tmp_path / "whole", *flags)
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    for path in (tmp_path / "parts" / "checkpoints").glob("ckpt-[23]*"):
        path.unlink()
    output = run_here(text, tmp_path / "parts", *flags)
    assert "resuming after step 15" in output
    whole, parts = (final_weights(tmp_path / name) for name in ("whole", "parts"))
    assert_same_bits(whole, parts)


@pytest.mark.slow
def test_rare_tokens_and_dry_runs(text, tmp_path):
    output = run_here(text, tmp_path / "rare", "--mask_select=rare_tokens")
    assert "generator loss (nats)" in output
    single = run_here(text, tmp_path / "dry", "--dry_run")
    double = run_here(text, tmp_path / "dry", "--objective=electric", "--dry_run")

    def flops(output):
        line = next(x for x in output.splitlines() if x.startswith("FLOPs per step"))
        return float(line.split(":")[1].split("(")[0])

    assert 1.2 * flops(single) < flops(double) < 4 * flops(single)
    assert "generator" in double

import json
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from electra_tf import files
from tests.forked import Process
from tests.golden import commands

pytestmark = pytest.mark.slow

SIZES = """
--num_train_steps=30 --train_batch_size=8 --eval_batch_size=8 --max_seq_length=32
--max_positions=32 --num_layers=1 --hidden_size=32 --num_heads=2 --intermediate_size=64
--embedding_size=16 --generator_hidden_size=0.5 --warmup_steps=5 --learning_rate=1e-3
--log_steps=10 --eval_steps=0 --save_checkpoint_steps=5
"""


def flags_of(text, model_dir, *flags):
    return [
        *SIZES.split(),
        f"--corpus={text / 'text.txt'}",
        f"--vocab_file={text / 'vocab.txt'}",
        f"--data_dir={text / 'data'}",
        f"--model_dir={model_dir}",
        *flags,
    ]


def run_here(text, model_dir, *flags):
    """Runs pretraining in the test's process, which saves the start-up time."""
    arguments = flags_of(text, model_dir, *flags)
    return "".join(commands.run("run_pretraining", *arguments))


def final_weights(model_dir, step=30):
    reader = tf.train.load_checkpoint(str(model_dir / "checkpoints" / f"ckpt-{step}"))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "VARIABLE_VALUE" in name and "save_counter" not in name
    }


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("whole")
    return model_dir, run_here(text, model_dir)


def test_a_run_leaves_everything_it_promises(whole):
    model_dir, output = whole
    for name in (
        *("encoder.keras", "generator.keras", "discriminator.keras", "vocab.txt"),
        *("config.json", "metrics.jsonl", "curves.png", "samples.txt", "model_card.md"),
    ):
        assert (model_dir / name).stat().st_size > 0, name
    assert list((model_dir / "tensorboard").rglob("events*"))
    config = json.loads((model_dir / "config.json").read_text())
    assert config["config"]["num_train_steps"] == 30
    assert config["versions"]["tensorflow"].startswith("2.")
    rows = files.read_json_lines(model_dir / "metrics.jsonl")
    assert rows[-1]["step"] == 30
    assert {"eval_discriminator_auc", "eval_generator_loss"} <= rows[-1].keys()
    last = [row for row in rows if "generator_loss" in row][-1]
    assert {"learning_rate", "gradient_norm", "tokens_per_second"} <= last.keys()
    assert "trivial" in output
    assert "electra_tf finetune" in output


def start_and_signal(command, model_dir, number, step):
    """Sends a signal after the checkpoint of ``step``; returns exit code and output."""
    deadline, pattern = time.monotonic() + 900, "checkpoints/ckpt-*.index"
    process = Process("electra_tf.__main__:main", arguments=command)
    try:
        while step > max(
            (int(path.stem.split("-")[1]) for path in model_dir.glob(pattern)),
            default=-1,
        ):
            assert process.poll() is None, "the run ended before it was killed"
            assert time.monotonic() < deadline, f"no checkpoint of step {step}"
            time.sleep(0.02)
        process.send_signal(number)
        return process.communicate(timeout=120)
    finally:
        process.send_signal(signal.SIGKILL)


def test_killed_and_rerun_equals_uninterrupted_to_the_bit(text, whole, tmp_path):
    """SIGTERM has its own exit code (pitfall 45 of docs/fidelity.md)."""
    pretrain = ["pretrain", *flags_of(text, tmp_path)]
    code, output = start_and_signal(pretrain, tmp_path, signal.SIGTERM, 5)
    assert code == 75, output
    assert "SIGTERM" in output
    code, _ = start_and_signal(pretrain, tmp_path, signal.SIGKILL, 15)
    assert code == -signal.SIGKILL
    output = run_here(text, tmp_path)
    assert "resuming after step" in output
    np.testing.assert_equal(final_weights(tmp_path), final_weights(whole[0]))


def test_dry_run_builds_prints_and_writes_no_run(text, whole, tmp_path):
    output = run_here(text, tmp_path, "--dry_run")
    for word in ("parameters", "FLOPs", "records"):
        assert word in output
    assert not (tmp_path / "config.json").exists()
    # A dry run also works before records and vocabulary exist.
    apart = (f"--data_dir={tmp_path / 'data'}", "--vocab_file=", "--vocab_size=77")
    output = run_here(text, tmp_path, "--dry_run", *apart)
    assert "would train a vocabulary of 77 tokens and build records of" in output
    assert "77 tokens in the vocabulary" in output
    assert list(tmp_path.iterdir()) == []

import dataclasses
import socket
from typing import ClassVar

import keras
import pytest
import tensorflow as tf

from electra_tf import cli
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.records import write_shard
from electra_tf.errors import UserError
from electra_tf.runs import pretraining
from tests.data.common import silent
from tests.end_to_end.in_process import config_of, rows, run
from tests.runs.reachable import assert_no_config


class Seen(keras.callbacks.Callback):
    batches: ClassVar[list[int]] = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)


def test_what_is_ready_to_be_trained_holds_no_config(text, tmp_path):
    config = config_of(text, tmp_path, "--log_steps=2", "--num_train_steps=100000")
    said = []
    ready = pretraining.prepare(config, said.append)
    # Too many epochs: the warning recommends a number of steps.
    steps = (
        40
        * sum(shard.records for shard in ready.data.shards)
        // config.run.train_batch_size
    )
    assert f"--num_train_steps={steps}" in said[-1]
    assert_no_config(ready, PretrainConfig, ready.model, ready.data.vocabulary)
    with ready.lock, pytest.raises(dataclasses.FrozenInstanceError):
        ready.num_steps = 7


@pytest.mark.slow
def test_the_three_parts_are_a_run(text, tmp_path):
    said = []
    config = config_of(text, tmp_path, f"--callback={__name__}:Seen")
    ready = pretraining.prepare(config, said.append)
    assert (tmp_path / "config.json").exists()
    assert (ready.first_step, ready.num_steps) == (0, 6)
    with ready.lock:
        assert pretraining.train(ready) is None
        assert Seen.batches == list(range(6))
        assert not (tmp_path / "encoder.keras").exists()
        pretraining.finish(ready)
    assert (tmp_path / "encoder.keras").exists()
    assert rows(tmp_path)[-1].keys() >= {"step", "time", "eval_loss"}
    assert "electra_tf finetune" in said[-1]
    card = (tmp_path / "model_card.md").read_text()
    settings = ("* `--num_train_steps`: `6`\n", "text.txt`", "`generator.keras`: ")
    for part in (*settings, "| discriminator_auc | ", "| generator"):
        assert part in card
    again = pretraining.prepare(config_of(text, tmp_path), silent)
    with again.lock:
        assert again.first_step == 6
        assert pretraining.train(again) is None
        before = rows(tmp_path)
        pretraining.finish(again)
    assert rows(tmp_path) == before
    for path in (tmp_path / "checkpoints").glob("ckpt-6.*"):
        path.rename(path.with_name(path.name.replace("6", "5", 1)))
    with pytest.raises(UserError, match="ckpt-5 holds step 6"):
        pretraining.prepare(config_of(text, tmp_path), silent)


@pytest.mark.slow
def test_a_second_process_is_refused_until_the_first_is_dead(
    text, tmp_path, lock_holder
):
    other, _ = lock_holder
    leftover = tmp_path / f".encoder.part-{other.pid}.keras"
    leftover.write_bytes(b"half a model")
    who = f"process {other.pid} on {socket.gethostname()} is working in"
    with pytest.raises(ValueError, match=who) as caught:
        run(text, tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "config.json").exists()
    # --overwrite does not bypass the lock.
    with pytest.raises(ValueError, match=who):
        run(text, tmp_path, "--overwrite")
    # A dry run does not write, so it does not need the lock.
    assert run(text, tmp_path, "--dry_run")[0] == cli.OK

    other.kill()
    other.join()
    # Records in the folder itself do not wait for its lock.
    flags = (f"--data_dir={tmp_path}", "--num_train_steps=2")
    assert run(text, tmp_path, *flags)[0] == cli.OK
    assert not leftover.exists()
    assert not (tmp_path / ".lock.owner").exists()


@pytest.mark.parametrize("name", ["train-0.tfrecord", "eval-0.tfrecord"])
def test_a_dry_run_finds_damaged_records(text, tmp_path, monkeypatch, name):
    for each in ("train-0.tfrecord", "eval-0.tfrecord"):
        write_shard(tmp_path / each, [[2, 5, 6, 3]] * 9)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-5])
    # Before any model is built.
    monkeypatch.setattr(pretraining.build, "compiled_phases", pytest.fail)
    with pytest.raises(UserError, match=f"{name}: .*cut off at byte"):
        run(text, tmp_path / "run", f"--records={tmp_path}", "--dry_run")
    assert not (tmp_path / "run").exists()


def test_a_fine_tuned_model_is_never_overwritten(text, tmp_path):
    (tmp_path / "task.json").write_text("{}")
    for flags in ((), ("--overwrite",)):
        with pytest.raises(UserError, match="fine-tuned model: set --model_dir"):
            pretraining.prepare(config_of(text, tmp_path, *flags), silent)
    assert [path.name for path in tmp_path.iterdir()] == ["task.json"]


def test_micro_batches_are_checked_before_a_run_is_deleted(text, tmp_path, monkeypatch):
    flags = ("--gradient_accumulation_steps=8", "--train_batch_size=8", "--overwrite")
    config = config_of(text, tmp_path, *flags)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    monkeypatch.setattr(pretraining, "strategy_for", lambda name: strategy)
    (tmp_path / "encoder.keras").write_text("trained")
    with pytest.raises(UserError, match=r"multiple of 16, .*accumulation_steps=8"):
        pretraining.prepare(config, silent)
    assert (tmp_path / "encoder.keras").read_text() == "trained"

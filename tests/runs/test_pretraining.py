import socket
from typing import ClassVar

import keras
import pytest
import tensorflow as tf

from electra_tf import cli
from electra_tf.data.records import write_shard
from electra_tf.errors import UserError
from electra_tf.runs import pretraining
from tests.data.common import silent
from tests.end_to_end.in_process import config_of, restored, rows, run


class Seen(keras.callbacks.Callback):
    batches: ClassVar[list[int]] = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)


def test_too_many_passes_are_reported_with_a_number_of_steps(text, tmp_path):
    config = config_of(text, tmp_path, "--log_steps=2", "--num_train_steps=100000")
    said = []
    with restored(config, said.append) as ready:
        steps = 40 * ready.data.manifest.num_records // config.run.train_batch_size
    assert f"--num_train_steps={steps}" in said[-1]


@pytest.mark.slow
def test_the_parts_are_a_run(text, tmp_path):
    said = []
    config = config_of(text, tmp_path, f"--callback={__name__}:Seen")
    with restored(config, said.append) as ready:
        assert (tmp_path / "config.json").exists()
        assert ready.first_step == 0
        assert ready.train() is None
        assert Seen.batches == list(range(6))
        assert not (tmp_path / "encoder.keras").exists()
        ready.finish()
    assert (tmp_path / "encoder.keras").exists()
    assert rows(tmp_path)[-1].keys() >= {"step", "time", "eval_loss"}
    assert "electra_tf finetune" in said[-1]
    card = (tmp_path / "model_card.md").read_text()
    settings = ("* `--num_train_steps`: `6`\n", "text.txt`", "`generator.keras`: ")
    for part in (*settings, "| discriminator_auc | ", "| generator"):
        assert part in card
    events = (tmp_path / "tensorboard" / "eval").iterdir()
    assert any(b"discriminator_auc" in path.read_bytes() for path in events)
    with restored(config_of(text, tmp_path)) as again:
        assert again.first_step == 6
        assert again.train() is None
        before = rows(tmp_path)
        again.finish()
    assert rows(tmp_path) == before
    for path in (tmp_path / "checkpoints").glob("ckpt-6.*"):
        path.rename(path.with_name(path.name.replace("6", "5", 1)))
    with restored(config_of(text, tmp_path)) as renamed:
        assert renamed.first_step == 6


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
            pretraining.PretrainingRun(config_of(text, tmp_path, *flags), silent)
    assert [path.name for path in tmp_path.iterdir()] == ["task.json"]


def test_micro_batches_are_checked_before_a_run_is_deleted(text, tmp_path, monkeypatch):
    flags = ("--gradient_accumulation_steps=8", "--train_batch_size=8", "--overwrite")
    config = config_of(text, tmp_path, *flags)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    monkeypatch.setattr(pretraining, "strategy_for", lambda name: strategy)
    (tmp_path / "encoder.keras").write_text("trained")
    with pytest.raises(UserError, match=r"multiple of 16, .*accumulation_steps=8"):
        pretraining.PretrainingRun(config, silent)
    assert (tmp_path / "encoder.keras").read_text() == "trained"

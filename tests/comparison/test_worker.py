"""Parts of the worker, in this process; tests/end_to_end runs all of it."""

import json

import keras
import numpy as np
import pytest

from electra_tf.comparison.store import encoder_folder
from electra_tf.comparison.worker import EncoderAt, run, training_seconds
from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.building import build_records
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.systems import build
from tests import tiny

SIZES = {
    "num_layers": 1,
    "hidden_size": 16,
    "num_heads": 1,
    "intermediate_size": 32,
    "embedding_size": 8,
    "max_positions": 32,
    "max_seq_length": 32,
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    words = [f"w{letter}" for letter in "abcdefghij"]
    documents = [" ".join(words[i % 7 :] * 3) for i in range(200)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    build_records(
        [str(folder / "text.txt")],
        folder / "data",
        vocabulary=Vocabulary((*SPECIAL_TOKENS, *words)),
        max_seq_length=32,
        num_processes=1,
        log=lambda text: None,
    )
    return folder / "data"


def job(folder, **values):
    flat = {"model_dir": str(folder), "seed": 3, **SIZES, **values}
    return {
        "system": "untrained",
        "seed": 3,
        "folder": str(folder),
        "is_untrained": True,
        "keep": "models",
        "points": [1.0],
        "flops": {"matmul": 5.0, "original": 6.0},
        "pretrain": flat,
        "probes": [],
    }


def test_the_untrained_encoder_is_the_one_that_a_run_begins_with(records, tmp_path):
    chosen = job(tmp_path, records=[str(records / "train-*.tfrecord")])
    pair = {"sentence_good": "wa wb wc", "sentence_bad": "wa wc wb"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    config = {"data": [str(tmp_path / "pairs.jsonl")]}
    chosen["probes"] = [{"name": "p", "point": 1.0, "kind": "pairs", "config": config}]
    emitted = []
    assert run(json.loads(json.dumps(chosen)), emitted.append) == 0
    row, probed = emitted
    assert (probed["probe"], probed["baseline"]) == ("p", 50.0)
    assert probed["score"] in (0.0, 50.0, 100.0)
    assert probed["metric"] == "accuracy by the sum of detection"
    assert row["flops"] == {"matmul": 0.0, "original": 0.0}
    assert (row["kind"], row["steps"], row["seed"]) == ("pretrain", 0, 3)
    config = fields.from_flat(chosen["pretrain"], PretrainConfig)
    expected = build.build_model(config, 15).discriminator.get_weights()
    got = keras.saving.load_model(tmp_path / "encoder.keras").get_weights()
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (tmp_path / "vocab.txt").exists()
    described = json.loads((tmp_path / "config.json").read_text())
    assert described["config"]["max_seq_length"] == 32


@pytest.mark.slow
def test_a_probe_chooses_its_flags_on_training_data(records, tmp_path):
    """With --search in a probe, each encoder gets its own learning rate."""
    rows = [f"wa w{'bc'[n % 2]} wd,{'xy'[n % 2]}\n" for n in range(60)]
    (tmp_path / "train.csv").write_text("".join(["text,label\n", *rows]))
    config = {"task": "classification", "train": str(tmp_path / "train.csv")}
    config |= {"text": ["text"], "label": ["label"], "max_seq_length": 32}
    config |= {"eval": config["train"], "epochs": 60.0, "pooling": "mean"}
    config |= {"search": ["learning_rate=1e-7/1e-2"], "search_trials": 2}
    chosen = job(tmp_path / "run", records=[str(records / "train-*.tfrecord")])
    probe = {"name": "words", "point": 1.0, "kind": "finetuning"}
    chosen["probes"] = [probe | {"config": config}]
    chosen["keep"] = "all"
    emitted = []
    assert run(json.loads(json.dumps(chosen)), emitted.append) == 0
    assert emitted[1]["score"] == 100.0
    kept = tmp_path / "run" / "probes" / "1" / "words"
    assert json.loads((kept / "search.json").read_text())["best"] == {
        "learning_rate": 0.01
    }
    described = json.loads((kept / "config.json").read_text())["config"]
    assert described["learning_rate"] == 0.01


def test_a_failure_is_a_line_and_the_probes_are_left_out(tmp_path, capsys):
    chosen = job(tmp_path, records=[str(tmp_path / "none-*.tfrecord")])
    chosen["probes"] = [{"name": "cola", "point": 1.0, "config": {}}]
    emitted = []
    assert run(chosen, emitted.append) == 0
    (row,) = emitted
    assert row["kind"] == "pretrain"
    assert "none-*.tfrecord" in row["failure"]
    assert "Traceback" in capsys.readouterr().err


def test_a_failed_probe_is_a_line_and_the_next_one_is_tried(tmp_path, capsys):
    chosen = {**job(tmp_path), "pretrain": None}
    probe = {"point": 0.5, "kind": "finetuning", "config": {"task": "documentation"}}
    chosen["probes"] = [{"name": "a", **probe}, {"name": "b", **probe}]
    emitted = []
    assert run(chosen, emitted.append) == 0
    assert [(row["probe"], row["point"]) for row in emitted] == [("a", 0.5), ("b", 0.5)]
    assert all("No encoder at" in row["failure"] for row in emitted)


def test_encoders_are_saved_at_their_steps(tmp_path):
    for name in ("vocab.txt", "config.json"):
        (tmp_path / name).write_text(name)
    folders = {step: encoder_folder(tmp_path, step / 10) for step in (2, 5)}
    saving = EncoderAt(folders, tmp_path, 3)
    saving.set_model(tiny.electra())
    for batch in range(4):
        saving.on_train_batch_end(batch)
    # This process starts after step 3; the previous one saved step 2.
    assert not folders[2].exists()
    names = {f"{name}.keras" for name in ("encoder", "generator", "discriminator")}
    saved = {path.name for path in folders[5].iterdir()}
    assert saved == names | {"vocab.txt", "config.json"}
    got = keras.saving.load_model(folders[5] / "encoder.keras").get_weights()
    for one, other in zip(got, saving.model.discriminator.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_training_seconds_are_those_of_whole_windows():
    rows = [
        {"step": 1, "loss": 3.0},
        {"step": 101, "tokens_per_second": 1000.0},
        {"step": 150, "eval_loss": 1.0},
        {"step": 201, "tokens_per_second": 500.0},
        {"step": 201, "eval_loss": 1.0},
    ]
    assert training_seconds(rows, 10) == 1 + 2

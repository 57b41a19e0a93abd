import json

import pytest

from electra_tf.comparison.worker import run, training_seconds
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from tests import tiny_run
from tests.data import common
from tests.tiny_run import SIZES

FLOPS = {"matmul": 0.0, "original": 0.0}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    words = [f"w{letter}" for letter in "abcdefghij"]
    documents = [" ".join(words[i % 7 :] * 3) for i in range(200)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    options = {"max_seq_length": 32, "lower_case": False, "strip_accents": False}
    options["vocabulary"] = Vocabulary((*SPECIAL_TOKENS, *words))
    common.build(folder / "text.txt", folder, **options)
    return str(folder / "train-*.tfrecord")


def job(folder, *probes, **values):
    about = {"system": "electra", "seed": 3}
    config = {"model_dir": str(folder), "seed": 3, **SIZES, **values}
    parts = [{"kind": "pretrain", **about, "config": config}]
    parts += [{"kind": "probe", **about, "point": 1.0, **probe} for probe in probes]
    where = {"folder": str(folder), "flops": FLOPS}
    # The worker reads a job from JSON.
    return json.loads(json.dumps({**about, **where, "parts": parts}))


def emitted(chosen):
    rows = []
    assert run(chosen, rows.append) == 0
    return rows


def test_pairs_are_scored_by_the_model(tmp_path):
    pair = {"sentence_good": "w1 w2 w3", "sentence_bad": "w1 w3 w2"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    config = {"data": [str(tmp_path / "pairs.jsonl")]}
    probe = {"probe": "p", "command": "score", "config": config}
    chosen = job(tiny_run.save(tmp_path), probe)
    del chosen["parts"][0]
    (row,) = emitted(chosen)
    assert (row["probe"], row["seed"], row["baseline"]) == ("p", 3, 50.0)
    assert row["score"] in (0.0, 50.0, 100.0)
    assert row["metric"] == "accuracy by the sum of detection"


@pytest.mark.slow
def test_a_probe_chooses_its_flags_on_training_data(records, tmp_path):
    """With --search in a probe, each encoder gets its own learning rate."""
    rows = [f"wa w{'bc'[n % 2]} wd,{'xy'[n % 2]}\n" for n in range(60)]
    (tmp_path / "train.csv").write_text("".join(["text,label\n", *rows]))
    config = {"task": "classification", "train": str(tmp_path / "train.csv")}
    config |= {"text": ["text"], "label": ["label"], "max_seq_length": 32}
    config |= {"eval": config["train"], "pooling": "mean"}
    config |= {"epochs": 10.0, "train_batch_size": 4}
    config |= {"search": ["learning_rate=1e-7/1e-2"], "search_trials": 2}
    probe = {"probe": "words", "command": "finetune", "config": config}
    sizes = {"num_layers": 1, "hidden_size": 16, "num_heads": 1, "embedding_size": 8}
    sizes |= {"num_train_steps": 4, "warmup_steps": 1}
    chosen = job(tmp_path / "run", probe, records=[records], **sizes)
    pretrained, probed = emitted(chosen)
    assert (pretrained["kind"], pretrained["seed"]) == ("pretrain", 3)
    assert pretrained["steps"] > 0
    assert pretrained["flops"] == FLOPS
    assert probed["score"] == 100.0
    kept = tmp_path / "run" / "probes" / "1" / "words"
    for name, section in (("search", "best"), ("config", "config")):
        found = json.loads((kept / f"{name}.json").read_text())[section]
        assert found["learning_rate"] == 0.01


def test_a_failure_is_a_line_and_the_probes_are_left_out(tmp_path, capsys):
    probe = {"probe": "cola", "command": "finetune", "config": {}}
    (row,) = emitted(job(tmp_path, probe, records=[str(tmp_path / "none-*.tfrecord")]))
    assert row["kind"] == "pretrain"
    assert "none-*.tfrecord" in row["failure"]
    assert "Traceback" in capsys.readouterr().err


def test_a_failed_probe_is_a_line_and_the_next_one_is_tried(tmp_path):
    (tmp_path / "train.csv").touch()
    config = {"task": "classification", "train": str(tmp_path / "train.csv")}
    probe = {"command": "finetune", "config": config}
    chosen = job(tmp_path, {"probe": "a", **probe}, {"probe": "b", **probe})
    del chosen["parts"][0]
    rows = emitted(chosen)
    assert [row["probe"] for row in rows] == ["a", "b"]
    assert all("No encoder at" in row["failure"] for row in rows)


def test_training_seconds_are_those_of_whole_windows():
    rows = [
        {"step": 1, "loss": 3.0},
        {"step": 101, "tokens_per_second": 1000.0},
        {"step": 150, "eval_loss": 1.0},
        {"step": 201, "tokens_per_second": 500.0},
        {"step": 201, "eval_loss": 1.0},
    ]
    assert training_seconds(rows, 10) == 1 + 2

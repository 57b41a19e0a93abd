import json

import pytest

from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.runs import finetuning
from electra_tf.serving.predictor import Predictor
from tests.runs.common import config, run
from tests.tasks import common


@pytest.fixture(scope="module")
def values(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("topics")
    rows = []
    for example in common.sentiment(120):
        (text,) = example.texts
        labels = [example.label] + ["long"] * (text.count("very") > 2)
        rows.append({"text": text, "label": labels})
    table = folder / "table.jsonl"
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = {"task": "multilabel", "train": str(table), "eval": str(table)}
    sizes = {"max_seq_length": 10, "epochs": 20.0, "train_batch_size": 16}
    recipe = {"learning_rate": 3e-3, "layerwise_decay": 1.0}
    recipe["adam_bias_correction"] = True
    return {"encoder": pretrained, **data, **sizes, **recipe}


@pytest.mark.slow
def test_the_tuned_threshold_is_kept_and_served(values, tmp_path):
    report, said = run(tmp_path / "run", **values)
    said = "\n".join(said)
    # A tenth of 120, with the copies of its texts.
    assert "13 training examples are held out for the threshold" in said
    assert "fill --max_seq_length=10" in said
    about = FinetuningFolder(tmp_path / "run").about()
    assert about["max_seq_length"] == 10
    threshold = about["threshold"]
    assert f"threshold {threshold:g}" in said
    (answer,) = Predictor(str(tmp_path / "run"))([{"text": "the movie is good"}])
    given = [n for n, p in answer["probabilities"].items() if p >= threshold]
    assert sorted(answer["labels"]) == sorted(given)
    # One seed has no median.
    assert "median" not in said
    assert "baseline" in said
    assert report["classes"].keys() == {"pos", "neg", "long"}
    assert report["failed_seeds"] == []
    assert report["verdict"] == "above the baseline beyond noise"
    low, high = report["intervals"]["micro_f1"]
    assert low <= report["seeds"][0]["scores"]["eval"]["micro_f1"] <= high
    card = (tmp_path / "run" / "model_card.md").read_text()
    for part in (f"{low:.2f} to {high:.2f}", "multilabel", "`long`"):
        assert part in card


@pytest.mark.slow
def test_a_given_threshold_holds_nothing_out(values, tmp_path):
    flags = {"threshold": 0.9, "epochs": 0.1, "learning_rate": 1e-9}
    flags["export_saved_model"] = False
    # The model does not learn: every seed fails, and the exit code is 1.
    assert finetuning.main(config(**values | flags, output_dir=str(tmp_path))) == 1
    assert FinetuningFolder(tmp_path).about()["threshold"] == 0.9
    report = json.loads((tmp_path / "results.json").read_text())
    assert report["examples"]["train"] == 120
    assert report["failed_seeds"] == [0]

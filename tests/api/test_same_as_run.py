import numpy as np
import pytest

import electra_tf as et
from electra_tf.tasks.sentences import split_words
from tests.api import common
from tests.runs.common import run, table
from tests.tasks.common import sentiment

SHARED = {"learning_rate": 1e-2, "dropout": 0.1, "max_seq_length": 24}
FIT = {"batch_size": 4, "epochs": 2, "verbose": 0}


def classifier(preset, folder):
    # One text more than whole batches.
    train, held_out = sentiment(13), sentiment(8, offset=13)
    flags = {"task": "classification", "train": table(folder / "train.csv", train)}
    flags["eval"] = table(folder / "eval.csv", held_out)
    model = et.TextClassifier.from_preset(preset, ["neg", "pos"], seed=3, **SHARED)
    model.fit([e.texts[0] for e in train], [e.label for e in train], **FIT)
    return model, flags


def tagger(preset, folder):
    pairs = list(zip(common.WORDS, common.TAGS, strict=True)) * 2
    path = folder / "train.conll"
    with path.open("w") as file:
        for pair in pairs:
            rows = zip(*map(split_words, pair), strict=True)
            file.writelines([*(f"{word} {tag}\n" for word, tag in rows), "\n"])
    tags = ["B-X", "I-X", "O"]
    model = et.TokenClassifier.from_preset(preset, tags, seed=3, **SHARED)
    model.fit(*zip(*pairs, strict=True), **FIT)
    return model, {"task": "tagging", "train": str(path), "eval": str(path)}


@pytest.mark.slow
@pytest.mark.parametrize("make", [classifier, tagger])
def test_weights_and_scores_are_those_of_a_run(preset, tmp_path, make):
    model, flags = make(preset, tmp_path)
    flags |= {"encoder": str(preset), "export_saved_model": False, **SHARED}
    recipe = {"train_batch_size": 4, "epochs": 2.0, "seed": 3}
    report, _ = run(tmp_path / "out", **flags, **recipe)
    of_run = et.load(tmp_path / "out")
    for own, other in zip(model.weights, of_run.weights, strict=True):
        if "seed" not in own.path:
            np.testing.assert_array_equal(own.numpy(), other.numpy(), own.path)
    scores = model.evaluate(flags["eval"])
    assert scores == pytest.approx(report["seeds"][0]["scores"][report["main_split"]])

"""Scores on the synthetic language: networks in NumPy, metrics by scikit-learn."""

import json
import shutil

import numpy as np
import optimum
import pytest
from grammar import agreement_grammar
from sklearn import metrics

from electra_tf.data.vocabulary import SPECIAL_TOKENS
from electra_tf.pretraining import CopyingTokenPrediction
from tests import tiny, tiny_run
from tests.layers.helpers import randomize
from tests.reference.step import Networks

SENTENCES, RATE = 25, 0.3
LANGUAGE = agreement_grammar()
TOKENS = (*SPECIAL_TOKENS, *LANGUAGE.words)


@pytest.fixture(scope="module")
def model():
    pair = tiny.electra(vocab=len(TOKENS))
    randomize(pair.trainable_variables)
    return pair


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    home = tmp_path_factory.mktemp("run")
    return tiny_run.save(home, model, tokens=TOKENS)


def drawn():
    """Returns the sentences of the score, and the random generator after the draws."""
    rng = np.random.default_rng([0, 1, 2])
    return [LANGUAGE.sample(rng)[0] for _ in range(SENTENCES)], rng


def row(symbols):
    """Returns the ids of [CLS], words, [SEP]; five special tokens come first."""
    return np.array([2, *(np.asarray(symbols) + len(SPECIAL_TOKENS)), 3])


def test_scores(model, folder, tmp_path, capsys):
    output = tmp_path / "scores.json"
    optimum.run(folder, output, sentences=SENTENCES, mask_rate=RATE)
    ((scores,),) = json.loads(output.read_text()).values()
    assert "optimum" in capsys.readouterr().out

    networks = Networks(model.trainable_variables)
    weights = [np.asarray(v, np.float64) for v in model.trainable_variables]
    sentences, rng = drawn()
    counts = 1 + np.bincount(np.concatenate(sentences), minlength=len(LANGUAGE.words))
    frequency = counts / counts.sum()
    nats, best, alone = [], [], []
    for sentence in sentences:
        hidden = rng.random(len(sentence)) < RATE
        if not hidden.any():
            continue
        ids = row(sentence)
        ids[1:-1][hidden] = SPECIAL_TOKENS.index("[MASK]")
        positions = 1 + np.flatnonzero(hidden)
        logits = networks.generator_logits(weights, batch_of(ids, positions))[0]
        logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        places = np.arange(len(positions))
        words = sentence[hidden]
        nats.extend(-logs[places, words + len(SPECIAL_TOKENS)])
        best.extend(-np.log(LANGUAGE.masked_words(sentence, hidden)[places, words]))
        alone.extend(-np.log(frequency[words]))
    assert scores["masked_nats"] == pytest.approx(
        {
            "model": np.mean(nats),
            "optimum": np.mean(best),
            "frequencies": np.mean(alone),
        },
        rel=1e-4,
    )

    rng = np.random.default_rng([0, 1, 3])
    labels, guesses, ideal = [], [], []
    for sentence in sentences:
        noise = rng.choice(len(frequency), len(sentence), p=frequency)
        anew = rng.random(len(sentence)) < RATE
        corrupted = np.where(anew, noise, sentence)
        ids = row(corrupted)
        logits = networks.discriminator_logits(weights, ids[None], batch_of(ids))[0]
        guesses.extend(1 / (1 + np.exp(-logits[1:-1])))
        ideal.extend(LANGUAGE.replaced(corrupted, frequency, RATE))
        labels.extend(corrupted != sentence)
    for name, exact in (("model", guesses), ("optimum", ideal)):
        values = np.clip(exact, 1e-7, 1 - 1e-7)
        assert scores["detection_nats"][name] == pytest.approx(
            metrics.log_loss(labels, values), rel=1e-4
        )
        assert scores["detection_auc"][name] == pytest.approx(
            metrics.roc_auc_score(labels, values), abs=1e-4
        )
    # The Bayes-optimal predictor beats every other one, including this network.
    for name in ("masked_nats", "detection_nats"):
        part = scores[name]
        assert part["optimum"] < min(part["model"], part["frequencies"])


def batch_of(ids, positions=()):
    return {
        "masked_input_ids": ids[None],
        "input_mask": np.ones_like(ids)[None],
        "segment_ids": np.zeros_like(ids)[None],
        "masked_lm_positions": np.array([positions], int),
    }


@pytest.mark.slow
def test_a_comparison(model, tmp_path, capsys):
    """Scores of each run, and a table of means over the runs of a system."""
    home, output = tmp_path / "compared", tmp_path / "scores.json"
    runs = {
        "detects": model,
        "predicts": tiny.electra(vocab=len(TOKENS), question=CopyingTokenPrediction),
        "masks": model.generator.standalone(),
    }
    for system, made in runs.items():
        for seed in range(2 if system == "detects" else 1):
            path = home / "runs" / system / f"seed-{seed}"
            tiny_run.save(path, made, tokens=TOKENS)
    (home / "results.jsonl").write_text("")
    options = {"sentences": SENTENCES, "mask_rate": RATE}
    optimum.run(home, output, **options)
    found = json.loads(output.read_text())
    assert list(found) == ["detects", "masks", "predicts"]
    alone = optimum.score(home / "runs" / "detects" / "seed-1", **options)
    assert found["detects"] == [alone, alone]
    # A token predictor has no detection score; its generator has masked_nats.
    assert set(found["predicts"][0]) == set(found["masks"][0]) == {"masked_nats"}

    lines = {
        row.split()[0]: row.split() for row in capsys.readouterr().out.splitlines()
    }
    nats = alone["masked_nats"]
    share = 100 * (nats["frequencies"] - nats["model"])
    share /= nats["frequencies"] - nats["optimum"]
    cell = [f"{nats['model']:.4f}", f"{share:.1f}"]
    assert lines["detects"][1:7] == ["(2)", *cell, "±", "0.0", "%"]
    assert lines["masks"][1:] == ["(1)", *cell, "%"]
    for known in ("optimum", "frequencies"):
        numbers = [f"{part[known]:.4f}" for part in alone.values()]
        assert lines[known][1:] == numbers


def test_errors(folder, tmp_path):
    other = tiny_run.save(tmp_path / "other")
    with pytest.raises(ValueError, match="lacks the vocabulary of the language"):
        optimum.score(other)
    bare = shutil.copytree(folder, tmp_path / "bare")
    for name in ("generator", "discriminator"):
        (bare / f"{name}.keras").unlink()
    with pytest.raises(ValueError, match="neither a masked LM"):
        optimum.run(bare)

"""Trivial baselines, by hand and against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from electra_tf.data.records import token_counts
from electra_tf.pretraining.baselines import TrivialBaselines
from electra_tf.systems.rows import metric_cards


def test_counts_and_unigram_scores_by_hand():
    counts = token_counts([np.array([[1, 2, 2]]), np.array([2, 3])], vocab_size=4)
    assert counts.tolist() == [0, 1, 3, 1]
    baselines = TrivialBaselines(counts)
    batch = {
        "masked_lm_ids": np.array([[2, 0, 0], [1, 2, 0]]),
        "masked_lm_weights": np.array([[1.0, 1, 0], [1, 1, 0]]),
    }
    baselines.update(batch)
    probability = {0: 1 / 9, 1: 2 / 9, 2: 4 / 9}
    expected = -np.mean([np.log(probability[t]) for t in (2, 0, 1, 2)])
    scores = baselines.generator()
    assert scores["loss"] == pytest.approx(expected)
    assert scores["accuracy"] == pytest.approx(2 / 4)


def test_copying_what_shows_by_hand():
    """Two of three visible tokens are the right ones; the others are drawn."""
    mask = 9
    batch = {
        "masked_input_ids": np.array([[mask, 2, 1, 0], [3, 1, mask, 0]]),
        "masked_lm_positions": np.array([[0, 1, 2], [1, 2, 0]]),
        "masked_lm_ids": np.array([[2, 2, 3], [1, 1, 0]]),
        "masked_lm_weights": np.array([[1.0, 1, 1], [1, 1, 0]]),
    }
    counts = np.array([0, 1, 3, 1])
    baselines = TrivialBaselines(counts, mask_id=mask)
    baselines.update(batch)
    p = {1: 2 / 9, 2: 4 / 9, 3: 2 / 9}
    likelihoods = [
        p[2],  # at [MASK]
        2 / 3 + p[2] / 3,  # shows 2, is 2
        p[3] / 3,  # shows 1, is 3
        2 / 3 + p[1] / 3,  # shows 1, is 1
        p[1],  # at [MASK]
    ]
    scores = baselines.copying()
    assert scores["loss"] == pytest.approx(-np.mean(np.log(likelihoods)))
    assert scores["accuracy"] == pytest.approx(3 / 5)
    logs = {"masked_lm_loss": 1.0, "generator_accuracy": 0.5}
    found = baselines.scores(logs, metric_cards())
    assert found.keys() == {f"{n}{s}" for n in logs for s in ("", "_copying")}
    assert found["masked_lm_loss_copying"] == scores["loss"]
    # Of a generator that does not read the masked text.
    blind = TrivialBaselines(counts)
    blind.update(batch)
    assert blind.copying() == {}
    assert blind.generator() == baselines.generator()


def test_nothing_is_lost_where_every_visible_token_is_right():
    """The rule of ELECTRA: [MASK] or the token itself."""
    batch = {
        "masked_input_ids": np.array([[9, 2]]),
        "masked_lm_positions": np.array([[0, 1]]),
        "masked_lm_ids": np.array([[1, 2]]),
        "masked_lm_weights": np.ones((1, 2)),
    }
    baselines = TrivialBaselines(np.array([0, 1, 3, 1]), mask_id=9)
    baselines.update(batch)
    assert baselines.copying()["loss"] == pytest.approx(-np.log(2 / 9) / 2)


def test_discriminator_baseline_is_the_constant_predictor():
    labels = np.array([1] * 7 + [0] * 93)
    scores = TrivialBaselines.discriminator(0.07)
    assert scores["loss"] == pytest.approx(log_loss(labels, np.full(100, 0.07)))
    assert scores["accuracy"] == pytest.approx(0.93)
    assert scores["auc"] == 0.5


def test_detection_by_kind_frequency_or_token_is_scikit_learns():
    """Shares of one half scored on the other, with the best of all strengths."""
    rng = np.random.default_rng(1)
    rows, length, vocab = 60, 20, 12
    ids = rng.integers(0, vocab, [rows, length])
    kind = rng.random([rows, length]) < 0.9
    # Token 3 is replaced far more often than others; nothing of the other kind is.
    replaced = kind & (rng.random([rows, length]) < np.where(ids == 3, 0.6, 0.1))
    asked = rng.random([rows, length]) < 0.95
    counts = 2 ** np.arange(vocab)
    baselines = TrivialBaselines(counts)
    batch = {"masked_lm_ids": ids, "masked_lm_weights": np.ones_like(ids)}
    for part in (slice(0, 40), slice(40, 60)):
        labels = {
            "corrupted_ids": ids[part],
            "is_replaced": replaced[part],
            "is_replaceable": kind[part],
            "is_asked": asked[part],
        }
        baselines.update({n: v[part] for n, v in batch.items()}, labels)
    half = np.broadcast_to(np.arange(rows)[:, None] % 2, ids.shape)
    for prefix, kinds in (("replaceable", [True]), ("discriminator", [False, True])):
        where = asked & np.isin(kind, kinds)
        found = []
        for key in (np.zeros_like(ids), np.floor(np.log2(counts + 1))[ids], ids):
            for strength in (1, 10, 100, 1000):
                guess = np.zeros(ids.shape)
                for row, column in zip(*np.nonzero(where), strict=True):
                    own = where & (kind == kind[row, column])
                    other = own & (half != half[row, 0]) & (key == key[row, column])
                    prior = replaced[own].mean()
                    hits = replaced[other].sum() + strength * prior
                    guess[row, column] = hits / (other.sum() + strength)
                truth, guess = replaced[where], guess[where].clip(1e-12)
                found.append((log_loss(truth, guess), roc_auc_score(truth, guess)))
        scores = baselines.detection(prefix, {})
        assert scores["loss"] == pytest.approx(min(loss for loss, _ in found))
        assert scores["auc"] == pytest.approx(max(auc for _, auc in found))
        assert scores["auc"] > 0.6


def test_detection_without_labels_is_the_constant_predictor():
    logs = {"replaced_fraction": 0.07, "replaced_replaceable_fraction": 0.08}
    baselines = TrivialBaselines(np.array([0, 1, 3, 1]))
    for prefix, rate in (("discriminator", 0.07), ("replaceable", 0.08)):
        expected = TrivialBaselines.discriminator(rate)
        found = baselines.detection(prefix, logs)
        assert found["loss"] == expected["loss"]
        assert found["auc"] == 0.5


def test_keeping_or_redrawing_by_hand():
    """Kept with 0.75, else the unigram distribution: the mixture's own likelihood."""
    baselines = TrivialBaselines(np.array([0, 1, 3, 1]))
    ids, weights = np.array([[2, 1]]), np.array([[1.0, 1]])
    baselines.update({"masked_lm_ids": ids, "masked_lm_weights": weights})
    unigram = -(np.log(4 / 9) + np.log(2 / 9)) / 2
    # Of four tokens one was replaced: three times log 0.75, once log(0.25 * p).
    expected = (-3 * np.log(0.75) - np.log(0.25) + unigram) / 4
    scores = baselines.prediction(0.25)
    assert scores["loss"] == pytest.approx(expected)
    assert scores["accuracy"] == 0.75
    assert scores["corrected"] == 0


def test_each_held_out_number_gets_its_own_baseline():
    baselines = TrivialBaselines(np.array([0, 1, 3, 1]))
    ids, weights = np.array([[2]]), np.array([[1.0]])
    baselines.update({"masked_lm_ids": ids, "masked_lm_weights": weights})
    logs = {"generator_loss": 9.0, "discriminator_accuracy": 0.9, "loss": 3.0}
    found = baselines.scores({**logs, "replaced_fraction": 0.07}, metric_cards())
    assert found["discriminator_accuracy"] == pytest.approx(0.93)
    assert found.keys() == {"generator_loss", "discriminator_accuracy"}
    # Where the loss is at masked positions, their own share counts.
    at_masked = {"replaced_fraction": 0.07, "replaced_masked_fraction": 0.6}
    found = baselines.scores(
        {**logs, **at_masked, "prediction_accuracy": 0.2}, metric_cards()
    )
    assert found["discriminator_accuracy"] == pytest.approx(0.6)
    assert found["prediction_accuracy"] == pytest.approx(0.4)
    sentence = {"corrupted_fraction": 0.8, "sentence_accuracy": 0.0, "copy_auc": 0.1}
    assert baselines.scores(sentence, metric_cards()) == {
        "sentence_accuracy": pytest.approx(0.8),
        "copy_auc": 0.5,
    }


def test_no_tokens_is_an_error():
    with pytest.raises(ValueError, match="no token"):
        TrivialBaselines(np.zeros(4, np.int64))

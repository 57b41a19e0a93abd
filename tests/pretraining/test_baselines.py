import numpy as np
import pytest
from sklearn.metrics import log_loss

from electra_tf.pretraining.metrics import trivial_scores

COUNTS = np.array([0, 1, 3, 1])
# The smoothed unigram distribution of these counts.
P = {0: 1 / 9, 1: 2 / 9, 2: 4 / 9, 3: 2 / 9}


def scored(logs, ids=((2, 1),), weights=None, **batch):
    ids = np.array(ids)
    batch |= {"masked_lm_ids": ids}
    batch["masked_lm_weights"] = np.ones(ids.shape) if weights is None else weights
    mask_id = 9 if "masked_input_ids" in batch else None
    return trivial_scores(COUNTS, [batch], logs, mask_id)


def test_unigram_scores_by_hand():
    weights = np.array([[1.0, 1, 0], [1, 1, 0]])
    logs = {"generator_loss": 0.0, "generator_accuracy": 0.0}
    found = scored(logs, [[2, 0, 0], [1, 2, 0]], weights)
    expected = -np.mean([np.log(P[t]) for t in (2, 0, 1, 2)])
    assert found["generator_loss"] == pytest.approx(expected)
    assert found["generator_accuracy"] == pytest.approx(2 / 4)


def test_copying_what_shows_by_hand():
    """Two of three visible tokens are originals; the other is a sample."""
    logs = {"masked_lm_loss": 1.0, "generator_accuracy": 0.5}
    batch = {
        "ids": np.array([[2, 2, 3], [1, 1, 0]]),
        "weights": np.array([[1.0, 1, 1], [1, 1, 0]]),
        "masked_lm_positions": np.array([[0, 1, 2], [1, 2, 0]]),
    }
    shown = np.array([[9, 2, 1, 0], [3, 1, 9, 0]])
    found = scored(logs, **batch, masked_input_ids=shown)
    likelihoods = [
        P[2],  # at [MASK]
        2 / 3 + P[2] / 3,  # input 2, label 2
        P[3] / 3,  # input 1, label 3
        2 / 3 + P[1] / 3,  # input 1, label 1
        P[1],  # at [MASK]
    ]
    assert found.keys() == {f"{n}{s}" for n in logs for s in ("", "_copying")}
    expected = pytest.approx(-np.mean(np.log(likelihoods)))
    assert found["masked_lm_loss_copying"] == expected
    assert found["generator_accuracy_copying"] == pytest.approx(3 / 5)
    # A generator without access to the input has the other scores alone.
    assert scored(logs, **batch) == {name: found[name] for name in logs}


def test_nothing_is_lost_where_every_visible_token_is_right():
    """ELECTRA's masking: every slot holds [MASK] or the original token."""
    shown = {"masked_input_ids": np.array([[9, 2]])}
    shown["masked_lm_positions"] = np.array([[0, 1]])
    found = scored({"generator_loss": 0.0}, [[1, 2]], **shown)
    assert found["generator_loss_copying"] == pytest.approx(-np.log(P[1]) / 2)


def test_base_rates_are_the_constant_predictor():
    labels = np.array([1] * 7 + [0] * 93)
    logs = {"replaced_fraction": 0.07, "replaced_replaceable_fraction": 0.08}
    logs |= {f"discriminator_{name}": 0.0 for name in ("loss", "accuracy", "auc")}
    found = scored({**logs, "replaceable_loss": 0.0, "replaceable_auc": 0.0})
    constant = log_loss(labels, np.full(100, 0.07))
    assert found["discriminator_loss"] == pytest.approx(constant)
    assert found["discriminator_accuracy"] == pytest.approx(0.93)
    assert found["discriminator_auc"] == found["replaceable_auc"] == 0.5
    labels = np.array([1] * 8 + [0] * 92)
    constant = log_loss(labels, np.full(100, 0.08))
    assert found["replaceable_loss"] == pytest.approx(constant)


def test_keeping_or_redrawing_by_hand():
    """Likelihood of a mixture: 0.75 the input token, 0.25 the unigram distribution."""
    unigram = -(np.log(P[2]) + np.log(P[1])) / 2
    # One of four tokens is replaced: three times log 0.75, once log(0.25 * p).
    expected = (-3 * np.log(0.75) - np.log(0.25) + unigram) / 4
    names = ("prediction_loss", "prediction_accuracy", "corrected_accuracy")
    found = scored({"replaced_fraction": 0.25, **dict.fromkeys(names, 0.0)})
    assert [found[name] for name in names] == [pytest.approx(expected), 0.75, 0]


def test_each_held_out_number_gets_its_own_baseline():
    logs = {"generator_loss": 9.0, "discriminator_accuracy": 0.9, "loss": 3.0}
    found = scored({**logs, "replaced_fraction": 0.07})
    assert found["discriminator_accuracy"] == pytest.approx(0.93)
    assert found.keys() == {"generator_loss", "discriminator_accuracy"}
    # A loss at masked positions uses the replacement rate at masked positions.
    at_masked = {"replaced_fraction": 0.07, "replaced_masked_fraction": 0.6}
    found = scored({**logs, **at_masked, "prediction_accuracy": 0.2})
    assert found["discriminator_accuracy"] == pytest.approx(0.6)
    assert found["prediction_accuracy"] == pytest.approx(0.4)
    sentence = {"corrupted_fraction": 0.8, "sentence_accuracy": 0.0, "copy_auc": 0.1}
    expected = {"sentence_accuracy": pytest.approx(0.8), "copy_auc": 0.5}
    assert scored(sentence) == expected

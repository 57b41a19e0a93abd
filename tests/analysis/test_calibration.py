"""Calibration against scikit-learn: curves, Brier score, log loss, temperature."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import special
from sklearn import metrics as peers
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression

from electra_tf.analysis import calibration as calibrating
from electra_tf.analysis import measures


def tokens(count=3000, seed=0, truth=0.4):
    """Logits, labels that are true with sigmoid(truth * logit), and rows."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1, 2.5, count)
    labels = rng.random(count) < special.expit(truth * logits)
    return logits, labels, np.arange(count) // 20


@pytest.mark.parametrize("bins", [5, 15])
def test_numbers_are_scikit_learns(bins):
    logits, labels, rows = tokens()
    p = special.expit(logits)
    found = calibrating.calibration(logits, labels, rows, bins)
    shares, means = calibration_curve(labels, p, n_bins=bins)
    np.testing.assert_allclose(found.probability, means)
    np.testing.assert_allclose([rate.rate for rate in found.observed], shares)
    counts = np.histogram(p, np.linspace(0, 1, bins + 1))[0]
    counts = counts[counts > 0]
    assert [rate.count for rate in found.observed] == counts.tolist()
    weights = counts / len(p)
    assert found.ece == pytest.approx(weights @ np.abs(shares - means))
    assert found.brier == pytest.approx(peers.brier_score_loss(labels, p))
    assert found.nats == pytest.approx(peers.log_loss(labels, p))
    assert found.auc == pytest.approx(peers.roc_auc_score(labels, p))
    assert (found.tokens, found.mean) == (len(p), pytest.approx(p.mean()))
    assert found.ece > 0.1


def test_the_parts_of_the_brier_score():
    logits, labels, rows = tokens()
    found = calibrating.calibration(logits, labels, rows)
    p = special.expit(logits)
    bin_of = np.minimum((15 * p).astype(int), 14)
    within = 0.0
    # Stephenson et al., 2008, equation 5: variance and covariance in the bins.
    for number in np.unique(bin_of):
        own = bin_of == number
        off, up = p[own] - p[own].mean(), labels[own] - labels[own].mean()
        within += (off @ off - 2 * off @ up) / len(p)
    assert found.spread == pytest.approx(within)
    total = found.reliability - found.resolution + found.uncertainty + within
    assert total == pytest.approx(found.brier)
    # As many values as bins: nothing is lost within them.
    coarse = special.logit((bin_of + 0.5) / 15)
    assert calibrating.calibration(coarse, labels, rows).spread == pytest.approx(0)


@pytest.mark.parametrize("truth", [0.4, 1.0, 3.0])
def test_temperature_is_a_logistic_regression_without_intercept(truth):
    logits, labels, _ = tokens(truth=truth)
    peer = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10)
    peer.fit(logits[:, None], labels)
    found = calibrating.fit_temperature(logits, labels)
    assert found == pytest.approx(1 / peer.coef_[0, 0], rel=1e-4)
    assert found == pytest.approx(1 / truth, rel=0.1)


def test_temperature_mends_what_is_too_sure():
    logits, labels, rows = tokens()
    fitting = calibrating.halves(rows)
    temperature = calibrating.fit_temperature(logits[fitting], labels[fitting])
    rest = logits[~fitting], labels[~fitting], rows[~fitting]
    before = calibrating.calibration(*rest)
    after = calibrating.calibration(rest[0] / temperature, *rest[1:])
    assert after.ece < before.ece / 3
    assert after.nats < before.nats
    assert after.auc == pytest.approx(before.auc)


def test_halves_keep_rows_whole():
    rows = np.repeat(np.arange(11), np.arange(1, 12))
    fitting = calibrating.halves(rows, seed=1)
    assert set(rows[fitting]).isdisjoint(rows[~fitting])
    assert len(set(rows[fitting])) == 5
    assert not np.array_equal(fitting, calibrating.halves(rows, seed=2))


def test_intervals_are_of_a_bootstrap_and_of_right_probabilities():
    logits, labels, _ = tokens(count=600)
    rows = np.arange(600) // 3
    found = calibrating.doubt(logits, labels, rows)
    p, rng = special.expit(logits), np.random.default_rng(1)
    drawn = [
        (rng.choice(200, 200)[:, None] * 3 + np.arange(3)).ravel() for _ in range(300)
    ]
    for name, peer in (("brier", peers.brier_score_loss), ("auc", peers.roc_auc_score)):
        expected = np.quantile(
            [peer(labels[at], p[at]) for at in drawn], [0.025, 0.975]
        )
        assert getattr(found, name) == pytest.approx(expected, abs=0.012)
    eces = [
        calibrating.calibration(logits, rng.random(600) < p, rows).ece
        for _ in range(200)
    ]
    assert found.ece_by_chance == pytest.approx(np.quantile(eces, 0.95), rel=0.12)


def test_groups_are_calibrated_alone():
    logits, labels, rows = tokens()
    groups = np.arange(len(logits)) % 3 - 1
    found = calibrating.by_group(logits, labels, rows, groups, ["a", "b", "none"])
    assert [group.observed.name for group in found] == ["a", "b"]
    own = groups == 1
    alone = calibrating.calibration(logits[own], labels[own], rows[own])
    assert (found[1].mean, found[1].ece) == (alone.mean, alone.ece)
    assert found[1].observed.rate == pytest.approx(labels[own].mean())


def test_what_cannot_be_calibrated():
    none = np.zeros(0)
    with pytest.raises(ValueError, match="no tokens"):
        calibrating.calibration(none, none, none)
    with pytest.raises(ValueError, match="only ones of one kind"):
        calibrating.fit_temperature(np.ones(3), np.ones(3, bool))


def test_pictures_show_the_numbers():
    logits, labels, rows = tokens()
    found = calibrating.calibration(logits, labels, rows)
    axis = Figure().subplots()
    calibrating.draw_reliability(axis, {"$own$": found})
    line = axis.containers[0].lines[0]
    np.testing.assert_allclose(line.get_xdata(orig=False), found.probability)
    np.testing.assert_allclose(
        line.get_ydata(orig=False), [r.rate for r in found.observed]
    )
    axis = Figure().subplots()
    number, names = measures.position_bins(np.arange(len(logits)) % 60)
    groups = calibrating.by_group(logits, labels, rows, number, names)
    calibrating.draw_groups(axis, groups, "position")
    shown = [label.get_text() for label in axis.get_xticklabels()]
    assert shown == ["1", "2-3", "4-7", "8-15", "16-31", "32-63"]

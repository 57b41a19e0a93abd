import numpy as np
import pytest
from scipy import optimize, special
from sklearn import metrics as peers
from sklearn.calibration import calibration_curve

from electra_tf.analysis import calibration, statistics
from electra_tf.errors import UserError
from electra_tf.tasks import metrics


def tokens(count=3000, truth=0.4):
    """Returns logits, and labels drawn with P(1) = sigmoid(truth * logit)."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-1, 2.5, count)
    return logits, rng.random(count) < special.expit(truth * logits)


def test_numbers_are_scikit_learns(monkeypatch):
    monkeypatch.setattr(metrics, "RESAMPLES", 300)
    logits, labels = tokens(count=600)
    rows = np.arange(600) // 3
    p = special.expit(logits)
    found = calibration.measures(logits, labels, rows)
    shares, means = calibration_curve(labels, p, n_bins=15)
    counts = np.histogram(p, np.linspace(0, 1, 16))[0]
    counts = counts[counts > 0]
    assert found["ECE"] == pytest.approx((counts / len(p)) @ np.abs(shares - means))
    assert found["Brier"] == pytest.approx(peers.brier_score_loss(labels, p))
    assert found["nats"] == pytest.approx(peers.log_loss(labels, p))
    assert found["AUC"] == pytest.approx(peers.roc_auc_score(labels, p))
    assert (found["tokens"], found["mean P"]) == (len(p), pytest.approx(p.mean()))
    rng = np.random.default_rng(1)
    drawn = (rng.choice(200, (300, 200, 1)) * 3 + np.arange(3)).reshape(300, -1)
    resampled = [peers.roc_auc_score(labels[at], logits[at]) for at in drawn]
    expected = np.quantile(resampled, [0.025, 0.975])
    assert (found["low"], found["high"]) == pytest.approx(expected, abs=0.012)


@pytest.mark.parametrize("truth", [0.4, 1.0, 3.0])
def test_temperature_minimizes_the_log_loss(truth):
    logits, labels = tokens(truth=truth)

    def loss(temperature):
        return peers.log_loss(labels, special.expit(logits / temperature))

    peer = optimize.minimize_scalar(loss, bounds=(0.05, 20), method="bounded").x
    found = calibration.fit_temperature(logits, labels)
    assert found == pytest.approx(peer, rel=1e-3)
    assert found == pytest.approx(1 / truth, rel=0.1)
    assert calibration.fit_temperature(-logits, labels) == 100


def test_what_cannot_be_calibrated():
    assert np.isnan(statistics.roc_auc(np.zeros(3, bool), np.arange(3.0)))
    assert np.isnan(metrics.bootstrap(np.mean, np.zeros(3), np.ones(3))).all()
    # Half of a single row is no row.
    for count in (0, 3):
        with pytest.raises(UserError, match="needs replaced and original tokens"):
            calibration.fit_temperature(np.ones(count), np.ones(count, bool))

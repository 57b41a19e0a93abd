"""Calibration of the replaced-token probabilities of N tokens."""

import numpy as np
import pandas as pd
from scipy import special
from sklearn import metrics
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression

from electra_tf.analysis.predictions import predict
from electra_tf.analysis.render import Chart, Section
from electra_tf.analysis.statistics import halves, roc_auc
from electra_tf.analysis.subject import Subject
from electra_tf.errors import UserError
from electra_tf.tasks.metrics import bootstrap, calibration_error

BINS = 15
_HIGHEST_TEMPERATURE = 100.0


def measures(
    logits: np.ndarray, labels: np.ndarray, rows: np.ndarray, seed: int = 0
) -> dict[str, float]:
    """Computes ECE, Brier score, log loss and AUC of logits [N] and bool labels [N].

    The AUC has a 95 % bootstrap interval over texts, numbered by ``rows`` [N].
    """
    p = special.expit(logits)
    low, high = bootstrap(roc_auc, rows, labels, logits, seed=seed)
    return {
        "tokens": len(p),
        "replaced": float(np.mean(labels)),
        "mean P": float(p.mean()),
        "ECE": calibration_error(labels, p, BINS),
        "Brier": float(metrics.brier_score_loss(labels, p)),
        "nats": float(metrics.log_loss(labels, p, labels=[False, True])),
        "AUC": roc_auc(labels, logits),
        "low": low,
        "high": high,
    }


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the temperature with the least log loss (Guo et al., 2017), at most 100.

    Above 1, the model was overconfident. Raises UserError without labels of both kinds.
    """
    if len(np.unique(labels)) < 2:
        raise UserError(
            "fitting a temperature needs replaced and original tokens: give more text."
        )
    # The inverse temperature is the slope of a logistic regression without intercept.
    model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10)
    slope = model.fit(logits[:, None], labels).coef_[0, 0]
    return float(1 / max(slope, 1 / _HIGHEST_TEMPERATURE))


def section(subject: Subject) -> Section:
    """Fits the temperature on half of the corrupted text and reports on the rest."""
    seed, text = subject.config.seed, subject.text
    kind, tokens = predict(subject, text.rows)
    columns = [tokens[name].to_numpy() for name in ("logits", "is_replaced", "row")]
    fitting = halves(columns[2], seed)
    temperature = fit_temperature(*(column[fitting] for column in columns[:2]))
    logits, labels, rows = (column[~fitting] for column in columns)
    table, curves = [], []
    for stage, scale in (("as it is", 1.0), ("scaled", temperature)):
        numbers = measures(logits / scale, labels, rows, seed)
        table.append({"stage": stage, "temperature": scale} | numbers)
        p = special.expit(logits / scale)
        shares, means = calibration_curve(labels, p, n_bins=BINS)
        curve = {"P(replaced)": means, "share replaced": shares, "stage": stage}
        curves.append(pd.DataFrame(curve))
    own, scaled = table
    sentence = (
        f"{text.about}, corrupted by the {kind}: ECE {own['ECE']:.4f} "
        f"({scaled['ECE']:.4f} with temperature {temperature:.3f}); AUC "
        f"{own['AUC']:.3f} ({own['low']:.3f} to {own['high']:.3f})."
    )
    name = "Reliability: share of replaced tokens by P(replaced)"
    tables = {"Calibration": pd.DataFrame(table), name: pd.concat(curves)}
    chart = Chart(name, "P(replaced)", "share replaced", series="stage", diagonal=True)
    return Section("Is it calibrated?", sentence, tables, (chart,))

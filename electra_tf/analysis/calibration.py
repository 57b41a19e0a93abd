"""Calibration of replaced-token probabilities.

Letters: N tokens.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, special
from sklearn import metrics

from electra_tf.analysis import judged
from electra_tf.analysis.extra import pandas as pd
from electra_tf.analysis.render import Chart, Section
from electra_tf.analysis.statistics import (
    bootstrap,
    frequency_bins,
    halves,
    position_bins,
    rates,
    roc_auc,
)
from electra_tf.analysis.subject import Subject
from electra_tf.errors import UserError
from electra_tf.tasks.metrics import calibration_error

BINS = 15
_LARGEST_LOG_TEMPERATURE = 5.0


def measures(
    logits: np.ndarray, labels: np.ndarray, rows: np.ndarray, seed: int = 0
) -> dict[str, float]:
    """Computes ECE, Brier score, log loss and AUC of logits [N] and bool labels [N].

    The AUC has a 95 % bootstrap interval over texts, numbered by ``rows`` [N]. Raises
    UserError without tokens.
    """
    if not len(logits):
        raise UserError("there are no tokens to calibrate on.")
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


def reliability(
    logits: np.ndarray, labels: np.ndarray, rows: np.ndarray
) -> pd.DataFrame:
    """Computes mean probability and fraction of replaced tokens in equal-width bins."""
    p = special.expit(logits)
    number = np.minimum((p * BINS).astype(int), BINS - 1)
    table = rates(np.asarray(labels, float), number, rows, range(BINS))
    counts = np.bincount(number, minlength=BINS)
    means = np.bincount(number, p, BINS)[counts > 0] / counts[counts > 0]
    table.insert(1, "P(replaced)", means)
    return table.rename(columns={"rate": "share replaced", "group": "bin"})


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the temperature with the least log loss (Guo et al., 2017).

    Above 1, the model was overconfident. Raises UserError if all labels are equal.
    """
    y = np.asarray(labels, np.float64)
    if y.min() == y.max():
        raise UserError(
            "fitting a temperature needs replaced and original tokens: give more text."
        )

    def loss(log_temperature: float) -> float:
        scaled = logits * np.exp(-log_temperature)
        return float(np.mean(np.logaddexp(0, scaled) - y * scaled))

    # The loss is convex in the inverse temperature, so the minimum is unique.
    best = optimize.minimize_scalar(
        loss,
        bounds=(-_LARGEST_LOG_TEMPERATURE, _LARGEST_LOG_TEMPERATURE),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(best.x))


def section(subject: Subject) -> Section:
    """Reports calibration under several corruptions.

    Fits the temperature on half of the rows and evaluates on the other half.
    """
    config, inspector, text = subject.config, subject.inspector, subject.text
    table, curves, groups = [], [], pd.DataFrame()
    kinds = judged.corruptions(inspector, text.counts)
    for kind, generator in kinds.items():
        tokens = judged.judge(
            inspector,
            text.rows,
            generator,
            seed=config.seed,
            batch_size=config.batch_size,
            log=subject.log,
            name=kind,
        )
        fitting = halves(tokens.row, config.seed)
        temperature = fit_temperature(
            tokens.logits[fitting], tokens.is_replaced[fitting]
        )
        logits, labels, rows = (
            column[~fitting]
            for column in (tokens.logits, tokens.is_replaced, tokens.row)
        )
        for stage, scale in (("as it is", 1.0), ("scaled", temperature)):
            row = measures(logits / scale, labels, rows, config.seed)
            table.append({"corruption": kind, "stage": stage, "temperature": scale})
            table[-1] |= row
            curve = reliability(logits / scale, labels, rows)
            curves.append(curve.assign(corruption=kind, stage=stage))
        if groups.empty:
            bins = {
                "times in the counted text": frequency_bins(
                    text.counts[tokens.shown[~fitting]]
                ),
                "position": position_bins(tokens.position[~fitting]),
            }
            groups = _by_group(logits, labels, rows, bins)
    scores = pd.DataFrame(table)
    main, scaled = scores.iloc[0], scores.iloc[1]
    sentence = (
        f"{text.about}, corrupted by the {main['corruption']}: ECE "
        f"{main['ECE']:.4f} ({scaled['ECE']:.4f} with temperature "
        f"{scaled['temperature']:.3f}); AUC {main['AUC']:.3f} ({main['low']:.3f} to "
        f"{main['high']:.3f})."
    )
    tables = {
        "Calibration by corruption": scores,
        "Reliability: share of replaced tokens by P(replaced)": pd.concat(
            curves, ignore_index=True
        ),
        "Replaced tokens and mean P(replaced) by group": groups,
    }
    names = list(tables)
    split = {"panel": "stage", "series": "corruption", "diagonal": True}
    charts = (
        Chart(names[1], "P(replaced)", "share replaced", **split),
        Chart(names[2], "group", "rate", "trait", "value", "points"),
    )
    return Section("Is it calibrated?", sentence, tables, charts)


def _by_group(
    logits: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    bins: dict[str, tuple[np.ndarray, list[str]]],
) -> pd.DataFrame:
    values = {"replaced": labels, "mean P(replaced)": special.expit(logits)}
    return pd.concat(
        [
            rates(column, number, rows, names).assign(trait=trait, value=value)
            for trait, (number, names) in bins.items()
            for value, column in values.items()
        ],
        ignore_index=True,
    )

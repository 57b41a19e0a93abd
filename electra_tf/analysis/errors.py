"""Zero-shot error detection.

Letters: N words of all sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn import metrics

from electra_tf.analysis import marked as marking
from electra_tf.analysis.extra import pandas as pd
from electra_tf.analysis.inspector import Inspector
from electra_tf.analysis.marked import RIGHT, Marked
from electra_tf.analysis.render import Chart, Section
from electra_tf.analysis.statistics import bootstrap, halves, rates, roc_auc
from electra_tf.analysis.subject import Subject, longest_row
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.runs.scores import row_scores
from electra_tf.tasks.tagging import word_rows

BETA = 0.5
DISCRIMINATOR = "discriminator"
_CURVE_POINTS = 200


def word_scores(
    inspector: Inspector,
    sentences: Sequence[Sequence[str]],
    counts: np.ndarray,
    *,
    batch_size: int = 32,
    log: Log = lambda line: None,
) -> dict[str, np.ndarray]:
    """Scores every word by several methods, float64 [N]; higher is more suspicious.

    A word has the maximum over its pieces, or NaN without pieces. Long sentences are
    split.

    * ``discriminator``: replaced-token logit;
    * ``generator``, if there is one: -log p with the piece masked;
    * ``frequency``: minus the log of the piece's ``counts`` [V].
    """
    starts = np.cumsum([0, *map(len, sentences)])
    longest = longest_row(inspector, inspector.detector.encoder)
    pieces = word_rows(sentences, inspector.tokenizer, longest)
    rows = list(pieces.input_ids)

    def of_words(by_row: Sequence[np.ndarray], sign: int = 1) -> np.ndarray:
        scores = np.full(starts[-1], np.nan)
        for row, sentence in enumerate(pieces.sentence):
            # Assign continuing pieces to the word before them.
            first = np.maximum.accumulate(pieces.word[row][1:-1])
            np.fmax.at(scores, first + starts[sentence], sign * by_row[row])
        return scores

    def by_model(method: str, model: object) -> list[np.ndarray]:
        shared = {"batch_size": batch_size, "log": log}
        return row_scores(method, model, inspector.vocabulary, rows, **shared)

    scores = {DISCRIMINATOR: of_words(by_model("replaced", inspector.detector))}
    if inspector.home.has_model("generator"):
        fits = by_model("masked_lm", inspector.generator)
        scores["generator"] = of_words(fits, -1)
    logs = [np.log(counts[row[1:-1]] + 1.0) for row in rows]
    return scores | {"frequency": of_words(logs, -1)}


def evaluate(
    marked: Sequence[Marked], scores: np.ndarray, seed: int = 0
) -> tuple[dict[str, float], pd.DataFrame, pd.DataFrame]:
    """Evaluates word scores [N] against marked words; leaves out NaN.

    Half of the sentences selects the threshold with the best F0.5. The other half gives
    precision, recall, F0.5 and rates by kind.

    Returns:
        Metrics by name; the precision-recall curve; the fraction of words above the
        threshold, by kind of error (``RIGHT`` for correct words).

    Raises:
        UserError: if the first half has no wrong word.
    """
    kinds = np.array([kind for each in marked for kind in each.kinds], object)
    rows = np.repeat(np.arange(len(marked)), [len(each.words) for each in marked])
    known = ~np.isnan(scores)
    kinds, rows, scores = kinds[known], rows[known], scores[known]
    wrong = (kinds != RIGHT).astype(bool)
    fitting = halves(rows, seed)
    if not wrong[fitting].any():
        raise UserError("no word is marked as wrong.")
    precision, recall, thresholds = metrics.precision_recall_curve(
        wrong[fitting], scores[fitting]
    )
    weight = BETA**2
    total = np.maximum(weight * precision + recall, 1e-12)
    f_scores = (1 + weight) * precision * recall / total
    threshold = float(thresholds[f_scores[:-1].argmax()])
    called = scores[~fitting] >= threshold
    precision, recall, f_score, _ = metrics.precision_recall_fscore_support(
        wrong[~fitting], called, beta=BETA, average="binary", zero_division=0
    )
    low, high = bootstrap(
        lambda y, x: metrics.average_precision_score(y, x) if y.any() else np.nan,
        rows,
        wrong,
        scores,
        seed=seed,
    )
    measures = {
        "words": len(scores),
        "wrong": float(wrong.mean()),
        "average precision": float(metrics.average_precision_score(wrong, scores)),
        "low": low,
        "high": high,
        "AUC": roc_auc(wrong, scores),
        "threshold": threshold,
        "precision": float(precision),
        "recall": float(recall),
        "F0.5": float(f_score),
    }
    names = [RIGHT, *sorted(set(kinds[wrong]))]
    group = np.array([names.index(kind) for kind in kinds])[~fitting]
    by_kind = rates(called.astype(float), group, rows[~fitting], names)
    precisions, recalls, _ = metrics.precision_recall_curve(wrong, scores)
    at = np.unique(np.linspace(0, len(recalls) - 1, _CURVE_POINTS).round().astype(int))
    curve = pd.DataFrame({"recall": recalls[at], "precision": precisions[at]})
    return measures, curve, by_kind


def read_sentences(subject: Subject) -> dict[str, list[Marked]]:
    """Reads the sentences with errors, by file of ``--errors``."""
    config = subject.config
    sets: dict[str, list[Marked]] = {}
    for path in subject.files("errors"):
        sentences = marking.read(path, subject.log)
        name = Path(path).name
        rng = np.random.default_rng(config.seed)
        kept = sorted(rng.permutation(len(sentences))[: config.sentences])
        sets[path if name in sets else name] = [sentences[at] for at in kept]
    return sets


def section(subject: Subject) -> Section:
    """Reports error detection by the discriminator and the baselines."""
    config = subject.config
    table, curves, kinds, sentences = [], [], [], []
    for name, marked in read_sentences(subject).items():
        scores = word_scores(
            subject.inspector,
            [each.words for each in marked],
            subject.text.counts,
            batch_size=config.batch_size,
            log=subject.log,
        )
        for scorer, values in scores.items():
            try:
                row, curve, by_kind = evaluate(marked, values, config.seed)
            except UserError as error:
                raise UserError(f"{name}: {error}") from error
            table.append({"data": name, "scorer": scorer} | row)
            curves.append(curve.assign(data=name, scorer=scorer))
            if scorer == DISCRIMINATOR:
                by_kind["group"] = by_kind["group"].replace(RIGHT, "right words")
                kinds.append(by_kind.assign(data=name))
                sentences.append(
                    f"{name}: average precision {row['average precision']:.3f} "
                    f"({row['low']:.3f} to {row['high']:.3f}) where "
                    f"{row['wrong']:.1%} of {row['words']:,} words are wrong; F0.5 "
                    f"{row['F0.5']:.3f}."
                )
    tables = {
        "Detection of wrong words": pd.DataFrame(table),
        "Share called wrong by the discriminator, by kind of error": pd.concat(kinds),
        "Precision and recall": pd.concat(curves, ignore_index=True),
    }
    _, by_kind, curve = tables
    charts = (
        Chart(curve, "recall", "precision", "data", "scorer"),
        Chart(by_kind, "group", "rate", "data", "", "points"),
    )
    return Section("Does it find real errors?", " ".join(sentences), tables, charts)

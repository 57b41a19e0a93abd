"""Zero-shot error detection.

Letters: N words of all sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from electra_tf.pretraining import MaskedLM, ReplacedTokenDetector
from electra_tf.runs.scores import row_scores
from electra_tf.tasks.tagging import WordRows, word_rows

BETA = 0.5
DISCRIMINATOR = "discriminator"
_THINNED = 200


def word_scores(
    inspector: Inspector,
    sentences: Sequence[Sequence[str]],
    counts: np.ndarray,
    *,
    seed: int = 0,
    batch_size: int = 32,
    log: Log = lambda line: None,
) -> dict[str, np.ndarray]:
    """Scores every word by several methods, float64 [N]; higher is more suspicious.

    A word has the maximum over its pieces, or NaN without pieces. Long sentences are
    split.

    * ``discriminator``: replaced-token logit;
    * ``generator``, if there is one: -log p with the piece masked;
    * ``frequency``: minus the log of the piece's ``counts`` [V];
    * ``random``: uniform.
    """
    shared = {"batch_size": batch_size, "log": log}
    scores = {
        DISCRIMINATOR: scores_of(inspector, inspector.detector, sentences, **shared)
    }
    if inspector.home.has_model("generator"):
        scores["generator"] = scores_of(
            inspector, inspector.generator, sentences, **shared
        )
    longest = longest_row(inspector, inspector.detector.encoder)
    pieces = word_rows(sentences, inspector.tokenizer, longest)
    rarity = [-np.log(counts[row[1:-1]] + 1.0) for row in pieces.input_ids]
    scores["frequency"] = _of_words(pieces, sentences, rarity)
    noise = np.random.default_rng(seed).random(len(scores["frequency"]))
    scores["random"] = np.where(np.isnan(scores["frequency"]), np.nan, noise)
    return scores


def scores_of(
    inspector: Inspector,
    model: ReplacedTokenDetector | MaskedLM,
    sentences: Sequence[Sequence[str]],
    *,
    batch_size: int = 32,
    log: Log = lambda line: None,
) -> np.ndarray:
    """Scores every word by a model with the vocabulary of ``inspector``, [N]."""
    longest = longest_row(inspector, model.encoder)
    pieces = word_rows(sentences, inspector.tokenizer, longest)
    rows = list(pieces.input_ids)
    method, sign = ("masked_lm", -1) if isinstance(model, MaskedLM) else ("replaced", 1)
    shared = {"batch_size": batch_size, "log": log}
    scores = row_scores(method, model, inspector.vocabulary, rows, **shared)
    return _of_words(pieces, sentences, [sign * values for values in scores])


def _of_words(
    pieces: WordRows, sentences: Sequence[Sequence[str]], by_row: Sequence[np.ndarray]
) -> np.ndarray:
    starts = np.cumsum([0, *map(len, sentences)])
    scores = np.full(starts[-1], np.nan)
    for row, sentence in enumerate(pieces.sentence):
        first = pieces.word[row][1:-1]
        # Assign continuing pieces to the word before them.
        word = np.maximum.accumulate(first) + starts[sentence]
        np.fmax.at(scores, word, by_row[row])
    return scores


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
    at = np.linspace(0, len(recalls) - 1, _THINNED).round().astype(int)
    at = np.unique(at)
    curve = pd.DataFrame({"recall": recalls[at], "precision": precisions[at]})
    return measures, curve, by_kind


def difference(
    marked: Sequence[Marked], scores: np.ndarray, others: np.ndarray, seed: int = 0
) -> tuple[float, float, float]:
    """Returns the difference in average precision and its 95 % interval."""
    wrong = np.array([kind != RIGHT for each in marked for kind in each.kinds])
    rows = np.repeat(np.arange(len(marked)), [len(each.words) for each in marked])
    known = ~(np.isnan(scores) | np.isnan(others))

    def statistic(y: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> float:
        if not y.any():
            return float("nan")
        score = metrics.average_precision_score
        return float(score(y, ours) - score(y, theirs))

    columns = (wrong[known], scores[known], others[known])
    ends = bootstrap(statistic, rows[known], *columns, seed=seed)
    return statistic(*columns), *ends


def sentences_of(subject: Subject) -> dict[str, list[Marked]]:
    """Reads the sentences with errors, by file of ``--errors``."""
    config = subject.config
    sets: dict[str, list[Marked]] = {}
    for spec in subject.files("errors"):
        sentences = marking.read(spec, config.agreement, subject.log)
        name = " and ".join(Path(part).name for part in spec.split(":"))
        rng = np.random.default_rng(config.seed)
        kept = sorted(rng.permutation(len(sentences))[: config.sentences])
        sets[spec if name in sets else name] = [sentences[at] for at in kept]
    return sets


def section(subject: Subject) -> Section:
    """Reports error detection by the discriminator and the baselines."""
    config = subject.config
    table, curves, kinds, sentences = [], [], [], []
    for name, marked in sentences_of(subject).items():
        words = [each.words for each in marked]
        scores = word_scores(
            subject.inspector,
            words,
            subject.text.counts,
            seed=config.seed,
            batch_size=config.batch_size,
            log=subject.log,
        )
        own = scores[DISCRIMINATOR]
        for scorer, values in scores.items():
            try:
                measures, curve, by_kind = evaluate(marked, values, config.seed)
            except UserError as error:
                raise UserError(f"{name}: {error}") from error
            lead = difference(marked, own, values, config.seed)
            ends = ("lead of discriminator", "lead low", "lead high")
            row = {"data": name, "scorer": scorer} | measures
            table.append(row | dict(zip(ends, lead, strict=True)))
            curves.append(curve.assign(data=name, scorer=scorer))
            if scorer == DISCRIMINATOR:
                by_kind["group"] = by_kind["group"].replace(RIGHT, "right words")
                kinds.append(by_kind.assign(data=name))
        row = next(each for each in table if each["data"] == name)
        sentences.append(
            f"{name}: average precision {row['average precision']:.3f} "
            f"({row['low']:.3f} to {row['high']:.3f}) where {row['wrong']:.1%} of "
            f"{row['words']:,} words are wrong; F0.5 {row['F0.5']:.3f}."
        )
    tables: Mapping[str, pd.DataFrame] = {
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

"""Zero-shot error detection among the N words of all sentences."""

import collections
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mode

import numpy as np
import pandas as pd
from sklearn import metrics

from electra_tf.analysis.render import Chart, Section
from electra_tf.analysis.statistics import halves, rates, roc_auc
from electra_tf.analysis.subject import Subject, word_pieces
from electra_tf.cli import Log
from electra_tf.errors import UserError, explained
from electra_tf.tasks.metrics import bootstrap
from electra_tf.tasks.sentences import Sentence
from electra_tf.tasks.tables import read_text

BETA = 0.5
DISCRIMINATOR = "discriminator"
# The tag of correct words; other tags are kinds of error.
RIGHT = ""


def word_scores(
    subject: Subject, sentences: Sequence[Sequence[str]]
) -> dict[str, np.ndarray]:
    """Scores every word by several methods, float64 [N]; higher is more suspicious.

    The methods are -log P(original) of the discriminator, -log p of the generator (a
    masked LM) with the piece masked, and minus the log of the piece's count in the
    text. A word has the maximum over its pieces, or NaN without pieces.
    """
    inspector, counts = subject.inspector, subject.text.counts
    rows, word = word_pieces(inspector, sentences)
    pieces = {DISCRIMINATOR: -subject.scores("detection", inspector.detector, rows)}
    is_masked_lm = inspector.flags.get("generator", "masked_lm") == "masked_lm"
    if is_masked_lm and inspector.home.has_model("generator"):
        pieces["generator"] = -subject.scores("masked_lm", inspector.generator, rows)
    ids = np.concatenate([row[1:-1] for row in rows])
    pieces["frequency"] = -np.log(counts[ids] + 1.0)
    words = pd.DataFrame(pieces, dtype=np.float64).groupby(word).max()
    words = words.reindex(range(sum(map(len, sentences))))
    return {scorer: values.to_numpy() for scorer, values in words.items()}


def evaluate(
    marked: Sequence[Sentence], scores: np.ndarray, seed: int = 0
) -> tuple[dict[str, float], pd.DataFrame]:
    """Evaluates word scores [N] against marked words; leaves out NaN.

    Half of the sentences selects the threshold with the best F0.5. The other half gives
    precision, recall, F0.5 and the table: the fraction of words above the threshold, by
    kind of error. Raises UserError if a half lacks wrong words.
    """
    kinds = np.array([kind for each in marked for kind in each.tags], object)
    rows = np.repeat(np.arange(len(marked)), [len(each.words) for each in marked])
    known = ~np.isnan(scores)
    kinds, rows, scores = kinds[known], rows[known], scores[known]
    wrong = (kinds != RIGHT).astype(bool)
    fitting = halves(rows, seed)
    for half, use in ((fitting, "selects"), (~fitting, "measures")):
        if not wrong[half].any():
            raise UserError(
                "no word is marked as wrong in the half of the sentences that "
                f"{use} the threshold: give more sentences."
            )
    precision, recall, thresholds = metrics.precision_recall_curve(
        wrong[fitting], scores[fitting]
    )
    total = np.maximum(BETA**2 * precision + recall, 1e-12)
    f_scores = (1 + BETA**2) * precision * recall / total
    threshold = float(thresholds[f_scores[:-1].argmax()])
    called = scores[~fitting] >= threshold
    precision, recall, f_score, _ = metrics.precision_recall_fscore_support(
        wrong[~fitting], called, beta=BETA, average="binary", zero_division=0
    )

    def average_precision(wrong: np.ndarray, scores: np.ndarray) -> float:
        return metrics.average_precision_score(wrong, scores) if wrong.any() else np.nan

    low, high = bootstrap(average_precision, rows, wrong, scores, seed=seed)
    measures = {
        "words": len(scores),
        "wrong": float(wrong.mean()),
        "average precision": float(average_precision(wrong, scores)),
        "low": low,
        "high": high,
        "AUC": roc_auc(wrong, scores),
        "threshold": threshold,
        "precision": float(precision),
        "recall": float(recall),
        "F0.5": float(f_score),
    }
    return measures, rates(called, kinds[~fitting], rows[~fitting])


def read_marked(path: str, log: Log) -> list[Sentence]:
    """Reads M2; a word is wrong if half of the annotators mark it.

    Tags are kinds of error, ``RIGHT`` if correct. As in the M2 scorer, an annotator
    without edits in a sentence marks no word there. For a missing word, the word after
    the gap is marked, or the last word of the sentence (as in Rei and Yannakoudakis,
    2016). Skips and logs sentences with an edit beyond their last word.
    """
    # Words of a sentence; edits (first word, word after the last, kind) by annotator.
    blocks: list[tuple[tuple[str, ...], dict[str, list[tuple[int, int, str]]]]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        kind, _, rest = line.removesuffix("\r").partition(" ")
        cells = rest.split("|||")
        span = re.fullmatch(r"(-?\d{1,9}) (-?\d{1,9})", cells[0])
        if kind == "S":
            blocks.append((tuple(rest.split(" ")), collections.defaultdict(list)))
        elif kind == "A" and blocks and span and len(cells) > 5:
            first, last = map(int, span.groups())
            own = blocks[-1][1][cells[5]]
            if cells[1] != "noop" and first >= 0:
                own.append((first, last, cells[1] or "error"))
        elif line.strip():
            raise UserError(
                f"{path}, line {number} must be 'S WORDS', or after it 'A FIRST LAST|||"
                "KIND|||CORRECTION|||REQUIRED|||COMMENT|||ANNOTATOR', got "
                f"{line[:40]!r}."
            )
    sentences = []
    annotators = {name for _, edits in blocks for name in edits}
    for words, edits in blocks:
        spans = itertools.chain(*edits.values())
        if any(not first <= last <= len(words) for first, last, _ in spans):
            continue
        # Kinds of error of each word by annotator; the first one, if there are several.
        # A gap is as wide as a word; the last gap is the last word.
        marks: list[dict[str, str]] = [{} for _ in words]
        for name, own in edits.items():
            for first, last, kind in sorted(own):
                for word in range(first, max(last, first + 1)):
                    marks[min(word, len(words) - 1)].setdefault(name, kind)
        kinds = [
            mode(each.values()) if each and len(each) >= len(annotators) / 2 else RIGHT
            for each in marks
        ]
        sentences.append(Sentence(str(len(sentences)), words, tuple(kinds)))
    if skipped := len(blocks) - len(sentences):
        log(
            f"{path}: {skipped} of {len(blocks)} sentences are left out: an edit is "
            "outside their words."
        )
    if not sentences:
        raise UserError(f"{path} has no sentences: it must be M2.")
    return sentences


def section(subject: Subject) -> Section:
    """Reports error detection by the discriminator and the baselines."""
    config = subject.config
    table, kinds, sentences = [], [], []
    sets: dict[str, list[Sentence]] = {}
    # Read all files before scoring, to fail early.
    for path in subject.files("errors"):
        every, name = read_marked(path, subject.log), Path(path).name
        rng = np.random.default_rng(config.seed)
        chosen = sorted(rng.permutation(len(every))[: config.sentences])
        sets[path if name in sets else name] = [every[number] for number in chosen]
    for name, marked in sets.items():
        scores = word_scores(subject, [each.words for each in marked])
        for scorer, values in scores.items():
            with explained(name, UserError):
                row, by_kind = evaluate(marked, values, config.seed)
            table.append({"data": name, "scorer": scorer} | row)
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
    }
    chart = Chart([*tables][1], "group", "rate", "data")
    return Section("Does it find real errors?", " ".join(sentences), tables, (chart,))

"""Replaced-token predictions by class of token, for N tokens of all rows."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from electra_tf.analysis.predictions import predict
from electra_tf.analysis.render import Chart, Section
from electra_tf.analysis.statistics import rates
from electra_tf.analysis.subject import Subject, word_pieces

_PASSES = 4


def traits(
    ids: np.ndarray,
    word: np.ndarray,
    tags: Sequence[str],
    counts: np.ndarray,
    continues: np.ndarray,
) -> dict[str, pd.Categorical]:
    """Returns the groups [N] of the tokens ``ids`` [N], by trait.

    ``word`` [N] indexes ``tags``, the parts of speech of all words. ``counts`` [V] are
    the vocabulary's token counts; ``continues`` [V] marks entries that continue a word.
    """
    edges = [0, 1, 10, 100, 1_000, 10_000, 100_000, np.inf]
    ranges = [f"{edge:,}-{10 * edge - 1:,}" for edge in edges[1:-2]]
    labels = ["0", *ranges, f"{edges[-2]:,}+"]
    pieces = ["whole word", "first piece", "continuing piece"]
    alone = np.bincount(word, minlength=len(tags))[word] == 1
    piece = np.where(continues[ids], 2, np.where(alone, 0, 1))
    return {
        "part of speech": pd.Categorical(np.array(tags, object)[word]),
        "times in the counted text": pd.cut(counts[ids], edges, False, labels),
        "piece": pd.Categorical.from_codes(piece, pieces),
    }


def profile(
    suspicion: np.ndarray, corrupted: pd.DataFrame, group_of: pd.Categorical
) -> pd.DataFrame:
    """Computes rates by group, on the original text and on several corruptions.

    * mean P(replaced) of original tokens, ``suspicion`` [N];
    * false alarms: false-positive rate on original tokens;
    * detected: recall of replaced tokens;
    * generator right: the generator's accuracy at masked tokens.

    ``corrupted`` has the same N tokens several times; ``group_of`` are their groups.
    """
    groups = group_of.take(np.arange(len(corrupted)) % len(suspicion))
    clusters = corrupted["row"].to_numpy()

    def among(chosen: np.ndarray, values: np.ndarray) -> pd.DataFrame:
        return rates(values[chosen], groups[chosen], clusters[chosen])

    original = (group_of, clusters[: len(suspicion)])
    is_right = corrupted["best"] == corrupted["original"]
    parts = {
        "mean P(replaced)": rates(suspicion, *original),
        "false alarms": rates(suspicion > 0.5, *original),
        "detected": among(corrupted["is_replaced"], corrupted["logits"] > 0),
        "generator right": among(corrupted["is_masked"], is_right),
    }
    return pd.concat(
        [table.assign(measure=name) for name, table in parts.items()], ignore_index=True
    )


def follows_generator(table: pd.DataFrame) -> float:
    """Rank correlation of P(replaced) and generator error; NaN below 3 groups."""
    columns = ["mean P(replaced)", "generator right"]
    wide = table.pivot(index="group", columns="measure", values="rate")
    wide = wide.reindex(columns=columns).dropna()
    if len(wide) < 3:
        return float("nan")
    return -float(wide.corr("spearman").iloc[0, 1])


def section(subject: Subject) -> Section:
    """Reports the rates on tagged text by all traits."""
    inspector = subject.inspector
    sentences = [sentence.words for sentence in subject.tagged]
    tags = [tag for sentence in subject.tagged for tag in sentence.tags]
    rows, word = word_pieces(inspector, sentences)
    # The scores are log P(original).
    suspicion = -np.expm1(subject.scores("detection", inspector.detector, rows))
    # Masks depend on the number of a row.
    kind, corrupted = predict(subject, rows * _PASSES)
    corrupted["row"] %= len(rows)
    continues = np.array([t.startswith("##") for t in inspector.vocabulary.tokens])
    ids = np.concatenate([row[1:-1] for row in rows])
    groups = traits(ids, word, tags, subject.text.counts, continues)
    tables, follows = [], []
    for trait, group in groups.items():
        table = profile(suspicion, corrupted, group)
        tables.append(table.assign(trait=trait))
        correlation = follows_generator(table)
        if np.isfinite(correlation):
            follows.append(f"{trait} {correlation:+.2f}")
    sentence = (
        f"{len(sentences):,} sentences, {len(word):,} pieces, corrupted {_PASSES} "
        f"times: real tokens have a mean P(replaced) of {suspicion.mean():.1%}; its "
        f"rank correlation with the errors of the {kind} by group is "
        f"{', '.join(follows) or 'undefined'}."
    )
    name = "P(replaced), false alarms, detection and generator by class of token"
    charts = (Chart(name, "group", "rate", "trait", "measure"),)
    title = "Which classes of tokens does it suspect?"
    return Section(title, sentence, {name: pd.concat(tables)}, charts)

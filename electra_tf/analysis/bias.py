"""Replaced-token predictions by class of token.

Letters: N tokens of all rows.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np
from scipy import special, stats

from electra_tf.analysis.extra import pandas as pd
from electra_tf.analysis.predictions import Predictions, corruptions, predict
from electra_tf.analysis.render import Chart, Section
from electra_tf.analysis.statistics import frequency_bins, rates
from electra_tf.analysis.subject import Subject, longest_row
from electra_tf.tasks.base import Rows
from electra_tf.tasks.tagging import word_rows

_PASSES = 4
_MOST_TAGS = 24


def word_of(tokens: Predictions, pieces: Rows, starts: np.ndarray) -> np.ndarray:
    """Returns each token's word index, [N]; ``starts`` has each sentence's first."""
    words = pieces.notes["word"]
    word = np.concatenate([np.maximum.accumulate(row) for row in words])
    at = words.splits[:-1][tokens.row] + tokens.position
    return word[at] + starts[pieces.example[tokens.row]]


def traits(
    tokens: Predictions,
    word: np.ndarray,
    tags: Sequence[str],
    counts: np.ndarray,
    continues: np.ndarray,
) -> dict[str, tuple[np.ndarray, Sequence[str]]]:
    """Groups tokens by several traits.

    Args:
        tokens: N tokens.
        word: word index of each token [N].
        tags: parts of speech of all words.
        counts: token counts by vocabulary id.
        continues: whether each vocabulary entry continues a word.

    Returns:
        Group indices [N] and group names, by trait.
    """
    names = sorted(tag for tag, _ in collections.Counter(tags).most_common(_MOST_TAGS))
    tag_of = np.array([names.index(tag) if tag in names else -1 for tag in tags])
    # Whole words are a group of their own, apart from first pieces.
    alone = np.bincount(word, minlength=len(tags))[word] == 1
    piece = np.where(continues[tokens.original], 2, np.where(alone, 0, 1))
    return {
        "part of speech": (tag_of[word], names),
        "times in the counted text": frequency_bins(counts[tokens.original]),
        "piece": (piece, ("whole word", "first piece", "continuing piece")),
    }


def profile(
    clean: Predictions,
    corrupted: Sequence[Predictions],
    group_of: np.ndarray,
    names: Sequence[str],
) -> pd.DataFrame:
    """Computes rates by group, on the original text and on several corruptions.

    * mean P(replaced) of original tokens;
    * false alarms: false-positive rate on original tokens;
    * detected: recall of replaced tokens;
    * generator right: the generator's accuracy at masked tokens.

    All texts have the same N tokens; ``group_of`` [N] are the groups of the originals.
    """
    row = np.concatenate([each.row for each in corrupted])
    groups = np.tile(group_of, len(corrupted))

    def of_all(name: str) -> np.ndarray:
        return np.concatenate([getattr(each, name) for each in corrupted])

    replaced, masked = of_all("is_replaced"), of_all("is_masked")
    calls, right = of_all("logits") > 0, of_all("best") == of_all("original")
    original = (group_of, clean.row, names)
    parts = {
        "mean P(replaced)": rates(special.expit(clean.logits), *original),
        "false alarms": rates(clean.logits > 0, *original),
        "detected": rates(calls[replaced], groups[replaced], row[replaced], names),
        "generator right": rates(right[masked], groups[masked], row[masked], names),
    }
    return pd.concat(
        [table.assign(measure=name) for name, table in parts.items()], ignore_index=True
    )


def follows_generator(table: pd.DataFrame) -> float:
    """Spearman's correlation of suspicion and generator error; NaN below 3 groups."""
    wide = table.pivot(index="group", columns="measure", values="rate").dropna()
    columns = wide.get(["mean P(replaced)", "generator right"])
    # Spearman's correlation is undefined for constant columns.
    if columns is None or len(wide) < 3 or (columns.nunique() < 2).any():
        return float("nan")
    return float(
        stats.spearmanr(wide["mean P(replaced)"], -wide["generator right"]).statistic
    )


def section(subject: Subject) -> Section:
    """Reports the rates on tagged text by all traits."""
    config, inspector = subject.config, subject.inspector
    sentences = [sentence.words for sentence in subject.tagged]
    tags = [tag for sentence in subject.tagged for tag in sentence.tags]
    longest = longest_row(inspector, inspector.detector.encoder)
    pieces = word_rows(sentences, inspector.tokenizer, longest)
    rows = list(pieces.inputs["input_ids"])
    shared = {"batch_size": config.batch_size, "log": subject.log}
    clean = predict(inspector, rows, name="original", **shared)
    kind, generator = next(iter(corruptions(inspector, subject.text.counts).items()))
    corrupted = [
        predict(inspector, rows, generator, seed=config.seed + at, name=kind, **shared)
        for at in range(_PASSES)
    ]
    word = word_of(clean, pieces, np.cumsum([0, *map(len, sentences)]))
    continues = np.array([t.startswith("##") for t in inspector.vocabulary.tokens])
    groups = traits(clean, word, tags, subject.text.counts, continues)
    tables = {
        trait: profile(clean, corrupted, *group) for trait, group in groups.items()
    }
    follows = ", ".join(
        f"{trait} {correlation:+.2f}"
        for trait, table in tables.items()
        if np.isfinite(correlation := follows_generator(table))
    )
    sentence = (
        f"{len(sentences):,} sentences, {len(word):,} pieces, corrupted {_PASSES} "
        "times: real tokens have a mean P(replaced) of "
        f"{special.expit(clean.logits).mean():.1%}; its rank correlation with the "
        f"errors of the {kind} by group is {follows}."
    )
    table = pd.concat(
        [part.assign(trait=trait) for trait, part in tables.items()], ignore_index=True
    )
    name = "P(replaced), false alarms, detection and generator by class of token"
    charts = (Chart(name, "group", "rate", "trait", "measure", "points"),)
    title = "Which classes of tokens does it suspect?"
    return Section(title, sentence, {name: table}, charts)

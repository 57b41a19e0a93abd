"""Replaced-token predictions by class of token.

Letters: N tokens of all rows, V vocabulary.
"""

import collections
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import special

from electra_tf.analysis.predictions import corruptions, predict
from electra_tf.analysis.render import Chart, Section
from electra_tf.analysis.statistics import frequency_bins, rates
from electra_tf.analysis.subject import Subject, word_pieces

_PASSES = 4
_MOST_TAGS = 24


def traits(
    tokens: pd.DataFrame,
    word: np.ndarray,
    tags: Sequence[str],
    counts: np.ndarray,
    continues: np.ndarray,
) -> dict[str, tuple[np.ndarray, Sequence[str]]]:
    """Returns group indices [N] and group names of the tokens, by trait.

    ``word`` [N] indexes ``tags``, the parts of speech of all words. ``counts`` [V] are
    token counts; ``continues`` [V] marks the entries that continue a word.
    """
    names = sorted(tag for tag, _ in collections.Counter(tags).most_common(_MOST_TAGS))
    # -1 for other tags.
    tag_of = pd.Index(names).get_indexer(tags)
    # Whole words and first pieces are separate groups.
    alone = np.bincount(word, minlength=len(tags))[word] == 1
    piece = np.where(continues[tokens.original], 2, np.where(alone, 0, 1))
    return {
        "part of speech": (tag_of[word], names),
        "times in the counted text": frequency_bins(counts[tokens.original]),
        "piece": (piece, ("whole word", "first piece", "continuing piece")),
    }


def profile(
    clean: pd.DataFrame,
    corrupted: Sequence[pd.DataFrame],
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
    every = pd.concat(corrupted, ignore_index=True)
    groups = np.tile(group_of, len(corrupted))

    def among(chosen: np.ndarray, values: np.ndarray) -> pd.DataFrame:
        return rates(values[chosen], groups[chosen], every.row[chosen], names)

    original = (group_of, clean.row, names)
    parts = {
        "mean P(replaced)": rates(special.expit(clean.logits), *original),
        "false alarms": rates(clean.logits > 0, *original),
        "detected": among(every.is_replaced, every.logits > 0),
        "generator right": among(every.is_masked, every.best == every.original),
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
    config, inspector = subject.config, subject.inspector
    sentences = [sentence.words for sentence in subject.tagged]
    tags = [tag for sentence in subject.tagged for tag in sentence.tags]
    rows, word = word_pieces(inspector, sentences)
    shared = {"batch_size": config.batch_size, "log": subject.log}
    clean = predict(inspector, rows, name="original", **shared)
    kind, generator = next(iter(corruptions(inspector, subject.text.counts).items()))
    corrupted = [
        predict(inspector, rows, generator, seed=config.seed + at, name=kind, **shared)
        for at in range(_PASSES)
    ]
    continues = np.array([t.startswith("##") for t in inspector.vocabulary.tokens])
    groups = traits(clean, word, tags, subject.text.counts, continues)
    tables = {
        trait: profile(clean, corrupted, *group) for trait, group in groups.items()
    }
    correlations = {trait: follows_generator(tables[trait]) for trait in tables}
    follows = ", ".join(
        f"{trait} {value:+.2f}"
        for trait, value in correlations.items()
        if np.isfinite(value)
    )
    suspicion = special.expit(clean.logits.to_numpy()).mean()
    sentence = (
        f"{len(sentences):,} sentences, {len(word):,} pieces, corrupted {_PASSES} "
        f"times: real tokens have a mean P(replaced) of {suspicion:.1%}; its "
        f"rank correlation with the errors of the {kind} by group is "
        f"{follows or 'undefined'}."
    )
    table = pd.concat(
        [part.assign(trait=trait) for trait, part in tables.items()], ignore_index=True
    )
    name = "P(replaced), false alarms, detection and generator by class of token"
    charts = (Chart(name, "group", "rate", "trait", "measure", "points"),)
    title = "Which classes of tokens does it suspect?"
    return Section(title, sentence, {name: table}, charts)

"""Which tokens does a discriminator suspect, and are they those its generator misses?

Letters: N tokens of all rows, G groups.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from scipy import special

from electra_tf.analysis import judged as judging
from electra_tf.analysis.judged import Judged
from electra_tf.analysis.marked import Tagged
from electra_tf.analysis.measures import (
    Rate,
    binned,
    frequency_bins,
    position_bins,
    rates,
)
from electra_tf.analysis.report import Picture, Section, Table
from electra_tf.analysis.subject import Subject, longest_row
from electra_tf.tasks.metrics import spearman
from electra_tf.tasks.tagging import WordRows, word_rows

# Corruptions of the same text, each with its own masks.
_PASSES = 4
_MOST_TAGS = 24
_OUTSIDE = "outside"
_MOST_WORDS, _LEAST_OCCURRENCES = 25, 5
# By measure: what is counted of whom.
MEASURES = {
    "suspicion": "mean P(replaced) of real tokens, in text as it is",
    "alarms": "share of these that is called replaced",
    "detected": "share of replaced tokens that is called replaced",
    "generator": "share of masked tokens that the generator's best guess hits",
}
# Group -> measure -> its mean and interval.
Profile = dict[str, dict[str, Rate]]
# Trait -> group numbers [N] and the names of the groups.
Traits = dict[str, tuple[np.ndarray, Sequence[str]]]


def word_of(tokens: Judged, pieces: WordRows, starts: np.ndarray) -> np.ndarray:
    """Number of the word that each token is a piece of, [N].

    ``starts`` are the numbers of the first words of the sentences.
    """
    offsets = pieces.word.splits[:-1]
    # Before the first word is [CLS], with -1.
    word = np.concatenate(
        [np.maximum.accumulate(pieces.word[row]) for row in range(len(offsets))]
    )
    at = offsets[tokens.row] + tokens.position
    return word[at] + starts[pieces.sentence[tokens.row]]


def traits(
    tokens: Judged,
    word: np.ndarray,
    words: Sequence[str],
    tags: Sequence[str],
    counts: np.ndarray,
    continues: np.ndarray,
) -> Traits:
    """What each token is, in several respects.

    Takes the number of each token's word, [N], all words and their tags, how often each
    entry of the vocabulary occurs, and whether it continues a word, both [V].
    """
    common = [tag for tag, _ in collections.Counter(tags).most_common(_MOST_TAGS)]
    names = sorted(common)
    number = {tag: names.index(tag) for tag in names}
    tag_of = np.array([number.get(tag, -1) for tag in tags])
    lengths = np.array([len(each) for each in words])
    looks = np.array([_look(each) for each in words])
    # A whole word is neither the first piece nor one that continues.
    alone = np.bincount(word, minlength=len(words))[word] == 1
    piece = np.where(continues[tokens.original], 2, np.where(alone, 0, 1))
    return {
        "part of speech": (tag_of[word], names),
        "times in the counted text": frequency_bins(counts[tokens.original]),
        "letters of the word": binned(lengths[word], (1, 2, 3, 4, 6, 8, 11)),
        "piece": (piece, ["whole word", "first piece", "continuing piece"]),
        "position": position_bins(tokens.position),
        "characters": (looks[word], _LOOKS),
    }


_LOOKS = ["letters", "capital first", "with a digit", "no letter or digit", "mixed"]


def _look(word: str) -> int:
    if any(map(str.isdigit, word)):
        return 2
    if not any(map(str.isalpha, word)):
        return 3
    if not word.isalpha():
        return 4
    return 1 if word[0].isupper() else 0


def profile(
    clean: Judged,
    corrupted: Sequence[Judged],
    group_of: np.ndarray,
    names: Sequence[str],
    *,
    has_generator: bool = True,
) -> Profile:
    """The ``MEASURES`` of each group, of text as it is and several corruptions of it.

    All have the same tokens, whose group numbers, by what stood there before, are [N].
    Without ``has_generator`` the guesses are those of no network, and not measured.
    """
    probabilities = special.expit(clean.logits)
    shown = {
        "suspicion": rates(probabilities, group_of, clean.row, names),
        "alarms": rates(clean.logits > 0, group_of, clean.row, names),
    }
    row = np.concatenate([each.row for each in corrupted])
    called = np.concatenate([each.logits > 0 for each in corrupted])
    right = np.concatenate([each.best == each.original for each in corrupted])
    groups = np.tile(group_of, len(corrupted))
    asked = [("detected", called, [each.is_replaced for each in corrupted])]
    if has_generator:
        asked.append(("generator", right, [each.is_masked for each in corrupted]))
    for name, values, kept in asked:
        some = np.concatenate(kept)
        shown[name] = rates(values[some], groups[some], row[some], names)
    found: Profile = {name: {} for name in names}
    for measure, by_group in shown.items():
        for rate in by_group:
            found[rate.name][measure] = rate
    return {name: row for name, row in found.items() if row}


def over_suspected(
    clean: Judged,
    word: np.ndarray,
    words: Sequence[str],
    *,
    least: int = _LEAST_OCCURRENCES,
    most: int = _MOST_WORDS,
) -> list[Rate]:
    """The words with the highest mean P(replaced) in text as it is, highest first.

    A word has that of its most suspicious piece. Only words, in lower case, that occur
    ``least`` times.
    """
    highest = np.zeros(len(words))
    np.maximum.at(highest, word, special.expit(clean.logits))
    row = np.zeros(len(words), int)
    row[word] = clean.row
    read = np.unique(word)
    known, group = np.unique([words[at].lower() for at in read], return_inverse=True)
    found = rates(highest[read], group, row[read], known.tolist())
    often = [rate for rate in found if rate.count >= least]
    return sorted(often, key=lambda rate: -rate.rate)[:most]


def follows_generator(found: Profile) -> float:
    """Spearman's correlation over groups of suspicion and the generator's misses.

    1: the less the generator knows of a group, the more its real tokens are suspected.
    nan below three groups.
    """
    pairs = [
        (row["suspicion"].rate, 1 - row["generator"].rate)
        for row in found.values()
        if "generator" in row and "suspicion" in row
    ]
    return spearman(*zip(*pairs, strict=True)) if len(pairs) > 2 else float("nan")


def draw_heat(axis: Axes, found: Profile) -> None:
    """Draws measures of groups with intervals; colors compare within a column."""
    names = list(found)
    columns = [m for m in MEASURES if any(m in row for row in found.values())]
    values = np.full([len(names), len(columns)], np.nan)
    for (line, column), _ in np.ndenumerate(values):
        rate = found[names[line]].get(columns[column])
        if rate:
            values[line, column] = rate.rate
            text = f"{rate.rate:.1%}\n{rate.low:.1%} - {rate.high:.1%}"
            axis.text(column, line, text, ha="center", va="center", fontsize=6.5)
    low, high = np.nanmin(values, 0), np.nanmax(values, 0)
    shades = (values - low) / np.where(high > low, high - low, 1)
    # Light enough for dark text everywhere.
    axis.imshow(0.6 * shades, cmap="OrRd", vmin=0, vmax=1, aspect="auto")
    axis.set_xticks(range(len(columns)), columns, fontsize=8)
    axis.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)


@dataclasses.dataclass(frozen=True)
class _Read:
    """Sentences as they are and corrupted, and the word that each token is of, [N]."""

    kind: str
    clean: Judged
    corrupted: Sequence[Judged]
    word: np.ndarray


def _read(subject: Subject, sentences: Sequence[Tagged], name: str) -> _Read:
    config, inspector = subject.config, subject.inspector
    pieces = word_rows(
        [sentence.words for sentence in sentences],
        inspector.tokenizer,
        longest_row(inspector, inspector.detector.encoder),
        split=True,
    )
    rows = [pieces.input_ids[row] for row in range(len(pieces.sentence))]
    shared = {"batch_size": config.batch_size, "log": subject.log}
    clean = judging.judge(inspector, rows, name=f"{name} as it is", **shared)
    kind, generator = next(iter(judging.corruptions(inspector, subject.counts).items()))
    corrupted = [
        judging.judge(
            *(inspector, rows, generator),
            seed=config.seed + number,
            name=f"{name}, {kind}",
            **shared,
        )
        for number in range(_PASSES)
    ]
    starts = np.cumsum([0, *(len(sentence.words) for sentence in sentences)])
    return _Read(kind, clean, corrupted, word_of(clean, pieces, starts))


def span_kinds(sentences: Sequence[Tagged]) -> tuple[np.ndarray, list[str]]:
    """Numbers of the kinds of the spans that words are in, [words], and their names."""
    kinds = [
        tag.partition("-")[2] or _OUTSIDE for each in sentences for tag in each.tags
    ]
    common = [kind for kind, _ in collections.Counter(kinds).most_common(_MOST_TAGS)]
    names = [*sorted({*common} - {_OUTSIDE}), _OUTSIDE]
    number = {kind: at for at, kind in enumerate(names)}
    return np.array([number.get(kind, -1) for kind in kinds]), names


def section(subject: Subject) -> Section:
    """Suspicion in the tagged text, by all traits; in that of ``--spans`` by spans."""
    config, inspector = subject.config, subject.inspector
    sentences = subject.tagged
    words = [word for sentence in sentences for word in sentence.words]
    tags = [tag for sentence in sentences for tag in sentence.tags]
    read = _read(subject, sentences, "tagged text")
    kind, clean, corrupted, word = (
        *(read.kind, read.clean, read.corrupted),
        read.word,
    )
    continues = np.array([t.startswith("##") for t in inspector.vocabulary.tokens])
    has_generator = inspector.home.has_model("generator")
    by_trait = {
        trait: profile(clean, corrupted, group_of, names, has_generator=has_generator)
        for trait, (group_of, names) in traits(
            clean, word, words, tags, subject.counts, continues
        ).items()
    }
    for name, own in subject.spans.items():
        spans = _read(subject, own, name)
        group_of, names = span_kinds(own)
        by_trait[f"{name} (--spans)"] = profile(
            *(spans.clean, spans.corrupted, group_of[spans.word], names),
            has_generator=has_generator,
        )
    follows = {trait: follows_generator(found) for trait, found in by_trait.items()}
    everywhere = np.zeros(len(clean.row), int)
    (overall,) = profile(
        clean, corrupted, everywhere, ["all"], has_generator=has_generator
    ).values()
    over = over_suspected(clean, word, words)
    shown = ", ".join(f"{name} {rate.rate:.1%}" for name, rate in overall.items())
    notes = [
        f"{len(sentences):,} sentences of {', '.join(config.tagged)}, {len(words):,} "
        f"words, {len(word):,} pieces; corrupted {_PASSES} times ({kind}): {shown}.",
        *(f"{name}: {meaning}." for name, meaning in MEASURES.items()),
        "Does suspicion follow the generator's weakness? Spearman's correlation of "
        "suspicion and the generator's misses over groups: "
        + ", ".join(f"{trait} {value:+.2f}" for trait, value in follows.items())
        + ".",
    ]
    header = ("group", "tokens")
    header += tuple(
        f"{measure}{end}" for measure in MEASURES for end in ("", " low", " high")
    )
    none = Rate("", 0, *[float("nan")] * 3)
    tables = [
        Table(
            f"By {trait}",
            header,
            [
                (
                    *(name, row["suspicion"].count),
                    *(
                        value
                        for measure in MEASURES
                        for rate in (row.get(measure, none),)
                        for value in (rate.rate, rate.low, rate.high)
                    ),
                )
                for name, row in found.items()
            ],
        )
        for trait, found in by_trait.items()
    ]
    cells = [(rate.name, rate.count, rate.rate, rate.low, rate.high) for rate in over]
    caption = f"Most suspected words that occur {_LEAST_OCCURRENCES} times, as it is"
    tables.insert(0, Table(caption, ("word", "times", "mean P", "low", "high"), cells))
    items = list(by_trait.items())
    pictures = [
        Picture(
            "Each cell: mean and 95 % interval over sentences; colors compare within a "
            "column.",
            {
                trait: functools.partial(draw_heat, found=found)
                for trait, found in items[at : at + 2]
            },
            height=max(3.0, 0.34 * max(len(f) for _, f in items[at : at + 2]) + 1),
        )
        for at in range(0, len(items), 2)
    ]
    numbers = {
        "overall": overall,
        "by_trait": by_trait,
        "follows_generator": follows,
        "over_suspected": over,
    }
    title = "Which tokens does it suspect?"
    return Section(title, notes, tables, pictures, numbers)

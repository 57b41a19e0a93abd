"""How do the representations of encoders differ? Layers, probes, attention.

All is of words, by their first pieces, so that encoders with other vocabularies can be
compared. Letters: L layers (what goes into the first block counts as one), N words, D
hidden size, H heads, C classes.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from electra_tf.analysis.attention import Attention, attention
from electra_tf.analysis.calibration import halves
from electra_tf.analysis.inspector import Inspector
from electra_tf.analysis.marked import Tagged
from electra_tf.analysis.measures import Rate, bars, binned, roc_auc
from electra_tf.analysis.report import Picture, Section, Table
from electra_tf.analysis.subject import (
    Subject,
    encoders_in,
    longest_row,
    short_names,
)
from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import frozen, linear
from electra_tf.tasks.base import Ragged, Rows
from electra_tf.tasks.sentences import span_scores
from electra_tf.tasks.tagging import word_rows

_REPLACED_SHARE = 0.15
_PROBED_WORDS = 50
_MOST_PAIRS = 20_000
# Rows whose attention is measured.
_LOOKED_AT = 100
# The tags with a color of their own in the picture of the plane.
_SHOWN_TAGS = 6
# Times that a word has each of its senses; the occurrences whose pairs are compared;
# and the words that are drawn.
_LEAST_SENSE, _MOST_OCCURRENCES, _SHOWN_WORDS = 8, 150, 2
_RESAMPLES = 1_000
# Probes, and what their scores are.
PROBES = {
    "tag": "accuracy",
    "word": f"accuracy among the {_PROBED_WORDS} most frequent words",
    "replaced": "AUC; 15 % of the words drawn anew from the text",
}

_SPAN_SCORE = "F1 of exact spans"


def read_words(
    encoder: TextEncoder,
    tokenizer: WordPiece,
    sentences: Sequence[Sequence[str]],
    *,
    longest: int,
    batch_size: int = 32,
) -> tuple[np.ndarray, np.ndarray, Ragged]:
    """States of words, float32 [L, N, D]; their numbers in the text, [N]; ids of rows.

    Long sentences are read in parts; words without pieces are left out.
    """
    pieces = word_rows(sentences, tokenizer, longest, split=True)
    ids = pieces.input_ids
    zeros = Ragged(np.zeros_like(ids.values), ids.splits)
    rows = Rows(
        {"input_ids": ids, "segment_ids": zeros},
        {},
        pieces.sentence,
        pad_id=tokenizer.vocabulary.pad_id,
        notes={"word": pieces.word},
    )
    found = frozen.states_of(encoder, rows, frozen.READINGS["tagging"], batch_size)
    starts = np.cumsum([0, *map(len, sentences)])
    numbers = [
        starts[sentence] + word[word >= 0]
        for row, sentence in enumerate(pieces.sentence)
        for word in (pieces.word[row],)
    ]
    return found["words"], np.concatenate(numbers), ids


def linear_cka(first: np.ndarray, second: np.ndarray) -> float:
    """Likeness of two representations [N, D] and [N, E] of the same words, in [0, 1].

    Linear centered kernel alignment (Kornblith et al., 2019): it does not change with
    rotations and the scale of either. nan if one does not vary.
    """
    first, second = (
        (each - each.mean(0)).astype(np.float64) for each in (first, second)
    )
    cross = np.square(first.T @ second).sum()
    own = [np.linalg.norm(each.T @ each) for each in (first, second)]
    return float(cross / (own[0] * own[1])) if min(own) > 0 else float("nan")


@dataclasses.dataclass(frozen=True)
class Spread:
    """How the words of a layer lie.

    ``variance`` has the share of the variance in the first principal component, and in
    the first ten; ``cosine`` is the mean between random pairs of words, 0 where all
    directions are alike (anisotropy; Ethayarajh, 2019).
    """

    variance: tuple[float, float]
    cosine: float


def spread(states: np.ndarray, seed: int = 0) -> Spread:
    """Measures the states [N, D] of a layer; ValueError below two words."""
    if len(states) < 2:
        raise UserError(f"{len(states)} words cannot be spread: give more text.")
    centered = (states - states.mean(0)).astype(np.float64)
    variances = np.linalg.eigvalsh(centered.T @ centered)[::-1]
    shares = np.cumsum(variances) / max(variances.sum(), 1e-300)
    rng = np.random.default_rng(seed)
    one = rng.integers(0, len(states), _MOST_PAIRS)
    # Any other word.
    other = (one + rng.integers(1, len(states), _MOST_PAIRS)) % len(states)
    units = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-12)
    cosine = np.einsum("nd,nd->n", units[one], units[other]).mean()
    first_ten = float(shares[min(10, len(shares)) - 1])
    return Spread((float(shares[0]), first_ten), float(cosine))


@dataclasses.dataclass(frozen=True)
class Probe:
    """Scores of linear layers on held-out words, and of what knows no word."""

    layers: tuple[float, ...]
    baseline: float


def probe(
    states: np.ndarray,
    targets: np.ndarray,
    sentences: np.ndarray,
    *,
    is_detection: bool = False,
    seed: int = 0,
) -> Probe:
    """Trains a linear layer on the states [L, N, D] of one half of the sentences.

    Returns the accuracy on the other half, by layer, of class numbers [N]; with
    ``is_detection`` the AUC of class 1. The baseline is the most frequent class; of
    detection it is one half. The states are changed. ValueError: only one class.
    """
    classes, numbers = np.unique(targets, return_inverse=True)
    training = halves(sentences, seed)
    given, asked = numbers[training], numbers[~training]
    scores = []
    for logits in _answers(states, numbers, classes, sentences, training):
        if is_detection:
            scores.append(roc_auc(asked == 1, logits[:, 1] - logits[:, 0]))
        else:
            scores.append(float((logits.argmax(1) == asked).mean()))
    most = np.bincount(given).argmax()
    baseline = 0.5 if is_detection else float((asked == most).mean())
    return Probe(tuple(scores), baseline)


def span_probe(
    states: np.ndarray, tagged: Sequence[Tagged], at: np.ndarray, *, seed: int = 0
) -> Probe:
    """Trains as ``probe``, on span tags; F1 of exact spans on the other half, by layer.

    ``at`` [N] says which words of all sentences the states [L, N, D] are of. The
    baseline gives each word the tag that it has most often in the first half, or O.
    """
    owner = np.repeat(np.arange(len(tagged)), [len(each.words) for each in tagged])
    tags = np.array([tag for each in tagged for tag in each.tags], object)
    words = np.array([w.lower() for each in tagged for w in each.words], object)
    classes, numbers = np.unique(tags[at].astype(str), return_inverse=True)
    training = halves(owner[at], seed)
    asked = np.unique(owner[at[~training]])
    labels = [tagged[number].tags for number in asked]

    def score(predicted: np.ndarray) -> float:
        """F1 of tags [words of all sentences], None for words without states."""
        answers = [predicted[owner == number].tolist() for number in asked]
        return span_scores(labels, answers)["f1"]

    scores = []
    for logits in _answers(states, numbers, classes, owner[at], training):
        predicted = np.full(len(tags), None, object)
        predicted[at[~training]] = classes[logits.argmax(1)]
        scores.append(score(predicted))
    seen: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for word, tag in zip(words[at[training]], tags[at[training]], strict=True):
        seen[word][tag] += 1
    usual = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
    guessed = np.array([usual.get(word, "O") for word in words], object)
    return Probe(tuple(scores), score(guessed))


def _answers(
    states: np.ndarray,
    numbers: np.ndarray,
    classes: np.ndarray,
    sentences: np.ndarray,
    training: np.ndarray,
) -> Iterator[np.ndarray]:
    """Logits of the words that were not trained on, [words, C], layer by layer."""
    if len(classes) < 2:
        raise UserError(
            f"all words have the class {classes}: there is nothing to probe."
        )
    kept, rest = states[:, training], states[:, ~training]
    shift, scale = frozen.standardize(kept)
    rest = (rest - shift) / scale
    given = numbers[training]
    shared = (len(classes), linear.LOSSES["classification"])
    strength = linear.choose_strength(
        kept.mean(axis=0, keepdims=True), given, sentences[training], *shared
    )
    for layer in range(len(states)):
        fitted = linear.fit(kept[layer][None], given, *shared, strength=strength)
        yield fitted(rest[layer][None])


def draw_cka(axis: Axes, found: np.ndarray, names: tuple[str, str]) -> None:
    """Draws CKA of all layers [L, M] of two encoders."""
    axis.imshow(found, vmin=0, vmax=1, cmap="viridis", origin="lower", aspect="auto")
    if found.size <= 64:
        for (row, column), value in np.ndenumerate(found):
            color = "black" if value > 0.6 else "white"
            axis.text(
                column,
                row,
                f"{value:.2f}",
                ha="center",
                va="center",
                color=color,
                size=8,
            )
    for side in (axis.xaxis, axis.yaxis):
        side.get_major_locator().set_params(integer=True)
    axis.set_ylabel(f"layer of {names[0]}", parse_math=False)
    axis.set_xlabel(f"layer of {names[1]}", parse_math=False)


def draw_layers(
    axis: Axes, by_name: Mapping[str, Sequence[float]], label: str, baseline: float = 0
) -> None:
    """Draws one number per layer for each encoder, and a baseline if there is one."""
    for name, values in by_name.items():
        axis.plot(range(len(values)), values, marker="o", markersize=4, label=name)
    if baseline:
        axis.axhline(baseline, color="0.6", linewidth=1)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(xlabel="layer", ylabel=label)
    axis.legend(fontsize=8, frameon=False)


def draw_senses(axis: Axes, found: Mapping[str, Sequence[Rate]]) -> None:
    """Draws how far each layer tells senses apart, with intervals; the line: chance."""
    for name, layers in found.items():
        values = [rate.rate for rate in layers]
        style = {"marker": "o", "markersize": 4, "elinewidth": 0.7, "label": name}
        axis.errorbar(range(len(layers)), values, bars(layers), **style)
    axis.axhline(0.5, color="0.6", linewidth=1)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(xlabel="layer", ylabel="pairs in the right order")
    axis.legend(fontsize=8, frameon=False)


def _best_layer(layers: Sequence[Rate]) -> int:
    return int(np.argmax([rate.rate for rate in layers]))


def draw_heads(axis: Axes, found: Attention) -> None:
    """Draws entropy over distance, a mark per head and a color per block."""
    for number, (distance, entropy) in enumerate(
        zip(found.distance, found.entropy, strict=True), 1
    ):
        axis.scatter(distance, entropy, s=18, label=f"block {number}")
    axis.set(xlabel="mean distance (tokens)", ylabel="entropy (nats)")
    axis.legend(fontsize=7, frameon=False, ncols=2)


def between(states: np.ndarray, groups: np.ndarray) -> float:
    """Share of the variance of words [N, D] that lies between their groups [N].

    0: the means of all groups are the same; 1: a group is a point.
    """
    centered = (states - states.mean(0)).astype(np.float64)
    _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.zeros([len(sizes), states.shape[1]])
    np.add.at(sums, number, centered)
    explained = (np.square(sums).sum(1) / sizes).sum()
    return float(explained / max(np.square(centered).sum(), 1e-300))


def ambiguous(
    words: np.ndarray, tags: np.ndarray, least: int = _LEAST_SENSE
) -> dict[str, np.ndarray]:
    """Words that stand for several things: their places [n] in the text, by word.

    A sense is a tag that the word has ``least`` times; other occurrences are left out.
    Those whose second sense is most frequent come first.
    """
    places: dict[str, list[int]] = collections.defaultdict(list)
    for at, word in enumerate(words):
        places[word].append(at)
    found: dict[str, tuple[int, np.ndarray]] = {}
    for word, at in places.items():
        counts = collections.Counter(tags[at].tolist())
        kept = [tag for tag, count in counts.most_common() if count >= least]
        if len(kept) > 1:
            own = np.array([place for place in at if tags[place] in kept])
            found[word] = counts[kept[1]], own
    order = sorted(found, key=lambda word: (-found[word][0], word))
    return {word: found[word][1] for word in order}


def sense_score(states: np.ndarray, senses: np.ndarray) -> float:
    """How far occurrences [n, D] of a word lie by their senses [n].

    The share of all pairs of a pair of one sense and a pair of two senses of which the
    former has the higher cosine; chance is one half.
    """
    # The mean is what all occurrences of the word share.
    centered = (states - states.mean(0)).astype(np.float64)
    norms = np.linalg.norm(centered, axis=1, keepdims=True)
    units = centered / np.maximum(norms, 1e-12)
    one, other = np.triu_indices(len(senses), 1)
    return roc_auc(senses[one] == senses[other], (units @ units.T)[one, other])


def sense_scores(
    states: np.ndarray, tags: np.ndarray, places: Mapping[str, np.ndarray]
) -> list[Rate]:
    """Mean ``sense_score`` over words, of each layer of states [L, N, D].

    Intervals are of 95 %, by a bootstrap over words.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(places), [_RESAMPLES, len(places)])
    kept = [
        at if len(at) <= _MOST_OCCURRENCES else rng.choice(at, _MOST_OCCURRENCES, False)
        for at in places.values()
    ]
    found = []
    for layer in states:
        own = np.array([sense_score(layer[at], tags[at]) for at in kept])
        low, high = np.quantile(own[drawn].mean(1), [0.025, 0.975])
        found.append(Rate("", len(own), float(own.mean()), float(low), float(high)))
    return found


def draw_plane(
    axis: Axes,
    states: np.ndarray,
    tags: Sequence[str],
    shown: Sequence[str] | None = None,
) -> None:
    """Draws words [N, D] on their first two principal components, by their tags.

    ``shown`` are the tags with a color of their own, in order; default: the most
    frequent ones.
    """
    centered = (states - states.mean(0)).astype(np.float64)
    _, directions = np.linalg.eigh(centered.T @ centered)
    plane = centered @ directions[:, :-3:-1]
    tags = np.array(tags)
    often = collections.Counter(tags.tolist()).most_common(_SHOWN_TAGS)
    for tag in shown or [tag for tag, _ in often]:
        own = plane[tags == tag]
        size = 4 if len(plane) > 500 else 14
        axis.scatter(own[:, 0], own[:, 1], s=size, alpha=0.5, linewidths=0, label=tag)
    axis.set(xlabel="first component", ylabel="second component")
    axis.legend(fontsize=7, frameon=False, markerscale=3)


def find_encoders(subject: Subject) -> dict[str, Inspector]:
    """The model's folder and those of ``--encoders``, by a name that is short.

    A folder without encoder.keras stands for all folders in it that have one, as that
    of a comparison does, but not for points along a run that is among them.
    ValueError: there is none; OSError: no such folder.
    """
    folders = [subject.inspector.folder]
    for given in map(Path, subject.config.encoders):
        inside = encoders_in(given)
        if not inside:
            raise UserError(
                f"--encoders: {given} has no encoder.keras, nor has a folder in it: "
                "give folders of finished runs, of imports, or of a comparison."
            )
        folders += inside
    folders = list(dict.fromkeys(folders))
    return {
        name: Inspector(folder, subject.log) if number else subject.inspector
        for number, (name, folder) in enumerate(
            zip(short_names(folders), folders, strict=True)
        )
    }


def section(subject: Subject) -> Section:
    """Layers, probes and attention of all encoders on the tagged text."""
    config = subject.config
    tagged = subject.tagged
    sentences = [sentence.words for sentence in tagged]
    words = np.array([word.lower() for each in sentences for word in each], object)
    tags = np.array([tag for sentence in tagged for tag in sentence.tags], object)
    owner = np.repeat(np.arange(len(tagged)), [len(each) for each in sentences])
    rng = np.random.default_rng(config.seed)
    is_drawn = rng.random(len(words)) < _REPLACED_SHARE
    flat = np.array([word for each in sentences for word in each], object)
    drawn = np.where(is_drawn, rng.permutation(flat), flat)
    is_replaced = np.array([word.lower() for word in drawn]) != words
    ends = np.cumsum([len(each) for each in sentences])
    corrupted = [tuple(part) for part in np.split(drawn, ends[:-1])]

    spans = subject.spans
    for name in spans:
        if name in (*PROBES, "clean", "drawn"):
            raise UserError(f"--spans={name}=...: the name {name} is taken.")
    states: dict[str, list] = {kind: [] for kind in ("clean", "drawn", *spans)}
    looks: dict[str, Attention] = {}
    for name, inspector in find_encoders(subject).items():
        encoder = inspector.home.load("encoder", TextEncoder)
        shared = {
            "longest": longest_row(inspector, encoder),
            "batch_size": config.batch_size,
        }
        tokenizer, vocabulary = inspector.tokenizer, inspector.vocabulary
        *found, ids = read_words(encoder, tokenizer, sentences, **shared)
        states["clean"].append(found)
        more = {kind: [each.words for each in own] for kind, own in spans.items()}
        for kind, own in {"drawn": corrupted, **more}.items():
            states[kind].append(read_words(encoder, tokenizer, own, **shared)[:2])
        looks[name] = attention(
            encoder,
            [ids[row] for row in range(min(len(ids.splits) - 1, _LOOKED_AT))],
            vocabulary.sep_id,
            vocabulary.cls_id,
        )
        size = f"{encoder.num_layers} blocks of {encoder.hidden_size}"
        subject.log(f"read {name}: {size}")

    def common(kind: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Numbers of the words that all encoders have read, and their states."""
        numbers = functools.reduce(np.intersect1d, (own for _, own in states[kind]))
        kept = (values[:, np.isin(own, numbers)] for values, own in states[kind])
        return numbers, dict(zip(looks, kept, strict=True))

    at, clean = common("clean")
    spreads = {
        name: [spread(layer, config.seed) for layer in states]
        for name, states in clean.items()
    }
    pairs = list(itertools.combinations_with_replacement(clean, 2))
    cka = {
        pair: np.array(
            [
                [linear_cka(one, other) for other in clean[pair[1]]]
                for one in clean[pair[0]]
            ]
        )
        for pair in pairs
    }
    frequent = {w for w, _ in collections.Counter(words).most_common(_PROBED_WORDS)}
    is_frequent = np.array([word in frequent for word in words[at]])
    at_drawn, drawn_states = common("drawn")
    probes: dict[str, dict[str, Probe]] = {kind: {} for kind in (*PROBES, *spans)}
    for name in clean:
        probes["tag"][name] = probe(
            clean[name].copy(), tags[at].astype(str), owner[at], seed=config.seed
        )
        probes["word"][name] = probe(
            clean[name][:, is_frequent],
            words[at][is_frequent].astype(str),
            owner[at][is_frequent],
            seed=config.seed,
        )
        probes["replaced"][name] = probe(
            drawn_states[name],
            is_replaced[at_drawn],
            owner[at_drawn],
            is_detection=True,
            seed=config.seed,
        )
        for kind, given in spans.items():
            at_span, span_states = common(kind)
            probes[kind][name] = span_probe(
                span_states[name].copy(), given, at_span, seed=config.seed
            )
        subject.log(f"probed {name}")
    planes = _planes(clean, words[at], tags[at], collections.Counter(words))
    return _section(
        subject, len(tagged), tags[at], clean, spreads, cka, probes, looks, planes
    )


@dataclasses.dataclass(frozen=True)
class _Planes:
    """Words by how frequent they are, and ambiguous ones by their senses.

    ``frequency`` has the share of a layer's variance between ``bins`` of frequency, by
    encoder; ``senses`` the mean ``sense_score`` of its layers, none if no word is
    ambiguous; ``places`` are the ambiguous words.
    """

    bins: tuple[np.ndarray, list[str]]
    frequency: Mapping[str, Sequence[float]]
    senses: Mapping[str, Sequence[Rate]]
    places: Mapping[str, np.ndarray]


def _planes(
    clean: Mapping[str, np.ndarray],
    words: np.ndarray,
    tags: np.ndarray,
    counts: Mapping[str, int],
) -> _Planes:
    often = np.array([counts[word] for word in words])
    number, names = binned(often, (1, 2, 10, 100))
    places = ambiguous(words, tags)
    return _Planes(
        bins=(number, [f"{name} times" for name in names]),
        frequency={
            name: [between(layer, number) for layer in states]
            for name, states in clean.items()
        },
        senses={
            name: sense_scores(states, tags, places) if places else []
            for name, states in clean.items()
        },
        places=places,
    )


def _section(
    subject: Subject,
    sentences: int,
    tags: np.ndarray,
    clean: Mapping[str, np.ndarray],
    spreads: Mapping[str, Sequence[Spread]],
    cka: Mapping[tuple[str, str], np.ndarray],
    probes: Mapping[str, Mapping[str, Probe]],
    looks: Mapping[str, Attention],
    planes: _Planes,
) -> Section:
    """What was measured as words, tables and pictures."""
    notes = [
        f"{sentences:,} sentences of {', '.join(subject.config.tagged)}, {len(tags):,} "
        f"words that all of {', '.join(clean)} read.",
        *(
            f"Probe {kind} ({PROBES.get(kind, _SPAN_SCORE)}): "
            + ", ".join(
                f"{name} {max(each.layers):.3f} at layer {int(np.argmax(each.layers))}"
                for name, each in found.items()
            )
            + f"; baseline {next(iter(found.values())).baseline:.3f}."
            for kind, found in probes.items()
        ),
    ]
    if planes.places:
        notes.append(
            f"Senses of {len(planes.places)} words with several tags: "
            + ", ".join(
                f"{name} {best.rate:.3f} ({best.low:.3f} to {best.high:.3f}) at layer "
                f"{layers.index(best)}"
                for name, layers in planes.senses.items()
                for best in (max(layers, key=lambda rate: rate.rate),)
            )
            + "; chance 0.5."
        )
    header = ("encoder", "layer", "first component", "first ten", "cosine")
    header += ("frequency", "senses")
    nan = float("nan")
    rows = [
        (
            *(name, layer, *each.variance, each.cosine, planes.frequency[name][layer]),
            planes.senses[name][layer].rate if planes.places else nan,
            *(probes[kind][name].layers[layer] for kind in probes),
        )
        for name, layers in spreads.items()
        for layer, each in enumerate(layers)
    ]
    head_rows = [
        (name, block + 1, head + 1, *(float(part[block, head]) for part in parts))
        for name, look in looks.items()
        for parts in ((look.entropy, look.distance, look.special),)
        for block, head in np.ndindex(look.entropy.shape)
    ]
    tables = [
        Table("By layer: variance, cosine, probes", (*header, *probes), rows),
        Table(
            "By head",
            ("encoder", "block", "head", "entropy", "distance", "to [CLS] and [SEP]"),
            head_rows,
        ),
    ]
    by_layer = {
        kind: functools.partial(
            draw_layers,
            by_name={name: each.layers for name, each in found.items()},
            label=PROBES.get(kind, _SPAN_SCORE).split(";")[0].split(" among")[0],
            baseline=next(iter(found.values())).baseline,
        )
        for kind, found in probes.items()
    }
    geometry = {
        "variance in the first component": functools.partial(
            draw_layers,
            by_name={n: [each.variance[0] for each in s] for n, s in spreads.items()},
            label="share",
        ),
        "mean cosine of two words": functools.partial(
            draw_layers,
            by_name={n: [each.cosine for each in s] for n, s in spreads.items()},
            label="cosine",
        ),
        "variance between words of other frequency": functools.partial(
            draw_layers, by_name=planes.frequency, label="share"
        ),
    }
    if planes.places:
        geometry["senses of a word"] = functools.partial(
            draw_senses, found=planes.senses
        )
    number, names = planes.bins
    pictures = [
        Picture(
            "Linear CKA of all layers; 1: the same up to rotation and scale.",
            {
                f"{one} and {other}": functools.partial(
                    draw_cka, found=found, names=(one, other)
                )
                for (one, other), found in cka.items()
            },
        ),
        Picture("Linear probes by layer, on held-out sentences.", by_layer),
        Picture("How the words lie, by layer.", geometry),
        Picture(
            "What heads look at.",
            {n: functools.partial(draw_heads, found=look) for n, look in looks.items()},
        ),
        Picture(
            "Words of the last layer on their first two principal components.",
            {
                name: functools.partial(draw_plane, states=states[-1], tags=tags)
                for name, states in clean.items()
            },
        ),
        Picture(
            "The same words by how often they occur in this text.",
            {
                name: functools.partial(
                    draw_plane,
                    states=states[-1],
                    tags=np.array(names)[number],
                    shown=names,
                )
                for name, states in clean.items()
            },
        ),
    ]
    for word, places in list(planes.places.items())[:_SHOWN_WORDS]:
        pictures.append(
            Picture(
                f"All {word!r} that are tagged often enough, at the layer that tells "
                "their tags apart best, on their own first two components.",
                {
                    f"{name}, layer {layer}": functools.partial(
                        draw_plane, states=states[layer][places], tags=tags[places]
                    )
                    for name, states in clean.items()
                    for layer in (_best_layer(planes.senses[name]),)
                },
            )
        )
    numbers = {
        "cka": {" and ".join(pair): found for pair, found in cka.items()},
        "spread": spreads,
        "probes": probes,
        "attention": looks,
        "frequency": planes.frequency,
        "senses": planes.senses,
        "ambiguous": {word: len(at) for word, at in planes.places.items()},
    }
    title = "How do its representations look?"
    return Section(title, notes, tables, pictures, numbers)

"""Comparison of encoder layers: CKA, linear probes and attention.

Words are represented by their first pieces, so encoders with different vocabularies are
comparable. Letters: L layers (including the input of the first block), N words, D
hidden size, C classes.
"""

from __future__ import annotations

import collections
import functools
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from electra_tf.analysis.attention import Attention, attention
from electra_tf.analysis.extra import pandas as pd
from electra_tf.analysis.inspector import Inspector
from electra_tf.analysis.marked import Tagged
from electra_tf.analysis.render import Chart, Section
from electra_tf.analysis.statistics import halves, roc_auc
from electra_tf.analysis.subject import (
    Subject,
    encoders_in,
    longest_row,
    short_names,
)
from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import frozen
from electra_tf.tasks.base import Ragged, Rows
from electra_tf.tasks.sentences import span_scores
from electra_tf.tasks.tagging import word_rows

_REPLACED_SHARE = 0.15
_PROBED_WORDS = 50
_MOST_PAIRS = 20_000
_ROWS = 100
_STRENGTHS = np.logspace(-3, 1, 5)
PROBES = {
    "tag": "accuracy",
    "word": f"accuracy among the {_PROBED_WORDS} most frequent words",
    "replaced": "AUC; 15 % of the words drawn anew from the text",
}


def read_words(
    encoder: TextEncoder,
    tokenizer: WordPiece,
    sentences: Sequence[Sequence[str]],
    *,
    longest: int,
    batch_size: int = 32,
) -> tuple[np.ndarray, np.ndarray, Ragged]:
    """Returns word states [L, N, D], word indices [N], and ids of rows.

    Splits long sentences; leaves out words without pieces.
    """
    pieces = word_rows(sentences, tokenizer, longest)
    ids = pieces.input_ids
    zeros = Ragged(np.zeros_like(ids.values), ids.splits)
    rows = Rows(
        {"input_ids": ids, "segment_ids": zeros},
        {},
        pieces.sentence,
        pad_id=tokenizer.vocabulary.pad_id,
        notes={"word": pieces.word},
    )
    states = frozen.states_of(encoder, rows, frozen.READINGS["tagging"], batch_size)
    starts = np.cumsum([0, *map(len, sentences)])
    numbers = []
    for row, sentence in enumerate(pieces.sentence):
        word = pieces.word[row]
        numbers.append(starts[sentence] + word[word >= 0])
    return states["words"], np.concatenate(numbers), ids


def linear_cka(first: np.ndarray, second: np.ndarray) -> float:
    """Linear centered kernel alignment of states [N, D] and [N, E], in [0, 1].

    Invariant to rotation and scale (Kornblith et al., 2019). NaN if the variance of
    either is 0.
    """
    first, second = (
        (each - each.mean(0)).astype(np.float64) for each in (first, second)
    )
    cross = np.square(first.T @ second).sum()
    own = [np.linalg.norm(each.T @ each) for each in (first, second)]
    return float(cross / (own[0] * own[1])) if min(own) > 0 else float("nan")


def anisotropy(states: np.ndarray, seed: int = 0) -> float:
    """Mean cosine similarity of random pairs of states [N, D] (Ethayarajh, 2019).

    Raises UserError below two words.
    """
    if len(states) < 2:
        raise UserError(f"{len(states)} words have no pairs: give more text.")
    rng = np.random.default_rng(seed)
    one = rng.integers(0, len(states), _MOST_PAIRS)
    other = (one + rng.integers(1, len(states), _MOST_PAIRS)) % len(states)
    units = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-12)
    return float(np.einsum("nd,nd->n", units[one], units[other]).mean())


def probe(
    states: np.ndarray,
    targets: np.ndarray,
    sentences: np.ndarray,
    *,
    is_detection: bool = False,
    seed: int = 0,
) -> tuple[list[float], float]:
    """Trains a logistic regression per layer on half of the sentences.

    Args:
        states: [L, N, D].
        targets: classes [N].
        sentences: sentence indices [N].
        is_detection: whether to return the AUC of class 1 instead of accuracy.
        seed: of the split.

    Returns:
        Scores by layer on the other half, and the majority baseline.

    Raises:
        UserError: if all words have the same class.
    """
    classes, numbers = np.unique(targets, return_inverse=True)
    training = halves(sentences, seed)
    gold = numbers[~training]
    scores = []
    for logits in _logits(states, numbers, sentences, training):
        if is_detection:
            scores.append(roc_auc(gold == 1, logits[:, 1]))
        else:
            scores.append(float((logits.argmax(1) == gold).mean()))
    majority = np.bincount(numbers[training], minlength=len(classes)).argmax()
    baseline = 0.5 if is_detection else float((gold == majority).mean())
    return scores, baseline


def span_probe(
    states: np.ndarray, tagged: Sequence[Tagged], at: np.ndarray, *, seed: int = 0
) -> tuple[list[float], float]:
    """Trains as ``probe`` on span tags of words ``at`` [N]; returns exact-span F1.

    The baseline predicts the most frequent training tag of each word, or O.
    """
    owner = np.repeat(np.arange(len(tagged)), [len(each.words) for each in tagged])
    tags = np.array([tag for each in tagged for tag in each.tags], object)
    words = np.array([w.lower() for each in tagged for w in each.words], object)
    classes, numbers = np.unique(tags[at].astype(str), return_inverse=True)
    training = halves(owner[at], seed)
    held_out = np.unique(owner[at[~training]])
    labels = [tagged[number].tags for number in held_out]

    def score(predicted: np.ndarray) -> float:
        answers = [predicted[owner == number].tolist() for number in held_out]
        return span_scores(labels, answers)["f1"]

    scores = []
    for logits in _logits(states, numbers, owner[at], training):
        predicted = np.full(len(tags), None, object)
        predicted[at[~training]] = classes[logits.argmax(1)]
        scores.append(score(predicted))
    counts: dict[str, collections.Counter] = collections.defaultdict(
        collections.Counter
    )
    for word, tag in zip(words[at[training]], tags[at[training]], strict=True):
        counts[word][tag] += 1
    usual = {word: own.most_common(1)[0][0] for word, own in counts.items()}
    return scores, score(np.array([usual.get(w, "O") for w in words], object))


def _logits(
    states: np.ndarray, numbers: np.ndarray, sentences: np.ndarray, training: np.ndarray
) -> Iterator[np.ndarray]:
    """Yields log-probabilities of held-out words, [words, C], by layer.

    All layers share the regularization, chosen by cross-validation on their mean.
    """
    if len(np.unique(numbers[training])) < 2:
        raise UserError("all words have the same class: there is nothing to probe.")
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    folds = min(3, len(np.unique(sentences[training])))
    if folds > 1:
        search = GridSearchCV(
            model,
            {"logisticregression__C": _STRENGTHS},
            cv=GroupKFold(folds),
            error_score=-np.inf,
        )
        given = (states[:, training].mean(0), numbers[training])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search.fit(*given, groups=sentences[training])
        model = search.best_estimator_
    count = int(numbers.max()) + 1
    for layer in states:
        model.fit(layer[training], numbers[training])
        logits = np.full([int((~training).sum()), count], -np.inf)
        logits[:, model.classes_] = model.predict_log_proba(layer[~training])
        yield logits


def find_encoders(subject: Subject) -> dict[str, Inspector]:
    """Returns the model's folder and those of ``--encoders``, by short name.

    Searches folders without encoder.keras recursively. Raises UserError if there is
    none, OSError if a folder is missing.
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
    """Reports layers, probes and attention of all encoders on the tagged text."""
    config, tagged, spans = subject.config, subject.tagged, subject.spans
    for name in spans:
        if name in (*PROBES, "clean", "drawn"):
            raise UserError(f"--spans={name}=...: the name {name} is taken.")
    sentences = [sentence.words for sentence in tagged]
    flat = np.array([word for each in sentences for word in each], object)
    words = np.array([word.lower() for word in flat], object)
    tags = np.array([tag for sentence in tagged for tag in sentence.tags], object)
    owner = np.repeat(np.arange(len(tagged)), [len(each) for each in sentences])
    rng = np.random.default_rng(config.seed)
    is_drawn = rng.random(len(words)) < _REPLACED_SHARE
    drawn = np.where(is_drawn, rng.permutation(flat), flat)
    is_replaced = np.array([word.lower() for word in drawn]) != words
    ends = np.cumsum([len(each) for each in sentences])
    texts = {
        "clean": sentences,
        "drawn": [tuple(part) for part in np.split(drawn, ends[:-1])],
        **{name: [each.words for each in own] for name, own in spans.items()},
    }
    states: dict[str, list] = {kind: [] for kind in texts}
    heads: dict[str, Attention] = {}
    for name, inspector in find_encoders(subject).items():
        encoder = inspector.home.load("encoder", TextEncoder)
        shared = {
            "longest": longest_row(inspector, encoder),
            "batch_size": config.batch_size,
        }
        for kind, text in texts.items():
            *found, ids = read_words(encoder, inspector.tokenizer, text, **shared)
            states[kind].append(found)
            if kind == "clean":
                rows = [ids[row] for row in range(min(len(ids.splits) - 1, _ROWS))]
        vocabulary = inspector.vocabulary
        heads[name] = attention(encoder, rows, vocabulary.sep_id, vocabulary.cls_id)
        subject.log(f"read {name}")

    def common(kind: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the indices of words that all encoders read, and their states."""
        numbers = functools.reduce(np.intersect1d, (own for _, own in states[kind]))
        kept = (values[:, np.isin(own, numbers)] for values, own in states[kind])
        return numbers, dict(zip(heads, kept, strict=True))

    at, clean = common("clean")
    at_drawn, corrupted = common("drawn")
    frequent = {w for w, _ in collections.Counter(words).most_common(_PROBED_WORDS)}
    usual = np.array([word in frequent for word in words[at]])
    layers, best = [], []
    for name, own in clean.items():
        seed = {"seed": config.seed}
        results = {
            "tag": probe(own, tags[at].astype(str), owner[at], **seed),
            "word": probe(
                own[:, usual], words[at][usual].astype(str), owner[at][usual], **seed
            ),
            "replaced": probe(
                corrupted[name],
                is_replaced[at_drawn],
                owner[at_drawn],
                is_detection=True,
                **seed,
            ),
        }
        for kind, given in spans.items():
            at_span, span_states = common(kind)
            results[kind] = span_probe(span_states[name], given, at_span, **seed)
        for kind, (scores, baseline) in results.items():
            layers += _rows(name, f"probe {kind}", scores)
            best.append(
                f"{name}, probe {kind}: {max(scores):.3f} at layer "
                f"{int(np.argmax(scores))} (majority baseline {baseline:.3f})"
            )
        layers += _rows(name, "mean cosine", [anisotropy(x, config.seed) for x in own])
        subject.log(f"probed {name}")
    sentence = f"{len(at):,} words of {', '.join(config.tagged)}. {'; '.join(best)}."
    tables = {
        "By layer": pd.DataFrame(layers),
        "Linear CKA of layers": _cka_table(clean),
        "Attention by head": _head_table(heads),
    }
    by_layer, cka, by_head = tables
    charts = (
        Chart(by_layer, "layer", "value", "measure", "encoder"),
        Chart(cka, "layer", "other layer", "encoders", kind="heat", color="CKA"),
        Chart(by_head, "block", "value", "measure", "encoder", "points"),
    )
    return Section("How do its layers differ?", sentence, tables, charts)


def _rows(name: str, measure: str, values: Sequence[float]) -> list[dict]:
    return [
        {"encoder": name, "measure": measure, "layer": layer, "value": value}
        for layer, value in enumerate(values)
    ]


def _cka_table(clean: Mapping[str, np.ndarray]) -> pd.DataFrame:
    rows = []
    for one, other in itertools.combinations_with_replacement(clean, 2):
        for first, ours in enumerate(clean[one]):
            for second, theirs in enumerate(clean[other]):
                row = {"encoders": f"{one} and {other}"}
                row |= {"layer": first, "other layer": second}
                rows.append(row | {"CKA": linear_cka(ours, theirs)})
    return pd.DataFrame(rows)


def _head_table(heads: Mapping[str, Attention]) -> pd.DataFrame:
    rows = []
    for name, own in heads.items():
        parts = {
            "entropy (nats)": own.entropy,
            "mean distance (tokens)": own.distance,
            "share of [CLS] and [SEP]": own.special,
        }
        for measure, values in parts.items():
            for (block, head), value in np.ndenumerate(values):
                row = {"encoder": name, "measure": measure, "block": block + 1}
                rows.append(row | {"head": head + 1, "value": float(value)})
    return pd.DataFrame(rows)

"""Comparison of encoder layers: CKA and linear probes.

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

from electra_tf.analysis.extra import pandas as pd
from electra_tf.analysis.inspector import Inspector
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
from electra_tf.tasks.tagging import word_rows

_REPLACED_SHARE = 0.15
_PROBED_WORDS = 50
_STRENGTHS = np.logspace(-3, 1, 5)


def read_words(
    encoder: TextEncoder,
    tokenizer: WordPiece,
    sentences: Sequence[Sequence[str]],
    *,
    longest: int,
    batch_size: int = 32,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns word states [L, N, D] and word indices [N].

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
    rows_of_words = zip(pieces.word, starts[pieces.sentence], strict=True)
    numbers = [start + word[word >= 0] for word, start in rows_of_words]
    return states["words"], np.concatenate(numbers)


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


def _logits(
    states: np.ndarray, numbers: np.ndarray, sentences: np.ndarray, training: np.ndarray
) -> Iterator[np.ndarray]:
    """Yields log-probabilities of held-out words, [words, C], by layer.

    All layers share the regularization, chosen by cross-validation on their mean.
    """
    if len(np.unique(numbers[training])) < 2:
        raise UserError("all words have the same class: a probe needs two.")
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
    """Returns the folders of the model and of ``--encoders``, by short name.

    Searches folders without encoder.keras recursively. Raises UserError if they contain
    no encoder, OSError if a folder is missing.
    """
    folders = [subject.inspector.folder]
    for given in map(Path, subject.config.encoders):
        inside = encoders_in(given)
        if not inside:
            raise UserError(
                f"--encoders: {given} has no encoder.keras, nor does a subfolder: name "
                "folders of finished runs, imports or a comparison."
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
    """Reports layers and probes of all encoders on the tagged text."""
    config, tagged = subject.config, subject.tagged
    sentences = [sentence.words for sentence in tagged]
    flat = np.array([word for each in sentences for word in each], object)
    words = np.array([word.lower() for word in flat])
    tags = np.array([tag for sentence in tagged for tag in sentence.tags])
    owner = np.repeat(np.arange(len(tagged)), [len(each) for each in sentences])
    rng = np.random.default_rng(config.seed)
    is_drawn = rng.random(len(words)) < _REPLACED_SHARE
    drawn = np.where(is_drawn, rng.permutation(flat), flat)
    is_replaced = np.array([word.lower() for word in drawn]) != words
    ends = np.cumsum([len(each) for each in sentences])
    drawn_sentences = [tuple(part) for part in np.split(drawn, ends[:-1])]
    clean, corrupted = {}, {}
    for name, inspector in find_encoders(subject).items():
        encoder = inspector.home.load("encoder", TextEncoder)
        shared = {
            "longest": longest_row(inspector, encoder),
            "batch_size": config.batch_size,
        }
        clean[name], corrupted[name] = (
            read_words(encoder, inspector.tokenizer, text, **shared)
            for text in (sentences, drawn_sentences)
        )
        subject.log(f"read {name}")
    at, clean = _common(clean)
    at_drawn, corrupted = _common(corrupted)
    frequent = {w for w, _ in collections.Counter(words).most_common(_PROBED_WORDS)}
    usual = np.array([word in frequent for word in words[at]])
    probe_words = functools.partial(probe, seed=config.seed)
    layers, best = [], []
    for name, own in clean.items():
        replaced = (is_replaced[at_drawn], owner[at_drawn])
        results = {
            "tag": probe_words(own, tags[at], owner[at]),
            "word": probe_words(own[:, usual], words[at][usual], owner[at][usual]),
            "replaced": probe_words(corrupted[name], *replaced, is_detection=True),
        }
        for kind, (scores, baseline) in results.items():
            layers += [
                {"encoder": name, "probe": kind, "layer": layer, "score": score}
                for layer, score in enumerate(scores)
            ]
            best.append(
                f"{name}, probe {kind}: {max(scores):.3f} at layer "
                f"{int(np.argmax(scores))} (majority baseline {baseline:.3f})"
            )
        subject.log(f"probed {name}")
    names = ", ".join(Path(path).name for path in config.tagged) or "the sample"
    sentence = f"{len(at):,} words of {names}. {'; '.join(best)}."
    tables = {
        "Probe scores by layer": pd.DataFrame(layers),
        "Linear CKA of layers": _cka(clean),
    }
    by_layer, cka = tables
    charts = (
        Chart(by_layer, "layer", "score", "probe", "encoder"),
        Chart(cka, "layer", "other layer", "encoders", kind="heat", color="CKA"),
    )
    return Section("How do its layers differ?", sentence, tables, charts)


def _common(
    states: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the indices of words that all encoders read, and their states."""
    numbers = functools.reduce(np.intersect1d, (own for _, own in states.values()))
    kept = {
        name: values[:, np.isin(own, numbers)] for name, (values, own) in states.items()
    }
    return numbers, kept


def _cka(clean: Mapping[str, np.ndarray]) -> pd.DataFrame:
    rows = []
    for one, other in itertools.combinations_with_replacement(clean, 2):
        for first, ours in enumerate(clean[one]):
            for second, theirs in enumerate(clean[other]):
                row = {"encoders": f"{one} and {other}"}
                row |= {"layer": first, "other layer": second}
                rows.append(row | {"CKA": linear_cka(ours, theirs)})
    return pd.DataFrame(rows)

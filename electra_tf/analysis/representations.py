"""Comparison of an encoder's layers: CKA and linear probes.

Words are represented by their first pieces. Letters: L layers (including the input of
the first block), N words, D hidden size.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from electra_tf.analysis.inspector import Inspector
from electra_tf.analysis.render import Chart, Section
from electra_tf.analysis.statistics import halves, roc_auc
from electra_tf.analysis.subject import Subject, word_pieces
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import frozen
from electra_tf.tasks.base import Ragged

_REPLACED_SHARE = 0.15


def read_words(
    encoder: TextEncoder,
    inspector: Inspector,
    sentences: Sequence[Sequence[str]],
    batch_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns states [L, N, D] and indices [N] of the words that have pieces."""
    rows, word = word_pieces(inspector, encoder, sentences)
    place = rows.notes["word"]
    is_word = Ragged((place.values >= 0).astype(np.float32), place.splits)
    rows = dataclasses.replace(rows, weights=is_word)
    states = frozen.states_of(encoder, rows, frozen.words, batch_size, slice(None))
    return states, np.unique(word)


def linear_cka(first: np.ndarray, second: np.ndarray) -> float:
    """Linear centered kernel alignment of states [N, D] and [N, E], in [0, 1].

    Invariant to rotation and scale (Kornblith et al., 2019). NaN if the variance of
    either is 0.
    """
    first, second = ((x - x.mean(0)).astype(np.float64) for x in (first, second))
    cross = np.square(first.T @ second).sum()
    scale = np.linalg.norm(first.T @ first) * np.linalg.norm(second.T @ second)
    return float(cross / scale) if scale > 0 else float("nan")


def probe(
    states: np.ndarray, targets: np.ndarray, sentences: np.ndarray, seed: int = 0
) -> tuple[list[float], float]:
    """Trains a logistic regression per layer on half of the sentences.

    ``states`` are [L, N, D]; ``targets`` and ``sentences`` are classes and sentence
    indices [N]. Raises UserError if all words have one class.

    Returns accuracies by layer on the other half and the majority baseline, or AUCs
    and 0.5 for bool ``targets``.
    """
    training = halves(sentences, seed)
    fitted, gold = targets[training], targets[~training]
    classes, counts = np.unique(fitted, return_counts=True)
    if len(classes) < 2:
        raise UserError(
            "all words that train the probe have the same class, and a probe needs "
            "two: give more sentences."
        )
    scores = []
    for layer in states:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        model.fit(layer[training], fitted)
        if targets.dtype == bool:
            scores.append(roc_auc(gold, model.decision_function(layer[~training])))
        else:
            scores.append(model.score(layer[~training], gold))
    if targets.dtype == bool:
        return scores, 0.5
    return scores, float((gold == classes[counts.argmax()]).mean())


def section(subject: Subject) -> Section:
    """Reports layers and probes of the encoder on the tagged text."""
    config, inspector, tagged = subject.config, subject.inspector, subject.tagged
    sentences = [sentence.words for sentence in tagged]
    words = np.array([word for each in sentences for word in each], object)
    tags = np.array([tag for sentence in tagged for tag in sentence.tags])
    lengths = [len(each) for each in sentences]
    owner = np.repeat(np.arange(len(tagged)), lengths)
    rng = np.random.default_rng(config.seed)
    is_drawn = rng.random(len(words)) < _REPLACED_SHARE
    drawn = np.where(is_drawn, rng.permutation(words), words)
    pairs = zip(drawn, words, strict=True)
    is_replaced = np.array([new.lower() != old.lower() for new, old in pairs])
    drawn_sentences = [tuple(x) for x in np.split(drawn, np.cumsum(lengths[:-1]))]
    encoder = inspector.home.load("encoder", TextEncoder)
    inspector.home.check_vocabulary("encoder", encoder)
    layers, best = [], []
    for kind, texts, targets in (
        ("replaced", drawn_sentences, is_replaced),
        ("tag", sentences, tags),
    ):
        states, at = read_words(encoder, inspector, texts, config.batch_size)
        scores, baseline = probe(states, targets[at], owner[at], config.seed)
        layers += [(kind, layer, score) for layer, score in enumerate(scores)]
        best.append(
            f"Probe {kind}: {max(scores):.3f} at layer {int(np.argmax(scores))} "
            f"(majority baseline {baseline:.3f})."
        )
        subject.log(f"probed {kind}")
    # The states of the unchanged sentences.
    cka = [
        (first, second, linear_cka(ours, theirs))
        for first, ours in enumerate(states)
        for second, theirs in enumerate(states)
    ]
    names = ", ".join(Path(path).name for path in config.tagged) or "the sample"
    sentence = f"{len(at):,} words of {names}. {' '.join(best)}"
    by_layer, similarity = "Probe scores by layer", "Linear CKA of layers"
    tables = {
        by_layer: pd.DataFrame(layers, columns=["probe", "layer", "score"]),
        similarity: pd.DataFrame(cka, columns=["layer", "other layer", "CKA"]),
    }
    charts = (
        Chart(by_layer, "layer", "score", series="probe"),
        Chart(similarity, "layer", "other layer", color="CKA"),
    )
    return Section("How do its layers differ?", sentence, tables, charts)

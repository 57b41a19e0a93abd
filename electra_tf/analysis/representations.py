"""Comparison of an encoder's layers: CKA and linear probes.

Words are represented by their first pieces. Letters: L layers (including the input of
the first block), N words, D hidden size.
"""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from electra_tf.analysis.render import Chart, Section
from electra_tf.analysis.statistics import halves, roc_auc
from electra_tf.analysis.subject import Subject, longest_row
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import frozen
from electra_tf.tasks.sentences import Sentence
from electra_tf.tasks.tagging import Tagging

_REPLACED_SHARE = 0.15


def linear_cka(first: np.ndarray, second: np.ndarray) -> float:
    """Linear centered kernel alignment of states [N, D] and [N, E], in [0, 1].

    Invariant to rotation and scale (Kornblith et al., 2019). NaN if a variance is 0.
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

    Returns accuracies by layer on the other half and the majority baseline (bool: AUC).
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
    words = np.array([word for each in tagged for word in each.words], object)
    rng = np.random.default_rng(config.seed)
    is_drawn = rng.random(len(words)) < _REPLACED_SHARE
    drawn = iter(np.where(is_drawn, rng.permutation(words), words))
    replaced = []
    for each in tagged:
        others = tuple(itertools.islice(drawn, len(each.words)))
        pairs = zip(others, each.words, strict=True)
        is_new = tuple(str(new.lower() != old.lower()) for new, old in pairs)
        replaced.append(Sentence(each.id, others, is_new))
    encoder = inspector.home.load("encoder", TextEncoder)
    inspector.home.check_vocabulary("encoder", encoder)
    size, layers, best = longest_row(inspector, encoder), [], []
    for kind, examples in (("replaced", replaced), ("tag", tagged)):
        labels = tuple(sorted({tag for each in examples for tag in each.tags}))
        task = Tagging(name=kind, source=None, labels=labels)
        rows = task.featurize(examples, inspector.tokenizer, size, training=True)
        options = (frozen.words, config.batch_size, slice(None))
        states = frozen.states_of(encoder, rows, *options)
        targets, _, owner = frozen.targets_of(rows)
        if kind == "replaced":
            targets = targets.astype(bool)
        scores, baseline = probe(states, targets, owner, config.seed)
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
    sentence = f"{len(targets):,} words of {names}. {' '.join(best)}"
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

"""A discriminator that is shown a little text with marked errors, and then asked again.

Letters: B rows, S tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from electra_tf import cli
from electra_tf.analysis.inspector import Inspector
from electra_tf.analysis.marked import RIGHT, Marked
from electra_tf.analysis.measures import detection
from electra_tf.analysis.subject import longest_row
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.features import derive_inputs
from electra_tf.pretraining import ReplacedTokenDetector
from electra_tf.tasks.tagging import word_rows
from electra_tf.training import AdamW, WarmupPolynomialDecay

EPOCHS = 6
_BATCH, _WARMUP = 16, 0.1
_RESAMPLES = 500


def fine_tune(
    inspector: Inspector,
    marked: Sequence[Marked],
    *,
    epochs: int = EPOCHS,
    learning_rate: float = 2e-4,
    seed: int = 0,
    log: Log = lambda line: None,
) -> ReplacedTokenDetector:
    """A copy of the discriminator, all of it trained to find wrong words.

    The head keeps its weights: that a piece was replaced is what it starts from. All
    pieces of a wrong word are wrong; a batch's loss is the mean binary cross-entropy
    over its pieces. A function of weights, sentences and seed.

    ValueError: there is no sentence.
    """
    if not marked:
        raise UserError("there is no sentence to fine-tune on.")
    detector = inspector.home.load("discriminator", ReplacedTokenDetector)
    longest = longest_row(inspector, detector.encoder)
    sentences = [each.words for each in marked]
    pieces = word_rows(sentences, inspector.tokenizer, longest, split=True)
    size = max(len(pieces.input_ids[row]) for row in range(len(pieces.sentence)))
    vocabulary = inspector.vocabulary
    ids = np.full([len(pieces.sentence), size], vocabulary.pad_id, np.int32)
    mask, labels, asked = np.zeros_like(ids), np.zeros_like(ids), np.zeros_like(ids)
    for row, sentence in enumerate(pieces.sentence):
        own = pieces.input_ids[row]
        wrong = np.array([kind != RIGHT for kind in marked[sentence].kinds])
        # Pieces that continue a word belong to the last one that began.
        word = np.maximum.accumulate(pieces.word[row][1:-1])
        ids[row, : len(own)], mask[row, : len(own)] = own, 1
        labels[row, 1 : len(own) - 1] = wrong[word]
        asked[row, 1 : len(own) - 1] = 1
    order = np.random.default_rng(seed)
    rows = np.concatenate([order.permutation(len(ids)) for _ in range(epochs)])
    batches = [rows[at : at + _BATCH] for at in range(0, len(rows), _BATCH)]
    schedule = WarmupPolynomialDecay(
        learning_rate, len(batches), warmup_steps=int(_WARMUP * len(batches))
    )
    optimizer = AdamW(schedule)
    variables = detector.trainable_variables
    optimizer.build(variables)

    @tf.function(reduce_retracing=True)
    def step(
        ids: tf.Tensor, mask: tf.Tensor, labels: tf.Tensor, asked: tf.Tensor, at: int
    ) -> tf.Tensor:
        inputs = derive_inputs(ids, mask, vocabulary.sep_id)
        weights = tf.cast(asked, tf.float32)
        with tf.GradientTape() as tape:
            logits = detector(inputs, training=True, seed=tf.stack([seed, at]))
            losses = tf.nn.sigmoid_cross_entropy_with_logits(
                tf.cast(labels, tf.float32), logits
            )
            loss = tf.reduce_sum(weights * losses) / tf.reduce_sum(weights)
        gradients = tape.gradient(loss, variables)
        optimizer.apply(gradients, variables)
        return loss

    progress = cli.Progress(len(batches), unit="step", log=log)
    for at, chosen in enumerate(batches):
        given = (tf.constant(each[chosen]) for each in (ids, mask, labels, asked))
        loss = step(*given, tf.constant(at))
        progress.update(at + 1, f"loss {float(loss):.3f}")
    return detector


def gain(
    marked: Sequence[Marked], before: np.ndarray, after: np.ndarray, seed: int = 0
) -> tuple[float, float, float]:
    """By how much the average precision grows, and the ends of its 95 % interval.

    A paired bootstrap over sentences, of scores [words of all sentences]; words that
    have none in either are left out. ValueError: no word is wrong.
    """
    wrong = np.array([kind != RIGHT for each in marked for kind in each.kinds])
    owner = np.repeat(np.arange(len(marked)), [len(each.words) for each in marked])
    known = ~(np.isnan(before) | np.isnan(after))
    own = [np.flatnonzero(known & (owner == number)) for number in range(len(marked))]

    def difference(at: np.ndarray) -> float:
        old, new = (
            detection(wrong[at], scores[at]).average_precision
            for scores in (before, after)
        )
        return new - old

    found = difference(np.flatnonzero(known))
    rng = np.random.default_rng(seed)
    drawn = []
    while len(drawn) < _RESAMPLES:
        chosen = rng.integers(0, len(own), len(own))
        at = np.concatenate([own[number] for number in chosen])
        # In a resample of very few sentences all may be right.
        drawn += [difference(at)] if wrong[at].any() else []
    low, high = np.quantile(drawn, [0.025, 0.975])
    return found, float(low), float(high)

"""Batched corruption and replaced-token prediction.

Letters: N tokens of all rows without special ones, B batch, S sequence, V vocabulary.
"""

from collections.abc import Sequence

import keras
import numpy as np
import pandas as pd
import tensorflow as tf

from electra_tf import cli
from electra_tf.analysis.subject import Subject
from electra_tf.features import derive_inputs
from electra_tf.pretraining.masked_lm import UnigramGenerator
from electra_tf.pretraining.samplers import corrupt
from electra_tf.tasks.base import Ragged

# Rows are padded to a multiple of this length to limit retracing.
_STEP = 32


def predict(subject: Subject, rows: Sequence[np.ndarray]) -> tuple[str, pd.DataFrame]:
    """Corrupts the rows and predicts replaced tokens.

    Uses the model's generator, or one by the token counts of the text; masks and
    sampler are of the end of pretraining. Masks depend on row index and ``seed``,
    samples also on ``batch_size``.

    Returns the kind of generator, and the N tokens of all rows in order, with the
    columns ``original`` and ``shown`` (ids before and after the corruption),
    ``is_replaced``, ``is_masked`` (sampled by the generator), ``best`` (the generator's
    most probable id if masked, else the original), discriminator ``logits``, ``row``.
    """
    inspector, vocabulary = subject.inspector, subject.inspector.vocabulary
    seed, size = subject.config.seed, subject.config.batch_size
    if inspector.home.has_model("generator"):
        kind = "own generator"
        generator = inspector.home.load("generator", keras.Model)
    else:
        kind, generator = "unigram", UnigramGenerator(len(vocabulary))
        generator.set_counts(subject.text.counts)
    pair = inspector.pair(generator)
    special = [vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id]
    longest = pair.discriminator.embeddings.max_positions

    @tf.function(reduce_retracing=True)
    def examine(batch: dict[str, tf.Tensor], key: tf.Tensor) -> dict[str, tf.Tensor]:
        corrupted = pair.corrupt(batch, seed=key)
        guesses = corrupted.predicted.logits
        greedy = corrupt(batch, tf.argmax(guesses, -1, output_type=tf.int32))
        return {
            "original": batch["input_ids"],
            "shown": corrupted.inputs["input_ids"],
            "is_replaced": corrupted.is_replaced,
            "is_masked": corrupted.is_masked,
            "best": greedy.inputs["input_ids"],
            "logits": tf.cast(pair(corrupted.inputs), tf.float64),
        }

    ragged = Ragged.of(rows)
    order = np.argsort(ragged.lengths, kind="stable")
    parts = []
    progress = cli.Progress(len(rows), unit="row", log=subject.log)
    for start in range(0, len(rows), size):
        chosen = order[start : start + size]
        lengths = ragged.lengths[chosen, None]
        width = min(int(-(-lengths.max() // _STEP) * _STEP), longest)
        ids = ragged.pad(chosen, width, vocabulary.pad_id)
        mask = (np.arange(width) < lengths).astype(np.int32)
        inputs = derive_inputs(tf.constant(ids), tf.constant(mask), vocabulary.sep_id)
        batch = inspector.mask(inputs, tf.constant(chosen, tf.int64), seed=seed)
        columns = examine(batch, tf.constant([seed, start]))
        columns["row"] = np.repeat(chosen[:, None], width, axis=1)
        kept = (mask > 0) & ~np.isin(ids, special)
        parts.append(pd.DataFrame({n: np.array(x)[kept] for n, x in columns.items()}))
        progress.update(start + len(chosen), kind)
    # Stable: the tokens of a row stay in order.
    tokens = pd.concat(parts).sort_values("row", kind="stable", ignore_index=True)
    return kind, tokens

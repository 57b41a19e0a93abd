"""Batched corruption and replaced-token prediction.

Letters: N tokens of all rows without special ones, B batch, P masked positions, V
vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import tensorflow as tf

from electra_tf import cli
from electra_tf.analysis.inspector import Inspector
from electra_tf.cli import Log
from electra_tf.data.masking import row_keys
from electra_tf.features import derive_inputs
from electra_tf.pretraining.masked_lm import UnigramGenerator
from electra_tf.pretraining.samplers import corrupt
from electra_tf.tasks.base import Ragged

# Maps generator inputs to logits [B, P, V].
Generator = Callable[[Mapping[str, tf.Tensor]], tf.Tensor]
# Rows are padded to a multiple of this length to limit retracing.
_STEP = 32


def corruptions(inspector: Inspector, counts: np.ndarray) -> dict[str, Generator]:
    """Returns generators: own (if any), unigram (by ``counts`` [V]) and uniform."""
    unigram, uniform = (UnigramGenerator(len(inspector.vocabulary)) for _ in range(2))
    unigram.set_counts(counts)
    own = {}
    if inspector.home.has_model("generator"):
        generator = inspector.generator
        own["own generator"] = tf.function(
            lambda inputs: generator(inputs), reduce_retracing=True
        )
    return {**own, "unigram": unigram, "uniform": uniform}


def predict(
    inspector: Inspector,
    rows: Sequence[np.ndarray],
    generator: Generator | None = None,
    *,
    seed: int = 0,
    batch_size: int = 32,
    log: Log = lambda line: None,
    name: str = "",
) -> pd.DataFrame:
    """Corrupts the rows with a generator, if given, and predicts replaced tokens.

    Uses masks and sampler of the end of pretraining. Masks depend on row index and
    ``seed``, samples also on ``batch_size``.

    Returns the N tokens of all rows in order, with the columns ``original`` (id in the
    text), ``shown`` (id in the discriminator's input), ``is_replaced``, ``logits``
    (float64), ``is_masked`` (sampled by the generator), ``best`` (the generator's most
    probable id if masked, else -1) and ``row``.
    """
    vocabulary, detector = inspector.vocabulary, inspector.detector
    special = [vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id]
    ragged = Ragged.of(rows)
    lengths = ragged.lengths
    order = np.argsort(lengths, kind="stable")
    parts = []
    progress = cli.Progress(len(rows), unit="row", log=log)
    for start in range(0, len(rows), batch_size):
        chosen = order[start : start + batch_size]
        width = int(-(-lengths[chosen].max() // _STEP) * _STEP)
        width = min(width, detector.encoder.embeddings.max_positions)
        ids = ragged.pad(chosen, width, vocabulary.pad_id)
        mask = (np.arange(width) < lengths[chosen, None]).astype(np.int32)
        batch = derive_inputs(tf.constant(ids), tf.constant(mask), vocabulary.sep_id)
        shown, masked = ids, np.zeros_like(ids, bool)
        best = np.full_like(ids, -1)
        inputs = batch
        if generator is not None:
            numbers = tf.constant(chosen, tf.int64)
            keys = row_keys(numbers, tf.zeros_like(numbers), seed=seed)
            hide = inspector.masking(width)
            batch |= hide(batch["input_ids"], batch["input_mask"], keys)
            guesses = generator(batch)
            key = tf.constant([seed, start])
            sampled = inspector.sampler(guesses, batch["masked_lm_ids"], key)
            corrupted = corrupt(batch, sampled)
            greedy = corrupt(batch, tf.argmax(guesses, -1, output_type=tf.int32))
            inputs = corrupted.inputs
            shown = inputs["input_ids"].numpy()
            masked = corrupted.is_masked.numpy()
            best = np.where(masked, greedy.inputs["input_ids"], -1)
        columns = {
            "original": ids,
            "shown": shown,
            "is_replaced": ids != shown,
            "logits": inspector.detect(inputs).numpy().astype(np.float64),
            "is_masked": masked,
            "best": best,
            "row": np.repeat(chosen[:, None], width, axis=1),
        }
        kept = (mask > 0) & ~np.isin(ids, special)
        parts.append(pd.DataFrame({key: x[kept] for key, x in columns.items()}))
        done = start + len(chosen)
        # The rate is unknown after the first batch, which may be the only one.
        if start:
            progress.update(done, name)
        else:
            progress.move(done)
    # Stable: the tokens of a row stay in order.
    return pd.concat(parts).sort_values("row", kind="stable", ignore_index=True)

"""Batched corruption and replaced-token prediction.

Letters: N tokens of all rows without special ones, B batch, P masked positions, V
vocabulary.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
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


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The tokens of all rows, concatenated: arrays [N]."""

    original: np.ndarray  # Ids of the text.
    shown: np.ndarray  # Ids of the discriminator's input.
    logits: np.ndarray  # Replaced-token logits, float64.
    is_masked: np.ndarray  # Whether the generator sampled the token.
    best: np.ndarray  # The generator's most probable ids if masked, else -1.
    row: np.ndarray  # Index of the row.

    @property
    def is_replaced(self) -> np.ndarray:
        """Mask of tokens whose input differs from the original, bool [N]."""
        return self.original != self.shown


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
) -> Predictions:
    """Corrupts the rows with a generator, if given, and predicts replaced tokens.

    Uses masks and sampler of the end of pretraining. Masks depend on row index and
    ``seed``, samples also on ``batch_size``.
    """
    vocabulary, detector = inspector.vocabulary, inspector.detector
    special = [vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id]
    ragged = Ragged.of(rows)
    lengths = ragged.lengths
    order = np.argsort(lengths, kind="stable")
    parts: list[tuple[np.ndarray, ...]] = []
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
        logits = inspector.detect(inputs).numpy().astype(np.float64)
        kept = (mask > 0) & ~np.isin(ids, special)
        columns = (column[kept] for column in (ids, shown, logits, masked, best))
        parts.append((*columns, chosen[np.nonzero(kept)[0]]))
        done = min(start + batch_size, len(rows))
        # The rate is unknown after the first batch, which may be the only one.
        if start:
            progress.update(done, name)
        else:
            progress.move(done)
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    # Stable: the tokens of a row stay in order.
    in_order = np.argsort(joined[-1], kind="stable")
    return Predictions(*(column[in_order] for column in joined))

"""[CLS] A [SEP] B [SEP] from word pieces, in TensorFlow: offline and when serving.

One implementation makes the training rows and runs inside the SavedModel, so the two
cannot differ.

Letters: B batch, S sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.tasks.base import Ragged

_BATCH = 1024


def truncated_lengths(
    first: tf.Tensor, second: tf.Tensor, limit: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Lengths of pairs after truncation to `limit` tokens together.

    The rule of BERT and ELECTRA in closed form: the longer one loses its last token
    until the pair fits; of equally long ones the second does.

    Args:
        first: Integer [B].
        second: Integer [B].
        limit: Most tokens of both.
    """
    larger_half = tf.cast((limit + 1) // 2, first.dtype)
    limit = tf.cast(limit, first.dtype)
    kept = tf.minimum(first, tf.maximum(larger_half, limit - second))
    return kept, tf.minimum(second, limit - kept)


def pack(
    segments: Sequence[tf.RaggedTensor], vocabulary: Any, max_seq_length: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Adds the special tokens and truncates.

    Args:
        segments: One or two [B, None] int32 tensors of word pieces.
        vocabulary: Knows `cls_id` and `sep_id`.
        max_seq_length: Most tokens of a row, special ones included.

    Returns:
        input_ids and segment_ids, ragged int32 [B, None].
    """
    lengths = [segment.row_lengths() for segment in segments]
    if len(segments) == 1:
        kept = [tf.minimum(lengths[0], max_seq_length - 2)]
    else:
        kept = truncated_lengths(*lengths, max_seq_length - 3)
    size = segments[0].nrows(out_type=tf.int64)

    def column(token):
        ids = tf.fill([size], tf.constant(token, tf.int32))
        return tf.RaggedTensor.from_uniform_row_length(ids, 1)

    parts = [column(vocabulary.cls_id)]
    for segment, length in zip(segments, kept, strict=True):
        parts += [_head(segment, length), column(vocabulary.sep_id)]
    input_ids = tf.concat(parts, axis=1)
    numbers = [tf.zeros_like(part) for part in parts[:3]]
    numbers += [tf.ones_like(part) for part in parts[3:]]
    return input_ids, tf.concat(numbers, axis=1)


def _head(ragged, lengths):
    starts = ragged.row_starts()
    return tf.gather(ragged.values, tf.ragged.range(starts, starts + lengths))


def encode_tensors(
    tokenizer: Any, texts: Sequence[tf.Tensor], max_seq_length: int
) -> dict[str, tf.Tensor]:
    """Model inputs of a batch of texts or pairs, padded to its longest row.

    Args:
        tokenizer: A `WordPiece`.
        texts: One or two string tensors [B].
        max_seq_length: Most tokens of a row.

    Returns:
        input_ids, input_mask and segment_ids, int32 [B, S].
    """
    pieces = [tokenizer.tokenize(text) for text in texts]
    input_ids, segment_ids = pack(pieces, tokenizer.vocabulary, max_seq_length)
    return {
        "input_ids": padded(input_ids, tokenizer.vocabulary.pad_id),
        "input_mask": padded(tf.ones_like(input_ids)),
        "segment_ids": padded(segment_ids),
    }


def padded(rows: tf.RaggedTensor, value: float = 0) -> tf.Tensor:
    """Rows [B, None] as one tensor [B, S], filled up with `value`.

    S is at least 1: of an empty batch, too, there is a first column to look at.
    """
    width = tf.maximum(rows.bounding_shape(1), 1)
    return rows.to_tensor(value, shape=tf.stack([-1, width]))


def encode_texts(
    tokenizer: Any, texts: Sequence[Sequence[str]], max_seq_length: int
) -> dict[str, Ragged]:
    """Model inputs of many texts or pairs, not padded.

    Args:
        tokenizer: A `WordPiece`.
        texts: One or two lists of strings of the same length.
        max_seq_length: Most tokens of a row.

    Returns:
        input_ids and segment_ids.
    """
    columns = [[text.encode("utf-8", "ignore") for text in column] for column in texts]
    batches = []
    for start in range(0, len(columns[0]), _BATCH):
        parts = [tf.constant(column[start : start + _BATCH]) for column in columns]
        pieces = [tokenizer.tokenize(part) for part in parts]
        batches.append(pack(pieces, tokenizer.vocabulary, max_seq_length))
    return {
        name: _joined([batch[index] for batch in batches])
        for index, name in enumerate(("input_ids", "segment_ids"))
    }


def _joined(batches):
    lengths = [batch.row_lengths().numpy() for batch in batches]
    return Ragged(
        np.concatenate([batch.values.numpy() for batch in batches]),
        np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
    )

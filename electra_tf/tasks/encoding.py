"""Input encoding in TensorFlow: [CLS] A [SEP] B [SEP].

Training and the SavedModel share this code, so their inputs cannot differ.

Letters: B batch, S sequence.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from electra_tf.data.tokenizer import WordPiece, string_tensor
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.tasks.base import Ragged
from electra_tf.tasks.heads import Tensors

_BATCH = 1024


def truncated_lengths(
    first: tf.Tensor, second: tf.Tensor, limit: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the lengths, integer [B], of pairs truncated to ``limit`` tokens in all.

    Closed form of BERT's and ELECTRA's rule: drop the last token of the longer text
    until the pair fits, of the second text for ties.
    """
    larger_half = tf.cast((limit + 1) // 2, first.dtype)
    limit = tf.cast(limit, first.dtype)
    kept = tf.minimum(first, tf.maximum(larger_half, limit - second))
    return kept, tf.minimum(second, limit - kept)


def pack(
    segments: Sequence[tf.RaggedTensor], vocabulary: Vocabulary, max_seq_length: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Truncates one or two segments, int32 [B, None], and adds special tokens.

    Returns input_ids and segment_ids, ragged int32 [B, None].
    """
    lengths = [segment.row_lengths() for segment in segments]
    if len(segments) == 1:
        kept = [tf.minimum(lengths[0], max_seq_length - 2)]
    else:
        kept = truncated_lengths(*lengths, max_seq_length - 3)
    truncated = []
    for segment, length in zip(segments, kept, strict=True):
        starts = segment.row_starts()
        places = tf.ragged.range(starts, starts + length)
        truncated.append(tf.gather(segment.values, places))
    return tf_text.combine_segments(truncated, vocabulary.cls_id, vocabulary.sep_id)


def windows(pieces: tf.RaggedTensor, room: int) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Splits long texts into full, slightly overlapping windows of ``room`` tokens.

    Returns the windows, ragged int32 [R, None], and the text of each, int64 [R].
    """
    lengths = pieces.row_lengths()
    count = 1 - tf.math.floordiv(-tf.maximum(lengths - room, 0), room)
    text = tf.repeat(tf.range(pieces.nrows(tf.int64)), count)
    number = tf.ragged.range(count).values
    spare = tf.gather(tf.maximum(lengths - room, 0), text)
    begin = number * spare // tf.maximum(tf.gather(count, text) - 1, 1)
    first = tf.gather(pieces.row_starts(), text) + begin
    size = tf.minimum(tf.gather(lengths, text), room)
    return tf.gather(pieces.values, tf.ragged.range(first, first + size)), text


LONG_TEXTS = ("cut", "windows")


def _encode(
    tokenizer: WordPiece,
    texts: Sequence[tf.Tensor],
    max_seq_length: int,
    long_texts: str,
) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]:
    if max_seq_length < 1 + 2 * len(texts):
        raise UserError(
            f"max_seq_length is {max_seq_length}; {len(texts)} texts and their special "
            f"tokens need at least {1 + 2 * len(texts)}."
        )
    segments = [tokenizer.tokenize(text) for text in texts]
    text = tf.range(segments[0].nrows(tf.int64))
    if long_texts == "windows" and len(segments) == 1:
        segments[0], text = windows(segments[0], max_seq_length - 2)
    return *pack(segments, tokenizer.vocabulary, max_seq_length), text


def encode_tensors(
    tokenizer: WordPiece,
    texts: Sequence[tf.Tensor],
    max_seq_length: int,
    long_texts: str = "cut",
) -> Tensors:
    """Returns input_ids, input_mask and segment_ids, int32 [R, S], and example.

    ``texts`` are one or two string tensors [B]; pairs are always truncated. ``example``
    is the text of each row, int64 [R].
    """
    input_ids, segment_ids, text = _encode(tokenizer, texts, max_seq_length, long_texts)
    return {
        "input_ids": padded(input_ids, tokenizer.vocabulary.pad_id),
        "input_mask": padded(tf.ones_like(input_ids)),
        "segment_ids": padded(segment_ids),
        "example": text,
    }


def padded(rows: tf.RaggedTensor, value: float = 0) -> tf.Tensor:
    """Pads ragged rows with ``value``: [B, S], with S at least 1."""
    width = tf.maximum(rows.bounding_shape(1), 1)
    return rows.to_tensor(value, shape=tf.stack([-1, width]))


def encode_texts(
    tokenizer: WordPiece,
    texts: Sequence[Sequence[str]],
    max_seq_length: int,
    long_texts: str = "cut",
) -> tuple[dict[str, Ragged], np.ndarray]:
    """Returns unpadded input_ids and segment_ids, and the text of each row, int64 [R].

    ``texts`` are one list, or two for pairs.
    """
    batches, owners = [], []
    for start in range(0, len(texts[0]), _BATCH):
        parts = [string_tensor(column[start : start + _BATCH]) for column in texts]
        *packed, text = _encode(tokenizer, parts, max_seq_length, long_texts)
        batches.append(packed)
        owners.append(text.numpy() + start)
    input_ids, segment_ids = map(joined, zip(*batches, strict=True))
    rows = {"input_ids": input_ids, "segment_ids": segment_ids}
    return rows, np.concatenate(owners)


def joined(batches: Sequence[tf.RaggedTensor]) -> Ragged:
    """Concatenates batches of ragged rows [B, None]."""
    lengths = np.concatenate([batch.row_lengths().numpy() for batch in batches])
    values = np.concatenate([batch.values.numpy() for batch in batches])
    return Ragged(values, np.cumsum([0, *lengths], dtype=np.int64))

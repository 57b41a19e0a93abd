"""Input encoding in TensorFlow: [CLS] A [SEP] B [SEP].

Training and the SavedModel share this code, so their inputs cannot differ.
Letters: B batch, R rows, S sequence.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_text as tf_text

from electra_tf.data.tokenizer import WordPiece, string_tensor
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.tasks.base import Column, Ragged, Rows
from electra_tf.tasks.heads import Tensors

# Ragged columns, [R, None], and the example of each row in its batch, int64 [R].
Columns = dict[str, tf.RaggedTensor | tf.Tensor]


def pack(
    segments: Sequence[tf.RaggedTensor], vocabulary: Vocabulary, max_seq_length: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Truncates one or two segments, int32 [B, None], and adds special tokens.

    Pairs follow the rule of BERT and ELECTRA: drop the last token of the longer text
    until the pair fits, of the second text for ties.

    Returns input_ids and segment_ids, ragged int32 [B, None].
    """
    # Filling two texts in turn keeps the same tokens as that rule.
    trimmer = tf_text.RoundRobinTrimmer(max_seq_length - 1 - len(segments))
    segments = trimmer.trim(segments)
    return tf_text.combine_segments(segments, vocabulary.cls_id, vocabulary.sep_id)


def windows(
    pieces: tf.RaggedTensor, room: tf.Tensor | int, stride: tf.Tensor | int | None
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Splits long texts into windows of at most ``room`` tokens, an int or int64 [B].

    Windows begin ``stride`` tokens apart, and the last one may be shorter. Without a
    stride (None), the windows of a long text are full and overlap slightly.

    Returns the windows as indices into ``pieces.values``, ragged int64 [R, None], and
    the text of each, int64 [R].
    """
    lengths = pieces.row_lengths()
    room += tf.zeros_like(lengths)
    spare = tf.maximum(lengths - room, 0)
    step = room if stride is None else stride + tf.zeros_like(lengths)
    # Rounded up: the last window may be shorter.
    count = 1 - tf.math.floordiv(-spare, step)
    text = tf.repeat(tf.range(pieces.nrows(tf.int64)), count)
    number = tf.ragged.range(count).values
    if stride is None:
        others = tf.maximum(tf.gather(count, text) - 1, 1)
        begin = number * tf.gather(spare, text) // others
    else:
        begin = number * tf.gather(step, text)
    first = tf.gather(pieces.row_starts(), text) + begin
    size = tf.minimum(tf.gather(room, text), tf.gather(lengths, text) - begin)
    return tf.ragged.range(first, first + size), text


LONG_TEXTS = ("cut", "windows")


def encode(
    tokenizer: WordPiece,
    texts: Sequence[tf.Tensor],
    max_seq_length: int,
    long_texts: str = "cut",
) -> Columns:
    """Encodes one or two string tensors [B]; pairs have one row.

    Returns input_ids, segment_ids and example. Raises ValueError for short lengths.
    """
    least = 1 + 2 * len(texts)
    if max_seq_length < least:
        raise UserError(f"max_seq_length is {max_seq_length}; set at least {least}.")
    # Stacked, since the trimmer reads beyond the end of a shorter batch.
    texts = tf.unstack(tf.stack(texts), num=len(texts))
    segments = [tokenizer.tokenize(text) for text in texts]
    text = tf.range(segments[0].nrows(tf.int64))
    if long_texts == "windows" and len(segments) == 1:
        place, text = windows(segments[0], max_seq_length - 2, None)
        segments[0] = tf.gather(segments[0].values, place)
    ids, segment_ids = pack(segments, tokenizer.vocabulary, max_seq_length)
    return {"input_ids": ids, "segment_ids": segment_ids, "example": text}


def padded(columns: Columns, **values: int) -> Tensors:
    """Pads ragged columns, [R, None], with ``values`` or 0; adds input_mask."""
    input_ids = columns["input_ids"]
    shape = tf.stack([-1, tf.maximum(input_ids.bounding_shape(1), 1)])
    tensors = {**columns, "input_mask": tf.ones_like(input_ids)}
    for name, column in tensors.items():
        if isinstance(column, tf.RaggedTensor):
            tensors[name] = column.to_tensor(values.get(name, 0), shape=shape)
    return tensors


def encode_texts(
    tokenizer: WordPiece,
    texts: Sequence[Sequence[str]],
    max_seq_length: int,
    long_texts: str = "cut",
) -> Rows:
    """Encodes the texts of examples, one or two each, to rows without targets."""

    def columns(batch: Sequence[Sequence[str]]) -> Columns:
        tensors = [string_tensor(column) for column in zip(*batch, strict=True)]
        return encode(tokenizer, tensors, max_seq_length, long_texts)

    return in_batches(columns, texts, tokenizer)


def in_batches(
    encode: Callable[[Sequence[Any]], Columns],
    examples: Sequence[Any],
    tokenizer: WordPiece,
) -> Rows:
    """Encodes examples in batches to rows; columns that no encoder reads are notes."""
    if not examples:
        raise UserError("there are no examples")
    batches = []
    for start in range(0, len(examples), 1024):
        columns = encode(examples[start : start + 1024])
        batches.append({**columns, "example": columns["example"] + start})
    names = batches[0].keys()
    notes = {n: _array(tf.concat([batch[n] for batch in batches], 0)) for n in names}
    inputs = {name: notes.pop(name) for name in ("input_ids", "segment_ids")}
    example, pad_id = notes.pop("example"), tokenizer.vocabulary.pad_id
    return Rows(inputs, {}, example, pad_id=pad_id, notes=notes)


def _array(column: tf.RaggedTensor | tf.Tensor) -> Column:
    if isinstance(column, tf.RaggedTensor):
        return Ragged(column.values.numpy(), column.row_splits.numpy())
    return column.numpy()

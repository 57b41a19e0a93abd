"""Words as pieces: which rows they fill, and where the first piece of each one is.

Letters: W words, R rows, B texts, S sequence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.tasks.base import Ragged
from electra_tf.tasks.encoding import padded


@dataclasses.dataclass(frozen=True)
class WordRows:
    """Rows of whole words.

    Attributes:
        input_ids: Ragged int32, [CLS] pieces [SEP] of each row.
        word: Ragged int32, aligned with input_ids: the number of the word in its
            sentence at the first piece of a word, -1 elsewhere.
        sentence: int64 [R], index of the sentence that a row belongs to.
        end: int64 [R], how many words of the sentence have been read after the row.
    """

    input_ids: Ragged
    word: Ragged
    sentence: np.ndarray
    end: np.ndarray


def word_rows(
    sentences: Sequence[Sequence[str]],
    tokenizer: Any,
    max_seq_length: int,
    *,
    split: bool,
) -> WordRows:
    """Fills rows with as many whole words as fit.

    Args:
        sentences: Words of each sentence; at least one.
        tokenizer: A `WordPiece`.
        max_seq_length: Most tokens of a row, special ones included.
        split: Whether a sentence that does not fit goes on in further rows; otherwise
            the rest of it is left out.
    """
    limit = max_seq_length - 2
    pieces = iter(tokenizer.encode([word for words in sentences for word in words]))
    vocabulary = tokenizer.vocabulary
    ids, words, owners, ends = [], [], [], []
    for number, sentence in enumerate(sentences):
        # Of a word longer than a row, only the first piece decides anyway.
        parts = [next(pieces)[:limit] for _ in sentence]
        rows = fill_rows([len(part) for part in parts], limit)
        for row in range(rows[-1] + 1 if split else 1):
            row_ids, row_words = [vocabulary.cls_id], [-1]
            for word in np.flatnonzero(rows == row):
                row_ids.extend(parts[word])
                row_words.extend([word, *[-1] * len(parts[word])][: len(parts[word])])
            ids.append([*row_ids, vocabulary.sep_id])
            words.append([*row_words, -1])
            owners.append(number)
            ends.append(np.searchsorted(rows, row, "right"))
    return WordRows(
        Ragged.of(ids),
        Ragged.of(words),
        np.array(owners, np.int64),
        np.array(ends, np.int64),
    )


def fill_rows(lengths: Sequence[int], limit: int) -> np.ndarray:
    """Number of the row of each word, int64 [W]: the next one where a word is too much.

    Args:
        lengths: Pieces of each word, none above `limit`.
        limit: Most pieces of a row.
    """
    rows = np.zeros(len(lengths), np.int64)
    row = used = 0
    for word, length in enumerate(lengths):
        if used + length > limit:
            row, used = row + 1, 0
        used += length
        rows[word] = row
    return rows


def word_tensors(tokenizer: Any, texts: tf.Tensor, max_seq_length: int) -> dict:
    """`word_rows` as TensorFlow operations, for texts with spaces between words.

    Args:
        tokenizer: A `WordPiece`.
        texts: string [B].
        max_seq_length: Most tokens of a row.

    Returns:
        input_ids, input_mask and segment_ids, int32 [R, S]; and words (string [B, W],
        padded with ""), num_words [B], and the row and the position of the first piece
        of each word, int64 [B, W]; the position is 0 where there is none.
    """
    words = tf.strings.split(texts)  # [B, W], ragged
    pieces = tokenizer.tokenize(words.values)[:, : max_seq_length - 2]
    lengths = words.with_values(pieces.row_lengths()).to_tensor(0)  # [B, W]
    rows = _filled(lengths, max_seq_length - 2)
    num_rows = tf.reduce_max(tf.pad(rows, [[0, 0], [1, 0]]), axis=1) + 1
    rows += tf.cumsum(num_rows, exclusive=True)[:, tf.newaxis]
    real = tf.sequence_mask(words.row_lengths(), tf.shape(lengths)[1])

    row_of_word = tf.boolean_mask(rows, real)  # [words in all]
    piece_rows = tf.repeat(row_of_word, pieces.row_lengths())
    body = tf.RaggedTensor.from_value_rowids(
        pieces.values, piece_rows, tf.reduce_sum(num_rows)
    )
    vocabulary = tokenizer.vocabulary
    ends = tf.ones([body.nrows(), 1], tf.int32)
    input_ids = tf.concat(
        [ends * vocabulary.cls_id, body, ends * vocabulary.sep_id], axis=1
    )
    before = tf.cumsum(pieces.row_lengths(), exclusive=True)
    first = 1 + before - tf.gather(body.row_starts(), row_of_word)
    first = tf.where(pieces.row_lengths() > 0, first, 0)
    return {
        "input_ids": padded(input_ids, vocabulary.pad_id),
        "input_mask": padded(tf.ones_like(input_ids)),
        "segment_ids": padded(tf.zeros_like(input_ids)),
        "words": words.to_tensor(""),
        "num_words": tf.cast(words.row_lengths(), tf.int32),
        "word_row": rows,
        "word_position": words.with_values(first).to_tensor(0),
    }


def _filled(lengths: tf.Tensor, limit: int) -> tf.Tensor:
    """`fill_rows` of a batch: int64 [B, W] to int64 [B, W]."""

    def add(state, length):
        row, used = state
        over = used + length > limit
        return row + tf.cast(over, tf.int64), tf.where(over, length, used + length)

    start = tf.zeros([tf.shape(lengths)[0]], tf.int64)
    # One more column: a scan needs at least one step.
    padded = tf.pad(tf.transpose(lengths), [[0, 1], [0, 0]])
    rows, _ = tf.scan(add, padded, (start, start))
    return tf.transpose(rows[:-1])

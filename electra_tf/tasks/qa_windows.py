"""[CLS] question [SEP] part of the paragraph [SEP], for overlapping parts.

In TensorFlow: the same code makes the training rows and runs inside the SavedModel.

Letters: N questions, R rows (windows), S sequence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.tasks.base import Ragged
from electra_tf.tasks.encoding import padded

_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Windows:
    """How questions and paragraphs become rows.

    Attributes:
        tokenizer: A `WordPiece`.
        max_seq_length: Most tokens of a row.
        max_query_length: Most pieces of a question; the rest is cut off.
        doc_stride: Pieces between the beginnings of neighboring windows.

    Raises:
        ValueError: No room is left for the paragraph.
    """

    tokenizer: Any
    max_seq_length: int
    max_query_length: int
    doc_stride: int

    def __post_init__(self):
        if self.max_query_length + 4 > self.max_seq_length:
            raise ValueError(
                f"Questions of {self.max_query_length} pieces (--max_query_length) and "
                f"3 special tokens leave no room for the paragraph in "
                f"{self.max_seq_length} (--max_seq_length): change one of them."
            )

    def __call__(
        self, questions: tf.Tensor, contexts: tf.Tensor, index: tf.Tensor
    ) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Makes the rows, those of a question one after the other.

        Args:
            questions: string [N].
            contexts: string [M], valid UTF-8.
            index: int64 [N], which of the contexts belongs to a question.

        Returns:
            input_ids and segment_ids; token, the number of the piece in its paragraph;
            char_start and char_end, the characters it stands for; max_context, 1 in the
            row that shows the most on both sides of it: ragged int32 [R, None], -1 (0
            for max_context) outside of the paragraph. And example, int64 [R], the
            number of the question.
        """
        question = self.tokenizer.tokenize(questions)[:, : self.max_query_length]
        pieces, char_start, char_end = self.tokenizer.tokenize_with_offsets(contexts)
        room = self.max_seq_length - 3 - question.row_lengths()  # [N]
        stride = tf.minimum(tf.cast(self.doc_stride, tf.int64), room)
        length = tf.gather(pieces.row_lengths(), index)  # [N]
        count = 1 + _ceil_div(tf.maximum(length - room, 0), stride)

        example = tf.repeat(tf.range(tf.size(count, tf.int64)), count)  # [R]
        number = tf.ragged.range(count).values
        begin = number * tf.gather(stride, example)
        size = tf.minimum(tf.gather(room, example), tf.gather(length, example) - begin)
        document = tf.gather(index, example)
        first = tf.gather(pieces.row_starts(), document) + begin
        place = tf.ragged.range(first, first + size)  # [R, None], in pieces.values

        head = tf.gather(question, example)
        frame = tf.ones([tf.size(example), 1], tf.int32)

        def framed(values, head, first, between, last):
            """A column for all tokens of the rows from one for those in the window."""
            body = place.with_values(values)
            parts = [frame * first, head, frame * between, body, frame * last]
            return tf.concat(parts, axis=1)

        def inside(values, fill):
            return framed(values, tf.zeros_like(head) + fill, fill, fill, fill)

        ids = tf.gather(pieces.values, place.values)
        cls, sep = self.tokenizer.vocabulary.cls_id, self.tokenizer.vocabulary.sep_id
        best = _max_context(place, tf.size(pieces.values, tf.int64), example)
        token = place.values - tf.gather(
            tf.gather(pieces.row_starts(), document), place.value_rowids()
        )
        return {
            "input_ids": framed(ids, head, cls, sep, sep),
            "segment_ids": framed(tf.ones_like(ids), tf.zeros_like(head), 0, 0, 1),
            "token": inside(tf.cast(token, tf.int32), -1),
            "char_start": inside(tf.gather(char_start.values, place.values), -1),
            "char_end": inside(tf.gather(char_end.values, place.values), -1),
            "max_context": inside(best, 0),
            "example": example,
        }

    def encode(
        self, questions: Sequence[str], contexts: Sequence[str]
    ) -> dict[str, Ragged | np.ndarray]:
        """The rows of many questions, each with its paragraph."""
        found: dict[str, list] = {}
        for start in range(0, len(questions), _BATCH):
            chosen = contexts[start : start + _BATCH]
            # Neighboring questions share a paragraph; it is split once.
            unique = {
                context: place for place, context in enumerate(dict.fromkeys(chosen))
            }
            columns = self(
                tf.constant([q.encode() for q in questions[start : start + _BATCH]]),
                tf.constant([context.encode() for context in unique]),
                tf.constant([unique[context] for context in chosen], tf.int64),
            )
            for name, column in columns.items():
                found.setdefault(name, []).append(column)
            found["example"][-1] = found["example"][-1].numpy() + start
        example = np.concatenate(found.pop("example"))
        return {
            "example": example,
            **{name: _joined(columns) for name, columns in found.items()},
        }

    def tensors(
        self, questions: tf.Tensor, contexts: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """The rows of a batch, each question with its paragraph, padded to [R, S]."""
        index = tf.range(tf.size(questions, tf.int64))
        columns = self(questions, contexts, index)
        pads = {
            "input_ids": self.tokenizer.vocabulary.pad_id,
            "segment_ids": 0,
            "max_context": 0,
        }
        example = columns.pop("example")
        mask = padded(tf.ones_like(columns["input_ids"]))
        tensors = {
            name: padded(column, pads.get(name, -1)) for name, column in columns.items()
        }
        return {**tensors, "input_mask": mask, "example": example}


def answer_positions(
    answers: Sequence[tuple[str, int] | None], found: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the windows show the answers.

    Args:
        answers: Text and first character of each answer; None for none.
        found: From `Windows.encode`.

    Returns:
        Start and end in each row, int32 [R], both 0 if it does not show the whole
        answer; and whether there is nothing to find or a piece of it was, bool [N].
    """
    begin = np.array([answer[1] if answer else -1 for answer in answers])
    size = np.array([len(answer[0]) if answer else 0 for answer in answers])
    lengths = found["input_ids"].lengths
    rows = np.repeat(np.arange(len(lengths)), lengths)
    owner = found["example"][rows]
    token = found["token"].values
    inside = (
        (token >= 0)
        & (found["char_start"].values < (begin + size)[owner])
        & (found["char_end"].values > begin[owner])
    )
    first = np.full(len(answers), np.iinfo(np.int64).max)
    last = np.full(len(answers), -1)
    np.minimum.at(first, owner[inside], token[inside])
    np.maximum.at(last, owner[inside], token[inside])
    place = np.arange(len(rows)) - found["input_ids"].splits[rows]
    positions = np.zeros([2, len(lengths)], np.int32)
    for target, tokens in zip(positions, (first, last), strict=True):
        hit = (token >= 0) & (token == tokens[owner])
        target[rows[hit]] = place[hit]
    positions *= np.all(positions > 0, axis=0)
    usable = (last >= 0) | np.array([answer is None for answer in answers])
    return *positions, usable


def _max_context(place, size, example):
    """1 where a piece has the most neighbors on its poorer side, the first such row."""
    rows = place.value_rowids()
    position = tf.ragged.range(place.row_lengths()).values
    last = tf.gather(place.row_lengths(), rows) - 1
    # BERT's rule, in hundredths: the length of the window has a little say.
    score = 100 * tf.minimum(position, last - position) + last
    # Questions share paragraphs, but not windows.
    key, count = _pairs(tf.gather(example, rows), place.values, size)
    best = tf.math.unsorted_segment_max(score, key, count)
    wins = score == tf.gather(best, key)
    first = tf.math.unsorted_segment_min(tf.where(wins, rows, tf.int64.max), key, count)
    return tf.cast(wins & (rows == tf.gather(first, key)), tf.int32)


def _pairs(first, second, size):
    """Small numbers for pairs, and how many there are."""
    values, numbers = tf.unique(first * size + second, tf.int64)
    return numbers, tf.size(values, tf.int64)


def _ceil_div(number, divisor):
    return -tf.math.floordiv(-number, divisor)


def _joined(columns):
    lengths = np.concatenate([column.row_lengths().numpy() for column in columns])
    return Ragged(
        np.concatenate([column.values.numpy() for column in columns]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )

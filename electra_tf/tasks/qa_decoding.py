"""From the beam of the span head to answers: in NumPy with alternatives, and in graphs.

A candidate may be answered if it lies in the paragraph, does not end before it starts,
is not too long, and if its window is the one that shows most around its start.

Letters: R rows (windows), B questions, S sequence, K beam.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from electra_tf.tasks.encoding import padded
from electra_tf.tasks.span_head import FORBIDDEN


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One possible answer.

    Attributes:
        text: The characters of the paragraph from `start` to `end`.
        start: First character in the paragraph, -1 if there is no answer.
        end: Character after the last one.
        start_log_prob: Log-probability of the start.
        end_log_prob: Log-probability of the end given the start.
    """

    text: str
    start: int
    end: int
    start_log_prob: float
    end_log_prob: float

    @property
    def score(self) -> float:
        """Log-probability of both."""
        return self.start_log_prob + self.end_log_prob


# Nothing may be answered, for example because the paragraph is empty.
NOTHING = Candidate("", -1, -1, FORBIDDEN, FORBIDDEN)


@dataclasses.dataclass(frozen=True)
class Answer:
    """Answer to a question.

    Attributes:
        candidates: The best ones, each text once, best first; at least one.
        null_odds: Logit of "there is no answer", the least of all windows; 0 if the
            model does not know.
    """

    candidates: tuple[Candidate, ...]
    null_odds: float

    @property
    def text(self) -> str:
        """The best text."""
        return self.candidates[0].text

    def probabilities(self) -> np.ndarray:
        """Softmax of the candidates' scores."""
        scores = np.array([candidate.score for candidate in self.candidates])
        shares = np.exp(scores - scores.max())
        return shares / shares.sum()


def best_candidates(
    rows: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]],
    context: str,
    *,
    max_answer_length: int,
    n_best: int,
) -> tuple[Candidate, ...]:
    """The best answers to one question.

    Args:
        rows: What the head says about each window, and its char_start, char_end and
            max_context, [S].
        context: The paragraph.
        max_answer_length: Most pieces of an answer.
        n_best: Most candidates.
    """
    columns = [_allowed(*row, max_answer_length) for row in rows]
    begin, end, start_log_prob, end_log_prob = map(
        np.concatenate, zip(*columns, strict=True)
    )
    order = np.argsort(-(start_log_prob + end_log_prob), kind="stable")
    found: dict[str, Candidate] = {}
    for index in order:
        text = context[begin[index] : end[index]]
        if text not in found:
            found[text] = Candidate(
                text,
                int(begin[index]),
                int(end[index]),
                float(start_log_prob[index]),
                float(end_log_prob[index]),
            )
        if len(found) == n_best:
            break
    return tuple(found.values()) or (NOTHING,)


def _allowed(outputs, notes, max_answer_length):
    """First and last characters and log-probabilities of allowed candidates."""

    def look_up(name, index, fill):
        # Positions in the padding of the batch are beyond the row.
        return np.append(notes[name], fill)[np.minimum(index, len(notes[name]))]

    end = outputs["end_index"]  # [K, K]
    start = np.broadcast_to(outputs["start_index"][:, np.newaxis], end.shape)
    begins, ends = look_up("char_start", start, -1), look_up("char_end", end, -1)
    allowed = (
        (begins >= 0)
        & (ends >= 0)
        & (look_up("max_context", start, 0) == 1)
        & (end >= start)
        & (end - start < max_answer_length)
    )
    log_probs = np.broadcast_to(outputs["start_log_probs"][:, np.newaxis], end.shape)
    columns = (begins, ends, log_probs, outputs["end_log_probs"])
    return [column[allowed] for column in columns]


def pair_probabilities(outputs: Mapping[str, np.ndarray], length: int) -> np.ndarray:
    """The beam as a table of starts and ends, [B, S, S]; 0 for pairs not in it.

    Args:
        outputs: What the head says about B rows.
        length: S.
    """
    end = outputs["end_index"]  # [B, K, K]
    found = np.zeros([len(end), length, length])
    row = np.arange(len(end))[:, np.newaxis, np.newaxis]
    start = outputs["start_index"][:, :, np.newaxis]
    start_log_probs = outputs["start_log_probs"][:, :, np.newaxis]
    found[row, start, end] = np.exp(start_log_probs + outputs["end_log_probs"])
    return found


def best_span(outputs: dict, inputs: dict, max_answer_length: int) -> dict:
    """`best_candidates` with one candidate, as TensorFlow operations.

    Args:
        outputs: What the head says about the rows.
        inputs: char_start, char_end and max_context [R, S], example int64 [R], all
            questions in order with at least one row each.
        max_answer_length: Most pieces of an answer.

    Returns:
        start and end, characters in the paragraph, int32 [B], -1 for none; score, their
        probability, float32 [B].
    """
    end = outputs["end_index"]  # [R, K, K]
    start = tf.broadcast_to(outputs["start_index"][:, :, tf.newaxis], tf.shape(end))

    def look_up(name, index):
        return tf.gather(inputs[name], index, batch_dims=1)

    begins, ends = look_up("char_start", start), look_up("char_end", end)
    allowed = (
        (begins >= 0)
        & (ends >= 0)
        & (look_up("max_context", start) == 1)
        & (end >= start)
        & (end - start < max_answer_length)
    )
    score = outputs["start_log_probs"][:, :, tf.newaxis] + outputs["end_log_probs"]
    score = tf.where(allowed, score, -np.inf)

    def by_question(values):  # [R, K, K] to [B, rows * K * K], ragged
        rows, starts, ends = tf.unstack(tf.shape(values))
        flat = tf.reshape(values, [rows, starts * ends])
        grouped = tf.RaggedTensor.from_value_rowids(flat, inputs["example"])
        return grouped.merge_dims(1, 2)

    scores = padded(by_question(score), -np.inf)
    best = tf.argmax(scores, axis=1)
    found = tf.reduce_max(scores, axis=1)

    def chosen(values):
        picked = tf.gather(padded(by_question(values), -1), best, batch_dims=1)
        return tf.where(found > -np.inf, picked, -1)

    return {"start": chosen(begins), "end": chosen(ends), "score": tf.exp(found)}

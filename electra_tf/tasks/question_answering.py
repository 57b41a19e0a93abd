"""Extractive question answering as in SQuAD.

Rows are [CLS] question [SEP] window of the paragraph [SEP], with overlapping windows.
Scores are in percent, and thresholds are logits.

Letters: N questions, R rows (windows), B batch, S sequence.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from electra_tf import files
from electra_tf.data.tokenizer import WordPiece, string_tensor
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.weights import check_choice
from electra_tf.tasks import metrics, squad
from electra_tf.tasks.base import Rows, Scores, Task
from electra_tf.tasks.encoding import Columns, in_batches, pack, padded, windows
from electra_tf.tasks.heads import Tensors
from electra_tf.tasks.span_head import (
    AnswerabilityLoss,
    IndependentSpanHead,
    PositionLoss,
    SpanHead,
    best_span,
)
from electra_tf.tasks.squad import Question

Questions = Sequence[Question]
# Columns for decoding, with their values at padding.
_NOTES = {"char_start": -1, "char_end": -1, "max_context": 0}
_HEADS = {"joint": SpanHead, "independent": IndependentSpanHead}


@dataclasses.dataclass(frozen=True)
class Answer:
    """Predicted answer to a question: characters ``start`` to ``end`` (exclusive).

    Both are -1 if no span is valid. ``score`` is the probability of the span, and
    ``null_odds`` the minimum no-answer logit over all windows, or 0.
    """

    text: str
    start: int = -1
    end: int = -1
    score: float = 0.0
    null_odds: float = 0.0


Answers = Sequence[Answer]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Extractive question answering as in SQuAD.

    Lengths and ``doc_stride``, the step between windows, are in word pieces.

    Attributes:
        unanswerable: whether questions may have no answer (SQuAD 2.0).
        answerability: whether the model predicts answerability, as the original code
            does even for SQuAD 1.1.
        null_threshold: no-answer logit above which a question is unanswerable.
        span_head: "joint" predicts the end given the start, as XLNet does.
            "independent" has one linear layer for each, as BERT does.
        beam_size: number of starts, and of ends per start, in the beam.

    Examples:
        >>> et.tasks.QuestionAnswering(name="mine", source=None).main_metric
        'f1'
    """

    name: str
    source: Callable[[str], list[Question]]
    unanswerable: bool = False
    answerability: bool = False
    null_threshold: float = -2.75
    max_query_length: int = 64
    doc_stride: int = 128
    max_answer_length: int = 30
    span_head: Literal["joint", "independent"] = "joint"
    beam_size: int = 20
    max_seq_length: int = 512
    epochs: float = 2.0
    eval_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)

    kind = "question_answering"
    main_metric = "f1"
    splits_long = True
    text_names = ("question", "context")

    def __post_init__(self) -> None:
        check_choice("span_head", self.span_head, _HEADS)
        for name in ("max_query_length", "doc_stride", "max_answer_length"):
            if (value := getattr(self, name)) < 1:
                raise UserError(f"{name} is {value}; it must be at least 1.")
        if self.unanswerable and not self.answerability:
            raise UserError(f"{self.name}: answerability must be on for SQuAD 2.0.")

    def featurize(
        self,
        examples: Questions,
        tokenizer: WordPiece,
        max_seq_length: int,
        *,
        training: bool = False,
    ) -> Rows:
        """Tokenizes questions and paragraphs to one row per window.

        Training windows without the answer have [CLS] as target, but keep the
        question's answerability. Questions are dropped if their answer lacks tokens.
        """

        def encode(batch: Questions) -> Columns:
            questions = string_tensor(each.question for each in batch)
            contexts = string_tensor(each.context for each in batch)
            return self.windows(tokenizer, max_seq_length, questions, contexts)

        rows = in_batches(encode, examples, tokenizer)
        if not training:
            return rows
        answers = [e.answers[0] if e.answers else None for e in examples]
        start, end, usable = answer_positions(answers, rows)
        inputs = {**rows.inputs, "start_positions": start}
        targets = {"start_logits": start, "end_logits": end}
        if self.answerability:
            impossible = np.array([not each.answers for each in examples], np.float32)
            targets["null_logits"] = impossible[rows.example]
        rows = Rows(inputs, targets, rows.example, pad_id=rows.pad_id)
        return rows.take(np.flatnonzero(usable[rows.example]))

    def head(self, encoder: TextEncoder) -> SpanHead:
        return _HEADS[self.span_head](
            encoder.hidden_size,
            beam_size=self.beam_size,
            answerability=self.answerability,
            dtype=encoder.dtype_policy,
            name="span_head",
        )

    def loss(self, reduction: str = "sum") -> dict[str, keras.losses.Loss]:
        """Returns the losses of start, end and answerability, with weight 1/2 each."""
        kinds = {"start_logits": PositionLoss, "end_logits": PositionLoss}
        if self.answerability:
            kinds["null_logits"] = AnswerabilityLoss
        return {name: kind(0.5, reduction=reduction) for name, kind in kinds.items()}

    def decode(
        self, outputs: Sequence[dict], rows: Rows, examples: Questions
    ) -> list[Answer]:
        beam = max(len(output["start_index"]) for output in outputs)

        def stacked(name: str) -> np.ndarray:
            # Short rows have fewer candidates. Padding points at [CLS], not an answer.
            arrays = (output[name] for output in outputs)
            return np.stack(
                [np.pad(x, [(0, beam - size) for size in x.shape]) for x in arrays]
            )

        names = ("start_index", "end_index", "start_log_probs", "end_log_probs")
        beams = {name: stacked(name) for name in names}
        # The beam of a short row may include padding.
        last = max(beams["start_index"].max(), beams["end_index"].max())
        width, every = max(rows.lengths.max(), last + 1), np.arange(len(rows))
        notes = {n: rows.notes[n].pad(every, width, x) for n, x in _NOTES.items()}
        notes["example"] = rows.example
        best = best_span(beams, notes, self.max_answer_length)
        odds = np.zeros(len(examples))
        if self.answerability:
            logits = np.array([output["null_logits"] for output in outputs])
            odds = tf.math.segment_min(logits, rows.example).numpy()
        columns = [best[name].numpy().tolist() for name in ("start", "end", "score")]
        answers = zip(examples, *columns, odds.tolist(), strict=True)
        return [
            Answer(example.context[max(start, 0) : max(end, 0)], start, end, *others)
            for example, start, end, *others in answers
        ]

    def scorer(self, answers: Answers, examples: Questions) -> metrics.Scorer:
        """Returns a function from question indices to the scores of ``squad``."""
        texts = [answer.text for answer in answers]
        right = [example.texts for example in examples]
        raw = squad.raw_scores(texts, right, unanswerable=self.unanswerable)
        odds = np.array([answer.null_odds for answer in answers], np.float64)
        answerable, given = (np.array(list(map(bool, x))) for x in (right, texts))

        def scores(rows: np.ndarray) -> Scores:
            chosen = {name: values[rows] for name, values in raw.items()}
            if not self.unanswerable:
                return {n: 100 * float(values.mean()) for n, values in chosen.items()}
            columns = (column[rows] for column in (odds, answerable, given))
            return squad.means_v2(chosen, *columns, self.null_threshold)

        return scores

    def majority(self, train_examples: Questions, examples: Questions) -> Answers:
        return [Answer("")] * len(examples)

    def write(self, answers: Answers, examples: Questions, path: str) -> None:
        """Writes predictions, and null_odds if known, as JSON by question id.

        Predictions ignore null_odds: SQuAD's official script applies the threshold.
        """
        by_id = dict(zip((example.id for example in examples), answers, strict=True))
        target = Path(path).with_suffix(".json")
        files.write_json(target, {name: x.text for name, x in by_id.items()})
        if self.answerability:
            target = target.with_name(target.name.replace("predictions", "null_odds"))
            files.write_json(target, {name: x.null_odds for name, x in by_id.items()})

    def serving_inputs(
        self, tokenizer: WordPiece, max_seq_length: int, **texts: tf.Tensor
    ) -> Tensors:
        """Tokenizes ``question`` and ``context``, string [B], to windows."""
        context = tf.strings.unicode_transcode(
            texts["context"], "UTF-8", "UTF-8", replacement_char=0xFFFD
        )
        columns = self.windows(tokenizer, max_seq_length, texts["question"], context)
        inputs = padded(columns, input_ids=tokenizer.vocabulary.pad_id, **_NOTES)
        return {**inputs, "context": context}

    def serving_outputs(self, outputs: Tensors, inputs: Tensors) -> Tensors:
        """Returns answer, start, end and score, [B].

        ``answerability`` adds null_odds and answerable. Start and end are in code
        points. The answer is the best span even if ``answerable`` is false.
        """
        served = best_span(outputs, inputs, self.max_answer_length)
        begin = tf.maximum(served["start"], 0)
        size = tf.maximum(served["end"], 0) - begin
        # tf.strings.substr fails if the start is past the end, even for length 0.
        text = tf.strings.join([inputs["context"], tf.constant(" ")])
        served["answer"] = tf.strings.substr(text, begin, size, unit="UTF8_CHAR")
        if self.answerability:
            odds = tf.math.segment_min(outputs["null_logits"], inputs["example"])
            served |= {"null_odds": odds, "answerable": odds <= self.null_threshold}
        return served

    def serving_id_outputs(self, outputs: Tensors, inputs: Tensors) -> Tensors:
        return outputs

    def comparable(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns sorted probabilities: rounding may reorder the beam."""
        starts = outputs["start_log_probs"][:, :, np.newaxis]
        scores = np.exp(starts + outputs["end_log_probs"]).reshape(len(starts), -1)
        arrays = {"probabilities": np.sort(scores)}
        if self.answerability:
            arrays["null_logits"] = outputs["null_logits"]
        return arrays

    def windows(
        self,
        tokenizer: WordPiece,
        max_seq_length: int,
        questions: tf.Tensor,
        contexts: tf.Tensor,
    ) -> Columns:
        """Returns the windows of questions and contexts in valid UTF-8, string [N].

        The columns are input_ids, segment_ids, char_start and char_end (-1 outside the
        paragraph), max_context (1 in the window with the most context), and example.
        """
        if self.max_query_length + 4 > max_seq_length:
            raise UserError(
                f"Questions of {self.max_query_length} pieces (--max_query_length) "
                f"leave no room for paragraphs in --max_seq_length={max_seq_length}."
            )
        question = tokenizer.tokenize(questions)[:, : self.max_query_length]
        pieces, char_start, char_end = tokenizer.tokenize_with_offsets(contexts)
        room = max_seq_length - 3 - question.row_lengths()  # [N]
        stride = tf.minimum(tf.cast(self.doc_stride, tf.int64), room)
        place, example = windows(pieces, room, stride)
        head, body = tf.gather(question, example), tf.gather(pieces.values, place)
        vocabulary = tokenizer.vocabulary
        input_ids, segment_ids = pack([head, body], vocabulary, max_seq_length)

        def inside(values: tf.Tensor, fill: int) -> tf.RaggedTensor:
            """Extends a column from the window to the whole row."""
            column = tf.fill([tf.size(example), 1], fill)
            before = [column, tf.zeros_like(head) + fill, column]
            return tf.concat([*before, place.with_values(values), column], axis=1)

        best = _max_context(place, tf.size(pieces.values, tf.int64))
        return {
            "input_ids": input_ids,
            "segment_ids": segment_ids,
            "char_start": inside(tf.gather(char_start.values, place.values), -1),
            "char_end": inside(tf.gather(char_end.values, place.values), -1),
            "max_context": inside(best, 0),
            "example": example,
        }


def answer_positions(
    answers: Sequence[tuple[str, int] | None], windows: Rows
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Locates answers, (text, first character) or None, in windows.

    Returns start and end per row, int32 [R], 0 if the row lacks a part of the answer,
    and whether an answer has tokens or is None, bool [N].
    """
    begin = np.array([answer[1] if answer else -1 for answer in answers])
    size = np.array([len(answer[0]) if answer else 0 for answer in answers])
    rows = np.repeat(np.arange(len(windows)), windows.lengths)
    owner = windows.example[rows]
    char_start = windows.notes["char_start"].values
    inside = (
        (char_start >= 0)
        & (char_start < (begin + size)[owner])
        & (windows.notes["char_end"].values > begin[owner])
    )
    first = np.full(len(answers), np.iinfo(np.int64).max)
    last = np.full(len(answers), -1)
    np.minimum.at(first, owner[inside], char_start[inside])
    np.maximum.at(last, owner[inside], char_start[inside])
    place = np.arange(len(rows)) - windows.inputs["input_ids"].splits[rows]
    positions = np.zeros([2, len(windows)], np.int32)
    # A character may have several word pieces: takes the first or the last of them.
    for target, ends, step in zip(positions, (first, last), (-1, 1), strict=True):
        hit = np.flatnonzero((char_start >= 0) & (char_start == ends[owner]))[::step]
        target[rows[hit]] = place[hit]
    positions *= np.all(positions > 0, axis=0)
    return *positions, (last >= 0) | np.array([answer is None for answer in answers])


def _max_context(place: tf.RaggedTensor, size: tf.Tensor) -> tf.Tensor:
    """Marks the window with the most context of each word piece, the first for ties."""
    rows, pieces = place.value_rowids(), place.values
    position = tf.ragged.range(place.row_lengths()).values
    last = tf.gather(place.row_lengths(), rows) - 1
    # BERT's rule: min(left, right context) + 0.01 * window length, times 100.
    score = 100 * tf.minimum(position, last - position) + last
    # Earlier windows win ties.
    score = score * place.nrows(tf.int64) - rows
    best = tf.math.unsorted_segment_max(score, pieces, size)
    return tf.cast(score == tf.gather(best, pieces), tf.int32)

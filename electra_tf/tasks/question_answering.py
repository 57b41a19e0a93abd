"""Extractive question answering as in SQuAD.

Rows are [CLS] question [SEP] window of the paragraph [SEP], with overlapping windows.
Training and the SavedModel share the TensorFlow code. Scores are in percent, and
thresholds are logits.

Letters: N questions, R rows (windows), B batch, S sequence.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.tasks import metrics, span_head, squad
from electra_tf.tasks.base import Ragged, Rows, Scores, Task, keras_reduction, not_above
from electra_tf.tasks.encoding import joined, padded
from electra_tf.tasks.heads import Tensors
from electra_tf.tasks.span_head import Answer, IndependentSpanHead, SpanHead
from electra_tf.tasks.squad import Question

Questions = Sequence[Question]
Answers = Sequence[Answer]
_NOTES = ("char_start", "char_end", "max_context")
_HEADS = {"joint": SpanHead, "independent": IndependentSpanHead}


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Extractive question answering as in SQuAD.

    See ``Task`` for the other fields.

    Attributes:
        unanswerable: whether questions may have no answer (SQuAD 2.0).
        answerability: whether the model predicts answerability. The original code also
            does for SQuAD 1.1.
        answerable_weight: weight of the answerability loss; start and end have 1/2.
        null_threshold: no-answer logit above which the answer is empty.
        max_query_length: maximum word pieces per question.
        doc_stride: word pieces between the starts of neighboring windows.
        max_answer_length: maximum word pieces per answer.
        span_head: "joint" predicts the end given the start, as XLNet does.
            "independent" has one linear layer for each, as BERT does.
        n_best: maximum candidates per question.
        beam_size: number of starts, and of ends per start, in the beam.

    Examples:
        >>> task = et.tasks.QuestionAnswering(
        ...     name="mine", source=None, unanswerable=True, answerability=True
        ... )
        >>> task.main_metric, task.doc_stride
        ('f1', 128)
    """

    name: str
    source: Callable[[str], list[Question]]
    unanswerable: bool = False
    answerability: bool = False
    answerable_weight: float = 0.5
    null_threshold: float = -2.75
    max_query_length: int = 64
    doc_stride: int = 128
    max_answer_length: int = 30
    span_head: Literal["joint", "independent"] = "joint"
    n_best: int = 20
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
        if self.unanswerable and not self.answerability:
            raise UserError(
                f"{self.name} has questions without answer: answerability must be on "
                "(--answerability=on)."
            )

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
        question's answerability. Questions whose answer has no token are dropped, so
        there may be no rows. Raises ValueError if the paragraph has no room.
        """
        questions = [example.question for example in examples]
        contexts = [example.context for example in examples]
        lengths = (max_seq_length, self.max_query_length, self.doc_stride)
        windows = Windows(tokenizer, *lengths).encode(questions, contexts)
        pad_id = tokenizer.vocabulary.pad_id
        inputs = {name: windows[name] for name in ("input_ids", "segment_ids")}
        if not training:
            notes = {name: windows[name] for name in _NOTES}
            return Rows(inputs, {}, windows["example"], pad_id=pad_id, notes=notes)
        answers = [e.answers[0] if e.answers else None for e in examples]
        start, end, usable = answer_positions(answers, windows)
        kept = np.flatnonzero(usable[windows["example"]])
        owner = windows["example"][kept]
        targets = {"start_logits": start[kept], "end_logits": end[kept]}
        if self.answerability:
            impossible = np.array([not example.answers for example in examples])
            targets["null_logits"] = impossible[owner].astype(np.float32)
        inputs = {name: column.take(kept) for name, column in inputs.items()}
        inputs["start_positions"] = start[kept]
        return Rows(inputs, targets, owner, pad_id=pad_id)

    def head(self, encoder: TextEncoder) -> SpanHead:
        """Returns a new span head."""
        return _HEADS[self.span_head](
            encoder.hidden_size,
            beam_size=self.beam_size,
            answerability=self.answerability,
            dtype=encoder.dtype_policy,
            name="span_head",
        )

    def loss(self, reduction: str = "sum") -> dict[str, keras.losses.Loss]:
        """Returns the losses of start, end (weight 1/2 each) and answerability."""
        reduction = keras_reduction(reduction)
        losses = {
            "start_logits": span_head.PositionLoss(0.5, reduction=reduction),
            "end_logits": span_head.PositionLoss(0.5, reduction=reduction),
        }
        if self.answerability:
            losses["null_logits"] = span_head.AnswerabilityLoss(
                self.answerable_weight, reduction=reduction
            )
        return losses

    def decode(
        self, outputs: Sequence[dict], rows: Rows, examples: Questions
    ) -> list[Answer]:
        """Returns the best candidates and the minimum null odds over all windows."""
        windows = collections.defaultdict(list)
        for row, output in enumerate(outputs):
            notes = {name: rows.notes[name][row] for name in _NOTES}
            windows[rows.example[row]].append((output, notes))
        limits = {"max_answer_length": self.max_answer_length, "n_best": self.n_best}
        answers = []
        for number, example in enumerate(examples):
            shown = windows[number]
            best = span_head.best_candidates(shown, example.context, **limits)
            odds = min(float(output.get("null_logits", 0.0)) for output, _ in shown)
            answers.append(Answer(best, odds))
        return answers

    def scorer(self, answers: Answers, examples: Questions) -> metrics.Scorer:
        """Compares all answers; returns a function from question indices to scores.

        The scores are the official ones of SQuAD 1.1 or 2.0; see ``squad``.
        """
        texts = [answer.text for answer in answers]
        right = [example.texts for example in examples]
        if not self.unanswerable:
            values = squad.raw_scores_v1(texts, right)
            return lambda rows: {
                name: 100 * float(value[rows].mean()) for name, value in values.items()
            }
        raw, answerable = squad.raw_scores_v2(texts, right)
        odds = np.array([answer.null_odds for answer in answers], np.float64)
        given = np.array([bool(text) for text in texts])

        def scores(rows: np.ndarray) -> Scores:
            means = squad.means_v2(
                {name: value[rows] for name, value in raw.items()},
                *(column[rows] for column in (odds, answerable, given)),
                self.null_threshold,
            )
            return {
                name: value if name.endswith("threshold") else 100 * value
                for name, value in means.items()
            }

        return scores

    def majority(self, train_examples: Questions, examples: Questions) -> Answers:
        """Returns empty answers."""
        return [Answer((span_head.NOTHING,), 0.0)] * len(examples)

    def distribution(self, examples: Questions) -> dict[str, int]:
        """Counts answerable and unanswerable questions, for SQuAD 2.0."""
        answerable = sum(bool(example.answers) for example in examples)
        counts = {"answer": answerable, "no answer": len(examples) - answerable}
        return counts if self.unanswerable else {}

    def failure(self, answers: Answers, scores: Scores, baseline: Scores) -> str:
        """Reports empty answers only, or an F1 not above the baseline."""
        if not any(answer.text for answer in answers):
            return "gives an empty answer to every question"
        denied = (answer.null_odds > self.null_threshold for answer in answers)
        if self.unanswerable and all(denied):
            return "predicts no answer for every question"
        return not_above("f1", scores, baseline)

    def write(self, answers: Answers, examples: Questions, path: str) -> None:
        """Writes predictions, nbest_predictions and null_odds in SQuAD's layout."""
        named = {e.id: answer for e, answer in zip(examples, answers, strict=True)}
        target = Path(path).with_suffix(".json")
        squad.write_answers(named, target, null_odds=self.answerability)

    def submit(
        self, answers: Answers, examples: Questions, split: str, folder: str
    ) -> str | None:
        """Writes SQuAD 2.0 predictions, with "" for no answer; returns the path."""
        if not self.unanswerable:
            return None
        texts = {
            e.id: "" if answer.null_odds > self.null_threshold else answer.text
            for e, answer in zip(examples, answers, strict=True)
        }
        path = Path(folder) / f"{split}.json"
        squad.write_by_id(path, texts)
        return str(path)

    def serving_inputs(
        self, tokenizer: WordPiece, max_seq_length: int, **texts: tf.Tensor
    ) -> Tensors:
        """Tokenizes ``question`` and ``context``, string [B], to windows."""
        context = tf.strings.unicode_transcode(
            texts["context"], "UTF-8", "UTF-8", replacement_char=0xFFFD
        )
        lengths = (max_seq_length, self.max_query_length, self.doc_stride)
        windows = Windows(tokenizer, *lengths)
        return {**windows.tensors(texts["question"], context), "context": context}

    def serving_outputs(self, outputs: Tensors, inputs: Tensors) -> Tensors:
        """Returns answer, start, end and score, [B]; also null_odds and answerable.

        Start and end are in characters (code points) of the context. The answer is the
        best span even if ``answerable`` is false. The last two need ``answerability``.
        """
        served = span_head.best_span(outputs, inputs, self.max_answer_length)
        begin = tf.maximum(served["start"], 0)
        size = tf.maximum(served["end"], 0) - begin
        # tf.strings.substr fails if the start is past the end, even for length 0.
        text = tf.strings.join([inputs["context"], tf.constant(" ")])
        served["answer"] = tf.strings.substr(text, begin, size, unit="UTF8_CHAR")
        if self.answerability:
            odds = tf.math.segment_min(outputs["null_logits"], inputs["example"])
            served["null_odds"] = odds
            served["answerable"] = odds <= self.null_threshold
        return served

    def serving_id_outputs(self, outputs: Tensors, inputs: Tensors) -> Tensors:
        """Returns the beam of each row; see ``SpanHead.call``."""
        return outputs

    def comparable(
        self, outputs: Mapping[str, np.ndarray], length: int
    ) -> dict[str, np.ndarray]:
        """Returns probabilities by position: rounding may reorder the beam."""
        arrays = {"pairs": span_head.pair_probabilities(outputs, length)}
        if self.answerability:
            arrays["null_logits"] = outputs["null_logits"]
        return arrays

    def to_json(self) -> dict[str, Any]:
        """Adds all fields except the fields of the training run."""
        options = dataclasses.asdict(dataclasses.replace(self, source=None))
        for name in ("name", "source", "epochs", "eval_splits", "test_splits"):
            del options[name]
        return super().to_json() | options


_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Windows:
    """Tokenizes questions and paragraphs to windows; see ``QuestionAnswering``.

    Raises ValueError if the lengths leave no token for the paragraph.
    """

    tokenizer: WordPiece
    max_seq_length: int
    max_query_length: int
    doc_stride: int

    def __post_init__(self) -> None:
        if self.max_query_length + 4 > self.max_seq_length:
            raise UserError(
                f"Questions of {self.max_query_length} pieces (--max_query_length) and "
                f"3 special tokens leave no room for the paragraph in "
                f"{self.max_seq_length} (--max_seq_length): change one of them."
            )

    def __call__(
        self, questions: tf.Tensor, contexts: tf.Tensor, index: tf.Tensor
    ) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Returns the windows of questions, string [N], in the same order.

        ``contexts`` are valid UTF-8, string [M], and ``index`` is each question's index
        into them, int64 [N]. Columns are ragged int32 [R, None]: input_ids,
        segment_ids, token (index of the word piece in its paragraph), char_start,
        char_end and max_context (1 in the window with the most context). Outside of
        the paragraph, token and characters are -1. example is the question of each
        row, int64 [R].
        """
        question = self.tokenizer.tokenize(questions)[:, : self.max_query_length]
        pieces, char_start, char_end = self.tokenizer.tokenize_with_offsets(contexts)
        room = self.max_seq_length - 3 - question.row_lengths()  # [N]
        stride = tf.minimum(tf.cast(self.doc_stride, tf.int64), room)
        length = tf.gather(pieces.row_lengths(), index)  # [N]
        # Rounded up: the last window may be shorter.
        count = 1 - tf.math.floordiv(-tf.maximum(length - room, 0), stride)

        example = tf.repeat(tf.range(tf.size(count, tf.int64)), count)  # [R]
        number = tf.ragged.range(count).values
        begin = number * tf.gather(stride, example)
        size = tf.minimum(tf.gather(room, example), tf.gather(length, example) - begin)
        document = tf.gather(index, example)
        starts = tf.gather(pieces.row_starts(), document)
        first = starts + begin
        place = tf.ragged.range(first, first + size)  # [R, None], in pieces.values

        head = tf.gather(question, example)
        frame = tf.ones([tf.size(example), 1], tf.int32)

        def framed(values: tf.Tensor, head: Any, *fills: int) -> tf.RaggedTensor:
            """Extends a column from the window to the whole row."""
            first, between, last = (frame * fill for fill in fills)
            body = place.with_values(values)
            return tf.concat([first, head, between, body, last], axis=1)

        def inside(values: tf.Tensor, fill: int) -> tf.RaggedTensor:
            return framed(values, tf.zeros_like(head) + fill, fill, fill, fill)

        ids = tf.gather(pieces.values, place.values)
        cls, sep = self.tokenizer.vocabulary.cls_id, self.tokenizer.vocabulary.sep_id
        best = _max_context(place, tf.size(pieces.values, tf.int64), example)
        token = place.values - tf.gather(starts, place.value_rowids())
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
        """Returns the windows of questions with their paragraphs, in NumPy."""
        batches: dict[str, list] = {}
        for start in range(0, len(questions), _BATCH):
            chosen = contexts[start : start + _BATCH]
            # Neighboring questions share a paragraph, which is tokenized once.
            unique = {c: place for place, c in enumerate(dict.fromkeys(chosen))}
            columns = self(
                tf.constant([q.encode() for q in questions[start : start + _BATCH]]),
                tf.constant([context.encode() for context in unique]),
                tf.constant([unique[context] for context in chosen], tf.int64),
            )
            for name, column in columns.items():
                batches.setdefault(name, []).append(column)
            batches["example"][-1] = batches["example"][-1].numpy() + start
        example = np.concatenate(batches.pop("example"))
        rows = {name: joined(columns) for name, columns in batches.items()}
        return {"example": example, **rows}

    def tensors(self, questions: tf.Tensor, contexts: tf.Tensor) -> Tensors:
        """Returns the windows of a batch as tensors padded to [R, S]."""
        columns = self(questions, contexts, tf.range(tf.size(questions, tf.int64)))
        example = columns.pop("example")
        pad_id = self.tokenizer.vocabulary.pad_id
        pads = {"input_ids": pad_id, "segment_ids": 0, "max_context": 0}
        mask = padded(tf.ones_like(columns["input_ids"]))
        tensors = {name: padded(x, pads.get(name, -1)) for name, x in columns.items()}
        return {**tensors, "input_mask": mask, "example": example}


def answer_positions(
    answers: Sequence[tuple[str, int] | None],
    windows: Mapping[str, Ragged | np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Locates answers, (text, first character) or None, in ``Windows.encode`` rows.

    Returns start and end per row, int32 [R], both 0 if the row lacks a part of the
    answer. Also returns whether the question is usable, bool [N]: it has no answer, or
    at least one token of its answer was found.
    """
    begin = np.array([answer[1] if answer else -1 for answer in answers])
    size = np.array([len(answer[0]) if answer else 0 for answer in answers])
    lengths = windows["input_ids"].lengths
    rows = np.repeat(np.arange(len(lengths)), lengths)
    owner = windows["example"][rows]
    token = windows["token"].values
    inside = (
        (token >= 0)
        & (windows["char_start"].values < (begin + size)[owner])
        & (windows["char_end"].values > begin[owner])
    )
    first = np.full(len(answers), np.iinfo(np.int64).max)
    last = np.full(len(answers), -1)
    np.minimum.at(first, owner[inside], token[inside])
    np.maximum.at(last, owner[inside], token[inside])
    place = np.arange(len(rows)) - windows["input_ids"].splits[rows]
    positions = np.zeros([2, len(lengths)], np.int32)
    for target, tokens in zip(positions, (first, last), strict=True):
        hit = (token >= 0) & (token == tokens[owner])
        target[rows[hit]] = place[hit]
    positions *= np.all(positions > 0, axis=0)
    usable = (last >= 0) | np.array([answer is None for answer in answers])
    return *positions, usable


def _max_context(
    place: tf.RaggedTensor, size: tf.Tensor, example: tf.Tensor
) -> tf.Tensor:
    """Marks the window with the most context of each word piece, the first for ties."""
    rows = place.value_rowids()
    position = tf.ragged.range(place.row_lengths()).values
    last = tf.gather(place.row_lengths(), rows) - 1
    # BERT's rule: min(left, right context) + 0.01 * window length, times 100.
    score = 100 * tf.minimum(position, last - position) + last
    # Keys are per question: questions share paragraphs, but not windows.
    pairs = tf.gather(example, rows) * size + place.values
    values, key = tf.unique(pairs, tf.int64)
    count = tf.size(values, tf.int64)
    best = tf.math.unsorted_segment_max(score, key, count)
    wins = score == tf.gather(best, key)
    first = tf.math.unsorted_segment_min(tf.where(wins, rows, tf.int64.max), key, count)
    return tf.cast(wins & (rows == tf.gather(first, key)), tf.int32)

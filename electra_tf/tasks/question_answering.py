"""Question answering: the part of a paragraph that answers a question, or none.

Scores are in percent, thresholds are logits.

Letters: R rows (windows), B batch, N questions.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.tasks import plots
from electra_tf.tasks.base import Rows, Task
from electra_tf.tasks.heads import TaskModel
from electra_tf.tasks.qa_decoding import (
    NOTHING,
    Answer,
    best_candidates,
    best_span,
    pair_probabilities,
)
from electra_tf.tasks.qa_files import write_decisions, write_predictions
from electra_tf.tasks.qa_windows import Windows, answer_positions
from electra_tf.tasks.span_head import AnswerabilityLoss, PositionLoss, SpanHead
from electra_tf.tasks.squad_files import Question
from electra_tf.tasks.squad_metrics import decided, raw_scores_v2, score_v1, score_v2
from electra_tf.tasks.text import keras_reduction

_NOTES = ("char_start", "char_end", "max_context")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Spans of paragraphs, in the manner of SQuAD.

    Attributes:
        name: Name on the command line and in files.
        source: Reads a split.
        unanswerable: Whether there may be no answer (SQuAD 2.0).
        answerability: Whether the model says if there is an answer. The original code
            has it on for SQuAD 1.1 too, where the label is always the same.
        answerable_weight: Weight of its loss; start and end have 1/2 each.
        null_threshold: Logit above which there is no answer; the original's default.
        max_query_length: Most pieces of a question.
        doc_stride: Pieces between the beginnings of neighboring windows.
        max_answer_length: Most pieces of an answer.
        n_best: Most candidates per question.
        beam_size: Starts, and ends per start, that are looked at.
        max_seq_length: Default length.
        epochs: Default number of epochs.
        eval_splits: Splits with answers; the first one decides.
        test_splits: Splits to predict.
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
    n_best: int = 20
    beam_size: int = 20
    max_seq_length: int = 512
    epochs: float = 2.0
    eval_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)

    main_metric = "f1"
    splits_long = True
    text_names = ("question", "context")

    def __post_init__(self):
        if self.unanswerable and not self.answerability:
            raise ValueError(
                f"{self.name} has questions without answer: answerability must be on "
                "(--answerability=on)."
            )

    def examples(self, split: str) -> list[Question]:
        """Reads a split; see `Task.examples`."""
        return self.source(split)

    def _windows(self, tokenizer, max_seq_length):
        return Windows(
            tokenizer, max_seq_length, self.max_query_length, self.doc_stride
        )

    def featurize(
        self,
        examples: Sequence[Question],
        tokenizer: Any,
        max_seq_length: int,
        *,
        training: bool = False,
    ) -> Rows:
        """One row per window.

        In training, windows without the answer have [CLS] as target, but still the
        answerability of the question; questions whose answer has no piece are left out.

        Raises:
            ValueError: There is no room for the paragraph, or no row to train on.
        """
        found = self._windows(tokenizer, max_seq_length).encode(
            [example.question for example in examples],
            [example.context for example in examples],
        )
        pad_id = tokenizer.vocabulary.pad_id
        inputs = {name: found[name] for name in ("input_ids", "segment_ids")}
        if not training:
            notes = {name: found[name] for name in _NOTES}
            return Rows(inputs, {}, found["example"], pad_id=pad_id, notes=notes)
        answers = [e.answers[0] if e.answers else None for e in examples]
        start, end, usable = answer_positions(answers, found)
        kept = np.flatnonzero(usable[found["example"]])
        if not len(kept):
            raise ValueError(
                f"Of {len(examples)} training questions of {self.name}, none has an "
                "answer of which the tokenizer leaves a piece: check the data, and the "
                "vocabulary."
            )
        owner = found["example"][kept]
        targets = {"start_logits": start[kept], "end_logits": end[kept]}
        if self.answerability:
            impossible = np.array([not example.answers for example in examples])
            targets["null_logits"] = impossible[owner].astype(np.float32)
        inputs = {name: column.take(kept) for name, column in inputs.items()}
        inputs["start_positions"] = start[kept]
        return Rows(inputs, targets, owner, pad_id=pad_id)

    def build_model(self, encoder: Any) -> TaskModel:
        """Encoder and span head: ready for `fit`."""
        head = SpanHead(
            encoder.hidden_size,
            beam_size=self.beam_size,
            answerability=self.answerability,
            dtype=encoder.dtype_policy,
            name="span_head",
        )
        model = TaskModel(encoder, head, name=self.name.replace("-", "_"))
        model.compile(
            optimizer=keras.optimizers.AdamW(
                1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
            ),
            loss=self.loss(),
        )
        return model

    def loss(self, reduction: str = "sum") -> dict[str, keras.losses.Loss]:
        """Half the start's and half the end's cross-entropy, and the answerability's.

        Raises:
            ValueError: `reduction` is neither "sum" nor "mean".
        """
        reduction = keras_reduction(reduction)
        losses = {
            name: PositionLoss(0.5, reduction=reduction)
            for name in ("start_logits", "end_logits")
        }
        if self.answerability:
            losses["null_logits"] = AnswerabilityLoss(
                self.answerable_weight, reduction=reduction
            )
        return losses

    def decode(
        self, outputs: Sequence[dict], rows: Rows, examples: Sequence[Question]
    ) -> list[Answer]:
        """The best candidates of all windows, and the least null odds of them."""
        windows = collections.defaultdict(list)
        for row, output in enumerate(outputs):
            notes = {name: rows.notes[name][row] for name in _NOTES}
            windows[rows.example[row]].append((output, notes))
        return [
            Answer(
                best_candidates(
                    windows[number],
                    example.context,
                    max_answer_length=self.max_answer_length,
                    n_best=self.n_best,
                ),
                min(float(out.get("null_logits", 0.0)) for out, _ in windows[number]),
            )
            for number, example in enumerate(examples)
        ]

    def score(
        self, answers: Sequence[Answer], examples: Sequence[Question]
    ) -> dict[str, float]:
        """The official scores of SQuAD 1.1 or 2.0; see `squad_metrics`."""
        texts = [answer.text for answer in answers]
        right = [example.texts for example in examples]
        if self.unanswerable:
            odds = [answer.null_odds for answer in answers]
            scores = score_v2(texts, odds, right, self.null_threshold)
        else:
            scores = score_v1(texts, right)
        return {
            name: value if name.endswith("threshold") else 100 * value
            for name, value in scores.items()
        }

    def baseline(
        self, train_examples: Sequence[Question], examples: Sequence[Question]
    ) -> dict[str, float]:
        """Scores of no answer to every question."""
        return self.score([Answer((NOTHING,), 0.0)] * len(examples), examples)

    def failure(self, answers, scores, baseline) -> str:
        """No answer to any question, or an F1 that is not above the baseline's."""
        if not any(answer.text for answer in answers):
            return "answers nothing to every question"
        if self.unanswerable and all(
            answer.null_odds > self.null_threshold for answer in answers
        ):
            return "says that no question has an answer"
        if scores["f1"] > baseline["f1"]:
            return ""
        return f"f1 {scores['f1']:.2f} is not above the baseline {baseline['f1']:.2f}"

    def write(self, answers: Sequence[Answer], examples: Sequence[Question], path: str):
        """Writes predictions, nbest_predictions and null_odds, JSON by question id.

        The layouts of the official scripts. The text in predictions is the best one
        also where null_odds says that there is none: the script for SQuAD 2.0 is given
        both files, and a threshold.
        """
        names = [example.id for example in examples]
        write_predictions(names, answers, path, null_odds=self.answerability)

    def submit(self, answers, examples, split, folder):
        """Writes predictions with "" where there is no answer, for SQuAD 2.0."""
        if not self.unanswerable:
            return None
        names = [example.id for example in examples]
        path = str(Path(folder) / f"{split}.json")
        write_decisions(names, answers, path, self.null_threshold)
        return path

    def picture(self, answers, examples, folder):
        """Draws the scores over the threshold, for SQuAD 2.0."""
        if not self.unanswerable:
            return None
        odds = np.array([answer.null_odds for answer in answers])
        thresholds = np.unique(np.quantile(odds, np.linspace(0, 1, 101)))
        raw, answerable = raw_scores_v2(
            [answer.text for answer in answers], [e.texts for e in examples]
        )
        curves = {
            name: [
                100 * decided(values, odds, answerable, t).mean() for t in thresholds
            ]
            for name, values in raw.items()
        }
        return plots.threshold_curves(thresholds, curves, self.null_threshold, folder)

    def serving_inputs(self, tokenizer: Any, max_seq_length: int, **texts: Any) -> dict:
        """Windows of `question` and `context`, string [B]."""
        context = tf.strings.unicode_transcode(
            texts["context"], "UTF-8", "UTF-8", replacement_char=0xFFFD
        )
        windows = self._windows(tokenizer, max_seq_length)
        return {**windows.tensors(texts["question"], context), "context": context}

    def serving_outputs(self, outputs: dict, inputs: dict) -> dict:
        """Answer, start, end, score; with answerability null_odds, answerable; [B].

        Start and end count the characters (code points) of the context. The answer is
        the best one also where `answerable` is false.
        """
        found = best_span(outputs, inputs, self.max_answer_length)
        begin = tf.maximum(found["start"], 0)
        size = tf.maximum(found["end"], 0) - begin
        # A start behind the last character is an error, even with nothing to take.
        padded = tf.strings.join([inputs["context"], tf.constant(" ")])
        found["answer"] = tf.strings.substr(padded, begin, size, unit="UTF8_CHAR")
        if self.answerability:
            odds = tf.math.segment_min(outputs["null_logits"], inputs["example"])
            found["null_odds"] = odds
            found["answerable"] = odds <= self.null_threshold
        return found

    def serving_id_outputs(self, outputs: dict, inputs: dict) -> dict:
        """The beam of each row, as the head gives it; see `SpanHead.call`."""
        return outputs

    def comparable(self, outputs: dict, length: int) -> dict[str, np.ndarray]:
        """Probability of every pair: where in the beam it is depends on rounding."""
        found = {"pairs": pair_probabilities(outputs, length)}
        if self.answerability:
            found["null_logits"] = outputs["null_logits"]
        return found

    def to_json(self) -> dict[str, Any]:
        """What must be known to use the model later."""
        described = dataclasses.asdict(dataclasses.replace(self, source=None))
        left_out = ("name", "source", "epochs", "eval_splits", "test_splits")
        return {
            "task": self.name,
            "kind": "question_answering",
            "text_names": list(self.text_names),
            **{
                name: value for name, value in described.items() if name not in left_out
            },
        }

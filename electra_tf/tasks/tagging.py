"""Tagging: one label per word, such as chunks, entities and parts of speech.

A word's tag is predicted at its first piece. Scores are in percent.

Letters: B batch, S sequence, W words.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from electra_tf.tasks import metrics, plots
from electra_tf.tasks.base import Ragged, Rows, Task
from electra_tf.tasks.heads import TaskModel
from electra_tf.tasks.tag_sets import TagSet
from electra_tf.tasks.tagging_files import Sentence
from electra_tf.tasks.tagging_head import (
    TaggingHead,
    WordMean,
    position_outputs,
    word_outputs,
)
from electra_tf.tasks.tagging_metrics import span_scores, word_accuracy
from electra_tf.tasks.word_pieces import word_rows, word_tensors

# The mean is over words: one over the padded batch would depend on the padding.
_LOSSES = {
    "sum": lambda: keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="sum"
    ),
    "mean": WordMean,
}


@dataclasses.dataclass(frozen=True)
class TaggedWords:
    """Answer to a sentence.

    Attributes:
        tags: W tags; None for words that were cut off.
        probabilities: Of each tag, float32 [W]; 0 for words that no piece stands for.
    """

    tags: tuple[str | None, ...]
    probabilities: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """One tag per word.

    Attributes:
        name: Name on the command line and in files.
        source: Reads a split.
        main_metric: "f1" of the spans that B-, I-, E- and S- tags form, or "accuracy".
        encoding: What is learned: "given", the tags as they are, or "bioes", their
            spans as BIOES. The answers are then IOB2, unless the data is BIOES too.
        long_sentences: "split": one that is too long becomes several rows. "truncate":
            the words that do not fit are left out, and count as wrong.
        unknown_tags: "error": evaluation data must not have tags (with spans: types)
            that the training data lacks. "allow": they count as wrong.
        dropout: Dropout rate before the linear layer; the original code has none.
        max_seq_length: Default length.
        eval_splits: Splits with tags; the first one decides.
        test_splits: Splits to predict.
        tags: What is learned and answered; None until `prepare`.
    """

    name: str
    source: Callable[[str], list[Sentence]]
    main_metric: Literal["f1", "accuracy"] = "f1"
    encoding: Literal["given", "bioes"] = "given"
    long_sentences: Literal["split", "truncate"] = "split"
    unknown_tags: Literal["error", "allow"] = "error"
    dropout: float = 0.1
    max_seq_length: int = 256
    eval_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    tags: TagSet | None = None

    splits_long = True

    def examples(self, split: str) -> list[Sentence]:
        """Reads a split; see `Task.examples`."""
        return self.source(split)

    def prepare(self, train_examples: Sequence[Sentence]) -> Tagging:
        """The task with the tags that occur.

        Raises:
            ValueError: There is only one, or spans are asked for and these are none.
        """
        if self.tags is not None:
            return self
        tags = TagSet.of(
            [example.tags for example in train_examples],
            span_tags=self._spans,
            encoding=self.encoding,
        )
        return dataclasses.replace(self, tags=tags)

    @property
    def _spans(self) -> bool:
        return self.main_metric == "f1"

    def featurize(
        self,
        examples: Sequence[Sentence],
        tokenizer: Any,
        max_seq_length: int,
        *,
        training: bool = False,
    ) -> Rows:
        """One row per sentence, several for one that is too long.

        Raises:
            ValueError: A tag is unknown, see `unknown_tags`; with spans, it is none.
        """
        found = word_rows(
            [example.words for example in examples],
            tokenizer,
            max_seq_length,
            split=self.long_sentences == "split",
        )
        ids = found.input_ids
        zeros = Ragged(np.zeros_like(ids.values), ids.splits)
        inputs = {"input_ids": ids, "segment_ids": zeros}
        pad_id = tokenizer.vocabulary.pad_id
        if not training:
            self.tags.check(
                examples, span_tags=self._spans, unknown=self.unknown_tags == "allow"
            )
            notes = {"word": found.word, "end": found.end}
            return Rows(inputs, {}, found.sentence, pad_id=pad_id, notes=notes)
        first = found.word.values >= 0
        return Rows(
            inputs,
            {"tag": Ragged(self._targets(examples, found), ids.splits)},
            found.sentence,
            Ragged(first.astype(np.float32), ids.splits),
            pad_id,
        )

    def _targets(self, examples, found):
        index = {tag: number for number, tag in enumerate(self.tags.learned)}
        tags = [[index[t] for t in self.tags.learn(e.tags)] for e in examples]
        starts = np.cumsum([0, *map(len, tags)])
        word = found.word.values
        owner = np.repeat(found.sentence, found.word.lengths)
        flat = np.concatenate(tags).astype(np.int32)
        return np.where(word >= 0, flat[starts[owner] + np.maximum(word, 0)], 0)

    def build_model(self, encoder: Any) -> TaskModel:
        """Encoder, dropout, one linear layer per position: ready for `fit`."""
        head = TaggingHead(
            encoder.hidden_size,
            len(self.tags.learned),
            dropout=self.dropout,
            dtype=encoder.dtype_policy,
            name="tagging_head",
        )
        model = TaskModel(encoder, head, name=self.name.replace("-", "_"))
        model.compile(
            optimizer=keras.optimizers.AdamW(
                1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
            ),
            loss=self.loss(),
            weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
        return model

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        """Cross-entropy at first pieces: the sum over words, or the mean.

        Raises:
            ValueError: `reduction` is neither "sum" nor "mean".
        """
        if reduction not in _LOSSES:
            raise ValueError(f"reduction is {reduction!r}; allowed are sum and mean.")
        return _LOSSES[reduction]()

    def decode(
        self, outputs: Sequence[np.ndarray], rows: Rows, examples: Sequence[Sentence]
    ) -> list[TaggedWords]:
        """Tags of each sentence, in the scheme of the data."""
        tags: list[list[str | None]] = [[None] * len(e.words) for e in examples]
        values = [np.zeros(len(example.words), np.float32) for example in examples]
        for row, logits in enumerate(outputs):
            sentence, word = rows.example[row], rows.notes["word"][row]
            at = np.flatnonzero(word >= 0)
            probabilities = tf.nn.softmax(logits[at]).numpy()
            values[sentence][word[at]] = probabilities.max(axis=1)
            for position, best in zip(word[at], probabilities.argmax(1), strict=True):
                tags[sentence][position] = self.tags.learned[best]
            end = rows.notes["end"][row]
            tags[sentence][:end] = [
                tag or self.tags.fallback for tag in tags[sentence][:end]
            ]
        return [
            TaggedWords(tuple(self.tags.answer(found)), probabilities)
            for found, probabilities in zip(tags, values, strict=True)
        ]

    def score(
        self, answers: Sequence[TaggedWords], examples: Sequence[Sentence]
    ) -> dict[str, float]:
        """Scores in percent, and how many words were cut off or have no piece."""
        labels = [example.tags for example in examples]
        found = [answer.tags for answer in answers]
        cut = sum(tags.count(None) for tags in found)
        unread = sum(int(np.sum(answer.probabilities == 0)) for answer in answers)
        shares = span_scores(labels, found) if self._spans else {}
        shares["accuracy"] = word_accuracy(labels, found)
        return {
            **{name: 100 * share for name, share in shares.items()},
            "words_cut": float(cut),
            "words_without_pieces": float(unread - cut),
        }

    def baseline(
        self, train_examples: Sequence[Sentence], examples: Sequence[Sentence]
    ) -> dict[str, float]:
        """Scores of each word's most frequent tag; of the most frequent one if new.

        More than an answer that does not look at the text: for tags, that would be no
        opponent.
        """
        counts = collections.defaultdict(collections.Counter)
        for example in train_examples:
            for word, tag in zip(example.words, example.tags, strict=True):
                counts[word][tag] += 1
                counts[None][tag] += 1
        best = {word: found.most_common(1)[0][0] for word, found in counts.items()}
        return self.score(
            [
                TaggedWords(
                    tuple(best.get(word, best[None]) for word in example.words),
                    np.ones(len(example.words), np.float32),
                )
                for example in examples
            ],
            examples,
        )

    def failure(self, answers, scores, baseline) -> str:
        """One tag for every word, or a main score of zero."""
        found = {tag for answer in answers for tag in answer.tags} - {None}
        if len(found) == 1:
            return f"answers {found.pop()} to every word"
        if scores[self.main_metric] > 0:
            return ""
        return f"{self.main_metric} is 0"

    def write(
        self, answers: Sequence[TaggedWords], examples: Sequence[Sentence], path: str
    ):
        """Writes the input's lines with the predicted tag as last column.

        The end of the name becomes .conll. A word that was cut off gets O with spans,
        else _.
        """
        missing = "O" if self._spans else "_"
        with open(
            Path(path).with_suffix(".conll"), "w", encoding="utf-8", newline="\n"
        ) as file:
            for example, answer in zip(examples, answers, strict=True):
                cells = [missing if tag is None else tag for tag in answer.tags]
                file.writelines(f"{line}\n" for line in example.with_column(cells))
                file.write("\n")

    def picture(self, answers, examples, folder):
        """Draws the confusion matrix of the words' tags."""
        pairs = [
            pair
            for example, answer in zip(examples, answers, strict=True)
            for pair in zip(example.tags, answer.tags, strict=True)
            if pair[1] is not None
        ]
        names = sorted({tag for pair in pairs for tag in pair})
        index = {tag: number for number, tag in enumerate(names)}
        coded = np.array([[index[gold], index[found]] for gold, found in pairs])
        counts = metrics.confusion_matrix(coded[:, 0], coded[:, 1], len(names))
        return plots.confusion_matrix(counts, names, folder)

    def serving_inputs(self, tokenizer: Any, max_seq_length: int, **texts: Any) -> dict:
        """Model inputs and words of `text`, string [B], with spaces between words.

        Long sentences are always split.
        """
        return word_tensors(tokenizer, texts["text"], max_seq_length)

    def serving_outputs(self, outputs: tf.Tensor, inputs: dict) -> dict:
        """Words, tags and probabilities [B, W], padded; and num_words [B]."""
        return word_outputs(outputs, inputs, self.tags)

    def serving_id_outputs(self, outputs: tf.Tensor, inputs: dict) -> dict:
        """Tags (as learned) and probabilities at every position, [B, S]."""
        return position_outputs(outputs, self.tags)

    def to_json(self) -> dict[str, Any]:
        """What must be known to use the model later."""
        return {
            "task": self.name,
            "kind": "tagging",
            "text_names": list(self.text_names),
            "labels": None if self.tags is None else list(self.tags.learned),
            "main_metric": self.main_metric,
            "encoding": self.encoding,
            "long_sentences": self.long_sentences,
        }

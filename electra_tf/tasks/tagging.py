"""Token classification, such as chunking, NER and part-of-speech tagging.

Tags are predicted at the first word piece of a word. Scores are in percent.
Letters: B texts or batch, R rows, S sequence, W words, C tags.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from electra_tf import files
from electra_tf.data.tokenizer import WordPiece, string_tensor
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.losses import token_cross_entropy, weighted_mean
from electra_tf.layers.weights import check_choice
from electra_tf.tasks import metrics
from electra_tf.tasks.base import Ragged, Rows, Scores, Task
from electra_tf.tasks.encoding import Columns, in_batches, pack, padded, windows
from electra_tf.tasks.heads import TaggingHead, Tensors
from electra_tf.tasks.sentences import Sentence, is_span_tag, spans, tag_counts

Sentences = Sequence[Sentence]


@keras.saving.register_keras_serializable(package="electra_tf")
class WordMean(keras.losses.Loss):
    """Cross-entropy averaged over the words (sample weight > 0) of all replicas."""

    def __init__(self, name: str = "word_mean"):
        super().__init__(name=name, reduction="none")

    def __call__(
        self,
        y_true: tf.Tensor,
        y_pred: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns this replica's share of the mean; labels and weights are [B, S]."""
        values = token_cross_entropy(y_pred, tf.cast(y_true, tf.int32))
        weights = tf.ones_like(values) if sample_weight is None else sample_weight
        return weighted_mean(values, weights)

    def get_config(self) -> dict[str, Any]:
        """Returns the name; ``reduction`` is not an argument."""
        return {"name": self.name}


@dataclasses.dataclass(frozen=True)
class TaggedWords:
    """Tags and probabilities (0 without word pieces) of W words."""

    tags: tuple[str, ...]
    probabilities: np.ndarray


Answers = Sequence[TaggedWords]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """Token classification with one tag per word.

    Attributes:
        main_metric: "f1" of the spans of B-, I-, E- and S- tags, or "accuracy".
        dropout: rate before the linear layer; the original code has no dropout.
        labels: tags in the order of the model's outputs; None until ``prepare``. Other
            tags in evaluation data count as wrong.
        fallback: tag of words without word pieces: O, or the most frequent tag.

    Examples:
        >>> et.tasks.Tagging(name="people", source=None).main_metric
        'f1'
    """

    name: str
    source: Callable[[str], list[Sentence]]
    main_metric: Literal["f1", "accuracy"] = "f1"
    dropout: float = 0.1
    max_seq_length: int = 256
    eval_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    labels: tuple[str, ...] | None = None
    fallback: str = "O"

    kind = "tagging"
    splits_long = True

    def __post_init__(self) -> None:
        check_choice("main_metric", self.main_metric, ("f1", "accuracy"))

    def prepare(self, train_examples: Sentences) -> Tagging:
        if self.labels is not None:
            return self
        self._check(train_examples)
        counts = collections.Counter(t for e in train_examples for t in e.tags)
        if len(counts) < 2:
            raise UserError(f"All tags are {max(counts)!r}: there is nothing to learn.")
        fallback = "O" if "O" in counts else counts.most_common(1)[0][0]
        labels = tuple(sorted(counts))
        return dataclasses.replace(self, labels=labels, fallback=fallback)

    def _check(self, examples: Sentences) -> None:
        """Raises ValueError if spans are scored and a tag is not a span tag."""
        for example in examples:
            for tag in example.tags or ():
                if self.main_metric == "f1" and not is_span_tag(tag):
                    raise UserError(
                        f"Sentence {example.id} has the tag {tag!r} in place of O, "
                        "B-X, I-X, E-X or S-X: correct it, or use --task=pos."
                    )

    @property
    def num_outputs(self) -> int:
        return len(self.labels)

    def featurize(
        self,
        examples: Sentences,
        tokenizer: WordPiece,
        max_seq_length: int,
        *,
        training: bool = False,
    ) -> Rows:
        words = [example.words for example in examples]
        rows = word_rows(words, tokenizer, max_seq_length)
        if not training:
            self._check(examples)
            return rows
        tags = Ragged.of([self._indices(example) for example in examples])
        word, splits = rows.notes["word"].values, rows.notes["word"].splits
        is_word = word >= 0
        starts = np.repeat(tags.splits[rows.example], rows.lengths)
        values = np.where(is_word, tags.values[starts + np.maximum(word, 0)], 0)
        targets = {"tag": Ragged(values, splits)}
        weights = Ragged(is_word.astype(np.float32), splits)
        return dataclasses.replace(rows, targets=targets, weights=weights, notes={})

    def _indices(self, example: Sentence) -> list[int]:
        tags = example.tags or ()
        if len(tags) != len(example.words):
            raise UserError(
                f"Sentence {example.id} has {len(example.words)} words but {len(tags)} "
                "tags."
            )
        if unknown := {*tags} - {*self.labels}:
            raise UserError(
                f"Sentence {example.id} has the tag {min(unknown)!r}, but the task has "
                f"{', '.join(self.labels)}."
            )
        return [self.labels.index(tag) for tag in tags]

    def head(self, encoder: TextEncoder) -> TaggingHead:
        return TaggingHead(
            encoder.hidden_size,
            self.num_outputs,
            dropout=self.dropout,
            dtype=encoder.dtype_policy,
            name="tagging_head",
        )

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        check_choice("reduction", reduction, ("sum", "mean"))
        if reduction == "mean":
            # Keras's mean includes padding, so it would depend on the padded length.
            return WordMean()
        cross_entropy = keras.losses.SparseCategoricalCrossentropy
        return cross_entropy(from_logits=True, reduction=reduction)

    def decode(
        self, outputs: Sequence[np.ndarray], rows: Rows, examples: Sentences
    ) -> Answers:
        tags = [[self.fallback] * len(example.words) for example in examples]
        values = [np.zeros(len(example.words), np.float32) for example in examples]
        for row, logits in enumerate(outputs):
            sentence, word = rows.example[row], rows.notes["word"][row]
            at = np.flatnonzero(word >= 0)
            probabilities = tf.nn.softmax(logits[at]).numpy()
            values[sentence][word[at]] = probabilities.max(axis=1)
            for position, best in zip(word[at], probabilities.argmax(1), strict=True):
                tags[sentence][position] = self.labels[best]
        return list(map(TaggedWords, map(tuple, tags), values))

    def scorer(self, answers: Answers, examples: Sentences) -> metrics.Scorer:
        counts = tag_counts([e.tags for e in examples], [a.tags for a in answers])

        def scores(rows: np.ndarray) -> Scores:
            sums = counts[rows].sum(0)
            shares = metrics.precision_recall_f1(sums[2:])
            shares["accuracy"] = float(sums[0] / max(sums[1], 1))
            of_spans = ("f1", "precision", "recall") if self.main_metric == "f1" else ()
            return {name: 100 * shares[name] for name in (*of_spans, "accuracy")}

        return scores

    def majority(self, train_examples: Sentences, examples: Sentences) -> Answers:
        """Returns each word's most frequent tag, or the overall one."""
        counts = collections.defaultdict(collections.Counter)
        for example in train_examples:
            for word, tag in zip(example.words, example.tags, strict=True):
                counts[word][tag] += 1
                counts[None][tag] += 1
        best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
        tags = [tuple(best.get(w, best[None]) for w in e.words) for e in examples]
        sure = (np.ones(len(each), np.float32) for each in tags)
        return list(map(TaggedWords, tags, sure))

    def details_of(self, answers: Answers, examples: Sentences) -> dict[str, Any]:
        """Returns scores per span type or tag, and the calibration error of words."""

        def items(tags: Sequence[str]) -> set[tuple]:
            if self.main_metric == "f1":
                return {(kind or "span", *ends) for kind, *ends in spans(tags)}
            return {(tag, place) for place, tag in enumerate(tags)}

        counts = collections.defaultdict(lambda: np.zeros(3, np.int64))
        right: list[bool] = []
        for example, answer in zip(examples, answers, strict=True):
            wanted, given = items(example.tags), items(answer.tags)
            for column, found in enumerate((wanted & given, wanted, given)):
                for kind, *_ in found:
                    counts[kind][column] += 1
            right += map(operator.eq, example.tags, answer.tags)
        probabilities = np.concatenate([answer.probabilities for answer in answers])
        error = metrics.calibration_error(right, probabilities)
        classes = {n: metrics.precision_recall_f1(x) for n, x in sorted(counts.items())}
        return {"classes": classes, "calibration_error": error}

    def failure(self, answers: Any, scores: Scores, baseline: Scores) -> str:
        return "" if scores[self.main_metric] > 0 else f"{self.main_metric} is 0"

    def write(self, answers: Answers, examples: Sentences, path: str) -> None:
        """Writes columns of words, tags if known, and predicted tags, as .conll."""
        with files.open_new(Path(path).with_suffix(".conll")) as file:
            for example, answer in zip(examples, answers, strict=True):
                known = [] if example.tags is None else [example.tags]
                columns = zip(example.words, *known, answer.tags, strict=True)
                file.writelines("\t".join(cells) + "\n" for cells in columns)
                file.write("\n")

    def serving_inputs(
        self, tokenizer: WordPiece, max_seq_length: int, **texts: tf.Tensor
    ) -> Tensors:
        """Tokenizes ``text`` [B], in which white space separates the words.

        Adds words (string [B, W], padded with "") and num_words, int32 [B], to the
        padded ``word_columns``.
        """
        words = tf.strings.split(texts["text"])  # [B, W], ragged
        columns = word_columns(tokenizer, words, max_seq_length)
        return {
            **padded(columns, input_ids=tokenizer.vocabulary.pad_id, word=-1),
            "words": words.to_tensor(""),
            "num_words": tf.cast(words.row_lengths(), tf.int32),
        }

    def serving_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Returns padded words, tags and probabilities [B, W], and num_words [B]."""
        words, num_words = inputs["words"], inputs["num_words"]
        place = tf.where(inputs["word"] >= 0)  # Row and position of N words.
        sentence = tf.gather(inputs["example"], place[:, 0])
        word = tf.cast(tf.gather_nd(inputs["word"], place), tf.int64)
        target = tf.stack([sentence, word], axis=1)
        answers = self.serving_id_outputs(tf.gather_nd(outputs, place), inputs)
        # Words without word pieces keep the fallback and probability 0.
        real = tf.sequence_mask(num_words, tf.shape(words)[1])
        tags = tf.where(real, self.fallback, "")
        zeros = tf.zeros_like(words, tf.float32)
        return {
            "words": words,
            "num_words": num_words,
            "tags": tf.tensor_scatter_nd_update(tags, target, answers["tags"]),
            "probabilities": tf.tensor_scatter_nd_update(
                zeros, target, answers["probabilities"]
            ),
        }

    def serving_id_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Returns tags and probabilities, [...], of logits [..., C]."""
        probabilities = tf.nn.softmax(outputs)
        return {
            "tags": tf.gather(tf.constant(self.labels), tf.argmax(probabilities, -1)),
            "probabilities": tf.reduce_max(probabilities, -1),
        }


def word_rows(
    sentences: Sequence[Sequence[str]], tokenizer: WordPiece, max_seq_length: int
) -> Rows:
    """Packs words into rows with the note ``word`` of ``word_columns``."""

    def encode(batch: Sequence[Sequence[str]]) -> Columns:
        words = tf.RaggedTensor.from_row_lengths(
            string_tensor(itertools.chain(*batch)), list(map(len, batch))
        )
        return word_columns(tokenizer, words, max_seq_length)

    return in_batches(encode, sentences, tokenizer)


def word_columns(
    tokenizer: WordPiece, words: tf.RaggedTensor, max_seq_length: int
) -> Columns:
    """Fills rows with the word pieces of words, string [B, W]: [CLS] pieces [SEP].

    ``word``, int32, is the index of the word at its first piece, else -1.
    """
    if max_seq_length < 3:
        raise UserError(f"max_seq_length is {max_seq_length}; set at least 3.")
    pieces = tokenizer.tokenize(words.values)
    number = tf.ragged.range(tf.cast(words.row_lengths(), tf.int32)).values
    is_first = tf.ragged.range(pieces.row_lengths()).values == 0
    word = tf.where(is_first, tf.gather(number, pieces.value_rowids()), -1)
    splits = tf.gather(pieces.row_splits, words.row_splits)
    sentences = tf.RaggedTensor.from_row_splits(pieces.values, splits)
    room = max_seq_length - 2
    place, example = windows(sentences, room, stride=room)
    segments = [tf.gather(pieces.values, place)]
    input_ids, segment_ids = pack(segments, tokenizer.vocabulary, max_seq_length)
    around = tf.fill([tf.size(example), 1], -1)
    return {
        "input_ids": input_ids,
        "segment_ids": segment_ids,
        "word": tf.concat([around, tf.gather(word, place), around], axis=1),
        "example": example,
    }

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
import tensorflow_text as tf_text

from electra_tf import files
from electra_tf.data.tokenizer import WordPiece, string_tensor
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.losses import token_cross_entropy, weighted_mean
from electra_tf.layers.weights import check_choice
from electra_tf.tasks import metrics
from electra_tf.tasks.base import Ragged, Rows, Scores, Task
from electra_tf.tasks.encoding import Columns, in_batches, padded
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
        for example in examples if self._spans else ():
            for tag in example.tags or ():
                if not is_span_tag(tag):
                    raise UserError(
                        f"Sentence {example.id} has the tag {tag!r} in place of O, "
                        "B-X, I-X, E-X or S-X: correct it, or use --task=pos."
                    )

    @property
    def num_outputs(self) -> int:
        return len(self.labels)

    @property
    def _spans(self) -> bool:
        return self.main_metric == "f1"

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
            shares = metrics.precision_recall_f1(sums[2:]) if self._spans else {}
            shares["accuracy"] = float(sums[0] / max(sums[1], 1))
            return {name: 100 * share for name, share in shares.items()}

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
            if self._spans:
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
        classes = {
            kind: metrics.precision_recall_f1(row) | {"support": int(row[1])}
            for kind, row in sorted(counts.items())
        }
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
        inputs of the encoder. word_row and word_position locate the first word piece of
        each word, int64 [B, W]; the position of a word without word pieces is 0.
        """
        words = tf.strings.split(texts["text"])  # [B, W], ragged
        input_ids, row, position, _ = _pack(tokenizer, words, max_seq_length)
        columns = {"input_ids": input_ids, "segment_ids": tf.zeros_like(input_ids)}
        return {
            **padded(columns, input_ids=tokenizer.vocabulary.pad_id),
            "words": words.to_tensor(""),
            "num_words": tf.cast(words.row_lengths(), tf.int32),
            "word_row": row.to_tensor(0),
            "word_position": position.to_tensor(0),
        }

    def serving_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Returns padded words, tags and probabilities [B, W], and num_words [B]."""
        place = tf.stack([inputs["word_row"], inputs["word_position"]], axis=-1)
        answers = self.serving_id_outputs(tf.gather_nd(outputs, place), inputs)
        # Words without word pieces have position 0, the position of [CLS].
        read = inputs["word_position"] > 0
        tags = tf.where(read, answers["tags"], self.fallback)
        real = tf.sequence_mask(inputs["num_words"], tf.shape(tags)[1])
        return {
            "words": inputs["words"],
            "num_words": inputs["num_words"],
            "tags": tf.where(real, tags, ""),
            "probabilities": tf.where(read, answers["probabilities"], 0.0),
        }

    def serving_id_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Returns tags and probabilities, [B, S], of logits [B, S, C]."""
        probabilities = tf.nn.softmax(outputs)
        return {
            "tags": tf.gather(tf.constant(self.labels), tf.argmax(probabilities, -1)),
            "probabilities": tf.reduce_max(probabilities, -1),
        }


def word_rows(
    sentences: Sequence[Sequence[str]], tokenizer: WordPiece, max_seq_length: int
) -> Rows:
    """Packs words into rows: [CLS] word pieces [SEP].

    The note ``word`` is the index of the word in its sentence at first word pieces,
    else -1, int32.
    """

    def encode(batch: Sequence[Sequence[str]]) -> Columns:
        words = tf.RaggedTensor.from_row_lengths(
            string_tensor(itertools.chain(*batch)), list(map(len, batch))
        )
        input_ids, row, position, num_rows = _pack(tokenizer, words, max_seq_length)
        at = position.values > 0  # [words of the batch]
        places = tf.gather(input_ids.row_starts(), row.values) + position.values
        number = tf.ragged.range(words.row_lengths()).values
        word = np.full(input_ids.values.shape, -1, np.int32)
        word[places[at].numpy()] = number[at].numpy()
        return {
            "input_ids": input_ids,
            "segment_ids": tf.zeros_like(input_ids),
            "word": input_ids.with_values(tf.constant(word)),
            "example": tf.repeat(tf.range(words.nrows(tf.int64)), num_rows),
        }

    inputs = in_batches(encode, sentences)
    example, notes = inputs.pop("example"), {"word": inputs.pop("word")}
    return Rows(inputs, {}, example, pad_id=tokenizer.vocabulary.pad_id, notes=notes)


def _pack(
    tokenizer: WordPiece, words: tf.RaggedTensor, max_seq_length: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]:
    """Fills rows with the word pieces of sentences of words, string [B, W].

    Returns input_ids [R, None], row and position of the first word piece of each word,
    int64 [B, W], and the number of rows of each sentence, int64 [B].
    """
    limit = max_seq_length - 2
    if limit < 1:
        raise UserError(f"max_seq_length is {max_seq_length}; set at least 3.")
    pieces = tokenizer.tokenize(words.values)
    splits = tf.gather(pieces.row_splits, words.row_splits)  # Of the sentences.
    length = splits[1:] - splits[:-1]
    num_rows = 1 + tf.maximum(length - 1, 0) // limit
    number = tf.ragged.range(num_rows).values
    size = tf.minimum(tf.repeat(length, num_rows) - number * limit, limit)
    body = tf.RaggedTensor.from_row_lengths(pieces.values, size)
    special = tokenizer.vocabulary.cls_id, tokenizer.vocabulary.sep_id
    input_ids, _ = tf_text.combine_segments([body], *special)

    sentence = words.value_rowids()
    place = pieces.row_starts() - tf.gather(splits, sentence)
    # Also for words without word pieces, which may follow a full row.
    row = tf.minimum(place // limit, tf.gather(num_rows, sentence) - 1)
    row += tf.gather(tf.cumsum(num_rows, exclusive=True), sentence)
    first = tf.where(pieces.row_lengths() > 0, 1 + place % limit, 0)
    return input_ids, words.with_values(row), words.with_values(first), num_rows

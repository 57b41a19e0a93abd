"""Token classification, such as chunking, NER and part-of-speech tagging.

Tags are predicted at the first word piece of a word. Scores are in percent.

Letters: B texts or batch, R rows, S sequence, W words, C tags.
"""

from __future__ import annotations

import collections
import dataclasses
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from electra_tf import files
from electra_tf.data.tokenizer import WordPiece
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.losses import token_cross_entropy, weighted_mean
from electra_tf.tasks import metrics, plots
from electra_tf.tasks.base import Ragged, Rows, Scores, Task, keras_reduction
from electra_tf.tasks.encoding import padded
from electra_tf.tasks.heads import TaggingHead, Tensors
from electra_tf.tasks.sentences import (
    Sentence,
    TagSet,
    span_counts,
    span_shares,
    spans,
    word_counts,
)

Sentences = Sequence[Sentence]


@keras.saving.register_keras_serializable(package="electra_tf")
class WordMean(keras.losses.Loss):
    """Cross-entropy averaged over the words of the batch.

    Words are positions with a positive sample weight. Unlike Keras's reductions, the
    mean is over the words of all replicas.
    """

    def __init__(self, name: str = "word_mean"):
        super().__init__(name=name, reduction="none")

    def __call__(
        self,
        y_true: tf.Tensor,
        y_pred: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns this replica's share of the mean; labels and weights are [B, S]."""
        values = self.call(y_true, y_pred)
        weights = tf.ones_like(values) if sample_weight is None else sample_weight
        return weighted_mean(values, weights)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the cross-entropy of each position, [B, S]."""
        return token_cross_entropy(y_pred, tf.cast(y_true, tf.int32))

    def get_config(self) -> dict[str, Any]:
        """Returns the name; ``reduction`` is not an argument."""
        return {"name": self.name}


@dataclasses.dataclass(frozen=True)
class TaggedWords:
    """Tags and probabilities (0 without word pieces) of W words."""

    tags: tuple[str, ...]
    probabilities: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    r"""Token classification with one tag per word.

    See ``Task`` for the other fields.

    Attributes:
        main_metric: "f1" of the spans of B-, I-, E- and S- tags, or "accuracy".
        encoding: tags to train on: "given", or "bioes" to convert spans to BIOES.
            Predictions are then IOB2, or BIOES if the data is.
        unknown_tags: "error" rejects evaluation tags (span types for "f1") that are not
            in the training data. "allow" counts them as wrong.
        dropout: rate before the linear layer; the original code has no dropout.
        tags: tag set of the model; None until ``prepare``.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("train.conll").write_text("Ada B-PER\nwrote O\n\nIt O\nran O\n")
        >>> source = et.tasks.SentenceSource(
        ...     files={"train": "train.conll"}, word_column="0", tag_column="-1"
        ... )
        >>> et.tasks.Tagging(name="people", source=source).main_metric
        'f1'
    """

    name: str
    source: Callable[[str], list[Sentence]]
    main_metric: Literal["f1", "accuracy"] = "f1"
    encoding: Literal["given", "bioes"] = "given"
    unknown_tags: Literal["error", "allow"] = "error"
    dropout: float = 0.1
    max_seq_length: int = 256
    eval_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    tags: TagSet | None = None

    kind = "tagging"
    splits_long = True

    def prepare(self, train_examples: Sentences) -> Tagging:
        """Returns the task with the tags of the training data; see ``TagSet.of``."""
        if self.tags is not None:
            return self
        tags = [example.tags for example in train_examples]
        learned = TagSet.of(tags, span_tags=self._spans, encoding=self.encoding)
        return dataclasses.replace(self, tags=learned)

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
        """Tokenizes each sentence to one row, or to several if it is long."""
        words = [example.words for example in examples]
        pieces = word_rows(words, tokenizer, max_seq_length)
        ids = pieces.input_ids
        zeros = Ragged(np.zeros_like(ids.values), ids.splits)
        inputs = {"input_ids": ids, "segment_ids": zeros}
        pad_id = tokenizer.vocabulary.pad_id
        if not training:
            unknown = self.unknown_tags == "allow"
            self.tags.check(examples, span_tags=self._spans, unknown=unknown)
            notes = {"word": pieces.word}
            return Rows(inputs, {}, pieces.sentence, pad_id=pad_id, notes=notes)
        index = {tag: number for number, tag in enumerate(self.tags.learned)}
        tags = [[index[t] for t in self.tags.learn(e.tags)] for e in examples]
        flat = np.concatenate(tags).astype(np.int32)
        word, starts = pieces.word.values, np.cumsum([0, *map(len, tags)])
        owner = np.repeat(pieces.sentence, pieces.word.lengths)
        values = np.where(word >= 0, flat[starts[owner] + np.maximum(word, 0)], 0)
        targets = {"tag": Ragged(values, ids.splits)}
        weights = Ragged((word >= 0).astype(np.float32), ids.splits)
        return Rows(inputs, targets, pieces.sentence, weights, pad_id)

    def head(self, encoder: TextEncoder) -> TaggingHead:
        """Returns a new tagging head."""
        return TaggingHead(
            encoder.hidden_size,
            len(self.tags.learned),
            dropout=self.dropout,
            dtype=encoder.dtype_policy,
            name="tagging_head",
        )

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        """Returns the cross-entropy, a sum or mean over the words."""
        if keras_reduction(reduction) == "sum":
            return keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="sum"
            )
        # Keras's mean includes padding, so it would depend on the padded length.
        return WordMean()

    def keras_metrics(self) -> dict[str, list[keras.metrics.Metric]]:
        """Returns the accuracy over words."""
        accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        return {"weighted_metrics": [accuracy]}

    def decode(
        self, outputs: Sequence[np.ndarray], rows: Rows, examples: Sentences
    ) -> list[TaggedWords]:
        """Returns the tags of each sentence in the data's scheme."""
        tags = [[self.tags.fallback] * len(example.words) for example in examples]
        values = [np.zeros(len(example.words), np.float32) for example in examples]
        for row, logits in enumerate(outputs):
            sentence, word = rows.example[row], rows.notes["word"][row]
            at = np.flatnonzero(word >= 0)
            probabilities = tf.nn.softmax(logits[at]).numpy()
            values[sentence][word[at]] = probabilities.max(axis=1)
            for position, best in zip(word[at], probabilities.argmax(1), strict=True):
                tags[sentence][position] = self.tags.learned[best]
        answered = (tuple(self.tags.answer(learned)) for learned in tags)
        return list(map(TaggedWords, answered, values))

    def score(self, answers: Sequence[TaggedWords], examples: Sentences) -> Scores:
        """Returns the scores and the number of words without word pieces."""
        unread = sum(int(np.sum(answer.probabilities == 0)) for answer in answers)
        scores = super().score(answers, examples)
        return scores | {"words_without_pieces": float(unread)}

    def scorer(
        self, answers: Sequence[TaggedWords], examples: Sentences
    ) -> metrics.Scorer:
        """Returns a function from indices of sentences to their scores."""
        counts = self._counts(answers, examples)
        return lambda rows: self._shares(counts[rows].sum(0))

    def _counts(
        self, answers: Sequence[TaggedWords], examples: Sentences
    ) -> np.ndarray:
        """Returns word and span counts of each sentence, int64 [N, 2 or 5]."""
        both = [e.tags for e in examples], [answer.tags for answer in answers]
        more = [span_counts(*both)] if self._spans else []
        return np.concatenate([word_counts(*both), *more], axis=1)

    def _shares(self, counts: np.ndarray) -> Scores:
        """Returns the scores, in percent, of summed ``_counts``."""
        shares = span_shares(counts[2:]) if self._spans else {}
        shares["accuracy"] = float(counts[0] / max(counts[1], 1))
        return {name: 100 * share for name, share in shares.items()}

    def majority(
        self, train_examples: Sentences, examples: Sentences
    ) -> list[TaggedWords]:
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

    def distribution(self, examples: Sentences) -> dict[str, int]:
        """Returns the number of words per tag."""
        return dict(collections.Counter(tag for e in examples for tag in e.tags))

    def details_of(
        self, answers: Sequence[TaggedWords], examples: Sentences
    ) -> dict[str, Any]:
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
        return {
            "classes": {
                kind: span_shares(counts[kind]) | {"support": int(counts[kind][1])}
                for kind in sorted(counts)
            },
            "calibration_error": metrics.calibration_error(right, probabilities),
        }

    def failure(
        self, answers: Sequence[TaggedWords], scores: Scores, baseline: Scores
    ) -> str:
        """Reports a constant prediction or a main score of zero."""
        given = {tag for answer in answers for tag in answer.tags}
        if len(given) == 1:
            return f"answers {given.pop()} to every word"
        return "" if scores[self.main_metric] > 0 else f"{self.main_metric} is 0"

    def write(
        self, answers: Sequence[TaggedWords], examples: Sentences, path: str
    ) -> None:
        """Writes the input lines with the predicted tag as last column.

        The suffix becomes .conll.
        """
        with files.open_new(Path(path).with_suffix(".conll")) as file:
            for example, answer in zip(examples, answers, strict=True):
                lines = example.with_column(answer.tags)
                file.writelines(f"{line}\n" for line in lines)
                file.write("\n")

    def picture(
        self, answers: Sequence[TaggedWords], examples: Sentences, folder: str
    ) -> str:
        """Draws the confusion matrix of the tags."""
        pairs = [
            pair
            for example, answer in zip(examples, answers, strict=True)
            for pair in zip(example.tags, answer.tags, strict=True)
        ]
        names = sorted({tag for pair in pairs for tag in pair})
        return plots.confusion_matrix(*zip(*pairs, strict=True), names, folder)

    def serving_inputs(
        self, tokenizer: WordPiece, max_seq_length: int, **texts: tf.Tensor
    ) -> Tensors:
        """Tokenizes ``text``, [B], words separated by white space; splits long ones."""
        return word_tensors(tokenizer, texts["text"], max_seq_length)

    def serving_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Returns padded words, tags and probabilities [B, W], and num_words [B].

        Takes logits [R, S, C] and the output of ``word_tensors``.
        """
        place = tf.stack([inputs["word_row"], inputs["word_position"]], axis=-1)
        probabilities = tf.nn.softmax(tf.gather_nd(outputs, place))  # [B, W, C]
        # Words without word pieces have position 0, the position of [CLS].
        read = inputs["word_position"] > 0
        fallback = self.tags.learned.index(self.tags.fallback)
        best = tf.where(read, tf.argmax(probabilities, -1), fallback)
        # ``TagSet.answer`` as a lookup table by previous tag (0: none) and tag.
        before = tf.pad(best + 1, [[0, 0], [1, 0]])[:, :-1]
        table = [
            [self.tags.answer_tag(tag, other) for tag in self.tags.learned]
            for other in ("O", *self.tags.learned)
        ]
        tags = tf.gather_nd(tf.constant(table), tf.stack([before, best], axis=-1))
        real = tf.sequence_mask(inputs["num_words"], tf.shape(best)[1])
        return {
            "words": inputs["words"],
            "num_words": inputs["num_words"],
            "tags": tf.where(real, tags, ""),
            "probabilities": tf.where(read, tf.reduce_max(probabilities, -1), 0.0),
        }

    def serving_id_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Returns tags, in the learned scheme, and probabilities, [B, S]."""
        probabilities = tf.nn.softmax(outputs)
        best = tf.argmax(probabilities, -1)
        return {
            "tags": tf.gather(tf.constant(self.tags.learned), best),
            "probabilities": tf.reduce_max(probabilities, -1),
        }

    def to_json(self) -> dict[str, Any]:
        """Adds the tag set and options."""
        tags = {} if self.tags is None else dataclasses.asdict(self.tags)
        tags.pop("learned", None)
        options = {
            "labels": None if self.tags is None else list(self.tags.learned),
            "main_metric": self.main_metric,
            "encoding": self.encoding,
        }
        return super().to_json() | options | tags


@dataclasses.dataclass(frozen=True)
class WordRows:
    """Rows of whole words: [CLS] word pieces [SEP].

    Attributes:
        input_ids: int32.
        word: index of the word in its sentence at first word pieces, else -1, int32.
        sentence: index of each row's sentence, int64 [R].
    """

    input_ids: Ragged
    word: Ragged
    sentence: np.ndarray


def word_rows(
    sentences: Sequence[Sequence[str]], tokenizer: WordPiece, max_seq_length: int
) -> WordRows:
    """Packs whole words into rows."""
    limit = max_seq_length - 2
    pieces = iter(tokenizer.encode([word for words in sentences for word in words]))
    vocabulary = tokenizer.vocabulary
    ids, words, owners = [], [], []
    for number, sentence in enumerate(sentences):
        # Truncated to a row: only the first word piece is tagged.
        parts = [next(pieces)[:limit] for _ in sentence]
        rows = fill_rows([len(part) for part in parts], limit)
        for row in range(rows.max(initial=0) + 1):
            row_ids, row_words = [vocabulary.cls_id], [-1]
            for word in np.flatnonzero(rows == row):
                row_ids.extend(parts[word])
                row_words.extend([word, *[-1] * len(parts[word])][: len(parts[word])])
            ids.append([*row_ids, vocabulary.sep_id])
            words.append([*row_words, -1])
            owners.append(number)
    return WordRows(Ragged.of(ids), Ragged.of(words), np.array(owners, np.int64))


def fill_rows(lengths: Sequence[int], limit: int) -> np.ndarray:
    """Returns the row of each word, int64 [W], for rows of ``limit`` word pieces."""
    rows = np.zeros(len(lengths), np.int64)
    row = used = 0
    for word, length in enumerate(lengths):
        if used + length > limit:
            row, used = row + 1, 0
        used += length
        rows[word] = row
    return rows


def word_tensors(
    tokenizer: WordPiece, texts: tf.Tensor, max_seq_length: int
) -> Tensors:
    """``word_rows`` in TensorFlow, for texts [B] with white space between words.

    Returns input_ids, input_mask and segment_ids, int32 [R, S], words (string [B, W],
    padded with "") and num_words, int32 [B]. word_row and word_position locate the
    first word piece of each word, int64 [B, W]; the position is 0 if it has none.
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
    total = tf.reduce_sum(num_rows)
    body = tf.RaggedTensor.from_value_rowids(pieces.values, piece_rows, total)
    vocabulary = tokenizer.vocabulary
    ends = tf.ones([body.nrows(), 1], tf.int32)
    framed = [ends * vocabulary.cls_id, body, ends * vocabulary.sep_id]
    input_ids = tf.concat(framed, axis=1)
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
    """``fill_rows`` in TensorFlow for a batch: int64 [B, W] to int64 [B, W]."""

    def add(state: Sequence[tf.Tensor], length: tf.Tensor) -> Sequence[tf.Tensor]:
        row, used = state
        over = used + length > limit
        return row + tf.cast(over, tf.int64), tf.where(over, length, used + length)

    start = tf.zeros([tf.shape(lengths)[0]], tf.int64)
    # Padded by one column: a scan needs at least one step.
    by_word = tf.pad(tf.transpose(lengths), [[0, 1], [0, 0]])
    rows, _ = tf.scan(add, by_word, (start, start))
    return tf.transpose(rows[:-1])

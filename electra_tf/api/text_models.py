"""Keras models with built-in preprocessing: classifier, tagger, question answering."""

import dataclasses
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from electra_tf.api.base import TextModel, restoring
from electra_tf.api.inputs import (
    Columns,
    checked_batch_size,
    columns_of,
    is_missing,
    named,
    plain,
    text_of,
)
from electra_tf.api.labels import label_names
from electra_tf.errors import UserError
from electra_tf.layers.weights import check_choice
from electra_tf.tasks.base import Example, Rows
from electra_tf.tasks.batching import Outputs
from electra_tf.tasks.sentences import Sentence, split_words
from electra_tf.tasks.squad import Question
from electra_tf.tasks.tables import finite


@keras.saving.register_keras_serializable(package="electra_tf")
class TextClassifier(TextModel):
    """Text classifier: single-label, multi-label or regression, of texts or pairs.

    Targets are label names. A number is a label if any label is a number, and otherwise
    an index into ``labels``. Multi-label targets are lists of labels, or one number
    from 0 to 1 per label. Regression targets are numbers within ``label_range``; the
    head, the loss and Keras's metrics scale them to [0, 1].

    Examples:
        >>> model = et.TextClassifier.from_preset("mini", ["bad", "good"])
        >>> texts = ["I liked it.", "A waste of time."] * 16
        >>> labels = ["good", "bad"] * 16
        >>> history = model.fit(texts, labels, epochs=2, verbose=0)
        >>> [answer["label"] for answer in model.predict(["I liked it."])]
        ['good']
        >>> model.predict_proba(["I liked it."]).shape
        (1, 2)
    """

    kinds = ("classification", "multilabel", "regression")

    @classmethod
    @restoring
    def from_preset(
        cls,
        preset: str | os.PathLike,
        labels: Sequence[Any] | None = None,
        *,
        kind: str = "classification",
        pair: bool = False,
        pooling: str | None = None,
        label_range: tuple[float, float] | None = None,
        max_seq_length: int | None = None,
        head_dropout: float | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> Self:
        """Builds and compiles a classifier with a new head on a pretrained encoder.

        Args:
            preset: "mini", the folder of a run or import, or a folder or
                name that ``electra-tf convert`` reads. A folder of ``save_to_preset``,
                as the only argument, restores that model.
            labels: class names in the order of the outputs.
            kind: "classification", "multilabel" or "regression".
            pair: whether the model reads two texts.
            pooling: input of the head (``tasks.ClassificationHead``); default: "cls".
            label_range: smallest and largest label of a regression.
            max_seq_length: maximum number of tokens per row; default: 128 (256 for
                taggers, 512 for question answering), but at most the trained length.
            head_dropout: dropout rate before the head's linear layer; default: 0.1.
            seed: seed of head, dropout and shuffling; default: from
                ``keras.utils.set_random_seed``.
            **options: ``dropout``, ``attention_dropout`` and ``mixed_precision``
                ("none" or "bfloat16"; default: Keras's policy). For the default
                compilation ``learning_rate``, ``layerwise_decay`` and
                ``adam_bias_correction``. With ``head_init="probe"`` the first ``fit``
                on texts in memory begins with the head alone, to convergence.

        The recipe of a preset such as "mini" replaces these defaults and is printed.

        Raises ValueError for invalid arguments, OSError if there is no encoder.
        """
        check_choice("kind", kind, cls.kinds)
        if kind == "regression":
            if labels is not None:
                raise UserError("A regression has no labels: give label_range alone.")
            settings = {"label_range": _label_range(label_range)}
        else:
            least = 2 if kind == "classification" else 1
            settings = {"labels": label_names(labels, "labels", least)}
        settings["pair"] = pair
        options |= {"pooling": pooling, "head_dropout": head_dropout}
        return cls._new(preset, kind, settings, options, max_seq_length, seed)

    def _featurize(self, columns: Columns, labels: list[Any] | None) -> Rows:
        texts = zip(*columns.values(), strict=True)
        examples = [Example(str(number), row) for number, row in enumerate(texts)]
        rows = self._rows_of(examples, training=labels is not None)
        if labels is None:
            return rows
        targets = self._targets(labels)[rows.example]
        return dataclasses.replace(rows, targets={"label": targets})

    def _targets(self, labels: list[Any]) -> np.ndarray:
        """Returns int32 [texts], or float32 [texts, labels (1 for a regression)]."""
        if self._task.kind == "multilabel":
            rows = [self._lookup.several(value, n) for n, value in enumerate(labels)]
            return np.stack(rows)
        if self._task.kind == "classification":
            indices = [self._lookup.index(value, n) for n, value in enumerate(labels)]
            return np.array(indices, np.int32)
        limits = self._task.label_range
        values = [_number(value, n, *limits) for n, value in enumerate(labels)]
        return self._task.targets([Example("", (), value) for value in values])

    def predict_proba(self, x: Any, batch_size: int | None = None) -> np.ndarray:
        """Returns the probability of each label, float32 [texts, labels]."""
        if self._task.kind == "regression":
            raise UserError("A regression has no probabilities of labels.")
        answers = self.predict(x, batch_size)
        shares = [[*answer["probabilities"].values()] for answer in answers]
        return np.array(shares, np.float32).reshape(-1, len(self.labels))


def _label_range(given: Any) -> tuple[float, float]:
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        low = high = float("nan")
    if not -np.inf < low < high < np.inf:
        raise UserError(
            "label_range must be a smaller and a larger number, such as (0.0, 5.0), "
            f"got {given!r:.100}."
        )
    return low, high


def _number(value: Any, row: int, low: float, high: float) -> float:
    if isinstance(value, list | tuple | np.ndarray) and len(value) == 1:
        (value,) = value
    number = finite(value)
    if not low <= number <= high:
        raise UserError(
            f"Row {row}: the label {value!r:.100} is not a number from {low:g} to "
            f"{high:g} (label_range)."
        )
    return number


@keras.saving.register_keras_serializable(package="electra_tf")
class TokenClassifier(TextModel):
    """Token classifier (tagger): predicts one tag per word.

    A text is a list of words, or a string of words separated by ASCII white space.
    Targets are one list of tags per text, or one string with spaces between tags.
    Numbers are as in ``TextClassifier``. Long texts are split into several rows.

    Examples:
        >>> model = et.TokenClassifier.from_preset("mini", ["O", "B-PER", "I-PER"])
        >>> tags = ["B-PER I-PER O O", ["B-PER", "O"]]  # in one string, or in a list
        >>> history = model.fit(["Ada Lovelace wrote it", "Ada wrote"], tags, verbose=0)
        >>> len(model.predict([["Ada", "wrote"]])[0]["tags"])  # one for each word
        2
    """

    kinds = ("tagging",)

    @classmethod
    @restoring
    def from_preset(
        cls,
        preset: str | os.PathLike,
        tags: Sequence[Any] | None = None,
        *,
        metric: str | None = None,
        max_seq_length: int | None = None,
        head_dropout: float | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> Self:
        """Builds and compiles a tagger with a new head on a pretrained encoder.

        ``tags`` are all tag names. ``metric`` is "f1" of spans (default if "O" is a
        tag) or "accuracy". Other arguments are as in ``TextClassifier.from_preset``.
        """
        names = label_names(tags, "tags", 2)
        metric = metric or ("f1" if "O" in names else "accuracy")
        check_choice("metric", metric, ("f1", "accuracy"))
        fallback = "O" if "O" in names else names[0]
        settings = {"labels": names, "fallback": fallback, "main_metric": metric}
        options["head_dropout"] = head_dropout
        return cls._new(preset, "tagging", settings, options, max_seq_length, seed)

    def _featurize(self, columns: Columns, labels: list[Any] | None) -> Rows:
        sentences = []
        for number, text in enumerate(columns["text"]):
            words, tags = tuple(split_words(text)), None
            if labels is not None:
                tags = self._tags(labels[number], len(words), number, text)
            sentences.append(Sentence(str(number), words, tags))
        return self._rows_of(sentences, training=labels is not None)

    def _tags(self, given: Any, size: int, row: int, text: str) -> tuple[str, ...]:
        if is_missing(given):
            raise UserError(f"Row {row} has no tags (they are {given!r}).")
        if isinstance(given, str | bytes):
            given = split_words(text_of(given, "tags"))
        given = plain(given, "tags")
        if len(given) != size:
            raise UserError(
                f"Row {row}: {size} words but {len(given)} tags: {text[:100]!r}."
            )
        if not size:
            raise UserError(f"Row {row} has no words.")
        return tuple(self.labels[self._lookup.index(tag, row)] for tag in given)

    def predict_proba(self, x: Any, batch_size: int | None = None) -> list[np.ndarray]:
        """Returns float32 [words, labels] per text; words without tokens have NaN."""
        columns = self._columns(x)
        if not columns["text"]:
            return []
        rows = self._featurize(columns, None)
        counts = [len(split_words(text)) for text in columns["text"]]
        answers = [np.full([n, len(self.labels)], np.nan, np.float32) for n in counts]
        outputs = Outputs(self, checked_batch_size(batch_size))(rows)
        for row, logits in enumerate(outputs):
            word = rows.notes["word"][row]
            at = np.flatnonzero(word >= 0)
            answers[rows.example[row]][word[at]] = tf.nn.softmax(logits[at]).numpy()
        return answers


@keras.saving.register_keras_serializable(package="electra_tf")
class QuestionAnswering(TextModel):
    """Extractive question answering: predicts an answer span of the context.

    Texts are the columns ``question`` and ``context``. Targets are a list of answers,
    or the columns ``answer`` and, if known, ``start`` or ``answer_start``, the answer's
    character offset in the context. An empty answer marks an unanswerable question.

    Examples:
        >>> model = et.QuestionAnswering.from_preset("mini", max_query_length=16)
        >>> texts = {"question": ["Who?"], "context": ["Ada wrote it."]}
        >>> history = model.fit(texts, {"answer": ["Ada"], "start": [0]}, verbose=0)
        >>> model.predict(texts)[0]["answer"] in "Ada wrote it."
        True
    """

    kinds = ("question_answering",)

    @classmethod
    @restoring
    def from_preset(
        cls,
        preset: str | os.PathLike,
        *,
        unanswerable: bool = False,
        max_query_length: int = 64,
        doc_stride: int = 128,
        max_answer_length: int = 30,
        max_seq_length: int | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> Self:
        """Builds and compiles a model with a new head on a pretrained encoder.

        ``unanswerable`` allows questions without an answer. Other arguments are as in
        ``tasks.QuestionAnswering`` and ``TextClassifier.from_preset``.
        """
        settings = {
            "unanswerable": unanswerable,
            "answerability": unanswerable,
            "max_query_length": max_query_length,
            "doc_stride": doc_stride,
            "max_answer_length": max_answer_length,
        }
        kind = "question_answering"
        return cls._new(preset, kind, settings, options, max_seq_length, seed)

    def _labels_of(self, y: Any) -> list[tuple[str, Any]]:
        y = named(y)
        columns = y if isinstance(y, Mapping) else {"answer": y}
        answers = columns_of(columns, ("answer",))["answer"]
        starts = [None] * len(answers)
        for name in ("start", "answer_start"):
            if name in columns:
                starts = plain(columns[name], name)
        if len(starts) != len(answers):
            raise UserError(f"{len(answers)} answers, but {len(starts)} starts.")
        return list(zip(answers, starts, strict=True))

    def _featurize(self, columns: Columns, labels: list[Any] | None) -> Rows:
        questions = []
        pairs = zip(columns["question"], columns["context"], strict=True)
        for number, (question, context) in enumerate(pairs):
            answers = None
            if labels is not None:
                answers = self._located(*labels[number], context, number)
            questions.append(Question(str(number), question, context, answers))
        return self._rows_of(questions, training=labels is not None)

    def _located(
        self, answer: str, start: Any, context: str, row: int
    ) -> tuple[tuple[str, int], ...]:
        if not answer:
            if not self._task.unanswerable:
                raise UserError(
                    f"Row {row}: a question has no answer: build the model with "
                    "unanswerable=True, or leave the question out."
                )
            return ()
        if start is None:
            at = context.find(answer)
        elif not isinstance(start, numbers.Real) or not float(start).is_integer():
            raise UserError(f"Row {row}: start is {start!r}, not a whole number.")
        else:
            at = int(start)
        if at < 0 or not context.startswith(answer, at):
            where = f"at character {at} of its context, counted from 0"
            if start is None:
                where = "in its context"
            raise UserError(f"Row {row}: the answer {answer[:80]!r} is not {where}.")
        return ((answer, at),)

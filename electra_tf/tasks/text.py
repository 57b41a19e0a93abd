"""Tasks on one text or a pair: classes, any number of labels, or a number.

Scores are in percent, as the papers print them.

Letters: N examples, R rows, B batch, C classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import keras
import numpy as np
import tensorflow as tf

from electra_tf import files
from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.tasks import base, metrics, plots
from electra_tf.tasks.base import Example, Rows, Scores, Task, keras_reduction
from electra_tf.tasks.encoding import encode_tensors, encode_texts
from electra_tf.tasks.heads import ClassificationHead, Tensors
from electra_tf.tasks.tables import did_you_mean

Examples = Sequence[Example]
# What the model returned for each row.
Outputs = Sequence[np.ndarray]

SCORES = {
    "accuracy": lambda labels, predictions: float(np.mean(labels == predictions)),
    "matthews": metrics.matthews_correlation,
    # Of the second class: in GLUE, "paraphrase" and "duplicate".
    "f1": metrics.f1,
    "macro_f1": metrics.macro_f1,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """A label for a text or for a ``pair`` of texts.

    Fields that ``Task`` has mean the same here. ``double_pairs`` trains every pair in
    both orders; ``dropout`` is the rate before the linear layer, and ``pooling`` what
    that reads (``ClassificationHead``); ``long_texts``, of single texts, is "cut" or
    "windows", whose logits are averaged;
    ``submission`` writes a benchmark's file:
    (answers as strings, split, folder) to a path or None.
    """

    name: str
    source: Callable[[str], list[Example]]
    pair: bool = False
    main_metric: str
    max_seq_length: int = 128
    epochs: float = 3.0
    eval_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    double_pairs: bool = False
    dropout: float = 0.1
    pooling: str = "cls"
    long_texts: str = "cut"
    submission: Callable[[Sequence[str], str, str], str | None] | None = None

    # Width of the linear layer.
    num_outputs: ClassVar[int]

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the text inputs in serving signatures."""
        return ("text", "text_pair") if self.pair else ("text",)

    def augment(self, examples: Examples) -> list[Example]:
        """Adds every pair with its texts swapped, where the task asks for it."""
        if not (self.pair and self.double_pairs):
            return list(examples)
        swapped = [dataclasses.replace(e, texts=e.texts[::-1]) for e in examples]
        return [*examples, *swapped]

    def featurize(
        self,
        examples: Examples,
        tokenizer: WordPiece,
        max_seq_length: int,
        *,
        training: bool = False,
    ) -> Rows:
        """Makes one row of each example, or its windows; see ``Task.featurize``.

        Windows of a text have the weight of one row together.
        """
        columns = list(zip(*(example.texts for example in examples), strict=True))
        labeled = all(example.label is not None for example in examples)
        targets = self.targets(examples) if labeled else None
        weights = self.weights(targets) if training else None
        inputs, text = encode_texts(tokenizer, columns, max_seq_length, self.long_texts)
        if training and self.long_texts == "windows":
            # Also if every text has one window: all batches have one structure.
            counts = np.bincount(text, minlength=len(examples))
            shares = (1 if weights is None else weights) / counts
            weights = shares.astype(np.float32)
        return Rows(
            inputs,
            {"label": targets[text]} if labeled else {},
            text,
            None if weights is None else weights[text],
            tokenizer.vocabulary.pad_id,
        )

    def pooled(self, outputs: Outputs, rows: Rows | None) -> np.ndarray:
        """Returns the mean of the outputs of each text's rows, [N, C]."""
        stacked = np.stack(outputs)
        if self.long_texts != "windows":
            return stacked
        counts = np.bincount(rows.example)[:, np.newaxis]
        sums = np.zeros([len(counts), stacked.shape[1]], np.float32)
        np.add.at(sums, rows.example, stacked)
        return sums / counts.astype(np.float32)

    def served(self, outputs: tf.Tensor, inputs: Tensors) -> tf.Tensor:
        """Does ``pooled`` in TensorFlow, where it is known whose rows they are."""
        if self.long_texts != "windows" or "example" not in inputs:
            return outputs
        return tf.math.segment_mean(outputs, inputs["example"])

    def to_json(self) -> dict[str, Any]:
        """Adds what becomes of long texts."""
        return super().to_json() | {"long_texts": self.long_texts}

    def cut(
        self, examples: Examples, tokenizer: WordPiece, max_seq_length: int
    ) -> list[int]:
        """Returns how many tokens of each example are beyond ``max_seq_length``."""
        if self.long_texts == "windows":
            return []
        room = max_seq_length - len(self.text_names) - 1
        columns = zip(*(example.texts for example in examples), strict=True)
        encoded = [tokenizer.encode(column) for column in columns]
        lengths = (sum(map(len, pieces)) for pieces in zip(*encoded, strict=True))
        return [max(0, length - room) for length in lengths]

    def gold(self, examples: Examples) -> np.ndarray:
        """Returns the labels that ``compare`` takes, one row per example."""
        return self.targets(examples)

    def compare(self, answers: np.ndarray, gold: np.ndarray) -> Scores:
        """Returns the scores of answers against ``gold``."""
        raise NotImplementedError

    def score(self, answers: np.ndarray, examples: Examples) -> Scores:
        """Returns the official metrics by name; see ``Task.score``."""
        return self.compare(answers, self.gold(examples))

    def constant(self, train_examples: Examples) -> np.ndarray:
        """Returns the one answer to everything that fits the training data best."""
        raise NotImplementedError

    def baseline(self, train_examples: Examples, examples: Examples) -> Scores:
        """Returns the scores of ``constant``."""
        return self.score(
            np.stack([self.constant(train_examples)] * len(examples)), examples
        )

    def noise(
        self, answers: np.ndarray, examples: Examples, train_examples: Examples
    ) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[float, float]]]:
        """Returns the intervals of ``noise.intervals``."""
        # Read where a run is finished only.
        from electra_tf.tasks import noise

        answers, gold = np.asarray(answers), self.gold(examples)
        same = np.stack([self.constant(train_examples)] * len(examples))

        def scores(rows: np.ndarray) -> tuple[Scores, Scores]:
            chosen = gold[rows]
            return self.compare(answers[rows], chosen), self.compare(same, chosen)

        return noise.intervals(scores, len(examples))

    def targets(self, examples: Examples) -> np.ndarray:
        """Returns what the loss compares with, one row per example."""
        raise NotImplementedError

    def weights(self, targets: np.ndarray) -> np.ndarray | None:
        """Returns the weight of each row in the loss; None for equal ones."""

    def head(self, encoder: TextEncoder) -> ClassificationHead:
        """Returns dropout and one linear layer."""
        return ClassificationHead(
            encoder.hidden_size,
            self.num_outputs,
            dropout=self.dropout,
            pooling=self.pooling,
            num_states=encoder.num_layers + 1,
            dtype=encoder.dtype_policy,
            name="classification_head",
        )

    def readable(self, answers: np.ndarray) -> list[str]:
        """Returns answers as they are written to files."""
        raise NotImplementedError

    def submit(
        self, answers: np.ndarray, examples: Examples, split: str, folder: str
    ) -> str | None:
        """Writes the benchmark's file; returns its path, None if there is none."""
        if self.submission is None:
            return None
        return self.submission(self.readable(answers), split, folder)

    def write(self, answers: np.ndarray, examples: Examples, path: str) -> None:
        """Writes id, label if known, prediction and what ``details`` adds, as TSV."""
        columns = {"id": [example.id for example in examples]}
        if all(example.label is not None for example in examples):
            columns["label"] = [self.readable_label(e.label) for e in examples]
        columns |= {"prediction": self.readable(answers), **self.details(answers)}
        with files.open_new(path) as file:
            for cells in (columns, *zip(*columns.values(), strict=True)):
                # Tabs and line ends in a cell would break the table.
                line = "\t".join(" ".join(str(cell).split()) for cell in cells)
                file.write(f"{line}\n")

    def details(self, answers: np.ndarray) -> dict[str, list[str]]:
        """Returns further columns of the predictions, by name."""
        return {}

    def readable_label(self, label: Any) -> str:
        """Returns a right answer as it is written to files."""
        return str(label)

    def serving_inputs(
        self, tokenizer: WordPiece, max_seq_length: int, **texts: tf.Tensor
    ) -> Tensors:
        """Makes model inputs of string tensors [B]; see ``Task.serving_inputs``."""
        columns = [texts[name] for name in self.text_names]
        return encode_tensors(tokenizer, columns, max_seq_length, self.long_texts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabeledTask(TextTask):
    """A task with a set of labels.

    ``labels`` are the classes in the order of the outputs; None until ``prepare`` has
    taken them from the training data.
    """

    labels: tuple[str, ...] | None = None

    @property
    def num_outputs(self) -> int:
        """One output per class; a ``ValueError`` if they are not known yet."""
        if self.labels is None:
            raise UserError(
                f"Task {self.name} does not know its labels yet: pass labels=, or use "
                "task.prepare(train_examples)."
            )
        return len(self.labels)

    def index(self, label: str, example: Example) -> int:
        """Returns the number of an example's class."""
        if label not in self.labels:
            more = f", ... ({len(self.labels)} in all)" if self.labels[20:] else ""
            raise UserError(
                f"Example {example.id} has the label {label!r}"
                f"{did_you_mean(label, self.labels)}, which the training data lacks: "
                f"it has {', '.join(self.labels[:20])}{more}. Correct the label, or "
                "add training examples of it."
            )
        return self.labels.index(label)

    def to_json(self) -> dict[str, Any]:
        """Adds the labels."""
        labels = None if self.labels is None else list(self.labels)
        return super().to_json() | {"labels": labels}

    def details(self, answers: np.ndarray) -> dict[str, list[str]]:
        """Returns the probability of every class."""
        columns = np.asarray(answers).T
        return {
            f"p({label})": [f"{value:.6f}" for value in column]
            for label, column in zip(self.labels, columns, strict=True)
        }

    def _tiled_labels(self, probabilities: tf.Tensor) -> tf.Tensor:
        return tf.tile(tf.constant([self.labels]), [tf.shape(probabilities)[0], 1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(LabeledTask):
    """One of several classes.

    An answer is the vector of class probabilities, float32 [C]. ``score_names`` are
    names in ``SCORES``. ``class_weights`` "balanced" weights an example by N / (C *
    examples of its class), so that all classes have the same say.

    Examples:
        >>> task = et.tasks.Classification(
        ...     name="mood", source=None, labels=("bad", "good")
        ... )
        >>> model = task.build_model(et.load("mini").encoder)
        >>> model({"input_ids": tf.constant([[2, 7, 3]])}).shape
        TensorShape([1, 2])
    """

    kind = "classification"
    main_metric: str = "accuracy"
    score_names: tuple[str, ...] = ("accuracy", "macro_f1", "matthews")
    class_weights: Literal["none", "balanced"] = "none"

    def prepare(self, train_examples: Examples) -> Classification:
        """Returns the task with the labels that occur, at least two."""
        if self.labels is not None:
            return self
        labels = _sorted({example.label for example in train_examples})
        if len(labels) < 2:
            raise UserError(
                f"All {len(train_examples)} training examples of {self.name} have the "
                f"label {labels[0]!r}: there is nothing to learn."
            )
        return dataclasses.replace(self, labels=labels)

    def targets(self, examples: Examples) -> np.ndarray:
        """Returns the numbers of the classes, int32 [N]."""
        return np.array([self.index(e.label, e) for e in examples], np.int32)

    def weights(self, targets: np.ndarray) -> np.ndarray | None:
        """Returns float32 [N] with mean 1; None without class weights."""
        if self.class_weights == "none":
            return None
        counts = np.bincount(targets, minlength=self.num_outputs)
        present = np.count_nonzero(counts)
        return (len(targets) / (present * counts[targets])).astype(np.float32)

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        """Returns the cross-entropy of the softmax."""
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=keras_reduction(reduction)
        )

    def keras_metrics(self) -> dict[str, list[keras.metrics.Metric]]:
        """Returns the accuracy."""
        return {"metrics": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]}

    def decode(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """Returns probabilities, float32 [N, C]."""
        return tf.nn.softmax(self.pooled(outputs, rows)).numpy()

    def compare(self, answers: np.ndarray, gold: np.ndarray) -> Scores:
        """Returns the scores of ``score_names``, in percent."""
        given = np.argmax(answers, axis=1)
        return {name: 100 * SCORES[name](gold, given) for name in self.score_names}

    def constant(self, train_examples: Examples) -> np.ndarray:
        """Returns the training data's shares of the classes."""
        counts = np.bincount(self.targets(train_examples), minlength=self.num_outputs)
        return counts / counts.sum()

    def distribution(self, examples: Examples) -> dict[str, int]:
        """Returns how many examples each class has."""
        counts = np.bincount(self.targets(examples), minlength=self.num_outputs)
        return dict(zip(self.labels, counts.tolist(), strict=True))

    def details_of(self, answers: np.ndarray, examples: Examples) -> dict[str, Any]:
        """Returns scores by class, and the calibration of the answer given."""
        classes = np.arange(self.num_outputs)
        labels, given = self.targets(examples), np.argmax(answers, axis=1)
        by_class = metrics.per_class(
            labels[:, np.newaxis] == classes, given[:, np.newaxis] == classes
        )
        error = metrics.calibration_error(labels == given, np.max(answers, axis=1))
        return {
            "classes": dict(zip(self.labels, by_class, strict=True)),
            "calibration_error": error,
        }

    def failure(self, answers: np.ndarray, scores: Scores, baseline: Scores) -> str:
        """Reports a constant answer, or a main score not above the baseline's."""
        given = np.unique(np.argmax(answers, axis=1))
        if len(given) == 1:
            return f"answers {self.labels[given[0]]} to every example"
        return base.not_above(self.main_metric, scores, baseline)

    def readable(self, answers: np.ndarray) -> list[str]:
        """Returns the names of the most probable classes."""
        return [self.labels[index] for index in np.argmax(answers, axis=1)]

    def picture(self, answers: np.ndarray, examples: Examples, folder: str) -> str:
        """Draws the confusion matrix."""
        labels, answered = self.targets(examples), np.argmax(answers, axis=1)
        names = [self.labels[label] for label in labels]
        given = [self.labels[answer] for answer in answered]
        return plots.confusion_matrix(names, given, self.labels, folder)

    def serving_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Returns label and probability [B], labels and probabilities [B, C]."""
        probabilities = tf.nn.softmax(self.served(outputs, inputs))
        best = tf.argmax(probabilities, axis=1)
        return {
            "label": tf.gather(tf.constant(self.labels), best),
            "probability": tf.reduce_max(probabilities, axis=1),
            "labels": self._tiled_labels(probabilities),
            "probabilities": probabilities,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabel(LabeledTask):
    """Any number of labels, none included; ``Example.label`` is a tuple of them.

    An answer is the vector of label probabilities, float32 [C]; from ``threshold`` on a
    label is given. With ``tune_threshold``, ``tune`` chooses it. ``main_metric`` is
    micro_f1, macro_f1 or exact_match.

    Examples:
        >>> topics = ("sports", "weather", "money")
        >>> task = et.tasks.MultiLabel(name="topics", source=None, labels=topics)
        >>> task.main_metric
        'micro_f1'
    """

    kind = "multilabel"
    main_metric: str = "micro_f1"
    threshold: float = 0.5
    tune_threshold: bool = False

    def prepare(self, train_examples: Examples) -> MultiLabel:
        """Returns the task with the labels that occur, at least one."""
        if self.labels is not None:
            return self
        labels = _sorted({label for e in train_examples for label in e.label})
        if not labels:
            raise UserError(f"No training example of {self.name} has any label.")
        return dataclasses.replace(self, labels=labels)

    @property
    def tunes(self) -> bool:
        """Whether the threshold is to be chosen on examples held out of training."""
        return self.tune_threshold

    def tune(self, answers: np.ndarray, examples: Examples) -> MultiLabel:
        """Returns the task with the threshold of the best main score on examples.

        Of 0.05, 0.10, ... 0.95; of equal ones the nearest to 0.5.
        """
        thresholds = sorted(np.arange(1, 20) / 20, key=lambda x: abs(x - 0.5))
        tasks = [dataclasses.replace(self, threshold=float(x)) for x in thresholds]
        return max(tasks, key=lambda t: t.score(answers, examples)[self.main_metric])

    def distribution(self, examples: Examples) -> dict[str, int]:
        """Returns how many examples have each label."""
        counts = self.targets(examples).sum(0).astype(int)
        return dict(zip(self.labels, counts.tolist(), strict=True))

    def details_of(self, answers: np.ndarray, examples: Examples) -> dict[str, Any]:
        """Returns scores by label, and the calibration of all probabilities."""
        labels = self.targets(examples) == 1
        by_class = metrics.per_class(labels, answers >= self.threshold)
        return {
            "classes": dict(zip(self.labels, by_class, strict=True)),
            "calibration_error": metrics.calibration_error(labels, answers),
        }

    def targets(self, examples: Examples) -> np.ndarray:
        """Returns 1 for the labels that an example has, float32 [N, C]."""
        targets = np.zeros([len(examples), self.num_outputs], np.float32)
        for row, example in zip(targets, examples, strict=True):
            row[[self.index(label, example) for label in example.label]] = 1
        return targets

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        """Returns the binary cross-entropy, the mean over the labels."""
        reduction = keras_reduction(reduction)
        return keras.losses.BinaryCrossentropy(from_logits=True, reduction=reduction)

    def decode(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """Returns probabilities, float32 [N, C]."""
        return tf.sigmoid(self.pooled(outputs, rows)).numpy()

    def compare(self, answers: np.ndarray, gold: np.ndarray) -> Scores:
        """Returns micro and macro F1 and the share of entirely right answers."""
        labels, given = gold == 1, answers >= self.threshold
        micro, macro = metrics.multilabel_f1(labels, given)
        exact = float(np.mean(np.all(labels == given, axis=1)))
        shares = {"micro_f1": micro, "macro_f1": macro, "exact_match": exact}
        return {name: 100 * share for name, share in shares.items()}

    def constant(self, train_examples: Examples) -> np.ndarray:
        """Returns the set of labels that fits training best."""
        targets = self.targets(train_examples)
        # For micro F1 the best constant is one of: the most frequent label, the two
        # most frequent ones, and so on.
        order = np.argsort(-targets.sum(0), kind="stable")
        constants = np.tril(np.ones([len(order)] * 2))[:, np.argsort(order)]
        tiled = (np.tile(constant, [len(targets), 1]) for constant in constants)
        scores = [metrics.multilabel_f1(targets, answer)[0] for answer in tiled]
        return constants[int(np.argmax(scores))]

    def failure(self, answers: np.ndarray, scores: Scores, baseline: Scores) -> str:
        """Reports a constant answer, or a main score not above the baseline's."""
        given = answers >= self.threshold
        if np.all(given == given[0]):
            return f"answers {self.readable(answers[:1])[0] or 'nothing'} every time"
        return base.not_above(self.main_metric, scores, baseline)

    def readable(self, answers: np.ndarray) -> list[str]:
        """Returns the names of the labels, joined with |."""
        given = np.asarray(answers) >= self.threshold
        return [self.readable_label(np.array(self.labels)[row]) for row in given]

    def readable_label(self, label: Any) -> str:
        """Returns labels joined with |."""
        return "|".join(label)

    def to_json(self) -> dict[str, Any]:
        """Adds the threshold."""
        return super().to_json() | {"threshold": self.threshold}

    def serving_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Returns labels, probabilities and predicted (bool), each [B, C]."""
        probabilities = tf.sigmoid(self.served(outputs, inputs))
        return {
            "labels": self._tiled_labels(probabilities),
            "probabilities": probabilities,
            "predicted": probabilities >= self.threshold,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression(TextTask):
    """A number, on the scale of the labels.

    ``main_metric`` is spearman, pearson or mse; ``label_range`` the smallest and the
    largest label, None until ``prepare``.

    Examples:
        >>> task = et.tasks.Regression(
        ...     name="alike", source=None, label_range=(0.0, 5.0)
        ... )
        >>> task.main_metric
        'spearman'
    """

    kind = "regression"
    main_metric: str = "spearman"
    label_range: tuple[float, float] | None = None

    num_outputs = 1

    @property
    def greater_is_better(self) -> bool:
        """False for the mean squared error."""
        return self.main_metric != "mse"

    def prepare(self, train_examples: Examples) -> Regression:
        """Returns the task with the range of the labels, which must differ."""
        if self.label_range is not None:
            return self
        labels = [example.label for example in train_examples]
        if min(labels) == max(labels):
            raise UserError(
                f"All {len(labels)} training examples of {self.name} have the label "
                f"{labels[0]:g}: there is nothing to learn."
            )
        return dataclasses.replace(self, label_range=(min(labels), max(labels)))

    def targets(self, examples: Examples) -> np.ndarray:
        """Returns labels scaled to [0, 1], float32 [N, 1].

        Deviation: the original divides by the largest label, here by the width of the
        range; the same for STS-B, whose smallest label is 0.
        """
        low, high = self.label_range
        labels = np.array([[example.label] for example in examples], np.float64)
        return ((labels - low) / (high - low)).astype(np.float32)

    def loss(self, reduction: str = "sum") -> keras.losses.Loss:
        """Returns the squared error of the scaled label."""
        return keras.losses.MeanSquaredError(reduction=keras_reduction(reduction))

    def decode(self, outputs: Outputs, rows: Rows, examples: Examples) -> np.ndarray:
        """Returns numbers on the scale of the labels, float32 [N]."""
        low, high = self.label_range
        return self.pooled(outputs, rows)[:, 0] * (high - low) + low

    def gold(self, examples: Examples) -> np.ndarray:
        """Returns the labels on their own scale, float64 [N]."""
        return np.array([example.label for example in examples], np.float64)

    def compare(self, answers: np.ndarray, gold: np.ndarray) -> Scores:
        """Returns correlations in percent, and the mean squared error of labels."""
        return {
            "pearson": 100 * metrics.pearson(gold, answers),
            "spearman": 100 * metrics.spearman(gold, answers),
            "mse": float(np.mean(np.square(gold - answers))),
        }

    def constant(self, train_examples: Examples) -> np.ndarray:
        """Returns the training data's mean label."""
        return np.mean([example.label for example in train_examples])

    def failure(self, answers: np.ndarray, scores: Scores, baseline: Scores) -> str:
        """Reports a constant answer, or a main score no better than the baseline's."""
        low, high = self.label_range
        if np.ptp(answers) < 1e-3 * (high - low):
            return f"answers about {np.mean(answers):.3g} to every example"
        if not self.greater_is_better:
            scores, baseline = ({"mse": -x["mse"]} for x in (scores, baseline))
        return base.not_above(self.main_metric, scores, baseline)

    def readable(self, answers: np.ndarray) -> list[str]:
        """Returns the float32 with all its digits, within the range of the labels.

        Rounded ones would tie, and a rank correlation counts ties.
        """
        return [str(value) for value in np.clip(answers, *self.label_range)]

    def details(self, answers: np.ndarray) -> dict[str, list[str]]:
        """Returns the number as the model gave it."""
        return {"score": [f"{value:.6f}" for value in answers]}

    def picture(self, answers: np.ndarray, examples: Examples, folder: str) -> str:
        """Draws predictions over labels."""
        labels = [example.label for example in examples]
        return plots.scatter(labels, answers, self.label_range, folder)

    def serving_outputs(self, outputs: tf.Tensor, inputs: Tensors) -> Tensors:
        """Returns score on the scale of the labels, float32 [B]."""
        low, high = self.label_range
        outputs = self.served(outputs, inputs)
        return {"score": outputs[:, 0] * (high - low) + low}

    def to_json(self) -> dict[str, Any]:
        """Adds the range of the labels."""
        label_range = self.label_range and list(self.label_range)
        return super().to_json() | {"label_range": label_range}


def _sorted(labels: set[str]) -> tuple[str, ...]:
    """Returns numbers in numerical order, names in alphabetical order."""
    try:
        return tuple(sorted(labels, key=lambda label: (float(label), label)))
    except ValueError:
        return tuple(sorted(labels))


def are_numbers(labels: Sequence[str]) -> bool:
    """Returns whether the labels look like a scale: many numbers, or fractions."""
    try:
        values = [float(label) for label in labels]
    except ValueError:
        return False
    return len(labels) > 20 or any(value % 1 for value in values)


def nearly_equal(labels: Sequence[str]) -> tuple[str, str] | None:
    """Returns two labels that differ in case or in how a number is written only."""
    seen: dict[Any, str] = {}
    for label in labels:
        try:
            key = float(label)
        except ValueError:
            key = label.casefold()
        if key in seen:
            return seen[key], label
        seen[key] = label
    return None

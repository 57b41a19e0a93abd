"""Keras models that take texts: preprocessing inside, answers out.

A ``TaskModel`` of ``tasks`` with the tokenizer and the task beside it, so that ``fit``,
``evaluate`` and ``predict`` read strings and one ``.keras`` file holds everything.

Letters: N texts, B batch, R rows, S sequence.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from electra_tf import files
from electra_tf.api.presets import encoder_and_tokenizer, folder_of
from electra_tf.api.texts import SentenceVectors, columns_of, plain, text_of
from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders import models
from electra_tf.folders.finetuning import MODEL, TASK, FinetuningFolder
from electra_tf.folders.settings import CONFIG
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import finetuning
from electra_tf.serving import export
from electra_tf.serving.predictor import Predictor
from electra_tf.tasks import glue, saved, squad
from electra_tf.tasks.base import Example, Scores, Task
from electra_tf.tasks.batching import Outputs, make_batch
from electra_tf.tasks.heads import TaskModel
from electra_tf.tasks.sentences import Sentence, SentenceSource, TagSet
from electra_tf.tasks.squad import Question
from electra_tf.tasks.tables import TableSource

# Texts, labels and weights of a batch; the last two may be None.
_Batch = tuple[dict[str, list[str]], list[Any] | None, np.ndarray | None]


class TextModel(TaskModel):
    """A task model that takes texts; the base of the three public classes.

    Called as a layer it is a ``TaskModel``: token ids in, what the head says out.

    Args:
        encoder: a ``TextEncoder``.
        head: what the task puts on it.
        task: what ``Task.to_json`` says, and under "columns" how tables are read.
        vocabulary: all tokens, in the order of their ids.
        lower_case: whether texts are lower-cased.
        strip_accents: whether accents are removed, too.
        max_seq_length: most tokens of a row, special ones included.
        **kwargs: ``seed`` and ``name`` of ``TaskModel``.

    Examples:
        >>> model = et.TextClassifier.from_preset("mini", ["bad", "good"])
        >>> isinstance(model, keras.Model)
        True
        >>> model.encode(["one text", "another one"], pooling="cls").shape
        (2, 256)
        >>> (inputs,) = next(iter(model.preprocess(["one text"])))  # of a batch
        >>> model(inputs).shape
        TensorShape([1, 2])
    """

    # Kinds of tasks that the class takes, and what each wants as labels.
    kinds: ClassVar[tuple[str, ...]] = ()
    # Whether ``compile_default`` was the last to compile.
    _has_default = False

    def __init__(
        self,
        encoder: TextEncoder,
        head: keras.layers.Layer,
        *,
        task: Mapping[str, Any],
        vocabulary: Sequence[str],
        lower_case: bool,
        strip_accents: bool,
        max_seq_length: int,
        **kwargs: Any,
    ):
        super().__init__(encoder, head, **kwargs)
        self.task = dict(task)
        self.vocabulary = tuple(vocabulary)
        self.lower_case = lower_case
        self.strip_accents = strip_accents
        self.max_seq_length = max_seq_length
        self._task = saved.from_json(task)
        if self._task.kind not in self.kinds:
            raise UserError(
                f"{type(self).__name__} is for {' and '.join(self.kinds)}, not for "
                f"{self._task.kind}: load the model with electra_tf.load."
            )
        self.tokenizer = WordPiece(
            Vocabulary(self.vocabulary),
            lower_case=lower_case,
            strip_accents=strip_accents,
        )

    @classmethod
    def _on_preset(
        cls,
        preset: str | os.PathLike,
        make: Callable[[dict[str, Any]], Task],
        max_seq_length: int | None,
        **options: Any,
    ) -> Self:
        """The model of a task on a pretrained encoder, compiled.

        ``make`` gets the options of the head.
        """
        seed, head_dropout = options.pop("seed", 0), options.pop("head_dropout", 0.1)
        encoder, tokenizer, trained = encoder_and_tokenizer(preset, **options)
        task = make({"name": cls.__name__, "source": None, "dropout": head_dropout})
        most = encoder.embeddings.max_positions
        length = max_seq_length or min(task.max_seq_length, trained or most, most)
        if length > most:
            raise UserError(
                f"max_seq_length is {length}, but {preset} has {most} positions: give "
                f"{most} or less."
            )
        keras.utils.set_random_seed(seed)
        return cls.of(encoder, task.head(encoder), task.to_json(), tokenizer, length)

    @classmethod
    def of(
        cls,
        encoder: TextEncoder,
        head: keras.layers.Layer,
        task: Mapping[str, Any],
        tokenizer: WordPiece,
        max_seq_length: int,
    ) -> Self:
        """The model of these parts, compiled with ``compile_default``."""
        model = cls(
            encoder,
            head,
            task=task,
            vocabulary=tokenizer.vocabulary.tokens,
            lower_case=tokenizer.lower_case,
            strip_accents=tokenizer.strip_accents,
            max_seq_length=max_seq_length,
        )
        model.compile_default()
        return model

    @classmethod
    def load(cls, source: str | os.PathLike) -> Self:
        """``electra_tf.load``, which must give a model of this class, else ValueError.

        ``source`` is the folder of a fine-tuning run, or a ``.keras`` file that
        ``save`` wrote.
        """
        found = load_text_model(source)
        if not isinstance(found, cls):
            holds = f"a {type(found).__name__}" if found else "no fine-tuned model"
            hint = "" if found else f": start from it with {cls.__name__}.from_preset"
            raise UserError(
                f"{source} holds {holds}, where a {cls.__name__} is asked for{hint}."
            )
        return found

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """``keras.Model.compile``; what it is given is what ``fit`` uses."""
        super().compile(*args, **kwargs)
        self._has_default = False

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as a saved model was; Keras leaves that to custom models."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def compile_default(self, steps: int | None = None) -> None:
        """Compiles with the recipe of a fine-tuning run without flags.

        That is the task's loss, the mean over the batch, and ELECTRA's AdamW clipped to
        norm 1, with a lower rate for lower layers; warm-up over a tenth of ``steps``
        and a linear decay to 0 at their end. Without ``steps`` the rate is constant,
        until ``fit`` knows them. Call ``compile`` for others.
        """
        flags = {"max_seq_length": self.max_seq_length}
        config = fields.from_flat(flags, FinetuneConfig)
        chosen = finetuning.settings(config, self._task, self.encoder)
        optimizer = finetuning.optimizer(config.recipe, chosen, self, steps)
        metrics = self._task.keras_metrics()
        self.compile(
            optimizer=optimizer, loss=self._task.loss(chosen.reduction), **metrics
        )
        self._has_default = True

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the texts that the model reads."""
        return self._task.text_names

    # Training.

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int = 32,
        *,
        sample_weight: Any = None,
        validation_data: Any = None,
        shuffle: bool = True,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """``keras.Model.fit`` on texts.

        A model that was not compiled by hand is trained as a fine-tuning run trains it:
        the rate warms up and falls to 0 with the last step of this call, and another
        call begins anew. Of a dataset that does not know its length, without
        ``steps_per_epoch``, the rate is constant.

        Args:
            x: a batched ``tf.data.Dataset`` of (texts, labels) or (texts, labels,
                weights); or texts, as ``preprocess`` takes them.
            y: labels, where ``x`` are texts.
            batch_size: texts of a batch, where ``x`` is no dataset.
            sample_weight: float [N], where ``x`` is no dataset.
            validation_data: a dataset, or (texts, labels).
            shuffle: whether texts come in another order in every epoch; a dataset
                has its own.
            **kwargs: ``epochs``, ``callbacks`` and so on, as Keras has them.
        """
        data = self.preprocess(x, y, sample_weight, batch_size, shuffle=shuffle)
        if validation_data is not None:
            given = validation_data
            parts = given if isinstance(given, tuple) else (given,)
            weights = parts[2] if len(parts) == 3 else None
            validation_data = self.preprocess(*parts[:2], weights, batch_size)
        if self._has_default:
            per_epoch = kwargs.get("steps_per_epoch") or int(data.cardinality())
            epochs = kwargs.get("epochs", 1) - kwargs.get("initial_epoch", 0)
            self.compile_default(max(per_epoch * epochs, 0) or None)
        return super().fit(
            data, validation_data=validation_data, shuffle=False, **kwargs
        )

    def preprocess(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
    ) -> tf.data.Dataset:
        """Batches as ``keras.Model.fit`` reads them: token ids, targets, weights.

        Texts are a list of strings (of tuples or dictionaries where the model reads
        several), an array, or a dictionary of columns. See the class for labels.

        Raises:
            ValueError: texts or labels are not what the model wants, or the dataset is
                not batched.
        """
        batches = self._batches(x, y, sample_weight, batch_size, shuffle)
        first = next(iter(batches()), None)
        if first is None:
            raise UserError("There is not a single text.")
        specs = tf.nest.map_structure(
            lambda array: tf.TensorSpec([None] * array.ndim, array.dtype),
            self._features(*first),
        )

        def generate() -> Iterator[tuple]:
            for batch in batches():
                yield self._features(*batch)

        data = tf.data.Dataset.from_generator(generate, output_signature=specs)
        count = int(x.cardinality()) if isinstance(x, tf.data.Dataset) else -1
        if not isinstance(x, tf.data.Dataset):
            texts = next(iter(columns_of(x, self.text_names).values()))
            count = -(-len(texts) // batch_size)
        if count >= 0:
            data = data.apply(tf.data.experimental.assert_cardinality(count))
        return data.prefetch(2)

    def _batches(
        self, x: Any, y: Any, weights: Any, batch_size: int, shuffle: bool
    ) -> Callable[[], Iterator[_Batch]]:
        """A function that yields the batches of one epoch."""
        if isinstance(x, tf.data.Dataset):
            leaves = tf.nest.flatten(x.element_spec)
            if any(spec.shape.rank == 0 for spec in leaves):
                raise UserError(
                    "The dataset has single texts: give dataset.batch(32), or another "
                    "size."
                )
            return lambda: map(self._of_dataset, x.as_numpy_iterator())
        columns = columns_of(x, self.text_names)
        size = len(next(iter(columns.values())))
        labels = None if y is None else self._rows_of(y)
        weights = None if weights is None else np.asarray(weights, np.float32)
        for what, given in (("labels", labels), ("weights", weights)):
            if given is not None and len(given) != size:
                raise UserError(f"{size} texts, but {len(given)} {what}.")
        source = random.Random(self.seed)

        def batches() -> Iterator[_Batch]:
            order = list(range(size))
            if shuffle:
                source.shuffle(order)
            for start in range(0, size, batch_size):
                at = order[start : start + batch_size]
                yield (
                    {name: [texts[i] for i in at] for name, texts in columns.items()},
                    labels and [labels[i] for i in at],
                    None if weights is None else weights[at],
                )

        return batches

    def _of_dataset(self, element: Any) -> _Batch:
        # A dataset has no lists: a tuple is (texts, labels), a dictionary is texts.
        is_whole = isinstance(element, tuple)
        x, y, weights = keras.utils.unpack_x_y_sample_weight(element)
        if not is_whole:
            x, y = element, None
        return (
            columns_of(x, self.text_names),
            y if y is None else self._rows_of(y),
            weights,
        )

    def _rows_of(self, labels: Any) -> list[Any]:
        """Labels one by one."""
        return plain(labels)

    def _features(
        self,
        texts: Mapping[str, list[str]],
        labels: list[Any] | None,
        weights: np.ndarray | None,
    ) -> tuple:
        """What Keras reads of a batch: inputs, targets, weights."""
        is_training = labels is not None
        examples = self._examples(texts, labels)
        rows = self._task.featurize(
            examples, self.tokenizer, self.max_seq_length, training=is_training
        )
        length = int(rows.lengths.max())
        if is_training:
            # A training step compiles for every length that occurs: there are few.
            step = -(-self.max_seq_length // 4)
            length = min(-(-length // step) * step, self.max_seq_length)
        inputs, targets, own = make_batch(rows, np.arange(len(rows)), length)
        if weights is not None:
            given = np.asarray(weights, np.float32)[rows.example]
            # One of each row, for one or for each of its tokens.
            own = given if own is None else (own.T * given).T
        return tuple(part for part in (inputs, targets, own) if part is not None)

    def _examples(
        self, texts: Mapping[str, list[str]], labels: list[Any] | None
    ) -> list[Any]:
        """What the task calls an example, of each text."""
        raise NotImplementedError

    # Answers.

    def predict(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """Answers as a server gives them, a dictionary for each text.

        ``x`` are texts as in ``preprocess``, or a dataset of them. For the numbers,
        call the model on token ids.
        """
        if isinstance(x, tf.data.Dataset):
            columns = [self._of_dataset(each)[0] for each in x.as_numpy_iterator()]
            texts = {n: [t for each in columns for t in each[n]] for n in columns[0]}
        else:
            texts = columns_of(x, self.text_names)
        names, columns = texts.keys(), zip(*texts.values(), strict=True)
        rows = [dict(zip(names, row, strict=True)) for row in columns]
        found: list[dict[str, Any]] = []
        for start in range(0, len(rows), batch_size):
            found += self._predictor(rows[start : start + batch_size])
        return found

    @functools.cached_property
    def _predictor(self) -> Predictor:
        module = export.ServingModule(
            self, self._task, self.tokenizer, self.max_seq_length
        )
        return Predictor(module)

    def evaluate(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        """Scores a table as fine-tuning runs do, or evaluates texts as Keras does.

        Args:
            x: path of a table; or texts, or a dataset, as in ``fit``.
            y: labels, where ``x`` are texts.
            **kwargs: for a table, ``batch_size`` and the names of its columns:
                ``text`` and ``label``, ``word_column`` and ``tag_column``; by default
                those of the run that the model comes from. Else what
                ``keras.Model.evaluate`` takes.

        Returns:
            For a table, the official scores by name; else what Keras returns.
        """
        # What ``fit`` has made of its validation data.
        if "_use_cached_eval_dataset" in kwargs:
            return super().evaluate(x, **kwargs)
        if isinstance(x, str | os.PathLike):
            return self._score(Path(x), **kwargs)
        size = kwargs.pop("batch_size", 32)
        data = self.preprocess(x, y, kwargs.pop("sample_weight", None), size)
        return super().evaluate(data, **kwargs)

    def _score(self, path: Path, batch_size: int = 64, **columns: Any) -> Scores:
        if not path.exists():
            raise FileNotFoundError(f"No table {path}.")
        read = {**self.task.get("columns", {}), **columns}
        examples = self._read(path, read)
        rows = self._task.featurize(examples, self.tokenizer, self.max_seq_length)
        outputs = Outputs(self, batch_size)(rows)
        return self._task.score(self._task.decode(outputs, rows, examples), examples)

    def _read(self, path: Path, columns: Mapping[str, Any]) -> list[Any]:
        """The examples of a file."""
        raise NotImplementedError

    def encode(
        self, texts: Any, pooling: str = "mean", layer: int = -1, batch_size: int = 64
    ) -> np.ndarray:
        """Vectors of texts, float32 [N, D]; see ``SentenceVectors``."""
        return self._vectors(texts, pooling, layer, batch_size)

    @functools.cached_property
    def _vectors(self) -> SentenceVectors:
        return SentenceVectors(self.encoder, self.tokenizer, self.max_seq_length)

    # Files.

    def export(
        self,
        filepath: str | os.PathLike,
        format: str = "tf_saved_model",
        *,
        precision: str | None = None,
    ) -> float | None:
        """Writes a model that answers without this library.

        ``format`` is "tf_saved_model", which takes raw strings, or "litert" or "onnx",
        which take token ids. Arguments, result and errors are those of
        ``serving.export_saved_model``, ``export_litert`` and ``export_onnx``.
        """
        path = str(filepath)
        if format == "tf_saved_model":
            return export.export_saved_model(
                self, self._task, self.tokenizer, path, self.max_seq_length, precision
            )
        others = {"litert": export.export_litert, "onnx": export.export_onnx}
        if format not in others or precision:
            raise UserError(
                f"format is {format!r}, precision {precision!r}; allowed are "
                "tf_saved_model, which alone has a precision, litert and onnx."
            )
        return others[format](self, self._task, path)


@keras.saving.register_keras_serializable(package="electra_tf")
class TextClassifier(TextModel):
    """Classes, any number of labels, or a number, of a text or of a pair.

    Labels are names or numbers of classes; with several at a time, tuples of names or
    rows of 0 and 1; of a regression, numbers.

    Examples:
        >>> model = et.TextClassifier.from_preset("mini", ["bad", "good"])
        >>> texts, labels = (
        ...     ["I liked it.", "A waste of time."] * 16,
        ...     ["good", "bad"] * 16,
        ... )
        >>> history = model.fit(texts, labels, epochs=2, verbose=0)
        >>> [answer["label"] for answer in model.predict(["I liked it."])]
        ['good']
    """

    kinds = ("classification", "multilabel", "regression")

    @classmethod
    def from_preset(
        cls,
        preset: str | os.PathLike,
        labels: Sequence[str] | None = None,
        *,
        kind: str = "classification",
        pair: bool = False,
        pooling: str = "cls",
        label_range: tuple[float, float] | None = None,
        max_seq_length: int | None = None,
        **options: Any,
    ) -> Self:
        """A classifier with a new head, compiled, on a pretrained encoder.

        Args:
            preset: folder of a pretraining run or an import, a folder or name that
                ``electra-tf convert`` reads, or "mini", which is shipped.
            labels: names of the classes, in the order of the outputs.
            kind: "classification", "multilabel" or "regression".
            pair: whether there are two texts.
            pooling: what the head reads, see ``tasks.ClassificationHead``.
            label_range: smallest and largest label of a regression.
            max_seq_length: most tokens of a row; None: 128, or what the encoder has.
            **options: ``dropout``, ``attention_dropout``, ``head_dropout``,
                ``mixed_precision`` ("none" or "bfloat16") and ``seed``.

        Raises:
            ValueError: an argument is not one of these, or the encoder is damaged.
            OSError: there is no such encoder.
        """
        if kind not in cls.kinds:
            raise UserError(f"kind is {kind!r}; allowed are {', '.join(cls.kinds)}.")
        names = tuple(map(str, labels or ()))
        least = {"classification": 2, "multilabel": 1, "regression": 0}[kind]
        if len(set(names)) < max(least, len(names)):
            raise UserError(
                f"labels are {', '.join(names) or 'missing'}; a {kind} wants at least "
                f"{least} different ones."
            )
        own = {"labels": names}
        if kind == "regression":
            if label_range is None:
                raise UserError("A regression wants label_range, such as (0.0, 5.0).")
            own = {"label_range": tuple(map(float, label_range))}

        def make(head: dict[str, Any]) -> Task:
            return saved.kinds()[kind](pair=pair, pooling=pooling, **own, **head)

        return cls._on_preset(preset, make, max_seq_length, **options)

    def _examples(
        self, texts: Mapping[str, list[str]], labels: list[Any] | None
    ) -> list[Example]:
        rows = list(zip(*texts.values(), strict=True))
        given = [None] * len(rows) if labels is None else labels
        return [
            Example(str(number), row, label if label is None else self._label(label))
            for number, (row, label) in enumerate(zip(rows, given, strict=True))
        ]

    def _label(self, value: Any) -> Any:
        if self._task.kind == "regression":
            return float(value)
        if self._task.kind == "multilabel":
            values = plain(value)
            if values and not isinstance(values[0], str | bytes):
                if len(values) != len(self._task.labels):
                    raise UserError(
                        f"A row of labels has {len(values)} numbers; the model has "
                        f"{len(self._task.labels)} labels."
                    )
                pairs = zip(self._task.labels, values, strict=True)
                return tuple(name for name, flag in pairs if flag)
            return tuple(text_of(name, "labels") for name in values)
        if isinstance(value, str | bytes):
            return text_of(value, "labels")
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
        if int(value) != value or not 0 <= value < len(self._task.labels):
            raise UserError(
                f"The label {value} is no class: give one of "
                f"{', '.join(self._task.labels)}, or 0 to {len(self._task.labels) - 1}."
            )
        return self._task.labels[int(value)]

    def _read(self, path: Path, columns: Mapping[str, Any]) -> list[Example]:
        if path.is_dir() and self._task.name in glue.ROWS:
            task = glue.glue_task(self._task.name, str(path))
            return task.examples(task.eval_splits[0])
        names = {"text": self.text_names, "label": ("label",), **columns}
        text, label = (
            (value,) if isinstance(value, str) else tuple(value)
            for value in (names["text"], names["label"])
        )
        separator = names.get("label_separator", "|")
        source = TableSource(
            files={"eval": str(path)},
            text=text,
            label=label,
            kind=self._task.kind,
            separator=separator,
        )
        return source("eval")


@keras.saving.register_keras_serializable(package="electra_tf")
class TokenClassifier(TextModel):
    """One tag per word; a text has spaces between its words.

    Labels are the tags of each text: a string with spaces between them, or a list of
    names. Long texts become several rows.

    Examples:
        >>> model = et.TokenClassifier.from_preset("mini", ["O", "B-PER", "I-PER"])
        >>> tags = ["B-PER I-PER O O", ["B-PER", "O"]]  # in one string, or in a list
        >>> history = model.fit(["Ada Lovelace wrote it", "Ada wrote"], tags, verbose=0)
        >>> len(model.predict(["Ada wrote"])[0]["tags"])  # one for each word
        2
    """

    kinds = ("tagging",)

    @classmethod
    def from_preset(
        cls,
        preset: str | os.PathLike,
        tags: Sequence[str],
        *,
        metric: str | None = None,
        max_seq_length: int | None = None,
        **options: Any,
    ) -> Self:
        """A tagger with a new head, compiled, on a pretrained encoder.

        ``tags`` are the names of all tags; ``metric`` is "f1" of their spans, which is
        the default where "O" is one of them, or "accuracy". Else as
        ``TextClassifier.from_preset``.
        """
        names = tuple(map(str, tags))
        if len(set(names)) < max(2, len(names)):
            raise UserError(f"tags are {', '.join(names)}; give two different ones.")
        metric = metric or ("f1" if "O" in names else "accuracy")
        if metric not in ("f1", "accuracy"):
            raise UserError(f"metric is {metric!r}; allowed are f1 and accuracy.")
        learned = TagSet(names, "O" if "O" in names else names[0])

        def make(head: dict[str, Any]) -> Task:
            return saved.kinds()["tagging"](tags=learned, main_metric=metric, **head)

        return cls._on_preset(preset, make, max_seq_length, **options)

    def _examples(
        self, texts: Mapping[str, list[str]], labels: list[Any] | None
    ) -> list[Sentence]:
        sentences = []
        for number, text in enumerate(texts["text"]):
            words, tags = tuple(text.split()), None
            if labels is not None:
                tags = labels[number]
                if isinstance(tags, str | bytes):
                    tags = text_of(tags, "tags").split()
                tags = tuple(text_of(tag, "tags") for tag in tags)
                if len(tags) != len(words):
                    raise UserError(
                        f"{len(words)} words but {len(tags)} tags: {text[:100]!r}."
                    )
            sentences.append(Sentence(str(number), words, tags, (), ()))
        if labels is not None:
            # An unknown tag has no number to learn.
            self._task.tags.check(sentences, span_tags=False, unknown=False)
        return sentences

    def _read(self, path: Path, columns: Mapping[str, Any]) -> list[Sentence]:
        is_pos = self._task.main_metric == "accuracy" and path.suffix == ".conllu"
        names = ("FORM", "UPOS") if is_pos else ("0", "-1")
        source = SentenceSource(
            files={"dev": str(path)},
            word_column=columns.get("word_column") or names[0],
            tag_column=columns.get("tag_column") or names[1],
        )
        return source("dev")


@keras.saving.register_keras_serializable(package="electra_tf")
class QuestionAnswering(TextModel):
    """The part of a context that answers a question, or none.

    Texts are ``question`` and ``context``. Labels are a dictionary of columns,
    ``answer`` and, if it is known, ``start``, the first character of the answer in its
    context; or a list of answers. An empty answer says that there is none.

    Examples:
        >>> model = et.QuestionAnswering.from_preset("mini", max_query_length=16)
        >>> texts = {"question": ["Who?"], "context": ["Ada wrote it."]}
        >>> history = model.fit(texts, {"answer": ["Ada"], "start": [0]}, verbose=0)
        >>> model.predict(texts)[0]["answer"] in "Ada wrote it."
        True
    """

    kinds = ("question_answering",)

    @classmethod
    def from_preset(
        cls,
        preset: str | os.PathLike,
        *,
        unanswerable: bool = False,
        max_query_length: int = 64,
        doc_stride: int = 128,
        max_answer_length: int = 30,
        max_seq_length: int | None = None,
        **options: Any,
    ) -> Self:
        """A model with a new head, compiled, on a pretrained encoder.

        ``unanswerable`` allows questions without answer. Lengths are those of
        ``tasks.QuestionAnswering``; else as ``TextClassifier.from_preset``.
        """
        if "head_dropout" in options:
            raise UserError("The head of question answering has no dropout.")

        def make(head: dict[str, Any]) -> Task:
            head.pop("dropout")
            return saved.kinds()["question_answering"](
                unanswerable=unanswerable,
                answerability=unanswerable,
                max_query_length=max_query_length,
                doc_stride=doc_stride,
                max_answer_length=max_answer_length,
                **head,
            )

        return cls._on_preset(preset, make, max_seq_length, **options)

    def _rows_of(self, labels: Any) -> list[tuple[str, int | None]]:
        columns = labels if isinstance(labels, Mapping) else {"answer": labels}
        answers = [text_of(each, "answers") for each in plain(columns["answer"])]
        starts = (
            plain(columns["start"]) if "start" in columns else [None] * len(answers)
        )
        return list(zip(answers, starts, strict=True))

    def _examples(
        self, texts: Mapping[str, list[str]], labels: list[Any] | None
    ) -> list[Question]:
        found = []
        columns = zip(texts["question"], texts["context"], strict=True)
        for number, (question, context) in enumerate(columns):
            answers = None
            if labels is not None:
                answers = self._located(*labels[number], context)
            found.append(Question(str(number), question, context, answers))
        return found

    def _located(
        self, answer: str, start: int | None, context: str
    ) -> tuple[tuple[str, int], ...]:
        if not answer:
            if not self._task.unanswerable:
                raise UserError(
                    "A question has no answer: build the model with unanswerable=True, "
                    "or leave the question out."
                )
            return ()
        at = context.find(answer) if start is None else int(start)
        if at < 0 or not context.startswith(answer, at):
            raise UserError(
                f"The answer {answer[:80]!r} does not stand at character {at} of its "
                "context; starts count characters from 0."
            )
        return ((answer, at),)

    def _read(self, path: Path, columns: Mapping[str, Any]) -> list[Question]:
        return squad.SquadSource(
            files={"dev": [str(path)]},
            unanswerable=self._task.unanswerable,
            log=lambda line: None,
        )("dev")


# Flags of a run that say how its tables are read.
_COLUMNS = {
    "text": list[str] | None,
    "label": list[str] | None,
    "label_separator": str | None,
    "word_column": str | None,
    "tag_column": str | None,
}


def load_text_model(source: str | os.PathLike) -> TextModel | None:
    """A fine-tuned model, compiled; None if ``source`` holds none.

    ``source`` is a ``.keras`` file of one of the three classes, the folder of a
    finished fine-tuning run, or what ``electra-tf convert`` reads. Errors are those of
    ``load``.
    """
    path = Path(source)
    if path.suffix == models.KERAS and path.name != "encoder.keras":
        hint = "Give the folder of the run, which has its vocabulary."
        model = models.load(path, TextModel, hint)
        model.compile_default()
        return model
    with folder_of(source) as folder:
        return _of_run(folder) if (folder / TASK).is_file() else None


def _of_run(folder: Path) -> TextModel:
    if not (folder / MODEL).is_file():
        raise UserError(f"{folder} holds a fine-tuning run that did not finish.")
    home = FinetuningFolder(folder)
    about, network = home.about(), home.load()
    kinds = {
        kind: each
        for each in (TextClassifier, TokenClassifier, QuestionAnswering)
        for kind in each.kinds
    }
    if about["kind"] not in kinds:
        raise UserError(
            f"{folder} holds a task of the kind {about['kind']!r}, which has no Keras "
            f"class: load {folder / 'saved_model'}."
        )
    most = network.encoder.embeddings.max_positions
    if not 0 < about["max_seq_length"] <= most:
        raise UserError(
            f"{folder / TASK} is damaged: max_seq_length is {about['max_seq_length']}, "
            f"and the model has {most} positions."
        )
    shape = {"config": (None, _COLUMNS)}
    flags = files.read_json(folder / CONFIG, {}, shape=shape).get("config") or {}
    columns = {name: flags[name] for name in _COLUMNS if flags.get(name)}
    return kinds[about["kind"]].of(
        network.encoder,
        network.head,
        {**about, "columns": columns},
        home.tokenizer(),
        about["max_seq_length"],
    )

"""Keras models with built-in preprocessing: classifier, tagger, question answering.

Letters: N texts, R rows, S sequence, C labels, D hidden size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from electra_tf import files
from electra_tf.api.labels import LabelLookup, label_names
from electra_tf.api.presets import encoder_and_tokenizer, folder_of
from electra_tf.api.texts import (
    Batches,
    SentenceVectors,
    columns_of,
    is_missing,
    plain,
    text_of,
)
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.features import ENCODER_INPUTS
from electra_tf.folders import models
from electra_tf.folders.finetuning import MODEL, TASK, FinetuningFolder
from electra_tf.folders.settings import CONFIG
from electra_tf.layers.encoder import TextEncoder
from electra_tf.serving import export
from electra_tf.serving.predictor import Predictor
from electra_tf.tasks import glue, saved, squad
from electra_tf.tasks.base import Example, Rows, Scores, Task
from electra_tf.tasks.batching import Outputs, make_batch
from electra_tf.tasks.heads import TaskModel
from electra_tf.tasks.recipe import RECIPES, encoder_size, layerwise_multipliers
from electra_tf.tasks.sentences import Sentence, SentenceSource, TagSet, split_words
from electra_tf.tasks.squad import Question
from electra_tf.tasks.tables import TableSource
from electra_tf.training.optimizers import AdamW
from electra_tf.training.schedules import FitSchedule, WarmupPolynomialDecay

_OPTIONS = ("dropout", "attention_dropout", "head_dropout", "mixed_precision", "seed")
_RATE_CALLBACKS = (
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
)
_Columns = dict[str, list[str]]
# Texts, labels and sample weights; the last two may be None.
_Table = tuple[_Columns, list[Any] | None, np.ndarray | None]


class Preprocessor:
    """Tokenizes and packs texts into the inputs of a task model.

    Training, evaluation, prediction and the SavedModel share it.

    Attributes:
        tokenizer: a ``WordPiece``.
        max_seq_length: maximum number of tokens per row, special tokens included.
        text_names: names of the text inputs.
    """

    def __init__(self, task: Task, tokenizer: WordPiece, max_seq_length: int):
        self.task = task
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.text_names = tuple(task.text_names)

    def __call__(self, texts: Any) -> dict[str, tf.Tensor]:
        """Returns input_ids, input_mask and segment_ids, int32 [R, S]."""
        words = self.task.kind == "tagging"
        columns = columns_of(texts, self.text_names, words=words)
        tensors = {
            # JSON can hold lone surrogates, UTF-8 cannot.
            name: tf.constant([t.encode("utf-8", "ignore") for t in column], tf.string)
            for name, column in columns.items()
        }
        inputs = self.task.serving_inputs(
            self.tokenizer, self.max_seq_length, **tensors
        )
        return {name: inputs[name] for name in ENCODER_INPUTS}

    def rows(self, examples: Sequence[Any], *, training: bool) -> Rows:
        """Featurizes examples of the task."""
        return self.task.featurize(
            examples, self.tokenizer, self.max_seq_length, training=training
        )


@dataclasses.dataclass
class _Feed:
    """Preprocessed batches, their number if known, and an error of their generator."""

    dataset: tf.data.Dataset
    count: int | None
    error: Exception | None = None


@keras.saving.register_keras_serializable(package="electra_tf")
class PercentAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """Accuracy in percent, the unit of all scores of this library."""

    def result(self) -> tf.Tensor:
        """Returns the accuracy, from 0 to 100."""
        return 100 * super().result()


class TextModel(TaskModel):
    """Base class of the three public models: a task model that takes texts.

    The training, evaluation and prediction methods of Keras preprocess texts first.
    ``call`` maps token ids to the outputs of the head.

    Args:
        encoder: a ``TextEncoder``; also available as ``backbone``.
        head: the task head, a Keras layer.
        task: ``Task.to_json``, with the column names of tables under "columns".
        vocabulary: tokens in the order of their ids.
        lower_case: whether to lower-case texts.
        strip_accents: whether to remove accents.
        max_seq_length: maximum number of tokens per row, special tokens included.
        **kwargs: ``seed`` and ``name`` of ``TaskModel``.

    Examples:
        >>> model = et.TextClassifier.from_preset("mini", ["bad", "good"])
        >>> isinstance(model, keras.Model)
        True
        >>> model.encode(["one text", "another one"], pooling="cls").shape
        (2, 256)
        >>> inputs = next(iter(model.preprocess(["one text"])))  # of a batch
        >>> model(inputs).shape
        TensorShape([1, 2])
    """

    # Supported kinds of tasks.
    kinds: ClassVar[tuple[str, ...]] = ()
    _reads_words: ClassVar[bool] = False

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
        self._lookup = LabelLookup(self.labels)
        self.tokenizer = WordPiece(
            Vocabulary(self.vocabulary),
            lower_case=lower_case,
            strip_accents=strip_accents,
        )
        self.preprocessor = Preprocessor(self._task, self.tokenizer, max_seq_length)
        # Not cached properties: Keras reads all properties when it saves a model.
        self._predictor: Predictor | None = None
        self._vectors: SentenceVectors | None = None

    @classmethod
    def _on_preset(
        cls,
        preset: str | os.PathLike,
        make: Callable[[dict[str, Any]], Task],
        max_seq_length: int | None,
        **options: Any,
    ) -> Self:
        """Builds and compiles a model; ``make`` maps options of the head to a task."""
        seed, head_dropout = options.pop("seed", None), options.pop("head_dropout", 0.1)
        state = random.getstate()
        encoder, tokenizer, trained = encoder_and_tokenizer(preset, **options)
        task = make({"name": cls.__name__, "source": None, "dropout": head_dropout})
        most = encoder.embeddings.max_positions
        length = max_seq_length or min(task.max_seq_length, trained or most, most)
        if length > most:
            raise UserError(
                f"max_seq_length is {length}, but {preset} has {most} positions: give "
                f"{most} or less."
            )
        number = random.randrange(2**31) if seed is None else seed
        # Keras draws the seeds of initializers from this generator.
        random.seed(number)
        about, head = task.to_json(), task.head(encoder)
        model = cls.of(encoder, head, about, tokenizer, length, seed=number)
        random.setstate(state)
        if seed is None:
            # Advances the generator, so that the next model gets another seed.
            random.random()
        return model

    @classmethod
    def of(
        cls,
        encoder: TextEncoder,
        head: keras.layers.Layer,
        task: Mapping[str, Any],
        tokenizer: WordPiece,
        max_seq_length: int,
        seed: int = 0,
    ) -> Self:
        """Builds a model from its parts and compiles it with ``compile_default``."""
        model = cls(
            encoder,
            head,
            task=task,
            vocabulary=tokenizer.vocabulary.tokens,
            lower_case=tokenizer.lower_case,
            strip_accents=tokenizer.strip_accents,
            max_seq_length=max_seq_length,
            seed=seed,
        )
        model.compile_default()
        return model

    @classmethod
    def load(cls, source: str | os.PathLike) -> Self:
        """Loads a fine-tuned model; raises ValueError if it is of another class.

        ``source`` is the folder of a fine-tuning run or a saved ``.keras`` file.
        """
        found = load_text_model(source)
        if not isinstance(found, cls):
            holds = f"a {type(found).__name__}" if found else "no fine-tuned model"
            hint = "" if found else f": start from it with {cls.__name__}.from_preset"
            raise UserError(
                f"{source} holds {holds}, where a {cls.__name__} is asked for{hint}."
            )
        return found

    def compile_default(self) -> None:
        """Compiles with the defaults of fine-tuning runs.

        These are the task's loss, averaged over the batch, and AdamW with gradients
        clipped to norm 1, layerwise learning rates and a ``FitSchedule``.
        """
        recipe, size = RECIPES["paper"], encoder_size(self.encoder.hidden_size)
        optimizer = AdamW(
            FitSchedule(recipe.learning_rate[size]),
            weight_decay=recipe.weight_decay,
            learning_rate_multipliers=layerwise_multipliers(
                self, recipe.layerwise_decay[size], recipe.layerwise_exponent
            ),
        )
        self.compile(
            optimizer=optimizer,
            loss=self._task.loss(recipe.reduction),
            metrics=self._default_metrics(),
        )

    def _default_metrics(self) -> list[keras.metrics.Metric] | None:
        return None

    def get_compile_config(self) -> dict[str, Any]:
        """Returns the arguments of ``compile``."""
        config = super().get_compile_config()
        return {**config, "schedule": "as compiled"} if config else {}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Restores the saved compilation and builds the optimizer's variables."""
        config = dict(config)
        is_as_compiled = config.pop("schedule", None)
        self.compile(**keras.saving.deserialize_keras_object(config))
        rate = getattr(self.optimizer, "_learning_rate", None)
        if not is_as_compiled and isinstance(rate, WarmupPolynomialDecay):
            # Up to version 0.2, the saved schedule ended with its call of `fit`.
            self.optimizer.learning_rate = FitSchedule(rate.learning_rate)
        self._build_optimizer()

    def _build_optimizer(self) -> None:
        """Creates the optimizer's variables for the trainable variables."""
        optimizer = self.optimizer
        if optimizer is None or optimizer.built:
            return
        if isinstance(optimizer, AdamW):
            trained = {variable.path for variable in self.trainable_variables}
            frozen = {variable.path for variable in self.variables} - trained
            optimizer.learning_rate_multipliers = {
                path: factor
                for path, factor in optimizer.learning_rate_multipliers.items()
                if path not in frozen
            }
        with self.distribute_strategy.scope():
            optimizer.build(self.trainable_variables)

    def save_own_variables(self, store: dict[str, Any]) -> None:
        """Saves the state of dropout, so that training continues reproducibly."""
        store["dropout"] = self.seed_generator.state.numpy()

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Restores the state of dropout; files of version 0.2 lack it."""
        if "dropout" in store.keys():  # noqa: SIM118  a store of Keras
            self.seed_generator.state.assign(np.array(store["dropout"]))

    @property
    def backbone(self) -> TextEncoder:
        """The ``TextEncoder``, under keras-hub's name."""
        return self.encoder

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the model's text inputs."""
        return tuple(self._task.text_names)

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in the order of the outputs; empty if the task has no labels."""
        return ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model on token ids; raises ValueError for strings."""
        inputs = args[0] if args else kwargs.get("inputs")
        for leaf in keras.tree.flatten(inputs):
            if _is_text(leaf):
                raise UserError(
                    "The model is called on token ids: use predict for answers, or "
                    "model(model.preprocessor(texts)) for logits."
                )
        return super().__call__(*args, **kwargs)

    # Input.

    def preprocess(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
    ) -> tf.data.Dataset:
        """Returns a dataset of batches: inputs, or (inputs, targets[, weights]).

        ``x`` is a list, array or Series of strings, a DataFrame or a dictionary of
        columns. If the model reads several texts, rows of a list are tuples or
        dictionaries. ``x`` may also be a ``tf.data.Dataset``, ``keras.utils.PyDataset``
        or generator of batches with labels.

        Raises:
            ValueError: if texts or labels are invalid, or the dataset is not batched.
        """
        return self._feed(x, y, sample_weight, batch_size, shuffle=shuffle).dataset

    def _feed(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
        class_weight: Mapping[Any, float] | None = None,
    ) -> _Feed:
        """Returns the batches of ``preprocess``; passes on its datasets unchanged."""
        if isinstance(x, tf.data.Dataset) and _is_encoded(x.element_spec):
            return _Feed(x, Batches(x).count)
        weigh = self._class_weights(class_weight)
        if Batches.has(x):
            if y is not None or sample_weight is not None or batch_size is not None:
                raise UserError(
                    "A dataset or generator has batches with labels and weights inside:"
                    " leave out y, sample_weight and batch_size."
                )
            batches = Batches(x, shuffle=shuffle)

            def generate() -> Iterator[tuple]:
                for element in batches:
                    rows = self._rows(*self._table(*element), weigh)
                    if len(rows):
                        yield self._batch(rows, np.arange(len(rows)))

            first, count = batches.first(), batches.count
            if first is None:
                raise UserError("There is not a single text: the dataset is empty.")
            rows = self._rows(*self._table(*first), weigh)
            if self._task.kind == "question_answering":
                # Batches without usable answers are skipped: unknown count.
                return self._generated(generate, rows, None, count)
            return self._generated(generate, rows, count, count)
        table = self._table(x, y, sample_weight)
        return self._table_feed(table, batch_size, shuffle=shuffle, weigh=weigh)

    def _table_feed(
        self,
        table: _Table,
        batch_size: int | None,
        *,
        shuffle: bool = False,
        weigh: np.ndarray | None = None,
    ) -> _Feed:
        size, rows = _batch_size(batch_size), self._rows(*table, weigh)
        if not len(rows):
            raise UserError(
                "There is not a single text that can be trained on: every answer lacks "
                "tokens. Check the data, and the vocabulary."
            )
        steps = 0 if self.optimizer is None else int(self.optimizer.iterations.numpy())
        order = np.random.default_rng([self.seed, steps])

        def shuffled() -> Iterator[tuple]:
            numbers = np.arange(len(rows))
            if shuffle:
                order.shuffle(numbers)
            for start in range(0, len(rows), size):
                yield self._batch(rows, numbers[start : start + size])

        count = -(-len(rows) // size)
        return self._generated(shuffled, rows, count, count)

    def _generated(
        self,
        generate: Callable[[], Iterator[tuple]],
        rows: Rows,
        certain: int | None,
        count: int | None,
    ) -> _Feed:
        """Wraps a generator as a dataset; ``certain`` is the cardinality to assert."""
        batch = self._batch(rows, np.arange(min(len(rows), 1)))
        specs = tf.nest.map_structure(
            lambda array: tf.TensorSpec([None] * array.ndim, array.dtype), batch
        )

        def guarded() -> Iterator[tuple]:
            try:
                yield from generate()
            except Exception as error:
                # TensorFlow replaces the exception by a long error text.
                feed.error = error
                raise

        data = tf.data.Dataset.from_generator(guarded, output_signature=specs)
        if certain is not None:
            data = data.apply(tf.data.experimental.assert_cardinality(certain))
        feed = _Feed(data.prefetch(2), count)
        return feed

    def _table(self, x: Any, y: Any, sample_weight: Any) -> _Table:
        """Returns texts, labels and sample weights of equal length."""
        columns = columns_of(x, self.text_names, words=self._reads_words)
        size = len(next(iter(columns.values())))
        if not size:
            raise UserError("There is not a single text.")
        labels = None if y is None else self._labels_of(y)
        weights = None
        if sample_weight is not None:
            weights = np.array(plain(sample_weight, "sample_weight"), np.float32)
            if weights.ndim != 1 or not np.all(np.isfinite(weights)):
                raise UserError(
                    "sample_weight must be one finite number for each text."
                )
            if labels is None:
                raise UserError("sample_weight needs labels.")
        for what, given in (("labels", labels), ("weights", weights)):
            if given is not None and len(given) != size:
                raise UserError(f"{size} texts, but {len(given)} {what}.")
        return columns, labels, weights

    def _labels_of(self, y: Any) -> list[Any]:
        """Returns a list of one label per text."""
        if hasattr(y, "columns") and len(y.columns) == 1:
            y = y[y.columns[0]]
        return plain(y, "labels")

    def _rows(
        self,
        columns: _Columns,
        labels: list[Any] | None,
        weights: np.ndarray | None,
        weigh: np.ndarray | None,
    ) -> Rows:
        """Returns feature rows with weights; ``weigh`` holds class weights [C]."""
        rows = self._featurize(columns, labels)
        if weigh is not None and labels is not None:
            by_class = weigh[rows.targets["label"]]
            own = by_class if rows.weights is None else rows.weights * by_class
            rows = dataclasses.replace(rows, weights=own.astype(np.float32))
        if weights is None:
            return rows
        own, given = rows.weights, weights[rows.example]
        if isinstance(own, np.ndarray):
            given *= own
        elif own is not None:
            # Ragged: one weight per token.
            values = own.values * np.repeat(given, own.lengths)
            given = dataclasses.replace(own, values=values)
        return dataclasses.replace(rows, weights=given)

    def _featurize(self, columns: _Columns, labels: list[Any] | None) -> Rows:
        raise NotImplementedError

    def _batch(self, rows: Rows, chosen: np.ndarray) -> Any:
        """Returns the inputs, targets and weights of the chosen rows."""
        length = int(rows.lengths[chosen].max(initial=1))
        if rows.targets:
            # Four lengths only: the training step compiles once per length.
            step = -(-self.max_seq_length // 4)
            length = min(-(-length // step) * step, self.max_seq_length)
        return keras.utils.pack_x_y_sample_weight(*make_batch(rows, chosen, length))

    def _class_weights(self, given: Mapping[Any, float] | None) -> np.ndarray | None:
        if given is None:
            return None
        if self._task.kind != "classification":
            raise UserError(
                f"class_weight is for classification, not {self._task.kind}."
            )
        weights = np.ones([len(self.labels)], np.float32)
        for label, weight in given.items():
            try:
                weights[self._lookup.index(label, 0)] = weight
            except UserError as error:
                raise UserError(f"class_weight: {error}") from error
        return weights

    @contextlib.contextmanager
    def _errors_of(self, *feeds: _Feed | None) -> Iterator[None]:
        """Raises the preprocessing error instead of TensorFlow's."""
        try:
            yield
        except (tf.errors.OpError, StopIteration):
            for feed in feeds:
                if feed is not None and feed.error is not None:
                    raise feed.error from None
            raise

    # Training.

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[Any, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> keras.callbacks.History:
        """Trains as ``keras.Model.fit``; see ``preprocess`` for ``x`` and ``y``.

        A ``FitSchedule`` warms up and decays to 0 within each call; the optimizer keeps
        its state. The schedule is off if a callback sets the learning rate or the
        number of steps is unknown (a generator without ``steps_per_epoch``).

        Keys of ``class_weight`` are labels. ``validation_split`` takes the last texts.
        """
        validation_size = validation_batch_size or batch_size
        if validation_split and validation_data is None:
            table, held_out = self._split(x, y, sample_weight, validation_split)
            weigh = self._class_weights(class_weight)
            feed = self._table_feed(table, batch_size, shuffle=shuffle, weigh=weigh)
            validation = self._table_feed(held_out, validation_size)
        else:
            feed = self._feed(
                *(x, y, sample_weight, batch_size),
                shuffle=shuffle,
                class_weight=class_weight,
            )
            validation = self._validation(validation_data, validation_size)
        _check_labeled(feed, "fit")
        self._build_optimizer()
        per_epoch = steps_per_epoch or feed.count
        schedule = getattr(self.optimizer, "_learning_rate", None)
        given = getattr(callbacks, "callbacks", callbacks) or ()
        sets_rate = any(isinstance(each, _RATE_CALLBACKS) for each in given)
        if isinstance(schedule, FitSchedule) and per_epoch and not sets_rate:
            total = per_epoch * max(epochs - initial_epoch, 0)
            schedule.start(int(self.optimizer.iterations.numpy()), total)
        try:
            with self._errors_of(feed, validation):
                return super().fit(
                    feed.dataset,
                    epochs=epochs,
                    verbose=verbose,
                    callbacks=callbacks,
                    validation_data=validation and validation.dataset,
                    shuffle=False,
                    initial_epoch=initial_epoch,
                    steps_per_epoch=steps_per_epoch,
                    validation_steps=validation_steps,
                    validation_freq=validation_freq,
                )
        finally:
            if isinstance(schedule, FitSchedule):
                schedule.stop()

    def _split(
        self, x: Any, y: Any, sample_weight: Any, share: float
    ) -> tuple[_Table, _Table]:
        """Splits off the last texts for validation."""
        if Batches.has(x):
            raise UserError("validation_split needs texts in memory, not batches.")
        columns, labels, weights = self._table(x, y, sample_weight)
        size = len(next(iter(columns.values())))
        cut = int(size * (1 - share))
        if not 0 < cut < size:
            raise UserError(
                f"validation_split={share} of {size} texts leaves none to train on or "
                "none to validate on."
            )

        def part(rows: slice) -> _Table:
            texts = {name: column[rows] for name, column in columns.items()}
            return (
                texts,
                labels and labels[rows],
                None if weights is None else weights[rows],
            )

        return part(slice(cut)), part(slice(cut, None))

    def _validation(self, data: Any, batch_size: int | None) -> _Feed | None:
        if data is None:
            return None
        if Batches.has(data):
            return self._feed(data)
        if not isinstance(data, tuple | list) or len(data) not in (2, 3):
            raise UserError(
                "validation_data must be (texts, labels), (texts, labels, weights) or "
                "a dataset."
            )
        x, y, weights = (*data, None)[:3]
        return self._feed(x, y, weights, batch_size)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[Any, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Runs ``keras.Model.train_on_batch`` on texts."""
        batch = self._one_batch(x, y, sample_weight, class_weight)
        self._build_optimizer()
        return super().train_on_batch(*batch, return_dict=return_dict)

    def test_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Runs ``keras.Model.test_on_batch`` on texts."""
        batch = self._one_batch(x, y, sample_weight)
        return super().test_on_batch(*batch, return_dict=return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """Returns the outputs of the head, such as logits, for one batch of texts."""
        inputs, *_ = self._one_batch(x)
        return super().predict_on_batch(inputs)

    def _one_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[Any, float] | None = None,
    ) -> tuple:
        if isinstance(x, Mapping) and "input_ids" in x:
            return x, y, sample_weight
        if Batches.has(x):
            raise UserError("A single batch is needed, not a dataset or a generator.")
        weigh = self._class_weights(class_weight)
        rows = self._rows(*self._table(x, y, sample_weight), weigh)
        batch = self._batch(rows, np.arange(len(rows)))
        return keras.utils.unpack_x_y_sample_weight(batch)

    # Prediction.

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = 0,
        steps: int | None = None,
        callbacks: Any = None,
    ) -> list[dict[str, Any]]:
        """Returns one dictionary per text, as the exported SavedModel does.

        ``verbose="auto"`` shows no progress. See ``predict_proba`` for arrays.
        """
        batches, count = self._text_batches(x, batch_size)
        count = steps if count is None or steps is None else min(steps, count)
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            verbose = 0 if verbose == "auto" else int(verbose)
            callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_progbar=verbose > 0,
                verbose=verbose,
                epochs=1,
                steps=count,
                model=self,
            )
        answers: list[dict[str, Any]] = []
        callbacks.on_predict_begin()
        for number, columns in enumerate(itertools.islice(batches, steps)):
            callbacks.on_predict_batch_begin(number)
            rows = zip(*columns.values(), strict=True)
            named = [dict(zip(columns, row, strict=True)) for row in rows]
            found = self._served(named) if named else []
            answers += found
            callbacks.on_predict_batch_end(number, {"outputs": found})
        callbacks.on_predict_end()
        return answers

    def _text_batches(
        self, x: Any, batch_size: int | None
    ) -> tuple[Iterator[_Columns], int | None]:
        """Returns batches of texts, and their number if known."""
        if Batches.has(x):
            batches = Batches(x)
            texts = (self._columns(element) for element, _, _ in batches)
            return texts, batches.count
        columns, size = self._columns(x), _batch_size(batch_size)
        total = len(next(iter(columns.values())))
        slices = (
            {name: column[start : start + size] for name, column in columns.items()}
            for start in range(0, total, size)
        )
        return slices, -(-total // size)

    def _columns(self, x: Any) -> _Columns:
        return columns_of(x, self.text_names, words=self._reads_words)

    def _all_columns(self, x: Any) -> _Columns:
        """Collects the columns of all batches."""
        batches, _ = self._text_batches(x, None)
        columns: _Columns = {name: [] for name in self.text_names}
        for batch in batches:
            for name, texts in batch.items():
                columns[name] += texts
        return columns

    def _served(self, rows: list[dict[str, str]]) -> list[dict[str, Any]]:
        if self._predictor is None:
            module = export.ServingModule(
                self, self._task, self.tokenizer, self.max_seq_length
            )
            self._predictor = Predictor(module)
        return self._predictor(rows)

    def predict_proba(self, x: Any, batch_size: int | None = None) -> Any:
        """Returns probabilities in the order of ``labels``, float32 [N, C].

        A ``TokenClassifier`` returns [words, C] per text. Raises ValueError if the task
        has no labels.
        """
        raise UserError(
            f"A model for {self._task.kind} has no probabilities of labels."
        )

    def _outputs(self, x: Any, batch_size: int | None) -> tuple[list[Any], Rows, int]:
        """Returns the model outputs, the feature rows and the number of texts."""
        columns = self._all_columns(x)
        size = len(next(iter(columns.values())))
        if not size:
            return [], Rows({}, {}, np.zeros([0], np.int64)), 0
        rows = self._featurize(columns, None)
        return Outputs(self, _batch_size(batch_size))(rows), rows, size

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Computes the official scores of a table, or the loss and metrics of texts.

        ``x`` is the path of a table, or texts or a dataset as in ``fit``. For a table,
        ``**kwargs`` are column names: ``text`` and ``label``, or ``word_column`` and
        ``tag_column`` (default: as in the fine-tuning run).

        Returns:
            For a table, scores by name, in percent. Otherwise the loss and metrics, as
            in Keras, with accuracy in percent.
        """
        if isinstance(x, str | os.PathLike):
            return self._score(Path(x), _batch_size(batch_size), **kwargs)
        options = {
            "verbose": verbose,
            "steps": steps,
            "callbacks": callbacks,
            "return_dict": return_dict,
            **kwargs,
        }
        # `fit` passes preprocessed validation data.
        if kwargs.get("_use_cached_eval_dataset"):
            return super().evaluate(x, y, sample_weight=sample_weight, **options)
        feed = self._feed(x, y, sample_weight, batch_size)
        _check_labeled(feed, "evaluate")
        with self._errors_of(feed):
            return super().evaluate(feed.dataset, **options)

    def _score(self, path: Path, batch_size: int, **columns: Any) -> Scores:
        if not path.exists():
            raise FileNotFoundError(f"No table {path}.")
        read = {**self.task.get("columns", {}), **columns}
        examples = self._read(path, read)
        rows = self.preprocessor.rows(examples, training=False)
        outputs = Outputs(self, batch_size)(rows)
        return self._task.score(self._task.decode(outputs, rows, examples), examples)

    def _read(self, path: Path, columns: Mapping[str, Any]) -> list[Any]:
        raise NotImplementedError

    def encode(
        self, texts: Any, pooling: str = "mean", layer: int = -1, batch_size: int = 64
    ) -> np.ndarray:
        """Returns sentence embeddings, float32 [N, D]; see ``SentenceVectors``."""
        if self._vectors is None:
            self._vectors = SentenceVectors(
                self.encoder, self.tokenizer, self.max_seq_length
            )
        options = {"pooling": pooling, "layer": layer, "batch_size": batch_size}
        is_list = isinstance(texts, list | tuple) and bool(texts)
        if is_list and not self._reads_words and isinstance(texts[0], str | tuple):
            # Any model encodes single texts and pairs.
            return self._vectors(texts, **options)
        columns = self._all_columns(texts)
        names = tuple(columns)
        return self._vectors(tuple(columns.values()), **options, names=names)

    # Export.

    def export(
        self,
        filepath: str | os.PathLike,
        format: str = "tf_saved_model",
        verbose: Any = None,
        *,
        precision: str | None = None,
    ) -> float | None:
        """Exports a model that runs without this library.

        ``format`` is "tf_saved_model", which takes strings, or "litert" or "onnx",
        which take token ids. See ``serving.export_saved_model``, ``export_litert`` and
        ``export_onnx``. ``verbose`` has no effect.
        """
        del verbose
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


def _is_text(value: Any) -> bool:
    """Whether a value holds strings, or is a table or a dataset."""
    if not hasattr(value, "dtype"):
        return not isinstance(value, int | float | None)
    kind = getattr(value.dtype, "kind", "")
    return kind in ("U", "S", "O") or "str" in str(value.dtype)


def _is_encoded(element: Any) -> bool:
    """Whether a dataset element is already tokenized."""
    x = element[0] if isinstance(element, tuple) else element
    return isinstance(x, Mapping) and "input_ids" in x


def _check_labeled(feed: _Feed, method: str) -> None:
    if not isinstance(feed.dataset.element_spec, tuple):
        raise UserError(f"{method} needs labels: give y, or batches with labels.")


def _batch_size(given: int | None) -> int:
    if given is None:
        return 32
    if not isinstance(given, int | np.integer) or given < 1:
        raise UserError(f"batch_size must be a positive integer, got {given!r}.")
    return int(given)


def _check_options(options: Mapping[str, Any], *more: str) -> None:
    known = (*_OPTIONS, *more)
    for name in options:
        if name not in known:
            hint = " Give labels=, the names of the classes." if "class" in name else ""
            raise UserError(
                f"Unknown option {name!r}; known are {', '.join(known)}.{hint}"
            )


@keras.saving.register_keras_serializable(package="electra_tf")
class TextClassifier(TextModel):
    """Text classifier: single-label, multi-label or regression, of texts or pairs.

    Targets are label names. A number is a label if any label is a number, and otherwise
    an index into ``labels``. Multi-label targets are lists of labels, or one number
    from 0 to 1 per label. Regression targets are numbers within ``label_range``.

    Examples:
        >>> model = et.TextClassifier.from_preset("mini", ["bad", "good"])
        >>> texts, labels = (
        ...     ["I liked it.", "A waste of time."] * 16,
        ...     ["good", "bad"] * 16,
        ... )
        >>> history = model.fit(texts, labels, epochs=2, verbose=0)
        >>> [answer["label"] for answer in model.predict(["I liked it."])]
        ['good']
        >>> model.predict_proba(["I liked it."]).shape
        (1, 2)
    """

    kinds = ("classification", "multilabel", "regression")

    @classmethod
    def from_preset(
        cls,
        preset: str | os.PathLike,
        labels: Sequence[Any] | None = None,
        *,
        kind: str = "classification",
        pair: bool = False,
        pooling: str = "cls",
        label_range: tuple[float, float] | None = None,
        max_seq_length: int | None = None,
        **options: Any,
    ) -> Self:
        """Builds and compiles a classifier with a new head on a pretrained encoder.

        Args:
            preset: "mini", which is shipped; the folder of a pretraining run or import;
                or a folder or name that ``electra-tf convert`` reads.
            labels: class names in the order of the outputs.
            kind: "classification", "multilabel" or "regression".
            pair: whether the model reads two texts.
            pooling: input of the head, see ``tasks.ClassificationHead``.
            label_range: smallest and largest label of a regression.
            max_seq_length: maximum number of tokens per row; default: 128, or fewer if
                the encoder has fewer positions.
            **options: ``dropout``, ``attention_dropout``, ``head_dropout``,
                ``mixed_precision`` ("none" or "bfloat16"; default: Keras's policy) and
                ``seed`` of head, dropout and shuffling (default: from
                ``keras.utils.set_random_seed``).

        Raises:
            ValueError: if an argument is invalid or the encoder is damaged.
            OSError: if the encoder does not exist.
        """
        _check_options(options)
        if kind not in cls.kinds:
            raise UserError(f"kind is {kind!r}; allowed are {', '.join(cls.kinds)}.")
        if kind == "regression":
            if labels is not None:
                raise UserError("A regression has no labels: give label_range alone.")
            own = {"label_range": _label_range(label_range)}
        else:
            least = 2 if kind == "classification" else 1
            own = {"labels": label_names(labels, "labels", least)}

        def make(head: dict[str, Any]) -> Task:
            return saved.kinds()[kind](pair=pair, pooling=pooling, **own, **head)

        return cls._on_preset(preset, make, max_seq_length, **options)

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in the order of the outputs; empty for a regression."""
        return getattr(self._task, "labels", None) or ()

    def _default_metrics(self) -> list[keras.metrics.Metric] | None:
        if self._task.kind == "classification":
            return [PercentAccuracy(name="accuracy")]
        return None

    def _labels_of(self, y: Any) -> list[Any]:
        if self._task.kind == "multilabel" and hasattr(y, "columns"):
            if sorted(map(str, y.columns)) != sorted(self.labels):
                raise UserError(
                    f"The columns of y are {', '.join(map(str, y.columns))}, not the "
                    f"labels {', '.join(self.labels)}."
                )
            names = {str(name): name for name in y.columns}
            columns = [plain(y[names[name]], name) for name in self.labels]
            return [list(row) for row in zip(*columns, strict=True)]
        return super()._labels_of(y)

    def _featurize(self, columns: _Columns, labels: list[Any] | None) -> Rows:
        texts = zip(*columns.values(), strict=True)
        examples = [Example(str(number), row) for number, row in enumerate(texts)]
        rows = self.preprocessor.rows(examples, training=labels is not None)
        if labels is None:
            return rows
        targets = self._targets(labels)[rows.example]
        return dataclasses.replace(rows, targets={"label": targets})

    def _targets(self, labels: list[Any]) -> np.ndarray:
        """Returns int32 [N], float32 [N, C] (multi-label) or [N, 1] (regression)."""
        if self._task.kind == "multilabel":
            rows = [self._lookup.several(value, n) for n, value in enumerate(labels)]
            return np.stack(rows)
        if self._task.kind == "classification":
            numbers = [self._lookup.index(value, n) for n, value in enumerate(labels)]
            return np.array(numbers, np.int32)
        low, high = self._task.label_range
        values = np.array([_number(value, n) for n, value in enumerate(labels)])
        for row in np.flatnonzero((values < low) | (values > high)):
            raise UserError(
                f"Row {row}: the label {values[row]:g} is outside of label_range "
                f"({low:g}, {high:g})."
            )
        scaled = (values - low) / (high - low)
        return scaled.astype(np.float32)[:, np.newaxis]

    def predict_proba(self, x: Any, batch_size: int | None = None) -> np.ndarray:
        """Returns the probability of each label, float32 [N, C]."""
        if self._task.kind == "regression":
            return super().predict_proba(x, batch_size)
        outputs, rows, size = self._outputs(x, batch_size)
        if not size:
            return np.zeros([0, len(self.labels)], np.float32)
        return self._task.decode(outputs, rows, [None] * size)

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


def _label_range(given: Any) -> tuple[float, float]:
    if given is None:
        raise UserError("A regression needs label_range, such as (0.0, 5.0).")
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        low = high = float("nan")
    if not -np.inf < low < high < np.inf:
        raise UserError(
            f"label_range must be a smaller and a larger number, got {given!r:.100}."
        )
    return low, high


def _number(value: Any, row: int) -> float:
    if isinstance(value, list | tuple | np.ndarray) and len(value) == 1:
        (value,) = value
    try:
        number = float("nan") if is_missing(value) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise UserError(f"Row {row}: the label {value!r:.100} is not a finite number.")
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
    _reads_words = True

    @classmethod
    def from_preset(
        cls,
        preset: str | os.PathLike,
        tags: Sequence[Any],
        *,
        metric: str | None = None,
        max_seq_length: int | None = None,
        **options: Any,
    ) -> Self:
        """Builds and compiles a tagger with a new head on a pretrained encoder.

        ``tags`` are all tag names. ``metric`` is "f1" of spans (default if "O" is a
        tag) or "accuracy". See ``TextClassifier.from_preset`` for other arguments and
        errors.
        """
        _check_options(options)
        names = label_names(tags, "tags", 2)
        metric = metric or ("f1" if "O" in names else "accuracy")
        if metric not in ("f1", "accuracy"):
            raise UserError(f"metric is {metric!r}; allowed are f1 and accuracy.")
        learned = TagSet(names, "O" if "O" in names else names[0])

        def make(head: dict[str, Any]) -> Task:
            return saved.kinds()["tagging"](tags=learned, main_metric=metric, **head)

        return cls._on_preset(preset, make, max_seq_length, **options)

    @property
    def labels(self) -> tuple[str, ...]:
        """Tag names in the order of the outputs."""
        return self._task.tags.learned

    def _featurize(self, columns: _Columns, labels: list[Any] | None) -> Rows:
        sentences = []
        for number, text in enumerate(columns["text"]):
            words, tags = tuple(split_words(text)), None
            if labels is not None:
                tags = self._tags(labels[number], len(words), number, text)
            sentences.append(Sentence(str(number), words, tags, (), ()))
        if labels is not None and self._task.tags.rewritten:
            self._task.tags.check(sentences, span_tags=False, unknown=False)
        return self.preprocessor.rows(sentences, training=labels is not None)

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
        if self._task.tags.rewritten:
            # The dataset's tag names differ from the learned names.
            return tuple(text_of(tag, "tags") for tag in given)
        return tuple(self.labels[self._lookup.index(tag, row)] for tag in given)

    def predict_proba(self, x: Any, batch_size: int | None = None) -> list[np.ndarray]:
        """Returns float32 [words, C] per text; words without tokens have NaN."""
        # Once: a generator can be read only once.
        columns = self._all_columns(x)
        if not columns["text"]:
            return []
        outputs, rows, _ = self._outputs(columns, batch_size)
        counts = [len(split_words(text)) for text in columns["text"]]
        found = [np.full([n, len(self.labels)], np.nan, np.float32) for n in counts]
        for row, logits in enumerate(outputs):
            word = rows.notes["word"][row]
            at = np.flatnonzero(word >= 0)
            found[rows.example[row]][word[at]] = tf.nn.softmax(logits[at]).numpy()
        return found

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
    """Extractive question answering: predicts an answer span of the context.

    Texts are the columns ``question`` and ``context``. Targets are a list of answers,
    or the columns ``answer`` and, if known, ``start``, the answer's character offset in
    the context. An empty answer marks an unanswerable question.

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
        """Builds and compiles a model with a new head on a pretrained encoder.

        ``unanswerable`` allows questions without an answer. See
        ``tasks.QuestionAnswering`` and ``TextClassifier.from_preset`` for other
        arguments and errors.
        """
        if "head_dropout" in options:
            raise UserError("The head of question answering has no dropout.")
        _check_options(options)

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

    def _labels_of(self, y: Any) -> list[tuple[str, Any]]:
        is_table = isinstance(y, Mapping) or hasattr(y, "columns")
        names = list(y) if is_table else ["answer"]
        if "answer" not in names:
            raise UserError(
                f"The labels need a column answer; the columns are {', '.join(names)}."
            )
        values = y["answer"] if is_table else y
        answers = [
            text_of(value, f"answers (row {row})")
            for row, value in enumerate(plain(values, "answers"))
        ]
        starts = [None] * len(answers)
        if "start" in names:
            starts = plain(y["start"], "start")
        if len(starts) != len(answers):
            raise UserError(f"{len(answers)} answers, but {len(starts)} starts.")
        return list(zip(answers, starts, strict=True))

    def _featurize(self, columns: _Columns, labels: list[Any] | None) -> Rows:
        questions = []
        pairs = zip(columns["question"], columns["context"], strict=True)
        for number, (question, context) in enumerate(pairs):
            answers = None
            if labels is not None:
                answers = self._located(*labels[number], context, number)
            questions.append(Question(str(number), question, context, answers))
        return self.preprocessor.rows(questions, training=labels is not None)

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
        elif is_missing(start) or start != int(start):
            raise UserError(f"Row {row}: start is {start!r}, not a whole number.")
        else:
            at = int(start)
        if at < 0 or not context.startswith(answer, at):
            raise UserError(
                f"Row {row}: the answer {answer[:80]!r} does not stand at character "
                f"{at} of its context; starts count characters from 0."
            )
        return ((answer, at),)

    def _read(self, path: Path, columns: Mapping[str, Any]) -> list[Question]:
        return squad.SquadSource(
            files={"dev": [str(path)]},
            unanswerable=self._task.unanswerable,
            log=lambda line: None,
        )("dev")


# Flags of a fine-tuning run that name the columns of its tables.
_COLUMNS = {
    "text": list[str] | None,
    "label": list[str] | None,
    "label_separator": str | None,
    "word_column": str | None,
    "tag_column": str | None,
}


def load_text_model(source: str | os.PathLike) -> TextModel | None:
    """Loads a compiled fine-tuned model; returns None for a pretrained one.

    ``source`` is a ``.keras`` file, the folder of a finished fine-tuning run, or any
    source of ``electra-tf convert``. See ``load`` for errors.
    """
    path = Path(source)
    if path.suffix == models.KERAS and path.name != "encoder.keras":
        hint = "Give the folder of the run, which has its vocabulary."
        return models.load(path, TextModel, hint, compile=True)
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

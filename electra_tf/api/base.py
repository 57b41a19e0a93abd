"""Base class of Keras models with built-in preprocessing."""

import collections
import contextlib
import dataclasses
import functools
import inspect
import os
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli
from electra_tf.api import presets
from electra_tf.api.inputs import checked_batch_size, sliced
from electra_tf.api.labels import LabelLookup
from electra_tf.api.texts import TextInputs
from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.data.paths import suffix
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import completion
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import finetuning_tasks, frozen
from electra_tf.serving import export
from electra_tf.serving.predictor import Predictor
from electra_tf.tasks import glue, saved
from electra_tf.tasks.base import Rows
from electra_tf.tasks.batching import (
    Outputs,
    TrainingOrder,
    bucket_lengths,
    training_dataset,
)
from electra_tf.tasks.heads import TaskModel
from electra_tf.tasks.recipe import RECIPES, encoder_size, layerwise_multipliers
from electra_tf.training.callbacks import unscaled
from electra_tf.training.optimizers import AdamW
from electra_tf.training.schedules import FitSchedule, WarmupPolynomialDecay

# Settings of a recipe that the encoder and the head do not have.
_TRAINING = ("adam_bias_correction", "head_init", "layerwise_decay", "learning_rate")
_OF_MODELS = (*_TRAINING, "attention_dropout", "dropout", "head_dropout", "pooling")
# Flags of a fine-tuning run that name the columns of its tables.
COLUMNS = ("text", "label", "label_separator", "word_column", "tag_column")
# Names for which Keras chooses a function by the shapes.
_BY_SHAPE = ("acc", "accuracy", "ce", "crossentropy")
_RATE_CALLBACKS = (
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
)


def restoring(from_preset: Callable[..., Any]) -> Callable[..., Any]:
    """Makes ``from_preset(preset)`` load a ``save_to_preset`` of the same class."""

    @functools.wraps(from_preset)
    def load_or_build(
        cls: type[TextModel], preset: str | os.PathLike, *args: Any, **kwargs: Any
    ) -> Any:
        if presets.task_class(preset) == cls.__name__:
            if not (args or kwargs):
                return presets.load(Path(preset))
            cli.note(
                f"{preset} holds a trained {cls.__name__}, which gets a new head: to "
                "restore it, give the folder alone."
            )
        return from_preset(cls, preset, *args, **kwargs)

    return load_or_build


@keras.saving.register_keras_serializable(package="electra_tf")
class PercentAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """Accuracy in percent, the unit of all scores of this library."""

    def result(self) -> tf.Tensor:
        return 100 * super().result()


class TextModel(TextInputs, TaskModel):
    """Base class of the three public models: a task model that takes texts.

    The training, evaluation and prediction methods of Keras preprocess texts first.
    ``call`` maps token ids to the outputs of the head.

    Args:
        encoder: a ``TextEncoder``; also available as ``backbone``.
        head: the task head, a Keras layer.
        task: ``Task.to_json``, with the column names of tables under "columns" and
            training settings of the preset under "recipe".
        vocabulary: tokens in the order of their ids.
        lower_case: whether to lower-case texts.
        strip_accents: whether to remove accents.
        max_seq_length: maximum number of tokens per row, special tokens included.
        **kwargs: ``seed`` and ``name`` of ``TaskModel``.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    # Keras lacks the attribute until `compile`.
    optimizer: Any = None

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
        self.text_names = tuple(self._task.text_names)
        if self._task.kind not in self.kinds:
            raise UserError(
                f"{type(self).__name__} is for {' and '.join(self.kinds)}, not for "
                f"{self._task.kind}: load the model with electra_tf.load."
            )
        positions = encoder.embeddings.max_positions
        if not 0 < max_seq_length <= positions:
            raise UserError(
                f"max_seq_length is {max_seq_length}; it must be from 1 to "
                f"{positions}, the positions of the encoder."
            )
        self._lookup = LabelLookup(self.labels)
        self.tokenizer = WordPiece(
            Vocabulary(self.vocabulary),
            lower_case=lower_case,
            strip_accents=strip_accents,
        )
        self.reads_words = self._task.kind == "tagging"
        # Neither Keras nor TensorFlow tracks the values, unlike those of a dictionary.
        self._traces: collections.UserDict = collections.UserDict()
        self._new_head = self._head_checksum()

    @classmethod
    def _new(
        cls,
        preset: str | os.PathLike,
        kind: str,
        settings: dict[str, Any],
        options: dict[str, Any],
        max_seq_length: int | None,
        seed: int | None,
    ) -> Self:
        """Builds a model for a new task; the preset's recipe completes ``options``."""
        options = {name: x for name, x in options.items() if x is not None}
        recipe = completion(preset, kind, options, cli.note)
        # Others are set elsewhere, such as epochs in `fit`.
        options |= {name: x for name, x in recipe.items() if name in _OF_MODELS}
        task_class = saved.kinds()[kind]
        fields_of_task = {field.name for field in dataclasses.fields(task_class)}
        for name, ours in ("pooling", "pooling"), ("head_dropout", "dropout"):
            if name in options and ours in fields_of_task:
                settings[ours] = options.pop(name)
        training = {name: options.pop(name) for name in _TRAINING if name in options}
        number = random.randrange(2**31) if seed is None else seed
        # Checks the values, as of flags.
        flags = {**training, "seed": number, "max_seq_length": max_seq_length}
        fields.from_flat(flags, FinetuneConfig)
        state = random.getstate()
        try:
            encoder, tokenizer, most = presets.encoder_and_tokenizer(preset, **options)
            task = task_class(name=cls.__name__, source=None, **settings)
            if training.get("head_init") == "probe":
                frozen.check(task, "head_init")
            length = max_seq_length or min(task.max_seq_length, most)
            # Keras draws the seeds of initializers from this generator.
            random.seed(number)
            about, head = {**task.to_json(), "recipe": training}, task.head(encoder)
            return cls.of(encoder, head, about, tokenizer, length, seed=number)
        finally:
            random.setstate(state)

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
        """Builds a model from its parts and compiles it with the defaults."""
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

    def compile_default(self) -> None:
        """Compiles with the defaults of fine-tuning runs, or the preset's recipe.

        These are the task's loss, averaged over the batch, and AdamW with gradients
        clipped to norm 1, layerwise learning rates and a ``FitSchedule``.
        """
        paper, size = RECIPES["paper"], encoder_size(self.encoder.hidden_size)
        recipe = self.task.get("recipe", {})
        decay = recipe.get("layerwise_decay", paper.layerwise_decay[size])
        optimizer = AdamW(
            FitSchedule(recipe.get("learning_rate", paper.learning_rate[size])),
            weight_decay=paper.weight_decay,
            bias_correction=recipe.get("adam_bias_correction", False),
            learning_rate_multipliers=layerwise_multipliers(self, decay),
        )
        metrics = {}
        if self._task.kind == "classification":
            # Weights make the windows of a text count as one.
            windows = self._task.long_texts == "windows"
            accuracy = [PercentAccuracy(name="accuracy")]
            metrics["weighted_metrics" if windows else "metrics"] = accuracy
        self.compile(optimizer, self._task.loss(paper.reduction), **metrics)

    def enable_lora(self, rank: int) -> None:
        """Freezes the encoder, except for new factors, and compiles with the defaults.

        See ``LoraModel``. Compile afterwards for other settings.
        """
        with self.distribute_strategy.scope():
            super().enable_lora(rank)
            self.compile_default()

    def quantize(
        self, mode: str | None = None, config: Any = None, **kwargs: Any
    ) -> None:
        """Makes the encoder's weights int8, and compiles with the defaults."""
        with self.distribute_strategy.scope():
            super().quantize(mode, config, **kwargs)
            self.compile_default()
        # Old traces keep the float weights in memory.
        self._inference = None, None
        self._traces.clear()

    def merge_lora(self) -> Self:
        """Returns a newly compiled copy with the factors added to the kernels."""
        copy = super().merge_lora()
        copy.seed_generator.state.assign(self.seed_generator.state)
        copy.compile_default()
        return copy

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        return {**config, "schedule": "as compiled"} if config else {}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        config = dict(config)
        is_as_compiled = config.pop("schedule", None)
        # A ``compile`` without a loss or metrics keeps these, which the file lacks.
        self.compile_default()
        super().compile_from_config(config)
        rate = getattr(unscaled(self.optimizer), "_learning_rate", None)
        if not is_as_compiled and isinstance(rate, WarmupPolynomialDecay):
            # Files of version 0.2 have the schedule of one `fit`.
            unscaled(self.optimizer)._learning_rate = FitSchedule(rate.learning_rate)

    def save_own_variables(self, store: dict[str, Any]) -> None:
        """Saves the state of dropout, and what tells a new head from a changed one."""
        store["dropout"] = self.seed_generator.state.numpy()
        store["new_head"] = np.array(self._new_head)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Restores the state, which files of version 0.2 lack."""
        names = [*store.keys()]
        if "dropout" in names:
            self.seed_generator.state.assign(np.array(store["dropout"]))
        # Heads in files of earlier versions count as changed.
        self._new_head = int(np.array(store["new_head"])) if "new_head" in names else -1
        if self.optimizer is not None and not self.optimizer.built:
            # Keras loads it next, and its moments only if it is built.
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)

    def _head_checksum(self) -> int:
        return zlib.crc32(b"".join(x.tobytes() for x in self.head.get_weights()))

    @property
    def backbone(self) -> TextEncoder:
        """The ``TextEncoder``, under keras-hub's name."""
        return self.encoder

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in the order of the outputs; empty if the task has no labels."""
        return tuple(self.task.get("labels") or ())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model on token ids; raises ValueError for texts."""
        inputs = keras.tree.flatten(args[0] if args else kwargs.get("inputs"))
        if not all(value is None or hasattr(value, "dtype") for value in inputs):
            raise UserError(
                "The model is called on token ids: use predict for answers, or "
                "model(model.preprocessor(texts)) for logits."
            )
        return super().__call__(*args, **kwargs)

    def _assert_compile_called(self, method_name: str | None = None) -> None:
        """Also raises ValueError for a loss or metric of probabilities."""
        super()._assert_compile_called(method_name)
        # Keras 3.15 calls it on uncompiled models only.
        self._warn_if_trainable_state_changed()
        getters = {"loss": keras.losses.get, "metric": keras.metrics.get}
        given = [("loss", loss) for loss in keras.tree.flatten(self.loss)]
        for attribute in ("_user_metrics", "_user_weighted_metrics"):
            metrics = getattr(self._compile_metrics, attribute, None)
            given += [("metric", metric) for metric in keras.tree.flatten(metrics)]
        for role, value in given:
            name = getattr(value, "name", getattr(value, "__name__", value))
            if isinstance(value, str) and value not in _BY_SHAPE:
                value = getters[role](value)
            is_wrong = _takes_probabilities(value)
            if role == "metric" and self._task.kind == "multilabel":
                is_wrong = is_wrong or _has_threshold_of_half(value)
            if is_wrong:
                raise UserError(
                    f"The {role} {name} takes probabilities, but the model returns "
                    "logits: use from_logits=True, or the threshold 0.0."
                )

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

        A ``FitSchedule`` warms up and decays to 0 within each call, unless a callback
        sets the learning rate or the number of steps is unknown.

        Shuffled texts in memory form the batches of ``electra-tf finetune``: the same
        settings, seed and texts, at least one batch, give the same weights.

        Keys of ``class_weight`` are labels. ``validation_split`` takes the last texts.
        With ``head_init="probe"``, the first call replaces a new, unfrozen head.
        """
        self._assert_compile_called("fit")
        # Keras keeps the epoch of a backup that ``BackupAndRestore`` restored.
        self._initial_epoch = None
        validation_size = validation_batch_size or batch_size
        weigh = None if class_weight is None else self._weighing(class_weight)
        if isinstance(x, tf.data.Dataset):
            if validation_split:
                raise UserError("validation_split needs texts in memory, not batches.")
            dataset = self.preprocess(x, y, sample_weight, batch_size)
            if weigh and isinstance(dataset.element_spec, tuple):
                dataset = dataset.map(weigh)
        else:
            rows = self._rows(x, y, sample_weight)
            if validation_split and validation_data is None:
                rows, held_out = _split(rows, validation_split)
                validation_data = self._dataset_of(held_out, validation_size)
            if weigh and rows.targets:
                *_, weights = weigh(None, rows.targets["label"], rows.weights)
                rows = dataclasses.replace(rows, weights=weights.numpy())
            is_probed = self.task.get("recipe", {}).get("head_init") == "probe"
            is_new = self.head.trainable and self._head_checksum() == self._new_head
            if is_probed and is_new and rows.targets:
                frozen.start_head(self, self._task, rows, batch_size=64)
            size = min(checked_batch_size(batch_size), max(len(rows), 1))
            if shuffle and len(rows) and rows.targets:
                buckets = bucket_lengths(rows.lengths, self.max_seq_length)
                updates = int(self.optimizer.iterations.numpy())
                order = TrainingOrder(rows.lengths, size, buckets, updates)
                # Whole executions: Keras would take missing steps from the next epoch.
                at_once = self.steps_per_execution
                whole = -(-order.steps_per_pass // at_once) * at_once
                steps_per_epoch = steps_per_epoch or whole
                steps = steps_per_epoch * max(epochs - initial_epoch, 0)
                dataset = training_dataset(rows, order, seed=self.seed, steps=steps)
            else:
                dataset = self._dataset_of(rows, batch_size)
        if validation_data is not None:
            values = keras.utils.unpack_x_y_sample_weight(validation_data)
            size = None if isinstance(values[0], tf.data.Dataset) else validation_size
            validation_data = self.preprocess(*values, size)
            _check_labeled(validation_data, "validation_data")
        _check_labeled(dataset, "fit")
        # Batches of questions without answers are left out, in a number not known yet.
        batches = x if isinstance(x, tf.data.Dataset) else dataset
        per_epoch = steps_per_epoch or int(batches.cardinality())
        optimizer = unscaled(self.optimizer)
        schedule = getattr(optimizer, "_learning_rate", None)
        schedule = schedule if isinstance(schedule, FitSchedule) else None
        each = keras.tree.flatten(getattr(callbacks, "callbacks", callbacks))
        sets_rate = any(isinstance(callback, _RATE_CALLBACKS) for callback in each)
        if schedule and per_epoch > 0 and not sets_rate:
            total = per_epoch * max(epochs - initial_epoch, 0)
            # Not `iterations`, which counts accumulated gradients as one step.
            schedule.start(int(optimizer._iterations.numpy()), total)
        try:
            with _own_errors():
                return super().fit(
                    dataset,
                    epochs=epochs,
                    verbose=verbose,
                    callbacks=callbacks,
                    validation_data=validation_data,
                    shuffle=False,
                    initial_epoch=initial_epoch,
                    steps_per_epoch=steps_per_epoch,
                    validation_steps=validation_steps,
                    validation_freq=validation_freq,
                )
        finally:
            if schedule:
                schedule.stop()

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[Any, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Runs ``keras.Model.train_on_batch`` on texts."""
        batch = self._one_batch(x, y, sample_weight, "train_on_batch")
        if class_weight is not None:
            batch = self._weighing(class_weight)(*batch)
        return super().train_on_batch(*batch, return_dict=return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """Runs ``keras.Model.test_on_batch`` on texts."""
        batch = self._one_batch(x, y, sample_weight, "test_on_batch")
        return super().test_on_batch(*batch, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Returns arrays: the outputs of the head, such as logits [texts, labels]."""
        return super().predict_on_batch(self._one_batch(x)[0])

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
        ``**kwargs`` are column names: ``text``, ``label`` and ``label_separator``, or
        ``word_column`` and ``tag_column`` (default: of the run), and labels, weights,
        ``steps`` or ``callbacks`` raise ValueError.

        Returns the scores of a table by name, in percent; otherwise the loss and
        metrics as Keras does, with accuracy in percent.
        """
        options = {"steps": steps, "callbacks": callbacks, **kwargs}
        if isinstance(x, str | os.PathLike):
            if not Path(x).exists():
                raise FileNotFoundError(f"No table {x}.")
            others = {"labels": y, "weights": sample_weight, **options}
            wrong = [n for n, x in others.items() if x is not None and n not in COLUMNS]
            if wrong:
                raise UserError(
                    f"evaluate(table) scores the whole table and does not take "
                    f"{' or '.join(wrong)}; its options are {', '.join(COLUMNS)}."
                )
            given = {name: x for name, x in kwargs.items() if x or x == 0}
            examples = self._read(Path(x), {**self.task.get("columns", {}), **given})
            rows = self._rows_of(examples, training=False)
            outputs = Outputs(self, checked_batch_size(batch_size))(rows)
            answers = self._task.decode(outputs, rows, examples)
            return self._task.score(answers, examples)
        x = self.preprocess(x, y, sample_weight, batch_size)
        _check_labeled(x, "evaluate")
        with _own_errors():
            return super().evaluate(
                x, verbose=verbose, return_dict=return_dict, **options
            )

    def _read(self, path: Path, columns: Mapping[str, Any]) -> Sequence[Any]:
        """Reads the examples of a file as ``electra-tf finetune`` does."""
        task = self._task
        flags = {"task": task.kind, "train": str(path), "eval": str(path), **columns}
        for name in ("text", "label"):
            if isinstance(flags.get(name), str):
                flags[name] = (flags[name],)
        if task.kind == "question_answering":
            flags["task"] = "squad2" if task.unanswerable else "squad1"
        elif task.kind == "tagging":
            is_pos = task.main_metric == "accuracy" and suffix(path) == ".conllu"
            flags["task"] = "pos" if is_pos else "tagging"
        elif path.is_dir() and task.name in glue.ROWS:
            flags = {"task": task.name, "data_dir": str(path)}
        else:
            flags.setdefault("text", self.text_names)
            if len(flags["text"]) != len(self.text_names):
                raise UserError(
                    f"text names {len(flags['text'])} columns, but the model reads "
                    f"{' and '.join(self.text_names)}."
                )
        config = fields.from_flat(flags, FinetuneConfig)
        reader = finetuning_tasks.task(config, log=lambda line: None)
        return reader.examples(reader.eval_splits[0])

    def predict(
        self, x: Any, batch_size: int | None = None, verbose: Any = 0
    ) -> list[dict[str, Any]]:
        """Returns one dictionary per text, as the exported SavedModel does.

        Multi-label predictions have the predicted ``labels``. ``verbose="auto"`` shows
        no progress. ``predict_on_batch`` returns logits as arrays.
        """
        parts = self, self._task, self.tokenizer, self.max_seq_length
        predictor = self._traced(
            lambda: Predictor(export.ServingModule(*parts)), self.max_seq_length
        )
        batches = list(sliced(self._columns(x), batch_size))
        verbose = 0 if verbose == "auto" else int(verbose)
        progress = keras.utils.Progbar(len(batches), verbose=verbose)
        answers: list[dict[str, Any]] = []
        for number, batch in enumerate(batches, start=1):
            answers += predictor.answers(batch)
            progress.update(number)
        return answers

    def save(
        self, filepath: Any, *args: Any, include_optimizer: bool = True, **kwargs: Any
    ) -> None:
        """Saves as ``keras.Model.save``, optionally without the optimizer's moments."""
        optimizer = self.optimizer
        if optimizer is not None and not include_optimizer:
            self.optimizer = type(optimizer).from_config(optimizer.get_config())
        try:
            super().save(filepath, *args, **kwargs)
        finally:
            self.optimizer = optimizer

    def save_to_preset(self, preset_dir: str | os.PathLike) -> None:
        """Saves to a new folder in keras-hub's layout, LoRA's factors merged.

        ``keras_hub.models.Backbone.from_preset`` loads the encoder, and
        ``keras_hub.models.Tokenizer.from_preset`` the tokenizer. ``from_preset``
        without labels and ``electra_tf.load`` load the whole model.
        """
        model = self.merge_lora() if self.encoder.lora_rank else self
        presets.save(model, self.tokenizer, Path(preset_dir))

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
        which take token ids. ``verbose`` is ignored. For ``precision`` and the result
        see ``serving.export_onnx`` and its peers.
        """
        del verbose
        path = str(filepath)
        if format == "tf_saved_model" and precision != "int8":
            return export.export_saved_model(
                self, self._task, self.tokenizer, path, self.max_seq_length, precision
            )
        write = {"litert": export.export_litert, "onnx": export.export_onnx}.get(format)
        if write is None:
            raise UserError(
                f"format is {format!r}, precision {precision!r}; allowed are "
                "tf_saved_model (float32, bfloat16), litert and onnx (float32, int8)."
            )
        return write(self, self._task, path, precision or "float32")


def _takes_probabilities(value: Any) -> bool:
    """Returns True if a loss or metric has ``from_logits=False``."""
    if inspect.isfunction(value):
        from_logits = inspect.signature(value).parameters.get("from_logits")
        return from_logits is not None and from_logits.default is False
    is_name = value in ("ce", "crossentropy")
    return is_name or getattr(value, "from_logits", True) is False


def _has_threshold_of_half(metric: Any) -> bool:
    """Returns True if a metric has thresholds of probabilities, such as 0.5."""
    if metric in ("acc", "accuracy", keras.metrics.binary_accuracy):
        return True
    # AUC, and metrics such as PrecisionAtRecall.
    if hasattr(metric, "num_thresholds"):
        return not getattr(metric, "_from_logits", False)
    return 0.5 in getattr(metric, "thresholds", [getattr(metric, "threshold", None)])


def _split(rows: Rows, share: float) -> tuple[Rows, Rows]:
    """Splits off a share of the texts, the last ones."""
    size = rows.example.max(initial=-1) + 1
    first = np.searchsorted(rows.example, int(size * (1 - share)))
    if not 0 < first < len(rows):
        raise UserError(f"validation_split={share} of {size} texts leaves no texts.")
    return rows.take(np.arange(first)), rows.take(np.arange(first, len(rows)))


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Raises the error of a generator of batches in place of TensorFlow's around it."""
    try:
        yield
    except tf.errors.OpError as error:
        _, is_own, text = error.message.partition("UserError: ")
        raise UserError(text.partition("\n")[0]) if is_own else error from None


def _check_labeled(dataset: tf.data.Dataset, method: str) -> None:
    """Raises ValueError unless the batches of a dataset have labels."""
    if not isinstance(dataset.element_spec, tuple):
        raise UserError(f"{method} needs labels: give y, or batches with labels.")

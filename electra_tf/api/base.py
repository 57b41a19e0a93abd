"""Base class of Keras models with built-in preprocessing.

Letters: N texts, R rows, S sequence, C labels, D hidden size.
"""

import dataclasses
import functools
import inspect
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli, files
from electra_tf.api import presets
from electra_tf.api.inputs import Preprocessor, TextInputs, check_labeled, split
from electra_tf.api.labels import LabelLookup
from electra_tf.api.texts import (
    SentenceVectors,
    batch_count,
    checked_batch_size,
    is_batched,
    sliced,
)
from electra_tf.config import fields
from electra_tf.config.finetuning import (
    FinetuneConfig,
    FinetuneDataConfig,
    RecipeConfig,
)
from electra_tf.data.paths import suffix
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders import models
from electra_tf.folders.finetuning import MODEL, FinetuningFolder
from electra_tf.folders.pretraining import completion
from electra_tf.folders.settings import CONFIG, TASK
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.quantization import modes
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
            if all(value is None for value in (*args, *kwargs.values())):
                return cls.load(preset)
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
        self.preprocessor = Preprocessor(self._task, self.tokenizer, max_seq_length)
        self._vectors = SentenceVectors(encoder, self.tokenizer, max_seq_length)
        # Not a cached property: Keras reads all properties when it saves a model.
        self._predictor: tuple[Any, Predictor] | None = None
        # The last error of a generator of batches.
        self._error: Exception | None = None
        self._has_new_head = True

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
        if unused := sorted(recipe.keys() - {*_OF_MODELS}):
            names = ", ".join(unused)
            cli.note(f"not applied, since a model does not hold them: {names}")
        options |= {name: x for name, x in recipe.items() if name in _OF_MODELS}
        task_class = saved.kinds()[kind]
        fields_of_task = {field.name for field in dataclasses.fields(task_class)}
        for name, ours in ("pooling", "pooling"), ("head_dropout", "dropout"):
            if name in options and ours in fields_of_task:
                settings[ours] = options.pop(name)
        training = {name: options.pop(name) for name in _TRAINING if name in options}
        # Checks the values, as of flags.
        RecipeConfig(**training)
        if seed is not None and not 0 <= seed < 2**31:
            raise UserError(f"seed is {seed}; it must be in [0, 2147483647].")
        FinetuneDataConfig(max_seq_length=max_seq_length)
        state = random.getstate()
        try:
            encoder, tokenizer, most = presets.encoder_and_tokenizer(preset, **options)
            task = task_class(name=cls.__name__, source=None, **settings)
            if training.get("head_init") == "probe":
                frozen.check(task, "head_init")
            length = max_seq_length or min(task.max_seq_length, most)
            number = random.randrange(2**31) if seed is None else seed
            # Keras draws the seeds of initializers from this generator.
            random.seed(number)
            about, head = {**task.to_json(), "recipe": training}, task.head(encoder)
            model = cls.of(encoder, head, about, tokenizer, length, seed=number)
        finally:
            random.setstate(state)
        if seed is None:
            # The next model gets another seed.
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

    @classmethod
    def load(cls, source: str | os.PathLike) -> Self:
        """Loads a run, preset or ``.keras`` file; ValueError if of another class."""
        if presets.task_class(source):
            model = presets.load(Path(source))
            model.compile_default()
        else:
            with presets.folder_of(source) as folder:
                model = load_text_model(folder)
        if not isinstance(model, cls):
            name = f"a {type(model).__name__}" if model else "no fine-tuned model"
            raise UserError(
                f"{source} holds {name}, and {cls.__name__}.load needs a "
                f"{cls.__name__}. To start from an encoder, use from_preset."
            )
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
        self._inference, self._predictor = (None, None), None
        self._vectors = SentenceVectors(
            self.encoder, self.tokenizer, self.max_seq_length
        )

    def merge_lora(self) -> Self:
        """Returns a newly compiled copy with the factors added to the kernels."""
        copy = super().merge_lora()
        copy.seed_generator.state.assign(self.seed_generator.state)
        copy.compile_default()
        return copy

    def load_lora_weights(self, filepath: str | os.PathLike) -> None:
        """Loads factors and head into an equal model; enables LoRA if it is off."""
        super().load_lora_weights(filepath)
        # `fit` must not replace the head by a probe.
        self._has_new_head = False

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        return {**config, "schedule": "as compiled"} if config else {}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        config = dict(config)
        is_as_compiled = config.pop("schedule", None)
        super().compile_from_config(config)
        rate = getattr(_unscaled(self.optimizer), "_learning_rate", None)
        if not is_as_compiled and isinstance(rate, WarmupPolynomialDecay):
            # Files of version 0.2 have the schedule of one `fit`.
            self.optimizer.learning_rate = FitSchedule(rate.learning_rate)

    def save_own_variables(self, store: dict[str, Any]) -> None:
        """Saves the state of dropout and of the head."""
        store["dropout"] = self.seed_generator.state.numpy()
        store["has_new_head"] = np.array(self._has_new_head)

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Restores the state, which files of version 0.2 lack."""
        if "dropout" in store.keys():  # noqa: SIM118  a store of Keras
            self.seed_generator.state.assign(np.array(store["dropout"]))
        if "has_new_head" in store.keys():  # noqa: SIM118
            self._has_new_head = bool(np.array(store["has_new_head"]))
        if self.optimizer is not None and not self.optimizer.built:
            # Keras loads it next, and its moments only if it is built.
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)

    @property
    def backbone(self) -> TextEncoder:
        """The ``TextEncoder``, under keras-hub's name."""
        return self.encoder

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the model's text inputs."""
        return self.preprocessor.text_names

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in the order of the outputs; empty if the task has no labels."""
        return tuple(self.task.get("labels") or ())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model on token ids; raises ValueError for strings."""
        inputs = args[0] if args else kwargs.get("inputs")
        if any(map(_is_text, keras.tree.flatten(inputs))):
            raise UserError(
                "The model is called on token ids: use predict for answers, or "
                "model(model.preprocessor(texts)) for logits."
            )
        return super().__call__(*args, **kwargs)

    def _check_loss(self) -> None:
        """Raises ValueError for a loss or metric of probabilities."""
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
                    "logits: use from_logits=True, or for metrics with a threshold the "
                    "threshold 0.0."
                )

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Sets all weights; ``fit`` then starts from this head, not from a probe."""
        super().set_weights(weights)
        # Not the state of the seed generator: dropout must not depend on this call.
        self._has_new_head = False

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
        With ``head_init="probe"``, the first call replaces the head of a new model,
        unless it is frozen, was trained, or was set by ``set_weights`` or
        ``load_lora_weights``.
        """
        self._check_loss()
        # Keras keeps the epoch of a backup that ``BackupAndRestore`` restored.
        self._initial_epoch = None
        validation_size = validation_batch_size or batch_size
        more_epochs = epochs - initial_epoch > 1
        if isinstance(x, Iterator) and more_epochs and not steps_per_epoch:
            raise UserError("A generator is read once: give steps_per_epoch.")
        if is_batched(x):
            dataset = self.preprocess(x, y, sample_weight, batch_size, shuffle=shuffle)
            if validation_split:
                raise UserError("validation_split needs texts in memory, not batches.")
        else:
            rows = self._rows(x, y, sample_weight)
            if validation_split and validation_data is None:
                rows, held_out = split(rows, validation_split)
                validation_data = self._dataset_of(held_out, validation_size)
            count = self.seed_generator.state.numpy()[1]
            is_new = self._has_new_head and self.head.trainable and not count
            head_init = self.task.get("recipe", {}).get("head_init")
            if is_new and rows.targets and head_init == "probe":
                weighted = rows
                if class_weight is not None:
                    weigh = self._weighing(class_weight)
                    *_, weights = weigh(None, rows.targets["label"], rows.weights)
                    weighted = dataclasses.replace(rows, weights=weights.numpy())
                frozen.start_head(self, self._task, weighted, batch_size=64)
            size = min(checked_batch_size(batch_size), max(len(rows), 1))
            # Keras would take the last steps of an epoch from the next one.
            remainder = -(-len(rows) // size) % self.steps_per_execution
            overruns = more_epochs and remainder and not steps_per_epoch
            if shuffle and len(rows) and rows.targets and not overruns:
                lengths = rows.lengths
                buckets = bucket_lengths(lengths, self.max_seq_length)
                order = TrainingOrder(lengths, size, buckets, updates=self._updates)
                steps_per_epoch = steps_per_epoch or order.steps_per_pass
                steps = steps_per_epoch * max(epochs - initial_epoch, 0)
                dataset = training_dataset(rows, order, seed=self.seed, steps=steps)
            else:
                dataset = self._dataset_of(rows, batch_size, shuffle=shuffle)
        if validation_data is not None:
            values = keras.utils.unpack_x_y_sample_weight(validation_data)
            size = None if is_batched(values[0]) else validation_size
            validation_data = self.preprocess(*values, size)
            check_labeled(validation_data, "validation_data")
            if isinstance(values[0], Iterator) and not validation_steps:
                # A generator is read once and evaluated after every epoch.
                validation_data = validation_data.cache()
        check_labeled(dataset, "fit")
        if class_weight is not None:
            dataset = dataset.map(self._weighing(class_weight))
        per_epoch = steps_per_epoch or batch_count(dataset) or batch_count(x)
        optimizer = _unscaled(self.optimizer)
        schedule = getattr(optimizer, "_learning_rate", None)
        schedule = schedule if isinstance(schedule, FitSchedule) else None
        each = keras.tree.flatten(getattr(callbacks, "callbacks", callbacks))
        sets_rate = any(isinstance(callback, _RATE_CALLBACKS) for callback in each)
        if schedule and per_epoch and not sets_rate:
            total = per_epoch * max(epochs - initial_epoch, 0)
            # Not `iterations`, which counts accumulated gradients as one step.
            schedule.start(int(optimizer._iterations.numpy()), total)
        try:
            with self._own_errors():
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
        self._check_loss()
        batch = self._labeled_batch("train_on_batch", x, y, sample_weight)
        if class_weight is not None:
            batch = self._weighing(class_weight)(*batch)
        return super().train_on_batch(*batch, return_dict=return_dict)

    def test_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Runs ``keras.Model.test_on_batch`` on texts."""
        self._check_loss()
        batch = self._labeled_batch("test_on_batch", x, y, sample_weight)
        return super().test_on_batch(*batch, return_dict=return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """Returns the outputs of the head, such as logits [N, C], as arrays."""
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
        ``**kwargs`` are column names: ``text`` and ``label``, or ``word_column`` and
        ``tag_column`` (default: as in the fine-tuning run).

        Returns the scores of a table by name, in percent; otherwise the loss and
        metrics as Keras does, with accuracy in percent.
        """
        if isinstance(x, str | os.PathLike):
            if not Path(x).exists():
                raise FileNotFoundError(f"No table {x}.")
            others = {"y": y, "sample_weight": sample_weight, "steps": steps}
            others |= {"callbacks": callbacks, **kwargs}
            given = {name: value for name, value in others.items() if value is not None}
            if wrong := sorted(given.keys() - {*COLUMNS}):
                raise UserError(
                    f"evaluate(table) scores the whole table and does not take "
                    f"{wrong[0]}; column names are {', '.join(COLUMNS)}."
                )
            examples = self._read(Path(x), {**self.task.get("columns", {}), **given})
            rows = self.preprocessor.rows(examples, training=False)
            outputs = self._outputs(rows, batch_size)
            answers = self._task.decode(outputs, rows, examples)
            return self._task.score(answers, examples)
        self._check_loss()
        # `fit` passes preprocessed validation data.
        if not kwargs.get("_use_cached_eval_dataset"):
            x = self.preprocess(x, y, sample_weight, batch_size)
            check_labeled(x, "evaluate")
        with self._own_errors():
            return super().evaluate(
                x,
                verbose=verbose,
                steps=steps,
                callbacks=callbacks,
                return_dict=return_dict,
                **kwargs,
            )

    def _outputs(self, rows: Rows, batch_size: int | None) -> list[Any]:
        """Returns the outputs of the head by feature row."""
        return Outputs(self, checked_batch_size(batch_size))(rows)

    def _read(self, path: Path, columns: Mapping[str, Any]) -> Sequence[Any]:
        """Reads the examples of a file as ``electra-tf finetune`` does."""
        task = self._task
        flags = {"task": task.kind, "train": str(path), "eval": str(path), **columns}
        if task.kind == "question_answering":
            flags["task"] = "squad2" if task.unanswerable else "squad1"
        elif task.kind == "tagging":
            is_pos = task.main_metric == "accuracy" and suffix(path) == ".conllu"
            flags["task"] = "pos" if is_pos else "tagging"
        elif path.is_dir() and task.name in glue.ROWS:
            flags = {"task": task.name, "data_dir": str(path)}
        else:
            flags.setdefault("text", self.text_names)
        for name in ("text", "label"):
            if isinstance(flags.get(name), str):
                flags[name] = (flags[name],)
        is_text = hasattr(task, "pair") and "text" in flags
        if is_text and len(flags["text"]) != len(self.text_names):
            raise UserError(
                f"text names {len(flags['text'])} columns, but the model reads "
                f"{' and '.join(self.text_names)}."
            )
        config = fields.from_flat(flags, FinetuneConfig)
        reader = finetuning_tasks.task(config, log=lambda line: None)
        return reader.examples(reader.eval_splits[0])

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = 0,
        steps: int | None = None,
        callbacks: Any = None,
    ) -> list[dict[str, Any]]:
        """Returns one dictionary per text, as the exported SavedModel does.

        Multi-label predictions have the predicted ``labels``. ``verbose="auto"`` shows
        no progress. ``predict_on_batch`` returns logits as arrays.
        """
        key = self.encoder.lora_rank, modes(self)
        if self._predictor is None or self._predictor[0] != key:
            module = export.ServingModule(
                self, self._task, self.tokenizer, self.max_seq_length
            )
            self._predictor = key, Predictor(module)
        _, predictor = self._predictor
        size = checked_batch_size(batch_size)
        batches = list(sliced(self._columns(x, size, steps), size))
        verbose = 0 if verbose == "auto" else int(verbose)
        loop = keras.callbacks.CallbackList(
            callbacks,
            add_progbar=verbose > 0,
            verbose=verbose,
            epochs=1,
            steps=len(batches),
            model=self,
        )
        answers: list[dict[str, Any]] = []
        loop.on_predict_begin()
        for number, batch in enumerate(batches):
            loop.on_predict_batch_begin(number)
            outputs = predictor.answers(batch)
            answers += outputs
            loop.on_predict_batch_end(number, {"outputs": outputs})
        loop.on_predict_end()
        return answers

    def encode(
        self,
        texts: Any,
        pooling: str = "mean",
        layer: int | None = None,
        batch_size: int | None = 64,
    ) -> np.ndarray:
        """Returns sentence embeddings, float32 [N, D]; see ``SentenceVectors``."""
        options = {"pooling": pooling, "layer": layer, "batch_size": batch_size}
        is_list = isinstance(texts, list | tuple) and bool(texts)
        is_texts = is_list and isinstance(texts[0], str | tuple)
        if is_texts and not self.preprocessor.reads_words:
            # Any model encodes single texts and pairs.
            return self._vectors(texts, **options)
        return self._vectors(self._columns(texts), **options, names=self.text_names)

    def save(
        self,
        filepath: str | os.PathLike,
        overwrite: bool = True,
        *,
        include_optimizer: bool = True,
        **kwargs: Any,
    ) -> None:
        """Saves as ``keras.Model.save``, optionally without the optimizer's moments.

        Predictions are the same; further training starts with moments of zero.
        """
        optimizer = self.optimizer
        if optimizer is not None and not include_optimizer:
            self.optimizer = type(optimizer).from_config(optimizer.get_config())
        try:
            super().save(filepath, overwrite, **kwargs)
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
        which take token ids; see ``serving``. ``verbose`` is ignored.
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
                "tf_saved_model in float32 or bfloat16, and litert and onnx in float32 "
                "or int8."
            )
        return write(self, self._task, path, precision or "float32")


def _is_text(value: Any) -> bool:
    """Returns True for strings, tables and datasets."""
    if not hasattr(value, "dtype"):
        return not isinstance(value, int | float | None)
    kind = getattr(value.dtype, "kind", "")
    return kind in ("U", "S", "O") or "str" in str(value.dtype)


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
    threshold = getattr(metric, "threshold", None)
    return 0.5 in getattr(metric, "thresholds", [threshold])


def _unscaled(optimizer: Any) -> Any:
    """Returns the optimizer inside Keras's loss scaling, which float16 adds."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def load_text_model(path: Path) -> TextModel | None:
    """Loads a compiled model from a file or folder; None for a pretrained model."""
    if path.suffix == models.KERAS and path.name != "encoder.keras":
        hint = (
            "For the model of a run, give the run's folder, which has the vocabulary. "
            "Register own losses and metrics (keras.saving), or leave them out with "
            "keras.saving.load_model(path, compile=False)."
        )
        return models.load(path, TextModel, hint, compile=True)
    return _of_run(path) if (path / TASK).is_file() else None


def class_of(kind: Any) -> type[TextModel] | None:
    """Returns the imported text model for a kind of task, or None."""
    classes = TextModel.__subclasses__()
    return next((each for each in classes if kind in each.kinds), None)


def _of_run(folder: Path) -> TextModel:
    if not (folder / MODEL).is_file():
        raise UserError(f"{folder} holds a fine-tuning run that did not finish.")
    home = FinetuningFolder(folder)
    about, network = home.about(), home.load()
    model_class = class_of(about["kind"])
    if model_class is None:
        raise UserError(
            f"{folder} holds a task of the kind {about['kind']!r}, which has no Keras "
            f"class: load {folder / 'saved_model'}."
        )
    hints = fields.hints(FinetuneConfig)
    shape = {"config": (None, {name: (None, hints[name]) for name in COLUMNS})}
    flags = files.read_json(folder / CONFIG, {}, shape=shape).get("config") or {}
    # Flags of a GLUE task do not name its columns.
    names = () if about["task"] in glue.ROWS else COLUMNS
    columns = {name: flags[name] for name in names if flags.get(name)}
    tokenizer, task = home.tokenizer(), {**about, "columns": columns}
    parts = network.encoder, network.head, task, tokenizer, about["max_seq_length"]
    try:
        return model_class.of(*parts)
    except UserError as error:
        raise UserError(f"{folder / TASK}: {error}") from error

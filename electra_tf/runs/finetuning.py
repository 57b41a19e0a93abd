"""One fine-tuning run: from an encoder and a task to scores and a served model.

``prepare`` is the only part that knows the settings. It leaves nothing to decide, and
nothing that could still be refused for its settings, to ``train`` and ``finish``.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig, RecipeConfig
from electra_tf.data.tokenizer import WordPiece
from electra_tf.errors import UserError
from electra_tf.folders import models
from electra_tf.folders.finetuning import (
    MODEL,
    SEARCHED,
    SEARCHING,
    SUBMISSION,
    FinetuningFolder,
)
from electra_tf.folders.pretraining import PretrainingFolder, named
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import finetuning_tasks, frozen
from electra_tf.runs.finetuning_tasks import TaskData
from electra_tf.runs.trainer import Saving, Scorer, Trainer, Watch, brief
from electra_tf.serving import export
from electra_tf.tasks import plots
from electra_tf.tasks.base import Task
from electra_tf.tasks.batching import TrainingOrder, bucket_lengths
from electra_tf.tasks.heads import TaskModel, fresh_copy
from electra_tf.tasks.metrics import rank
from electra_tf.tasks.recipe import RECIPES, encoder_size, layerwise_multipliers
from electra_tf.tasks.tables import HeldOut
from electra_tf.training.callbacks import (
    SAVED_AND_STOPPED,
    GracefulStop,
    named_callbacks,
)
from electra_tf.training.checkpoints import CheckpointStore, named_variables
from electra_tf.training.distribution import strategy_for
from electra_tf.training.optimizers import AdamW
from electra_tf.training.schedules import WarmupPolynomialDecay

_POLICIES = {"none": "float32", "bfloat16": "mixed_bfloat16"}
# TensorFlow cannot compile a step that spans devices.
JIT_COMPILE = {"none": "auto", "mirrored": False}
# The table of classes: how many at most, and the width of each column.
_MOST_CLASSES_SHOWN = 20
_COLUMNS = {"precision": 9, "recall": 6, "f1": 6}


def main(config: FinetuneConfig) -> int:
    """Runs as a command; returns its exit code: an error where every seed failed."""
    report = run(config, cli.say)
    if report is None:
        return cli.STOPPED
    failed = len(report["failed_seeds"]) == len(report["seeds"])
    return cli.ERROR if failed else cli.OK


def run(config: FinetuneConfig, log: Log) -> dict[str, Any] | None:
    """Trains all seeds, exports the best one, returns what results.json holds.

    What an interrupted run has done is not done again. Returns None after a signal,
    with a checkpoint saved.

    Raises:
        ValueError: config, data, vocabulary or encoder are not what they should be, an
            export format cannot hold the model, or another process runs in the folder.
        OSError: a file is missing or cannot be written.
    """
    if config.run.frozen:
        return probe(config, log)
    began = time.monotonic()
    if config.search.search:
        config = searched(config, log)
        if config is None:
            return None
    ready = prepare(config, log)
    with files.owned(ready.folder.path):
        trained = train(ready)
        if trained is None:
            return None
        report = finish(ready, trained)
    took = cli.duration(time.monotonic() - began)
    log(f"seed {report['exported_seed']} is in {ready.folder.path}; took {took}")
    return report


def probe(config: FinetuneConfig, log: Log) -> dict[str, Any]:
    """Trains linear layers on the frozen encoder; returns what results.json holds.

    Its seeds are those of random encoders; a pretrained one has one score. Errors are
    those of ``run``.
    """
    task, folder = _task(config, log)
    frozen.check(task)
    start = pretrained(config, log)
    chosen, data, baseline = _data(config, task, start, log)
    about = _about(config, chosen, data, start.encoder)
    # Half a run of the other kind is refused.
    resumes = _resumes(config, folder, about)
    is_random = config.run.init == "random"
    seeds = range(config.run.seed, config.run.seed + config.run.seeds)
    main, results, probes = data.eval_splits[0], [], {}
    with files.owned(folder.path):
        if resumes:
            folder.describe(about)
        else:
            about_encoder = chosen.max_seq_length, about, start.trained_length
            folder.begin(data.task, start.tokenizer, *about_encoder)
        for seed in seeds if is_random else seeds[:1]:
            encoder = start.encoder
            if is_random:
                keras.utils.set_random_seed(seed)
                encoder = fresh_copy(encoder)
            found = frozen.scores(
                encoder,
                data,
                config.run.eval_batch_size,
                log,
                folder.probes(seed, (main, data.task.main_metric)),
                functools.partial(folder.keep_probes, seed),
            )
            probes[seed] = found
            # Lines of a run that was killed here would be there twice.
            folder.forget(seed, step=0, epoch=0)
            for name, by_split in found.items():
                folder.record({"seed": seed, "probe": name, **by_split[main]})
            results.append(SeedResult(seed, next(iter(found.values())), ""))
        report = summary(results, baseline, (main, data.task.main_metric))
        report |= {"task": task.name, "init": config.run.init, "probes": probes}
        log(table(report))
        folder.finish(report)
    return report


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is ready to be trained; nothing in its folder was replaced yet.

    Attributes:
        described: flags and settings, for config.json.
        resumes: whether it continues what is in the folder.
        keeps: what stays there of what was before, if it does not.
        save_steps: updates between checkpoints.
        init: what the encoder starts from, "pretrained" or "random".
        trained_length: of the encoder before this run; None if unknown.
        max_seq_length: most tokens of a row.
        watch: what happens while a seed trains.
        scorer: the float32 copy that is scored and exported.
        baseline: scores by evaluation split of an answer that ignores the text.
        exports: file name -> writes the model there: (model, task, path) to the
            largest difference on a test batch, None where there can be none.
    """

    folder: FinetuningFolder
    described: Mapping[str, Any]
    resumes: bool
    keeps: Sequence[str]
    save_steps: int
    init: str
    trained_length: int | None
    seeds: range
    tokenizer: WordPiece
    max_seq_length: int
    data: TaskData
    trainer: Trainer
    watch: Watch
    scorer: Scorer
    baseline: Mapping[str, Mapping[str, float]]
    exports: Mapping[str, Callable[[TaskModel, Task, str], float | None]]
    log: Log

    @property
    def task(self) -> Task:
        """The task, which knows its labels."""
        return self.data.task

    @property
    def main_split(self) -> str:
        """The evaluation split that decides."""
        return self.data.eval_splits[0]


def prepare(config: FinetuneConfig, log: Log) -> Run:
    """Reads, checks, tokenizes and builds all that a run needs; replaces no output.

    Errors are those of ``run``.
    """
    more = _callbacks(config)
    task, folder = _task(config, log)
    strategy = equal_shares(config)
    with strategy.scope():
        start = pretrained(config, log)
    chosen, data, baseline = _data(config, task, start, log)
    with strategy.scope():
        trainer = _trainer(config, start, chosen, data, log)
    scorer = Scorer(trainer.model, config.run.eval_batch_size)
    about = _about(config, chosen, data, start.encoder)
    return Run(
        folder=folder,
        described=about,
        resumes=_resumes(config, folder, about),
        keeps=(*SEARCHED, SEARCHING) if config.search.search else (),
        save_steps=config.run.save_checkpoint_steps,
        init=config.run.init,
        trained_length=start.trained_length,
        seeds=range(config.run.seed, config.run.seed + config.run.seeds),
        tokenizer=start.tokenizer,
        max_seq_length=chosen.max_seq_length,
        data=data,
        trainer=trainer,
        watch=_watch(config, folder, data, trainer, scorer, more, log),
        scorer=scorer,
        baseline=baseline,
        exports=_exports(config, start.tokenizer, chosen.max_seq_length),
        log=log,
    )


def _callbacks(
    config: FinetuneConfig,
) -> Sequence[Callable[[], keras.callbacks.Callback]]:
    """What --callback names; what needs no data is refused here."""
    if config.run.export_onnx:
        export.require_onnx()
    return named_callbacks(config.run.callback)


def _task(config: FinetuneConfig, log: Log) -> tuple[Task, FinetuningFolder]:
    """The task, before any data is read, and the folder that is free for it."""
    task = finetuning_tasks.task(config, log)
    if config.recipe.head_init == "probe":
        frozen.check(task, "--head_init=probe")
    folder = FinetuningFolder(Path(config.output_dir))
    folder.check(task.name, overwrite=config.run.overwrite)
    encoder = named(config.run.encoder).resolve()
    if folder.path.resolve() in (encoder, encoder.parent):
        raise UserError(
            f"--output_dir={folder.path} is where --encoder={config.run.encoder} lies, "
            "which the run would replace: set --output_dir to another folder."
        )
    return task, folder


def _data(
    config: FinetuneConfig, task: Task, start: Pretrained, log: Log
) -> tuple[Settings, TaskData, dict[str, dict[str, float]]]:
    """The numbers of a run, its data, and the scores of not looking at it, by split."""
    chosen = settings(config, task, start.encoder)
    if warning := untrained_positions(chosen, start):
        log(warning)
    data = TaskData(
        task,
        start.tokenizer,
        chosen.max_seq_length,
        train_fraction=config.data.train_fraction,
        seed=config.run.seed,
        log=log,
    )
    baseline = {
        split: data.task.baseline(data.train, data.examples[split])
        for split in data.eval_splits
    }
    log(f"baseline  {brief(baseline[data.eval_splits[0]])}")
    return chosen, data, baseline


def _about(
    config: FinetuneConfig, chosen: Settings, data: TaskData, encoder: TextEncoder
) -> dict[str, Any]:
    """Flags, settings, and hashes of what is read, for config.json."""
    digest = hashlib.sha256()
    for weight in encoder.get_weights():
        digest.update(weight.tobytes())
    return {
        "config": fields.to_flat(config),
        "settings": dataclasses.asdict(chosen),
        "data": {"encoder": digest.hexdigest()[:32], **data.keys},
    }


def _resumes(
    config: FinetuneConfig, folder: FinetuningFolder, about: Mapping[str, Any]
) -> bool:
    """Whether the folder holds an interrupted run with the same settings."""
    paths = [f"config.{name}" for name in fields.resumable_fields(type(config))]
    return not config.run.overwrite and folder.resumes(about, paths)


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """What a pretraining run, or another fine-tuning run, leaves for fine-tuning.

    Attributes:
        encoder: its compute dtype is that of the fine-tuning run.
        trained_length: tokens per example in pretraining; None if unknown.
    """

    encoder: TextEncoder
    tokenizer: WordPiece
    trained_length: int | None


def pretrained(config: FinetuneConfig, log: Log) -> Pretrained:
    """Loads encoder and vocabulary, and checks that they belong together."""
    path = named(config.run.encoder)
    folder = path if path.is_dir() else path.parent
    home = PretrainingFolder(folder)
    path = home.model_path("encoder") if path.is_dir() else path
    tuned = FinetuningFolder(folder)
    if tuned.has_model and (path.name == MODEL or not path.is_file()):
        home, path = tuned, folder / MODEL
        saved = tuned.load().encoder
        log(f"the encoder of {path}, fine-tuned for {tuned.about()['task']}")
    elif path.is_file():
        hint = "Give the encoder.keras that a pretraining run saved."
        saved = models.load(path, TextEncoder, hint)
    else:
        raise FileNotFoundError(
            f"No encoder at {path}: set --encoder to the encoder.keras of a finished "
            "pretraining run (for a quick one: python run_pretraining.py "
            "--flagfile=configs/tiny.cfg), or to the folder of a finished fine-tuning "
            "run. What another library wrote becomes one with python -m "
            "electra_tf.convert."
        )
    for variable in saved.weights:
        if not np.isfinite(variable.numpy()).all():
            raise UserError(
                f"The encoder {path} has values in {variable.path} that are not "
                "finite: it was damaged, or its pretraining diverged. Take another one."
            )
    if not config.run.frozen and (hint := foreign_dropout(config.recipe, saved)):
        log(hint)
    # A saved encoder has dtype and dropout of its pretraining; this run has its own.
    encoder = fresh_copy(
        saved,
        _POLICIES[config.run.mixed_precision],
        dropout=config.recipe.dropout,
        attention_dropout=config.recipe.attention_dropout,
    )
    encoder.set_weights(saved.get_weights())
    tokenizer = home.tokenizer(log, **config.data.tokenization)
    vocabulary = tokenizer.vocabulary
    if len(vocabulary) != encoder.embeddings.vocab_size:
        raise UserError(
            f"The vocabulary has {len(vocabulary)} tokens but the encoder {path} has "
            f"embeddings for {encoder.embeddings.vocab_size}: set --vocab_file to the "
            "vocabulary it was pretrained with."
        )
    if home.vocabulary_sha256 not in (None, vocabulary.sha256):
        raise UserError(
            f"The vocabulary has {len(vocabulary)} tokens as the encoder {path}, but "
            "other ones, or another order, than config.json beside it says: set "
            "--vocab_file to the vocabulary it was pretrained with."
        )
    return Pretrained(encoder, tokenizer, home.trained_length)


def foreign_dropout(recipe: RecipeConfig, encoder: TextEncoder) -> str:
    """Hints at dropout that the encoder has never seen; else is empty.

    Most of a state is common to all texts. What is dropped of that is noise, far above
    the differences between texts, to an encoder that was not trained to bear it.
    """
    flags = ("dropout", "attention_dropout", "head_dropout")
    given = [flag for flag in flags if getattr(recipe, flag)]
    if encoder.dropout or not given:
        return ""
    without = " ".join(f"--{flag}=0" for flag in given)
    return (
        f"hint: the encoder was pretrained without dropout. If it learns little here, "
        f"try {without} (docs/finetuning.md)."
    )


def equal_shares(config: FinetuneConfig) -> tf.distribute.Strategy:
    """How training is spread over devices, which must get equal shares of a batch."""
    strategy = strategy_for(config.run.distribution)
    rows, devices = config.recipe.train_batch_size, strategy.num_replicas_in_sync
    if rows % devices:
        # Keras averages the means of the devices, which must not differ in weight.
        raise UserError(
            f"--train_batch_size={rows} is not divisible by the {devices} devices of "
            f"--distribution={config.run.distribution}: give a multiple."
        )
    return strategy


@dataclasses.dataclass(frozen=True)
class Settings:
    """The numbers of a run, after preset, task and flags.

    Attributes:
        size: what the encoder counts as: small, base or large.
        learning_rate: peak of the schedule.
        layerwise_exponent: "exact" or "original".
        reduction: of the loss, "sum" or "mean".
    """

    size: str
    learning_rate: float
    weight_decay: float
    layerwise_decay: float
    layerwise_exponent: str
    reduction: str
    epochs: float
    max_seq_length: int


def settings(config: FinetuneConfig, task: Task, encoder: TextEncoder) -> Settings:
    """Fills in what the flags leave open; the encoder limits the length."""
    recipe, preset = config.recipe, RECIPES[config.recipe.preset]
    size = encoder_size(encoder.hidden_size)
    positions = encoder.embeddings.max_positions
    default = task.max_seq_length
    default = min(default, positions) if task.splits_long else default
    length = config.data.max_seq_length or default
    if length > positions:
        raise UserError(
            f"--max_seq_length={length} (the default of {task.name} is "
            f"{task.max_seq_length}) exceeds the {positions} positions of the "
            f"encoder: set it to {positions} or less."
        )

    def given(value: Any, default: Any) -> Any:
        return default if value in (None, "preset") else value

    return Settings(
        size=size,
        learning_rate=given(recipe.learning_rate, preset.learning_rate[size]),
        weight_decay=given(recipe.weight_decay, preset.weight_decay),
        layerwise_decay=given(recipe.layerwise_decay, preset.layerwise_decay[size]),
        layerwise_exponent=given(recipe.layerwise_exponent, preset.layerwise_exponent),
        reduction=given(recipe.loss_reduction, preset.reduction),
        epochs=given(recipe.epochs, task.epochs),
        max_seq_length=length,
    )


def untrained_positions(chosen: Settings, start: Pretrained) -> str:
    """Warns when examples may be longer than those of pretraining; else is empty."""
    trained = start.trained_length
    if trained is None or chosen.max_seq_length <= trained:
        return ""
    return (
        f"warning: max_seq_length {chosen.max_seq_length} exceeds the {trained} tokens "
        f"of pretraining: position embeddings from {trained} on are untrained. "
        f"Pretrain longer sequences or pass --max_seq_length={trained}."
    )


def optimizer(
    recipe: RecipeConfig, chosen: Settings, model: TaskModel, total_steps: int | None
) -> AdamW:
    """Makes AdamW with one rate per layer; without a last step it stays the peak's."""
    rate: float | WarmupPolynomialDecay = chosen.learning_rate
    if total_steps is not None:
        rate = WarmupPolynomialDecay(
            rate,
            total_steps,
            warmup_steps=int(recipe.warmup_proportion * total_steps),
            combine=recipe.lr_schedule,
        )
    return AdamW(
        rate,
        weight_decay=chosen.weight_decay,
        bias_correction=recipe.adam_bias_correction,
        clip_norm=recipe.clip_norm,
        learning_rate_multipliers=layerwise_multipliers(
            model, chosen.layerwise_decay, chosen.layerwise_exponent
        ),
    )


def _trainer(
    config: FinetuneConfig,
    start: Pretrained,
    chosen: Settings,
    data: TaskData,
    log: Log,
) -> Trainer:
    keras.utils.set_random_seed(config.run.seed)
    model = data.task.build_model(start.encoder)
    lengths = data.train_rows.lengths
    buckets, window = (chosen.max_seq_length,), 1
    if config.data.length_bucketing:
        buckets, window = bucket_lengths(lengths, chosen.max_seq_length), 50
    order = TrainingOrder(lengths, config.recipe.train_batch_size, buckets, window)
    total_steps = max(1, int(order.steps_per_pass * chosen.epochs))
    model.compile(
        optimizer=optimizer(config.recipe, chosen, model, total_steps),
        loss=data.task.loss(chosen.reduction),
        jit_compile=JIT_COMPILE[config.run.distribution],
    )
    head = sum(variable.numpy().size for variable in model.head.variables)
    log(
        f"{chosen.size} encoder, {model.count_params():,} parameters, {head:,} in the "
        f"head; {total_steps} steps of {order.batch_size}; rate "
        f"{chosen.learning_rate:g}, layer-wise decay {chosen.layerwise_decay:g} "
        f"({chosen.layerwise_exponent}), weight decay {chosen.weight_decay:g}, "
        f"{chosen.reduction} loss"
    )

    def start_head(model: TaskModel) -> None:
        began = time.monotonic()
        frozen.start_head(model, data.task, data.train_rows, config.run.eval_batch_size)
        took = cli.duration(time.monotonic() - began)
        log(f"the head starts as a probe of the encoder's states, trained in {took}")

    return Trainer(
        model,
        data.train_rows,
        order,
        total_steps=total_steps,
        random_encoder=config.run.init == "random",
        start_head=start_head if config.recipe.head_init == "probe" else None,
    )


def _watch(
    config: FinetuneConfig,
    folder: FinetuningFolder,
    data: TaskData,
    trainer: Trainer,
    scorer: Scorer,
    more: Sequence[Callable[[], keras.callbacks.Callback]],
    log: Log,
) -> Watch:
    recipe = config.recipe

    def evaluate() -> tuple[float, dict[str, float]]:
        scorer.model.set_weights(trainer.model.get_weights())
        data.tune(scorer.outputs)
        split = data.eval_splits[0]
        answers = data.answers(split, scorer.outputs)
        scores = data.task.score(answers, data.examples[split])
        return scores[data.task.main_metric], scores

    chooses_epoch = recipe.early_stopping_patience or recipe.keep == "best"
    return Watch(
        evaluate=evaluate if chooses_epoch else None,
        greater_is_better=data.task.greater_is_better,
        patience=recipe.early_stopping_patience,
        keep_best=recipe.keep == "best",
        log=log,
        record=folder.record,
        log_steps=config.run.log_steps,
        callbacks=more,
    )


def _exports(
    config: FinetuneConfig, tokenizer: WordPiece, length: int
) -> dict[str, Callable[[TaskModel, Task, str], float | None]]:
    precision = config.run.export_precision

    def saved_model(model: TaskModel, task: Task, path: str) -> float | None:
        return export.export_saved_model(
            model, task, tokenizer, path, length, precision
        )

    wanted = {
        "saved_model": (config.run.export_saved_model, saved_model),
        "model.tflite": (config.run.export_litert, export.export_litert),
        "model.onnx": (config.run.export_onnx, export.export_onnx),
    }
    return {name: write for name, (is_wanted, write) in wanted.items() if is_wanted}


# Of the training examples, one in so many is what a search chooses on.
_SEARCH_PERIOD = 5
_FEWEST_TO_SEARCH = 50
# Until then a trial shows nothing but its result.
_QUIET_SECONDS = 60


def searched(config: FinetuneConfig, log: Log) -> FinetuneConfig | None:
    """The config with the values that --search found best; None after a signal.

    Every trial trains on four fifths of the training examples and is scored on the
    rest. The evaluation data is read, so that what is wrong with it is said before, and
    not used. Errors are those of ``run``.
    """
    # Of runs that search only.
    from electra_tf.config.search import axes
    from electra_tf.runs.search import Search, Trial, require

    require()
    _callbacks(config)
    task, folder = _task(config, log)
    strategy = equal_shares(config)
    start = pretrained(config, log)
    chosen, whole, _ = _data(config, task, start, log)
    about = _about(config, chosen, whole, start.encoder)
    examples = [*whole.train, *whole.tuning]
    if len(examples) < _FEWEST_TO_SEARCH:
        raise UserError(
            f"{len(examples)} training examples are too few for --search, which holds "
            f"a fifth of them out: it takes at least {_FEWEST_TO_SEARCH}."
        )
    data = TaskData(
        dataclasses.replace(
            whole.task,
            source=HeldOut(lambda _: examples, "search", _SEARCH_PERIOD),
            eval_splits=("search",),
            test_splits=(),
        ),
        start.tokenizer,
        chosen.max_seq_length,
        train_fraction=1,
        seed=config.run.seed,
        log=_unsaid,
    )
    held_out, metric = data.examples["search"], data.task.main_metric
    baseline = data.task.baseline(data.train, held_out)
    own = fields.to_flat(config) | dataclasses.asdict(chosen)
    log(
        f"search: trains on {len(data.train)} training examples, chooses on "
        f"{len(held_out)} others"
    )
    trials = folder.path / SEARCHING
    # One for all, which is traced once: scores know no dropout.
    model = data.task.build_model(start.encoder)
    scorer = Scorer(model, config.run.eval_batch_size)

    def attempt(number: int, values: Mapping[str, float]) -> Trial | None:
        tried = config.trying(values)
        with strategy.scope():
            begun = pretrained(tried, _unsaid)
            numbers = settings(tried, task, begun.encoder)
            trainer = _trainer(tried, begun, numbers, data, _unsaid)
        began = time.monotonic()

        def said(line: str) -> None:
            if time.monotonic() - began > _QUIET_SECONDS:
                log(f"trial {number}  {line}")

        watch = _watch(tried, folder, data, trainer, scorer, (), said)
        watch = dataclasses.replace(watch, record=_unsaid)
        state, failure = FinetuningFolder(trials).state(number), ""
        with GracefulStop() as stop:
            saving = Saving(state, tried.run.save_checkpoint_steps, stop, _unsaid)
            try:
                trainer.train(tried.run.seed, watch, saving)
            except FloatingPointError as error:
                failure = str(error)
        if stop.requested:
            log(f"{stop.requested}: {SAVED_AND_STOPPED}")
            return None
        scorer.model.set_weights(trainer.model.get_weights())
        data.tune(scorer.outputs)
        answers = data.answers("search", scorer.outputs)
        scores = data.task.score(answers, held_out)
        failure = failure or data.task.failure(answers, scores, baseline)
        return Trial(values, scores[metric], failure)

    flags = axes(config.search.search, own)
    with files.owned(folder.path):
        if not _resumes(config, FinetuningFolder(trials), about):
            numbers = chosen.max_seq_length, about, start.trained_length
            folder.begin(data.task, start.tokenizer, *numbers)
            # Its checkpoints last: with them it counts as begun.
            FinetuningFolder(trials).describe(about)
            FinetuningFolder(trials).checkpoints.mkdir()
        search = Search(
            axes=flags,
            first={axis.name: own[axis.name] for axis in flags},
            trials=config.search.search_trials,
            seed=config.run.seed,
            metric=metric,
            greater_is_better=data.task.greater_is_better,
            about={"trained_on": len(data.train), "held_out": len(held_out)},
            folder=folder.path,
            log=log,
        )
        done = search(attempt)
    if done is None:
        return None
    best = done[search.best(done)]
    named = ", ".join(f"--{name}={value:.3g}" for name, value in best.values.items())
    log(
        f"search: {named} has the best {metric}, {best.score:.2f}; the first trial has "
        f"{done[0].score:.2f}. Now all training examples:"
    )
    # With --search, so that the same command goes on with this run.
    values = fields.to_flat(config.trying(best.values))
    return fields.from_flat(values | {"search": config.search.search}, FinetuneConfig)


def _unsaid(*_: Any) -> None:
    """Takes what nobody wants to hear."""


@dataclasses.dataclass(frozen=True)
class SeedResult:
    """Scores of one seed by evaluation split and name, and why it counts as failed."""

    seed: int
    scores: Mapping[str, Mapping[str, float]]
    failure: str  # Empty for a seed that did not fail.


@dataclasses.dataclass(frozen=True)
class Trained:
    """All seeds, and the first of those with the best main score.

    ``answers`` are those of the best seed by evaluation split, as far as they are
    known.
    """

    results: list[SeedResult]
    best_seed: int
    answers: Mapping[str, Any]


def train(ready: Run) -> Trained | None:
    """Trains and scores every seed that is not done, from its newest checkpoint on.

    Begins by replacing what the folder held, unless that is resumed. The scorer gets
    the weights of the best seed. Returns None after a signal.
    """
    folder, task, main = ready.folder, ready.task, ready.main_split
    if ready.resumes:
        folder.describe(ready.described)
    else:
        about = ready.max_seq_length, ready.described, ready.trained_length
        folder.begin(task, ready.tokenizer, *about, keep=ready.keeps)
    results = [
        SeedResult(done["seed"], done["scores"], done["failure"])
        for done in folder.done((main, task.main_metric))
    ]
    if results:
        ready.log(f"{len(results)} of {len(ready.seeds)} seeds are done")

    def best() -> int:
        scores = (each.scores[main][task.main_metric] for each in results)
        better = task.greater_is_better
        ranks = [rank(score, greater_is_better=better) for score in scores]
        return results[ranks.index(max(ranks))].seed

    answers: dict[str, Any] = {}
    for seed in ready.seeds[len(results) :]:
        with GracefulStop() as stop:
            forget = functools.partial(folder.forget, seed)
            saving = Saving(folder.state(seed), ready.save_steps, stop, forget)
            failure = ""
            try:
                ready.trainer.train(seed, ready.watch, saving)
            except FloatingPointError as error:
                # The other seeds may do better; this one is scored as it is.
                failure = str(error)
        if stop.requested:
            ready.log(f"{stop.requested}: {SAVED_AND_STOPPED}")
            return None
        ready.scorer.model.set_weights(ready.trainer.model.get_weights())
        result, known = _scored(ready, seed, failure)
        results.append(result)
        if best() == seed:
            answers = known
            _weights(ready, seed).save(seed)
        # After its weights: what this says is not done again.
        folder.finish_seed(dataclasses.asdict(result), best())
    if _weights(ready, best()).restore_latest() is None:
        raise FileNotFoundError(
            f"{folder.weights(best())} does not hold the weights of seed {best()}, "
            "which is done: put them back, or pass --overwrite to start anew."
        )
    ready.data.tune(ready.scorer.outputs)
    return Trained(results, best(), answers)


def _weights(ready: Run, seed: int) -> CheckpointStore:
    """Keeps the trained weights of a seed, in and for the scorer's model."""
    return CheckpointStore(
        ready.folder.weights(seed), named_variables(ready.scorer.model), log=ready.log
    )


def _scored(ready: Run, seed: int, failure: str) -> tuple[SeedResult, dict[str, Any]]:
    """Scores the weights that the scorer has; the result, and answers by split."""
    data, main = ready.data, ready.main_split
    data.tune(ready.scorer.outputs)
    task, answers, scores = ready.task, {}, {}
    for split in data.eval_splits:
        answers[split] = data.answers(split, ready.scorer.outputs)
        scores[split] = task.score(answers[split], data.examples[split])
        ready.folder.record({"seed": seed, "split": split, **scores[split]})
    failure = failure or task.failure(answers[main], scores[main], ready.baseline[main])
    ready.log(f"seed {seed}  {brief(scores[main])}")
    if failure:
        ready.log(f"seed {seed}  FAILED: {failure}")
    return SeedResult(seed, scores, failure), answers


def finish(ready: Run, trained: Trained) -> dict[str, Any]:
    """Writes predictions, exports and the report; returns what results.json holds."""
    folder, task, main = ready.folder, ready.task, ready.main_split
    report = summary(trained.results, ready.baseline, (main, task.main_metric))
    report |= {"task": task.name, "exported_seed": trained.best_seed}
    report["init"] = ready.init
    ready.log(table(report))
    answers = dict(trained.answers) or {
        main: ready.data.answers(main, ready.scorer.outputs)
    }
    report |= _judged(ready, answers[main])
    if len(report["failed_seeds"]) == len(trained.results):
        ready.log("every seed failed: the exit code is that of an error")
    # With what was tuned.
    about = ready.max_seq_length, ready.trained_length
    folder.describe_task(task, ready.tokenizer, *about)
    _predict(ready, answers)
    models.save(ready.scorer.model, folder.path / MODEL)
    for name, write in ready.exports.items():
        difference = write(ready.scorer.model, task, str(folder.path / name))
        ready.log(
            f"saved model for serving: {folder.path / name}"
            if difference is None
            else f"{name}: at most {difference:.1g} from the model on a test batch"
        )
    folder.record({"summary": report["summary"]})
    # Imported late: only a finished run needs it.
    from electra_tf.folders.task_card import task_card

    # After all that is needed: results.json says that the run is finished.
    folder.finish(report, task_card(folder, report))
    try:
        pictured = answers[main], ready.data.examples[main]
        task.picture(*pictured, str(folder.path))
        if len(trained.results) > 1:
            plots.seeds(
                {
                    each.seed: each.scores[main][task.main_metric]
                    for each in trained.results
                },
                report["failed_seeds"],
                ready.baseline[main][task.main_metric],
                f"{task.name} {task.main_metric}",
                str(folder.path),
            )
    except Exception as error:
        # A picture that cannot be drawn is no reason to lose a trained model.
        said = " ".join(str(error).split())[:200]
        ready.log(f"warning: a picture is missing: {type(error).__name__} {said}")
    return report


def _judged(ready: Run, answers: Any) -> dict[str, Any]:
    """What the scores of the exported seed are worth, said and for results.json."""
    task, data, main = ready.task, ready.data, ready.main_split
    examples, name = data.examples[main], task.main_metric
    found = task.details_of(answers, examples)
    intervals, above = task.noise(answers, examples, data.train)
    if classes := found.get("classes"):
        ready.log(_class_table(classes))
        error = found["calibration_error"]
        ready.log(f"calibration error of the probabilities {100 * error:.1f} %")
    if task.tunes:
        ready.log(f"threshold {task.threshold:g}")
    counts = {main: len(examples), "train": len(data.train)}
    found |= {"intervals": intervals, "above_baseline": above, "examples": counts}
    if name in above:
        low, high = intervals[name]
        better = above[name][0] if task.greater_is_better else -above[name][1]
        told = "above" if task.greater_is_better else "below"
        not_ = "" if better > 0 else "not "
        found["verdict"] = f"{not_}{told} the baseline beyond noise"
        ready.log(
            f"{name} has the 95 % interval {low:.2f} to {high:.2f} on {len(examples)} "
            f"examples: {found['verdict']}"
        )
    return found


def _class_table(classes: Mapping[str, Mapping[str, float]]) -> str:
    """Precision, recall, F1 and support of the most frequent classes."""
    frequent = sorted(classes, key=lambda label: -classes[label]["support"])
    width = max(map(len, (*frequent[:_MOST_CLASSES_SHOWN], "label")))
    lines = [f"{'label'.ljust(width)}  precision  recall      F1  support"]
    for label in frequent[:_MOST_CLASSES_SHOWN]:
        row = classes[label]
        shares = (f"{100 * row[n]:{w}.2f}" for n, w in _COLUMNS.items())
        lines.append(f"{label.ljust(width)}  {'  '.join(shares)}  {row['support']:7d}")
    return "\n".join(lines)


def _predict(ready: Run, known: Mapping[str, Any]) -> None:
    """Writes predictions and submissions of all splits; ``known`` are answered."""
    folder = ready.folder.path
    for split, examples in ready.data.examples.items():
        answers = known.get(split)
        if answers is None:
            answers = ready.data.answers(split, ready.scorer.outputs)
        # The main split's file has the short name.
        suffix = "" if split == ready.main_split else f"_{split}"
        path = str(folder / f"predictions{suffix}.tsv")
        ready.task.write(answers, examples, path)
        ready.task.submit(answers, examples, split, str(folder / SUBMISSION))


def summary(
    results: Sequence[SeedResult],
    baseline: Mapping[str, Mapping[str, float]],
    main: tuple[str, str],
) -> dict[str, Any]:
    """Returns median, mean and standard deviation over seeds, by split and score.

    All seeds count, failed ones too: leaving them out would flatter the recipe.
    ``main`` names the split and the score that decide.
    """

    def over_seeds(split: str, name: str) -> dict[str, float]:
        values = [result.scores[split][name] for result in results]
        std = 0.0
        if len(values) > 1:
            # ``statistics`` fails on NaN.
            finite = np.isfinite(values).all()
            std = statistics.stdev(values) if finite else math.nan
        return {
            "median": float(np.median(values)),
            "mean": statistics.fmean(values),
            "std": std,
            "min": float(np.min(values)),
            "max": float(np.max(values)),
            "baseline": baseline[split][name],
        }

    splits = {
        split: {name: over_seeds(split, name) for name in names}
        for split, names in results[0].scores.items()
    }
    return {
        "main_split": main[0],
        "main_metric": main[1],
        "summary": splits,
        "seeds": [dataclasses.asdict(result) for result in results],
        "failed_seeds": [result.seed for result in results if result.failure],
    }


def table(report: Mapping[str, Any]) -> str:
    """Formats the seeds as a table for the terminal, the main split only."""
    split = report["main_split"]
    names = list(report["summary"][split])
    rows = [["seed", *names, ""]]
    for result in report["seeds"]:
        values = [f"{result['scores'][split][name]:.2f}" for name in names]
        failure = f"failed: {result['failure']}" if result["failure"] else ""
        rows.append([str(result["seed"]), *values, failure])
    # One seed has no spread.
    over_seeds = ("median", "mean", "std") if len(report["seeds"]) > 1 else ()
    for kind in (*over_seeds, "baseline"):
        values = [f"{report['summary'][split][name][kind]:.2f}" for name in names]
        rows.append([kind, *values, ""])
    width, *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [f"{split}, main score {report['main_metric']}:"]
    for first, *values, failure in rows:
        cells = [value.rjust(w) for value, w in zip(values, widths, strict=True)]
        lines.append("  ".join([first.ljust(width), *cells, failure]).rstrip())
    if failed := report["failed_seeds"]:
        lines.append(f"{len(failed)} of {len(report['seeds'])} seeds failed")
    return "\n".join(lines)

"""Fine-tuning run: loads encoder and task, trains all seeds, exports the best one."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import math
import time
import types
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
from electra_tf.folders import finetuning as layout
from electra_tf.folders import models
from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.folders.pretraining import (
    RECIPE,
    PretrainingFolder,
    completion,
    named,
    recommended,
)
from electra_tf.folders.settings import check_keeps
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.quantization import modes
from electra_tf.runs import finetuning_report, finetuning_tasks, frozen
from electra_tf.runs.finetuning_tasks import TaskData
from electra_tf.runs.trainer import Trainer, Watch, brief
from electra_tf.serving import export
from electra_tf.tasks.base import Task
from electra_tf.tasks.batching import Outputs, TrainingOrder, bucket_lengths
from electra_tf.tasks.heads import TaskModel, fresh_copy
from electra_tf.tasks.metrics import rank
from electra_tf.tasks.recipe import RECIPES, encoder_size, layerwise_multipliers
from electra_tf.tasks.tables import HeldOut
from electra_tf.training import callbacks
from electra_tf.training.checkpoints import CheckpointStore, named_variables
from electra_tf.training.distribution import strategy_for
from electra_tf.training.optimizers import AdamW
from electra_tf.training.schedules import WarmupPolynomialDecay
from electra_tf.training.sinks import EVAL_PREFIX, TensorBoardScalars

_POLICIES = {"none": "float32", "bfloat16": "mixed_bfloat16"}
# TensorFlow cannot compile a step that spans devices.
JIT_COMPILE = {"none": "auto", "mirrored": False}
# Flags without effect on a probe, apart from those of recipes and tasks.
_NOT_FROZEN = (
    *("test", "callback", "lora_rank", "pooling", "head_init", "keep"),
    *("early_stopping_patience", "export_litert", "export_onnx"),
)
# --search scores trials on every fifth training example.
_SEARCH_PERIOD = 5
_FEWEST_TO_SEARCH = 50


def main(config: FinetuneConfig) -> int:
    """Runs the command; the exit code is an error if every seed failed."""
    unread = _NOT_FROZEN if config.run.init == "random" else (*_NOT_FROZEN, "seeds")
    unused = [name for name in unread if name in config.given]
    if config.run.frozen and unused:
        cli.say(f"warning: --frozen does not use --{', --'.join(unused)}")
    report = run(with_recipe(config, cli.say), cli.say)
    if report is None:
        return cli.STOPPED
    failed = len(report["failed_seeds"]) == len(report["seeds"])
    return cli.ERROR if failed else cli.OK


def with_recipe(config: FinetuneConfig, log: Log) -> FinetuneConfig:
    """Completes the flags on the command line by the recipe of the encoder's folder."""
    row = finetuning_tasks.TASKS.get(config.run.task)
    if row is None or config.run.frozen:
        return config
    values = fields.to_flat(config)
    given = {name: values[name] for name in config.given}
    flags = completion(config.run.encoder, row.kind, given, log)
    return fields.from_flat(values | flags, FinetuneConfig)


def run(
    config: FinetuneConfig, log: Log, task: Task | None = None
) -> dict[str, Any] | None:
    """Trains all seeds, exports the best one and returns the content of results.json.

    ``task``, an instance of a custom class, replaces ``--task``. An interrupted run
    resumes from its last checkpoint. Returns None after a signal. Raises ValueError for
    invalid inputs, and if another process runs in the folder.
    """
    began = time.monotonic()
    if config.run.frozen:
        return probe(read(config, log, task), log)
    if config.search.search:
        config = searched(config, log, task)
        if config is None:
            return None
    job = prepare(config, log, task)
    with files.owned(job.folder.path):
        trained = train(job)
        if trained is None:
            return None
        report = finish(job, *trained)
    took = cli.duration(time.monotonic() - began)
    log(f"seed {report['exported_seed']} is in {job.folder.path}; took {took}")
    return report


def probe(inputs: Inputs, log: Log) -> dict[str, Any]:
    """Trains a linear probe on the frozen encoder, or on a random encoder per seed."""
    data, folder = inputs.data, inputs.folder
    is_random, results = inputs.init == "random", []
    with files.owned(folder.path):
        inputs.begin()
        for seed in inputs.seeds if is_random else inputs.seeds[:1]:
            if is_random:
                keras.utils.set_random_seed(seed)
            # Scores are float32, whatever --mixed_precision is.
            encoder = fresh_copy(inputs.start.encoder, "float32")
            if not is_random:
                encoder.set_weights(inputs.start.encoder.get_weights())
            scores = frozen.scores(encoder, data, inputs.eval_batch_size, log)
            folder.record({"seed": seed, **scores[inputs.main[0]]})
            results.append({"seed": seed, "scores": scores, "failure": ""})
        report = finetuning_report.summary(results, inputs.baseline, inputs.main)
        report |= {"task": data.task.name, "init": inputs.init}
        log(finetuning_report.table(report))
        folder.finish(report)
    return report


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Resolved settings, tokenized data and majority-baseline scores of a run."""

    folder: FinetuningFolder
    start: Pretrained
    settings: Settings
    data: TaskData
    baseline: finetuning_report.Baseline  # By evaluation split.
    described: Mapping[str, Any]  # Content of config.json.
    resumes: bool  # Whether the folder holds an interrupted run.
    keep: Sequence[str]  # Outputs of an earlier search.
    exports: Sequence[str]  # Names of the files for serving.
    init: str  # "pretrained" or "random".
    seeds: range
    eval_batch_size: int

    @property
    def main(self) -> tuple[str, str]:
        return self.data.eval_splits[0], self.data.task.main_metric

    def begin(self) -> None:
        if self.resumes:
            self.folder.describe(self.described)
            return
        self.folder.begin(
            self.data.task,
            self.start.tokenizer,
            self.settings.max_seq_length,
            self.described,
            self.start.trained_length,
            keep=self.keep,
        )


@dataclasses.dataclass(frozen=True)
class Job(Inputs):
    """A run that is ready to be trained."""

    trainer: Trainer
    watch: Watch
    scorer: Outputs  # Of a float32 copy of the model, which is also exported.
    precision: str  # Of the exports.
    max_score_loss: float  # Of int8 files.
    log: Log


def read(
    config: FinetuneConfig,
    log: Log,
    task: Task | None = None,
    *,
    before_search: bool = False,
) -> Inputs:
    """Reads, checks and tokenizes the inputs of a run, or of the search before it."""
    options = config.run
    if options.export_onnx:
        export.require_onnx()
    task = task or finetuning_tasks.task(config, log)
    wanted = {
        "saved_model": options.export_saved_model,
        "model.tflite": options.export_litert,
        "model.onnx": options.export_onnx,
    }
    exports = [name for name, is_wanted in wanted.items() if is_wanted]
    if exports and type(task).serving_outputs is Task.serving_outputs:
        raise UserError(
            f"The task {task.name} has no serving_outputs, which exports need: pass "
            "--noexport_saved_model."
        )
    if options.frozen or config.recipe.head_init == "probe":
        frozen.check(task, "--frozen" if options.frozen else "--head_init=probe")
    folder = FinetuningFolder(Path(options.output_dir or f"runs/{task.name}"))
    if not options.frozen:
        files.check_checkpoint_path(folder.path)
    folder.check(task.name, overwrite=options.overwrite)
    if not (config.search.search or options.overwrite) and folder.has_search:
        raise UserError(
            f"{folder.path} holds an interrupted search: repeat its command, pass "
            "--overwrite to replace it, or set --output_dir to another folder."
        )
    # A symbolic link counts as the file that it names.
    encoder = named(options.encoder).resolve()
    inputs = [("encoder", str(encoder if encoder.is_dir() else encoder.parent))]
    for flag in finetuning_tasks.FILES:
        # SQuAD takes several files.
        paths = (getattr(config.data, flag) or "").split(",")
        inputs += [(flag, path) for path in paths if path]
    check_keeps(folder.path, layout.OUTPUTS, inputs, "output_dir")
    with equal_shares(config).scope():
        start = pretrained(config, log)
    chosen = settings(config, task, start.encoder)
    if warning := untrained_positions(chosen, start):
        log(warning)
    data = TaskData(
        task,
        start.tokenizer,
        chosen.max_seq_length,
        train_fraction=config.data.train_fraction,
        seed=options.seed,
        log=log,
    )
    baseline = {
        split: data.task.baseline(data.train, data.examples[split])
        for split in data.eval_splits
    }
    log(f"baseline  {brief(baseline[data.eval_splits[0]])}")
    digest = hashlib.sha256()
    for weight in start.encoder.get_weights():
        digest.update(weight.tobytes())
    described = {
        "config": fields.to_flat(config),
        "settings": dataclasses.asdict(chosen),
        "data": {"encoder": digest.hexdigest()[:32], **data.keys},
    }
    # After a search, the folder holds a run with the values that it found.
    trials = FinetuningFolder(folder.path / layout.SEARCHING)
    is_after_search = before_search and trials.checkpoints.is_dir()
    return Inputs(
        folder=folder,
        start=start,
        settings=chosen,
        data=data,
        baseline=baseline,
        described=described,
        resumes=not is_after_search and folder.resumes(described),
        keep=(layout.SEARCHED, layout.SEARCHING) if config.search.search else (),
        exports=exports,
        init=options.init,
        seeds=range(options.seed, options.seed + options.seeds),
        eval_batch_size=options.eval_batch_size,
    )


def prepare(config: FinetuneConfig, log: Log, task: Task | None = None) -> Job:
    """Prepares a run without replacing outputs in its folder."""
    makers = callbacks.named_callbacks(config.run.callback)
    inputs = read(config, log, task)
    record = _recorder(inputs.folder)
    trainer, watch, scorer = _training(
        config, inputs, log, record, callback_makers=makers
    )
    return Job(
        **vars(inputs),
        trainer=trainer,
        watch=watch,
        scorer=scorer,
        precision=config.run.export_precision,
        max_score_loss=config.run.max_score_loss,
        log=log,
    )


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """Encoder, in the compute dtype of the run, and its tokenizer."""

    encoder: TextEncoder
    tokenizer: WordPiece
    trained_length: int | None  # Tokens per example in pretraining.


def pretrained(config: FinetuneConfig, log: Log) -> Pretrained:
    """Loads encoder and tokenizer; raises ValueError if they do not match."""
    path = named(config.run.encoder)
    folder = path if path.is_dir() else path.parent
    home, tuned = PretrainingFolder(folder), FinetuningFolder(folder)
    path = home.model_path("encoder") if path.is_dir() else path
    if tuned.has_model and (path.name == layout.MODEL or not path.is_file()):
        home, path = tuned, folder / layout.MODEL
        saved = tuned.load().encoder
        log(f"the encoder of {path}, fine-tuned for {tuned.about()['task']}")
    elif path.is_file():
        hint = "Give the encoder.keras that a pretraining run saved."
        saved = models.load(path, TextEncoder, hint)
    else:
        raise FileNotFoundError(
            f"No encoder at {path}: set --encoder to mini, to the folder of a finished "
            "run (python -m electra_tf pretrain --flagfile=configs/tiny.cfg) or to the "
            "output of python -m electra_tf convert."
        )
    if _has_diverged(saved):
        raise UserError(f"The encoder {path} has weights that are not finite.")
    if any(modes(saved)):
        raise UserError(f"The encoder {path} is quantized: give the float encoder.")
    # The saved encoder has the dtype and dropout of its pretraining.
    encoder = fresh_copy(
        saved,
        _POLICIES[config.run.mixed_precision],
        dropout=config.recipe.dropout,
        attention_dropout=config.recipe.attention_dropout,
    )
    encoder.set_weights(saved.get_weights())
    if encoder.lora_rank:
        encoder = encoder.merge_lora()
    # The saved encoder may be frozen, or some of its blocks.
    encoder.trainable = True
    tokenizer = home.tokenizer(log, **config.data.tokenization)
    vocabulary, size = tokenizer.vocabulary, encoder.embeddings.vocab_size
    is_known = home.vocabulary_sha256 in (None, vocabulary.sha256)
    if len(vocabulary) != size or not is_known:
        raise UserError(
            f"The vocabulary of {len(vocabulary)} tokens does not fit the encoder "
            f"{path} with {size} embeddings: set --vocab_file to its vocabulary."
        )
    return Pretrained(encoder, tokenizer, home.trained_length)


def equal_shares(config: FinetuneConfig) -> tf.distribute.Strategy:
    """Returns the strategy; raises ValueError if the batch does not split evenly."""
    strategy = strategy_for(config.run.distribution)
    rows, devices = config.recipe.train_batch_size, strategy.num_replicas_in_sync
    if rows % devices:
        # Keras averages the means of the devices without weights.
        raise UserError(
            f"--train_batch_size={rows} is not divisible by the {devices} devices of "
            f"--distribution={config.run.distribution}: give a multiple."
        )
    return strategy


@dataclasses.dataclass(frozen=True)
class Settings:
    """Hyperparameters after preset, task and flags."""

    size: str  # "small", "base" or "large".
    learning_rate: float  # The peak.
    weight_decay: float
    layerwise_decay: float
    layerwise_exponent: str  # "exact" or "original".
    reduction: str  # Of the loss, "sum" or "mean".
    epochs: float
    max_seq_length: int


def settings(config: FinetuneConfig, task: Task, encoder: TextEncoder) -> Settings:
    """Resolves the hyperparameters; raises ValueError if max_seq_length is too long."""
    recipe, preset = config.recipe, RECIPES[config.recipe.preset]
    size = encoder_size(encoder.hidden_size)
    positions = encoder.embeddings.max_positions
    default = task.max_seq_length
    default = min(default, positions) if task.splits_long else default
    length = config.data.max_seq_length or default
    if length > positions:
        raise UserError(
            f"--max_seq_length={length} (default: {task.max_seq_length}) exceeds the "
            f"{positions} positions of the encoder: lower it."
        )

    def given(value: Any, default: Any) -> Any:
        return default if value is None else value

    return Settings(
        size=size,
        learning_rate=given(recipe.learning_rate, preset.learning_rate[size]),
        weight_decay=given(recipe.weight_decay, preset.weight_decay),
        layerwise_decay=given(recipe.layerwise_decay, preset.layerwise_decay[size]),
        layerwise_exponent=preset.layerwise_exponent,
        reduction=preset.reduction,
        epochs=given(recipe.epochs, task.epochs),
        max_seq_length=length,
    )


def untrained_positions(chosen: Settings, start: Pretrained) -> str:
    """Returns a warning if rows can exceed the pretraining length, else ""."""
    trained, length = start.trained_length, chosen.max_seq_length
    if trained is None or length <= trained:
        return ""
    return (
        f"warning: max_seq_length {length} exceeds the {trained} tokens of "
        "pretraining: position embeddings of later tokens are untrained; pass "
        f"--max_seq_length={trained}"
    )


def optimizer(
    recipe: RecipeConfig, chosen: Settings, model: TaskModel, total_steps: int
) -> AdamW:
    """Builds AdamW with warmup, decay and layer-wise learning rates."""
    return AdamW(
        WarmupPolynomialDecay(
            chosen.learning_rate,
            total_steps,
            warmup_steps=int(recipe.warmup_proportion * total_steps),
            combine=recipe.lr_schedule,
        ),
        weight_decay=chosen.weight_decay,
        bias_correction=recipe.adam_bias_correction,
        clip_norm=recipe.clip_norm,
        learning_rate_multipliers=layerwise_multipliers(
            model, chosen.layerwise_decay, chosen.layerwise_exponent
        ),
    )


def _model(config: FinetuneConfig, inputs: Inputs) -> TaskModel:
    model = inputs.data.task.build_model(inputs.start.encoder)
    if config.recipe.lora_rank:
        model.enable_lora(config.recipe.lora_rank)
    return model


def _training(
    config: FinetuneConfig,
    inputs: Inputs,
    log: Log,
    record: Callable[[Mapping[str, Any]], None],
    scorer: Outputs | None = None,
    callback_makers: Sequence[Callable[[], keras.callbacks.Callback]] = (),
) -> tuple[Trainer, Watch, Outputs]:
    """Returns the trainer, its callback, and ``scorer`` or a new one."""
    data, chosen, recipe = inputs.data, inputs.settings, config.recipe
    lengths = data.train_rows.lengths
    buckets = bucket_lengths(lengths, chosen.max_seq_length)
    order = TrainingOrder(lengths, recipe.train_batch_size, buckets)
    total_steps = max(1, int(order.steps_per_pass * chosen.epochs))

    def start_head(model: TaskModel) -> None:
        frozen.start_head(model, data.task, data.train_rows, inputs.eval_batch_size)
        log("the head starts as a probe of the encoder's states")

    keras.utils.set_random_seed(config.run.seed)
    with equal_shares(config).scope():
        model = _model(config, inputs)
        model.compile(
            optimizer=optimizer(recipe, chosen, model, total_steps),
            loss=data.task.loss(chosen.reduction),
            jit_compile=JIT_COMPILE[config.run.distribution],
        )
        trainer = Trainer(
            model,
            data.train_rows,
            order,
            total_steps=total_steps,
            random_encoder=config.run.init == "random",
            start_head=start_head if recipe.head_init == "probe" else None,
        )
    log(
        f"{chosen.size} encoder, {model.count_params():,} parameters; {total_steps} "
        f"steps of {order.batch_size}; rate {chosen.learning_rate:g}, layer-wise decay "
        f"{chosen.layerwise_decay:g}, weight decay {chosen.weight_decay:g}"
    )
    scorer = scorer or Outputs(model.fresh(0, dtype="float32"), inputs.eval_batch_size)
    watch = Watch(
        log=log,
        record=record,
        log_steps=config.run.log_steps,
        evaluate=lambda: _evaluate(data, trainer, scorer)[1:],
        greater_is_better=data.task.greater_is_better,
        patience=recipe.early_stopping_patience,
        keep_best=recipe.keep == "best",
        callbacks=callback_makers,
    )
    return trainer, watch, scorer


def _evaluate(
    data: TaskData, trainer: Trainer, scorer: Outputs
) -> tuple[Any, float, dict[str, float]]:
    """Returns predictions, main score (NaN if diverged) and all scores."""
    scorer.model.set_weights(trainer.model.get_weights())
    data.tune(scorer)
    answers, scores = data.score(data.eval_splits[0], scorer)
    is_lost = _has_diverged(scorer.model)
    return answers, math.nan if is_lost else scores[data.task.main_metric], scores


def _recorder(folder: FinetuningFolder) -> Callable[[Mapping[str, Any]], None]:

    @functools.cache
    def board(seed: int) -> TensorBoardScalars:
        return TensorBoardScalars(folder.path / layout.TENSORBOARD / f"seed_{seed}")

    def record(row: Mapping[str, Any]) -> None:
        folder.record(row)
        # Rows with an epoch hold held-out scores.
        prefix = EVAL_PREFIX if "epoch" in row else ""
        names = row.keys() - {"seed", "step", "epoch"}
        board(row["seed"])(row["step"], {f"{prefix}{n}": row[n] for n in names})

    return record


def searched(
    config: FinetuneConfig, log: Log, task: Task | None = None
) -> FinetuneConfig | None:
    """Runs ``--search``; returns the config with the best values, None after a signal.

    Trials train on four fifths of the training examples and are scored on the rest. The
    evaluation data is read only to raise its errors early.
    """
    # Only a search needs these.
    from electra_tf.config.search import axes
    from electra_tf.runs.search import Search, Trial, require

    require()
    callbacks.named_callbacks(config.run.callback)
    inputs = read(config, log, task, before_search=True)
    whole = inputs.data
    examples = [*whole.train, *whole.tuning]
    if len(examples) < _FEWEST_TO_SEARCH:
        raise UserError(
            f"{len(examples)} training examples are too few for --search, which holds "
            f"a fifth of them out: it takes at least {_FEWEST_TO_SEARCH}."
        )
    split = dataclasses.replace(
        whole.task,
        source=HeldOut(lambda _: examples, "search", _SEARCH_PERIOD),
        eval_splits=("search",),
        test_splits=(),
    )
    data = TaskData(
        split,
        inputs.start.tokenizer,
        inputs.settings.max_seq_length,
        train_fraction=1,
        seed=config.run.seed,
        log=_discard,
    )
    values = fields.to_flat(config) | dataclasses.asdict(inputs.settings)
    flags = axes(config.search.search, values)
    if "head_dropout" in [a.name for a in flags] and not hasattr(data.task, "dropout"):
        raise UserError(
            f"{data.task.name} has no head_dropout for --search: leave it out."
        )
    held_out, metric = data.examples["search"], data.task.main_metric
    baseline = data.task.baseline(data.train, held_out)
    log(
        f"search: trains on {len(data.train)} training examples, chooses on "
        f"{len(held_out)} others"
    )
    trials = FinetuningFolder(inputs.folder.path / layout.SEARCHING)
    inner = dataclasses.replace(inputs, data=data)
    # One scorer for all trials, traced once: scoring uses no dropout.
    model = _model(config, inner).fresh(0, dtype="float32")
    scorer = Outputs(model, inputs.eval_batch_size)

    def attempt(number: int, values: Mapping[str, float]) -> Trial | None:
        trial = config.trying(values)
        # The previous trial is in search.json; its checkpoints would fill the disk.
        files.remove(trials.path / f"trial-{number - 1}")
        with equal_shares(config).scope():
            start = pretrained(trial, _discard)
        own = copy.copy(data)
        if "head_dropout" in values:
            own.task = dataclasses.replace(own.task, dropout=values["head_dropout"])
        chosen = settings(trial, own.task, start.encoder)
        arguments = dataclasses.replace(inner, start=start, settings=chosen, data=own)
        trainer, watch, _ = _training(trial, arguments, _discard, _discard, scorer)
        folder = FinetuningFolder(trials.path / f"trial-{number}")
        failure = _trained(trainer, trial.run.seed, watch, folder, log)
        if failure is None:
            return None
        answers, score, scores = _evaluate(own, trainer, scorer)
        failure = failure or own.task.failure(answers, scores, baseline)
        return Trial(values, score, failure)

    with files.owned(inputs.folder.path):
        if not trials.resumes(inputs.described):
            dataclasses.replace(inputs, resumes=False, keep=()).begin()
            # The folder of checkpoints comes last: it marks the search as started.
            trials.describe(inputs.described)
            trials.checkpoints.mkdir()
        search = Search(
            axes=flags,
            first={axis.name: values[axis.name] for axis in flags},
            trials=config.search.search_trials,
            seed=config.run.seed,
            metric=metric,
            greater_is_better=data.task.greater_is_better,
            about={"trained_on": len(data.train), "held_out": len(held_out)},
            folder=inputs.folder.path,
            log=log,
        )
        done = search(attempt)
    if done is None:
        return None
    best = done[search.best(done)]
    text = ", ".join(f"--{name}={value:.3g}" for name, value in best.values.items())
    log(
        f"search: {text} has the best {metric}, {best.score:.2f}; the first trial has "
        f"{done[0].score:.2f}. Now all training examples:"
    )
    # Keeps --search, so that the same command resumes this run.
    values = fields.to_flat(config.trying(best.values))
    return fields.from_flat(values | {"search": config.search.search}, FinetuneConfig)


def _has_diverged(model: keras.Model) -> bool:
    """Returns True if a weight is not finite.

    Such a model ranks last: its constant answers can reach the score of the baseline.
    """
    return not all(np.isfinite(weight).all() for weight in model.get_weights())


def _discard(*_: Any) -> None:
    pass


def _trained(
    trainer: Trainer, seed: int, watch: Watch, folder: FinetuningFolder, log: Log
) -> str | None:
    """Trains a seed; returns its failure, "" if none, or None after a signal."""
    failure = ""
    with callbacks.GracefulStop() as stop:
        try:
            trainer.train(seed, watch, folder, stop)
        except FloatingPointError as error:
            # Scores a diverged seed like others; the remaining seeds still run.
            failure = str(error)
    if stop.requested:
        log(f"{stop.requested}: {callbacks.SAVED_AND_STOPPED}")
        return None
    return failure


def train(job: Job) -> tuple[list[dict[str, Any]], int, dict[str, Any]] | None:
    """Trains and scores the remaining seeds; returns None after a signal.

    Returns the results, the first seed with the best main score, whose weights the
    scorer has, and its predictions by split, if this process made them.
    """
    folder, data, scorer = job.folder, job.data, job.scorer
    job.begin()
    (split, metric), better = job.main, data.task.greater_is_better
    results = folder.done()
    if results:
        job.log(f"{len(results)} of {len(job.seeds)} seeds are done")

    def best() -> int:
        ranks = [
            -math.inf
            if result.get("diverged")
            else rank(result["scores"][split][metric], greater_is_better=better)
            for result in results
        ]
        return results[ranks.index(max(ranks))]["seed"]

    def weights(seed: int) -> CheckpointStore:
        variables = named_variables(scorer.model)
        return CheckpointStore(folder.weights(seed), variables, log=job.log)

    answers: dict[str, Any] = {}
    for seed in job.seeds[len(results) :]:
        failure = _trained(job.trainer, seed, job.watch, folder, job.log)
        if failure is None:
            return None
        scorer.model.set_weights(job.trainer.model.get_weights())
        data.tune(scorer)
        own_answers, scores = {}, {}
        for name in data.eval_splits:
            own_answers[name], scores[name] = data.score(name, scorer)
            folder.record({"seed": seed, "split": name, **scores[name]})
        has_diverged = _has_diverged(scorer.model)
        failure = (
            failure
            or (has_diverged and "a weight is not finite")
            or data.task.failure(own_answers[split], scores[split], job.baseline[split])
        )
        job.log(f"seed {seed}  {brief(scores[split])}")
        if failure:
            job.log(f"seed {seed}  FAILED: {failure}")
        results.append({"seed": seed, "scores": scores, "failure": failure})
        if has_diverged:
            results[-1]["diverged"] = True
        if best() == seed:
            answers = own_answers
            weights(seed).save(seed)
        # Written after the weights: a seed with this file is not trained again.
        folder.finish_seed(results[-1], best())
    if weights(best()).restore_latest() is None:
        raise FileNotFoundError(
            f"{folder.weights(best())} does not have the weights of seed {best()}, "
            "which is finished: restore them, or pass --overwrite to start a new run."
        )
    data.tune(scorer)
    return results, best(), answers


def finish(
    job: Job, results: list[dict[str, Any]], best_seed: int, answers: dict[str, Any]
) -> dict[str, Any]:
    """Writes predictions, exports and report; takes the results of ``train``."""
    folder, data, task, model = job.folder, job.data, job.data.task, job.scorer.model
    main, _ = job.main
    report = finetuning_report.summary(results, job.baseline, job.main)
    report |= {"task": task.name, "exported_seed": best_seed, "init": job.init}
    job.log(finetuning_report.table(report))
    others = [split for split in data.examples if split not in answers]
    answers = answers | {split: data.answers(split, job.scorer) for split in others}
    report |= finetuning_report.examine(data, answers[main], job.log)
    if len(report["failed_seeds"]) == len(results):
        job.log("every seed failed; exiting with code 1")
    # With the tuned threshold.
    folder.describe_tuned(task)
    finetuning_report.write_predictions(data, answers, folder.path)
    if model.encoder.lora_rank:
        model.save_lora_weights(folder.path / layout.ADAPTER)
        # Exports have one product per kernel.
        model = model.merge_lora()
    models.save(model, folder.path / layout.MODEL)
    # A later fine-tuning of this encoder needs the same recipe.
    if recipe := recommended(job.described["config"]["encoder"]):
        files.write_json(folder.path / RECIPE, recipe)
    _export(job, model, answers[main], report)
    # Imported late: only a finished run needs it.
    from electra_tf.folders.cards import task_card

    # After all required outputs: results.json marks the run as finished.
    folder.finish(report, task_card(folder, report))
    return report


def _export(job: Job, model: TaskModel, answers: Any, report: dict[str, Any]) -> None:
    task, is_int8 = job.data.task, job.precision == "int8"
    for name in job.exports:
        path = job.folder.path / name
        if name == "saved_model":
            precision = "float32" if is_int8 else job.precision
            length = job.settings.max_seq_length
            arguments = (job.start.tokenizer, str(path), length, precision)
            difference = export.export_saved_model(model, task, *arguments)
        else:
            is_onnx = name == "model.onnx"
            write = export.export_onnx if is_onnx else export.export_litert
            accept = functools.partial(_accept, job, answers, path, report)
            options = {"precision": "int8", "accept": accept} if is_int8 else {}
            difference = write(model, task, str(path), **options)
        job.log(
            f"saved model for serving: {path}"
            if difference is None
            else f"{name}: at most {difference:.1g} from the model on a test batch"
        )


def _accept(
    job: Job, answers: Any, path: Path, report: dict[str, Any], run: export.Run
) -> None:
    """Scores a converted int8 model; raises UserError if it loses too much."""
    # A file of an earlier attempt.
    path.unlink(missing_ok=True)
    data, (split, metric) = job.data, job.main

    def inference(inputs: Mapping[str, tf.Tensor]) -> Any:
        outputs = run({name: x.numpy() for name, x in inputs.items()})
        return outputs.get("logits", outputs)

    file = types.SimpleNamespace(inference=inference)
    after = data.score(split, Outputs(file, job.eval_batch_size))[1][metric]
    before = data.task.score(answers, data.examples[split])[metric]
    loss = before - after if data.task.greater_is_better else after - before
    text = f"{path.name} in int8: {metric} {after:.2f} on {split}, {before:.2f} in "
    text += f"float32, a loss of {loss:.2f}"
    # Not `>`, so that NaN fails too.
    if not loss <= job.max_score_loss:
        raise UserError(
            f"{text}, which exceeds --max_score_loss={job.max_score_loss:g}: the file "
            "was not written. Run the command again, with a larger limit or without "
            "--export_precision; it does not train again."
        )
    job.log(text)
    own = {"float32": before, "int8": after, "loss": loss}
    report.setdefault("int8", {})[path.name] = own

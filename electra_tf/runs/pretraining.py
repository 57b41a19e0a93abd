"""Pretraining run: builds data and models, trains, evaluates and exports."""

import contextlib
import dataclasses
import functools
import glob
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.config import fields, validation
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.corpora import Source, open_corpus
from electra_tf.data.prepared import PretrainingData
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders import pretraining as layout
from electra_tf.folders.cards import pretraining_card
from electra_tf.folders.pretraining import PretrainingFolder, settings_of
from electra_tf.folders.settings import check_keeps
from electra_tf.pretraining import PretrainingModel
from electra_tf.pretraining.base import Phase, remaining
from electra_tf.pretraining.metrics import trivial_scores
from electra_tf.runs import report, warm_start
from electra_tf.runs.curves import plot_curves
from electra_tf.runs.samples import text_sample
from electra_tf.systems import build, costs
from electra_tf.training import callbacks, sinks
from electra_tf.training.checkpoints import CheckpointStore, named_variables
from electra_tf.training.distribution import (
    check_same_start,
    naming_lost_workers,
    strategy_for,
)
from electra_tf.training.sinks import metric_cards

# Returns endless batches from ``start_batch``.
TrainBatches = Callable[..., tf.data.Dataset]


def run(
    config: PretrainConfig,
    log: Log = cli.say,
    objective: build.MakeObjective | None = None,
) -> int:
    """Runs, resumes or completes a pretraining run; returns the exit code.

    ``objective``, a subclass of ``pretraining.Objective`` or a factory, replaces the
    config's objective, except in FLOPs. Raises ValueError if inputs do not fit or
    another process runs in the folder, OSError if files or other workers of the job are
    missing, FloatingPointError if the loss is not finite.
    """
    with contextlib.ExitStack() as stack:
        # Building the models sets Keras's global policy.
        stack.callback(keras.config.set_dtype_policy, keras.config.dtype_policy())
        ready = prepare(config, log, objective)
        if ready is None:
            return cli.OK
        stack.enter_context(ready.lock)
        stack.enter_context(ready.data.naming_damage())
        stack.enter_context(naming_lost_workers(ready.model.distribute_strategy))
        signal = train(ready)
        if signal:
            log(f"{signal}: {callbacks.SAVED_AND_STOPPED}")
            return cli.STOPPED
        finish(ready)
    return cli.OK


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is ready to be trained, with restored or initialized weights."""

    data: PretrainingData
    phases: Sequence[Phase]  # The last phase's model holds all networks.
    train_batches: TrainBatches
    held_out: tf.data.Dataset | None
    folder: PretrainingFolder
    store: CheckpointStore
    sinks: tuple[sinks.Sink, ...]  # Receive metrics; empty except on the chief.
    first_step: int  # Number of completed updates.
    num_steps: int
    log_steps: int  # Updates between logged points.
    eval_steps: int  # Updates between evaluations; 0: only at the end.
    save_steps: int  # Updates between checkpoints.
    tokens_per_step: int
    reads_mask: bool  # Whether the generator reads [MASK] where it predicts.
    is_chief: bool  # Whether this process writes files.
    callbacks: Sequence[Callable[[], keras.callbacks.Callback]]  # In each phase.
    log: Log
    lock: contextlib.ExitStack  # Of the folder, until it is closed.

    @property
    def model(self) -> PretrainingModel:
        return self.phases[-1].model


def prepare(
    config: PretrainConfig,
    log: Log = cli.say,
    objective: build.MakeObjective | None = None,
) -> Run | None:
    """Builds, checks and restores a run; applies ``--overwrite``.

    Weights come from the folder's newest intact checkpoint, else from ``--init_from``,
    else from initializers. ``--overwrite`` deletes the folder's records before the
    build, and models, checkpoints and logs after all checks. The caller closes the
    run's ``lock``. Returns None after a dry run, which leaves the folder unchanged.
    """
    fields.check_dependencies(config)
    if objective is not None and config.objective.objective == "mlm":
        raise UserError(
            "objective= trains a discriminator: --objective=mlm has none. Leave one of "
            "them out."
        )
    # Workers must connect before anything else uses TensorFlow's runtime.
    strategy = strategy_for(config.run.distribution)
    folder = PretrainingFolder(Path(config.run.model_dir))
    folder.reject_fine_tuned("set --model_dir to another folder.")
    config = warm_start.completed(config, log)
    options, replicas = config.run, strategy.num_replicas_in_sync
    parts = options.gradient_accumulation_steps * replicas
    if options.gradient_accumulation_steps > 1 and options.train_batch_size % parts:
        raise UserError(
            f"--train_batch_size={options.train_batch_size} must be a multiple of "
            f"{parts}, --gradient_accumulation_steps="
            f"{options.gradient_accumulation_steps} times {replicas} devices."
        )
    for warning in validation.warnings(config):
        log(f"warning: {warning}")
    builds_records = not config.data.records

    # Checks without data come first: building the data can take hours.
    more = callbacks.named_callbacks(options.callback)
    if options.overwrite:
        _check_inputs(config, folder)
    else:
        flags = {"config": fields.to_flat(config)}
        folder.check_settings(flags, ["data.*", "objective_class"])
    costs.check_fits(config, config.data.vocab_size)
    files.check_checkpoint_path(folder.path)
    warm_start.check(config)
    if options.dry_run:
        _dry_run(config, strategy, folder, log, objective)
        return None

    # One process writes files: the cluster's chief, or worker 0.
    writes = strategy.extended.should_checkpoint
    with contextlib.ExitStack() as lock:
        if writes:
            lock.enter_context(files.owned(folder.path))
            files.remove_leftovers(folder.path, is_locked=True)
            if options.overwrite and builds_records:
                folder.delete([layout.DATA])
        built = _build(config, strategy, log, objective)
        data, phases, train_batches, held_out = built
        model = phases[-1].model
        settings = settings_of(fields.to_flat(config), data)
        # False, also without the key: the objective of the flags.
        custom = type(model.objective).__qualname__ if objective else False
        settings["objective_class"] = custom
        if options.overwrite:
            # Initial weights may not fit, so they are loaded before the deletion.
            warm_start.initialize(config, model, data, log)
            if writes:
                kept = [layout.DATA] if builds_records else []
                folder.delete({*layout.OUTPUTS}.difference(kept))
        else:
            folder.check_settings(settings)
        store = CheckpointStore(
            folder.path / layout.CHECKPOINTS,
            _state(phases),
            keep=options.keep_checkpoints,
            log=log,
        )
        first_step = 0 if options.overwrite else store.restore_latest()
        same = settings["data"]["records_sha256"]
        check_same_start(strategy, first_step or 0, same)
        if first_step:
            _check_step(phases, first_step, store)
        if first_step is None:
            if folder.has_model("encoder"):
                raise UserError(
                    f"{folder.path} holds models without checkpoints: to train again, "
                    "add --overwrite or name another --model_dir."
                )
            warm_start.initialize(config, model, data, log)
            first_step = 0
        elif not options.overwrite:
            log(f"resuming after step {first_step}, from {store.directory}")
        if writes:
            folder.describe(settings, data.vocabulary)
            warm_start.copy_recipe(config, folder)
        if first_step < options.num_train_steps:
            log(report.summary(config, model, len(data.vocabulary), data.shards))
        else:
            log(f"{folder.path} is trained to its last step, {first_step}; evaluating.")
        return Run(
            data=data,
            phases=phases,
            train_batches=train_batches,
            held_out=held_out,
            folder=folder,
            store=store,
            sinks=_sinks(config, folder, phases[-1], first_step, log) if writes else (),
            first_step=first_step,
            num_steps=options.num_train_steps,
            log_steps=options.log_steps,
            eval_steps=options.eval_steps,
            save_steps=options.save_checkpoint_steps,
            tokens_per_step=options.train_batch_size * config.data.max_seq_length,
            reads_mask=config.generator_kind == "masked_lm",
            is_chief=writes,
            callbacks=more,
            log=log,
            lock=lock.pop_all(),
        )


def _check_inputs(config: PretrainConfig, folder: PretrainingFolder) -> None:
    """Raises an error if the run would overwrite its inputs or lacks its text."""
    data = config.data
    patterns_by_flag = {
        "init_from": (config.run.init_from,),
        "generator_init_from": (config.training.generator_init_from,),
        "vocab_file": (data.vocab_file,),
        "records": data.records,
        "eval_records": data.eval_records,
        "corpus": () if data.records else data.corpus,
    }
    inputs = [
        (flag, path)
        for flag, patterns in patterns_by_flag.items()
        for pattern in filter(None, patterns)
        for path in glob.glob(pattern, recursive=True) or [pattern]
    ]
    check_keeps(folder.path, layout.OUTPUTS, inputs, "model_dir")
    if not data.records:
        _open_corpus(config)
        if data.vocab_file:
            Vocabulary.load(data.vocab_file)


def _dry_run(
    config: PretrainConfig,
    strategy: tf.distribute.Strategy,
    folder: PretrainingFolder,
    log: Log,
    objective: build.MakeObjective | None,
) -> None:
    """Logs the plan of a run; reads the records of ``--records``."""
    if config.run.overwrite and (doomed := folder.outputs()):
        log(f"would delete the run in {folder.path}: {', '.join(doomed)}")
    if config.data.records:
        data, phases, _, _ = _build(config, strategy, log, objective)
        vocab_size, shards = len(data.vocabulary), data.shards
    else:
        # A vocabulary that is trained begins with the special tokens.
        vocab_size, special_ids, shards = config.data.vocab_size, (2, 3, 4), None
        training = f"train a vocabulary of {vocab_size:,} tokens and "
        if config.data.vocab_file:
            vocabulary = Vocabulary.load(config.data.vocab_file)
            vocab_size, special_ids = len(vocabulary), build.special_ids(vocabulary)
            training = ""
        data_dir = config.data.data_dir or folder.path / layout.DATA
        text = ", ".join(config.data.corpus)
        if size := sum(source.size for source in _open_corpus(config, log)):
            text += f" ({size / 1e6:,.1f} MB)"
        log(f"would {training}build records of {text} in {data_dir}, unless they exist")
        with strategy.scope():
            phases = build.compiled_phases(config, vocab_size, special_ids, objective)
    log(report.dry_run(config, phases[-1].model, vocab_size, shards))


def _open_corpus(config: PretrainConfig, log: Log | None = None) -> list[Source]:
    return open_corpus(
        config.data.corpus,
        blank_lines_separate=config.data.blank_lines_separate,
        text_column=config.data.text_column,
        outputs=[config.run.model_dir, config.data.data_dir or config.run.model_dir],
        log=log,
    )


def _build(
    config: PretrainConfig,
    strategy: tf.distribute.Strategy,
    log: Log,
    objective: build.MakeObjective | None,
) -> tuple[PretrainingData, list[Phase], TrainBatches, tf.data.Dataset | None]:
    """Returns data, compiled phases, and the datasets of training and evaluation."""
    data = build.pretraining_data(config, log)
    warm_start.check(config, data)
    train_batches = functools.cache(build.train_batches(config, data))
    # Opens the files now, so that invalid records fail early.
    train_batches(start_batch=0)
    held_out = build.eval_dataset(config, data)
    vocab_size, ids = len(data.vocabulary), build.special_ids(data.vocabulary)
    with strategy.scope():
        phases = build.compiled_phases(config, vocab_size, ids, objective)
    return data, phases, train_batches, held_out


def _check_step(phases: Sequence[Phase], step: int, store: CheckpointStore) -> None:
    """Raises UserError if the newest checkpoint was renamed to another step."""
    before = sum(phase.steps for phase in phases[:-1])
    inside = int(phases[-1].model.step.numpy())
    if inside != max(0, step - before):
        raise UserError(
            f"{store.directory}/ckpt-{step} holds step {before + inside}: it was "
            "renamed. Restore the names of its files."
        )


def _state(phases: Sequence[Phase]) -> dict[str, tf.Variable]:
    """Returns all variables of a checkpoint: the whole model and all optimizers."""
    state = named_variables(phases[-1].model, phases[-1].model.optimizer)
    for phase in phases[:-1]:
        own = named_variables(phase.model, phase.model.optimizer)
        for name, variable in own.items():
            if name.startswith("optimizer/"):
                state[f"{phase.name}_{name}"] = variable
    return state


def _sinks(
    config: PretrainConfig, folder: PretrainingFolder, last: Phase, step: int, log: Log
) -> tuple[sinks.Sink, ...]:
    # The warnings apply to the last phase only.
    begin = config.run.num_train_steps - last.steps
    return (
        sinks.MetricsLog(folder.path / layout.METRICS, first_step=step),
        sinks.TensorBoardScalars(folder.path / layout.TENSORBOARD),
        report.HealthWarnings(
            config.sampled_rate,
            lambda text: log(f"warning: {text}"),
            min_steps=begin + min(5000, last.steps // 2),
        ),
    )


def train(run: Run) -> str | None:
    """Trains to the last step; returns the signal that stopped it, or None."""
    for phase, first_step, last_step in remaining(run.phases, run.first_step):
        if len(run.phases) > 1:
            run.log(f"phase {phase.name}: steps {first_step + 1:,} to {last_step:,}")
        phase.set_trainable()
        counted, receivers = {"first_step": first_step}, list(run.sinks)
        if run.is_chief:
            # One display per phase, because step times differ.
            cards = metric_cards(metric.name for metric in phase.model.metrics)
            display = sinks.Progress(run.num_steps, cards=cards, **counted)
            receivers.append(display)
        saving = callbacks.CheckpointEvery(run.store, run.save_steps, **counted)
        logger = callbacks.StepLogger(
            run.log_steps, receivers, tokens_per_step=run.tokens_per_step, **counted
        )
        more = [make() for make in run.callbacks]
        if run.held_out is not None and run.eval_steps:
            evaluate = callbacks.EvaluateEvery(
                run.held_out, run.eval_steps, receivers, callbacks=more, **counted
            )
            more = [evaluate]
        guard = callbacks.NonFiniteGuard(store=run.store, **counted)
        steps = last_step - first_step
        with saving.stop:
            phase.model.fit(
                # Keras rounds up to whole executions; the last one ends with the data.
                run.train_batches(start_batch=first_step).take(steps),
                steps_per_epoch=steps,
                verbose=0,
                shuffle=False,
                # First the guard, to log and save no step that is not finite. Last the
                # checkpoint, after the files of other callbacks are written.
                callbacks=[guard, logger, *more, saving],
            )
        if saving.stop.requested:
            return saving.stop.requested
        if phase.model.stop_training:
            run.log(f"a callback stopped the training after step {saving.step:,}")
    return None


def finish(run: Run) -> None:
    """Evaluates the model and saves models, model card, curves and samples."""
    for phase in run.phases:
        phase.release()
    folder, scores, baselines = run.folder, {}, {}
    if run.held_out is None:
        run.log("no held-out records: nothing to evaluate on")
    else:
        logs = run.model.evaluate(run.held_out, verbose=0, return_dict=True)
        scores = {name: float(np.ravel(value)[0]) for name, value in logs.items()}
        mask_id = run.data.vocabulary.mask_id if run.reads_mask else None
        batches = run.held_out.as_numpy_iterator()
        baselines = trivial_scores(run.data.token_counts, batches, scores, mask_id)
        run.log(report.held_out_table(report.held_out_rows(scores, baselines)))
    if not run.is_chief:
        return
    if scores:
        # A callback may have stopped the run before its last step.
        last_step = run.store.steps()[-1]
        numbers = {f"{sinks.EVAL_PREFIX}{name}": x for name, x in scores.items()}
        numbers |= {f"{sinks.TRIVIAL_PREFIX}{name}": x for name, x in baselines.items()}
        metrics = sinks.MetricsLog(folder.path / layout.METRICS, first_step=last_step)
        # A run killed while saving its models has logged them already.
        if not any(numbers.items() <= row.items() for row in folder.metrics()):
            metrics(last_step, numbers)
    parts = run.model.artifacts()
    folder.save(parts)
    sizes = {name: report.parameters(part) for name, part in parts.items()}
    card = pretraining_card(folder, sizes, report.held_out_rows(scores, baselines))
    files.write_text(folder.path / layout.CARD, card)
    if folder.metrics():
        curves = folder.path / layout.CURVES
        plot_curves(folder.path / layout.METRICS, curves, baselines)
    if run.held_out is not None:
        tokens = [cli.visible(token) for token in run.data.vocabulary.tokens]
        sample = text_sample(run.model, tokens, run.held_out)
        if sample:
            files.write_text(folder.path / layout.SAMPLES, sample)
            run.log("held-out text with predictions (all of it in samples.txt):\n")
            run.log("\n".join(sample.splitlines()[:14]))
    run.log(
        f"\n{folder.path} holds {', '.join(folder.outputs())}. Next:\n"
        "  python -m electra_tf finetune --flagfile=configs/tasks/tiny.cfg "
        f"--encoder={folder.model_path('encoder')}\n"
        f"  tensorboard --logdir={folder.path / layout.TENSORBOARD}"
    )

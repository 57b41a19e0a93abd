"""Pretraining run: builds data and models, trains, evaluates and exports."""

import contextlib
import functools
import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli, files
from electra_tf.cli import Log
from electra_tf.config import fields, validation
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.corpora import open_corpus
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.folders import pretraining as layout
from electra_tf.folders.cards import pretraining_card
from electra_tf.folders.pretraining import PretrainingFolder, settings_of
from electra_tf.folders.settings import check_keeps
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
        this = PretrainingRun(config, log, objective)
        if config.run.dry_run:
            this.dry_run()
            return cli.OK
        if this.writes:
            stack.enter_context(files.owned(this.folder.path))
        this.restore()
        stack.enter_context(this.data.naming_damage())
        stack.enter_context(naming_lost_workers(this.strategy))
        if signal := this.train():
            log(f"{signal}: {callbacks.SAVED_AND_STOPPED}")
            return cli.STOPPED
        this.finish()
    return cli.OK


class PretrainingRun:
    """A run in ``model_dir``; the constructor checks all settings that need no data.

    Then call ``restore`` in the lock of the folder, ``train`` and ``finish``, or only
    ``dry_run``. Arguments and errors are those of ``run``.
    """

    def __init__(
        self,
        config: PretrainConfig,
        log: Log = cli.say,
        objective: build.MakeObjective | None = None,
    ):
        fields.check_dependencies(config)
        if objective is not None and config.objective.objective == "mlm":
            raise UserError(
                "objective= trains a discriminator: --objective=mlm has none. Leave "
                "one of them out."
            )
        # Workers must connect before anything else uses TensorFlow's runtime.
        self.strategy = strategy_for(config.run.distribution)
        # One process writes files: the cluster's chief, or worker 0.
        self.writes = self.strategy.extended.should_checkpoint
        self.folder = PretrainingFolder(Path(config.run.model_dir))
        self.folder.reject_fine_tuned("set --model_dir to another folder.")
        self.config = config = warm_start.completed(config, log)
        self.log, self.objective = log, objective
        options, replicas = config.run, self.strategy.num_replicas_in_sync
        parts = options.gradient_accumulation_steps * replicas
        if options.gradient_accumulation_steps > 1 and options.train_batch_size % parts:
            raise UserError(
                f"--train_batch_size={options.train_batch_size} must be a multiple of "
                f"{parts}, --gradient_accumulation_steps="
                f"{options.gradient_accumulation_steps} times {replicas} devices."
            )
        for warning in validation.warnings(config).values():
            log(f"warning: {warning}")
        callbacks.named_callbacks(options.callback)
        if options.overwrite:
            self._check_inputs()
        else:
            flags = {"config": fields.to_flat(config)}
            self._check_settings(flags, "data.*", "objective_class", "random_keys")
        costs.check_fits(config, config.data.vocab_size)
        files.check_checkpoint_path(self.folder.path)
        warm_start.check(config)

    def _check_inputs(self) -> None:
        """Raises an error if the run would overwrite its inputs or lacks its text."""
        config, data = self.config, self.config.data
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
        check_keeps(self.folder.path, layout.OUTPUTS, inputs, "model_dir")
        if not data.records:
            self._open_corpus()
            if data.vocab_file:
                Vocabulary.load(data.vocab_file)

    def _check_settings(self, settings: Mapping[str, Any], *may_differ: str) -> None:
        # Paths, logging, and host and time of an earlier process.
        resumable = fields.resumable_fields(PretrainConfig)
        names = [f"config.{name}" for name in resumable]
        names += ["versions.*", "commit", "written", *may_differ]
        self.folder.check_settings(settings, names)

    def _open_corpus(self, log: Log | None = None) -> None:
        data, model_dir = self.config.data, self.config.run.model_dir
        open_corpus(
            data.corpus,
            blank_lines_separate=data.blank_lines_separate,
            text_column=data.text_column,
            outputs=[model_dir, data.data_dir or model_dir],
            log=log,
        )

    def dry_run(self) -> None:
        """Logs the plan of the run; reads the records of ``--records``."""
        config, folder = self.config, self.folder
        if config.run.overwrite and (doomed := folder.outputs()):
            self.log(f"would delete the run in {folder.path}: {', '.join(doomed)}")
        if config.data.records:
            self._build()
            vocab_size, manifest = len(self.data.vocabulary), self.data.manifest
        else:
            # A vocabulary that is trained begins with the special tokens.
            vocab_size, special_ids, manifest = config.data.vocab_size, (2, 3, 4), None
            if config.data.vocab_file:
                vocabulary = Vocabulary.load(config.data.vocab_file)
                vocab_size, special_ids = len(vocabulary), build.special_ids(vocabulary)
            self._open_corpus(self.log)
            text = ", ".join(config.data.corpus)
            data_dir = config.data.data_dir or folder.path / layout.DATA
            self.log(f"would build records of {text} in {data_dir}, unless they exist")
            self._build_models(vocab_size, special_ids)
        self.log(report.dry_run(config, self.model, vocab_size, manifest))

    def _build(self) -> None:
        """Opens or builds the data, and builds the models."""
        config = self.config
        self.data = build.pretraining_data(config, self.log)
        warm_start.check(config, self.data)
        self.train_batches = functools.cache(build.train_batches(config, self.data))
        # Opens the files now, so that invalid records fail early.
        self.train_batches(start_batch=0)
        self.held_out = build.eval_dataset(config, self.data)
        vocabulary = self.data.vocabulary
        self._build_models(len(vocabulary), build.special_ids(vocabulary))

    def _build_models(self, vocab_size: int, special_ids: Sequence[int]) -> None:
        with self.strategy.scope():
            self.phases = build.compiled_phases(
                self.config, vocab_size, special_ids, self.objective
            )
        # The last phase's model holds all networks.
        self.model = self.phases[-1].model

    def restore(self) -> None:
        """Builds data and models, loads the weights and describes the run.

        Weights come from the folder's newest intact checkpoint, else from
        ``--init_from``, else from initializers. ``--overwrite`` deletes the folder's
        records before the build, and models, checkpoints and logs after all checks.
        """
        config, folder, options = self.config, self.folder, self.config.run
        builds_records = not config.data.records
        if self.writes:
            files.remove_leftovers(folder.path)
            if options.overwrite and builds_records:
                folder.delete([layout.DATA])
        self._build()
        data, model = self.data, self.model
        settings = settings_of(fields.to_flat(config), data)
        custom = type(model.objective).__qualname__ if self.objective else False
        settings["objective_class"] = custom
        if options.overwrite:
            # Initial weights may not fit, so they are loaded before the deletion.
            warm_start.initialize(config, model, data, self.log)
            if self.writes:
                kept = {layout.DATA} if builds_records else {}
                folder.delete({*layout.OUTPUTS}.difference(kept))
        else:
            self._check_settings(settings)
        self.store = CheckpointStore(
            folder.path / layout.CHECKPOINTS,
            _state(self.phases),
            keep=options.keep_checkpoints,
            log=self.log,
        )
        # The number of completed updates.
        step = 0 if options.overwrite else self.store.restore_latest()
        if step and (inside := int(model.step.numpy())):
            # The name of a checkpoint may have been changed.
            step = sum(phase.steps for phase in self.phases[:-1]) + inside
        check_same_start(self.strategy, step or 0, settings["data"]["records_sha256"])
        if step is None:
            warm_start.initialize(config, model, data, self.log)
        elif not options.overwrite:
            self.log(f"resuming after step {step}, from {self.store.directory}")
        self.first_step = step = step or 0
        if self.writes:
            folder.describe(settings, data.vocabulary)
            warm_start.copy_recipe(config, folder)
        if step < options.num_train_steps:
            self.log(report.summary(config, model, len(data.vocabulary), data.manifest))
        else:
            self.log(f"{folder.path} is trained to its last step, {step}; evaluating.")

    def _sinks(self) -> list[sinks.Sink]:
        """Returns the receivers of metrics, which only the chief has."""
        if not self.writes:
            return []
        # The warnings apply to the last phase only.
        last = self.phases[-1].steps
        begin = self.config.run.num_train_steps - last
        path = self.folder.path
        return [
            sinks.MetricsLog(path / layout.METRICS, first_step=self.first_step),
            sinks.TensorBoardScalars(path / layout.TENSORBOARD),
            report.HealthWarnings(
                self.config.sampled_rate,
                lambda text: self.log(f"warning: {text}"),
                min_steps=begin + min(5000, last // 2),
            ),
        ]

    def train(self) -> str | None:
        """Trains to the last step; returns the signal that stopped it, or None."""
        options = self.config.run
        logs = self._sinks()
        tokens_per_step = options.train_batch_size * self.config.data.max_seq_length
        for phase, first_step, last_step in remaining(self.phases, self.first_step):
            if len(self.phases) > 1:
                self.log(
                    f"phase {phase.name}: steps {first_step + 1:,} to {last_step:,}"
                )
            phase.set_trainable()
            counted, receivers = {"first_step": first_step}, [*logs]
            if self.writes:
                # One display per phase, because step times differ.
                cards = metric_cards(metric.name for metric in phase.model.metrics)
                display = sinks.Progress(
                    options.num_train_steps, cards=cards, **counted
                )
                receivers.append(display)
            saving = callbacks.CheckpointEvery(
                self.store, options.save_checkpoint_steps, **counted
            )
            logger = callbacks.StepLogger(
                options.log_steps, receivers, tokens_per_step=tokens_per_step, **counted
            )
            more = [make() for make in callbacks.named_callbacks(options.callback)]
            if self.held_out is not None and options.eval_steps:
                evaluate = callbacks.EvaluateEvery(
                    self.held_out,
                    options.eval_steps,
                    receivers,
                    callbacks=more,
                    **counted,
                )
                more = [evaluate]
            guard = callbacks.NonFiniteGuard(store=self.store, **counted)
            steps = last_step - first_step
            with saving.stop:
                phase.model.fit(
                    # Keras rounds up to whole executions; the last ends with the data.
                    self.train_batches(start_batch=first_step).take(steps),
                    steps_per_epoch=steps,
                    verbose=0,
                    shuffle=False,
                    # First the guard, to log and save no step that is not finite. Last
                    # the checkpoint, after the files of other callbacks are written.
                    callbacks=[guard, logger, *more, saving],
                )
            if saving.stop.requested:
                return saving.stop.requested
            if phase.model.stop_training:
                self.log(f"a callback stopped the training after step {saving.step:,}")
        return None

    def finish(self) -> None:
        """Evaluates the model and saves models, model card, curves and samples."""
        for phase in self.phases:
            phase.release()
        folder, scores, baselines = self.folder, {}, {}
        if self.held_out is None:
            self.log("no held-out records: nothing to evaluate on")
        else:
            logs = self.model.evaluate(self.held_out, verbose=0, return_dict=True)
            scores = {name: float(np.ravel(value)[0]) for name, value in logs.items()}
            # Other generators do not read [MASK] where they predict.
            reads_mask = self.config.generator_kind == "masked_lm"
            mask_id = self.data.vocabulary.mask_id if reads_mask else None
            batches = self.held_out.as_numpy_iterator()
            baselines = trivial_scores(self.data.token_counts, batches, scores, mask_id)
            self.log(report.held_out_table(report.held_out_rows(scores, baselines)))
        if not self.writes:
            return
        if scores:
            # A callback may have stopped the run before its last step.
            last_step = self.store.steps()[-1]
            numbers = {f"{sinks.EVAL_PREFIX}{name}": x for name, x in scores.items()}
            numbers |= {
                f"{sinks.TRIVIAL_PREFIX}{name}": x for name, x in baselines.items()
            }
            metrics = sinks.MetricsLog(
                folder.path / layout.METRICS, first_step=last_step
            )
            # A run killed while saving its models has logged them already.
            if not any(numbers.items() <= row.items() for row in folder.metrics()):
                metrics(last_step, numbers)
        parts = self.model.artifacts()
        folder.save(parts)
        sizes = {name: report.parameters(part) for name, part in parts.items()}
        card = pretraining_card(folder, sizes, report.held_out_rows(scores, baselines))
        files.write_text(folder.path / layout.CARD, card)
        if folder.metrics():
            curves = folder.path / layout.CURVES
            plot_curves(folder.path / layout.METRICS, curves, baselines)
        if self.held_out is not None:
            tokens = [cli.visible(token) for token in self.data.vocabulary.tokens]
            if sample := text_sample(self.model, tokens, self.held_out):
                files.write_text(folder.path / layout.SAMPLES, sample)
                self.log("held-out text with predictions (all of it in samples.txt):\n")
                self.log("\n".join(sample.splitlines()[:14]))
        self.log(
            f"\n{folder.path} holds {', '.join(folder.outputs())}. Next:\n"
            "  python -m electra_tf finetune --flagfile=configs/tasks/tiny.cfg "
            f"--encoder={folder.model_path('encoder')}\n"
            f"  tensorboard --logdir={folder.path / layout.TENSORBOARD}"
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

"""Fine-tuning run: loads encoder and task, trains all seeds, exports the best one."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import math
import time
import types
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

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
from electra_tf.runs.curves import plot_seeds
from electra_tf.runs.finetuning_tasks import TaskData
from electra_tf.runs.trainer import Stopped, Trainer, brief
from electra_tf.serving import export
from electra_tf.tasks.base import Scores, Task
from electra_tf.tasks.batching import Outputs, TrainingOrder, bucket_lengths
from electra_tf.tasks.heads import TaskModel, fresh_copy
from electra_tf.tasks.metrics import first_best
from electra_tf.tasks.recipe import RECIPES, encoder_size, layerwise_multipliers
from electra_tf.tasks.tables import HeldOut
from electra_tf.training import callbacks
from electra_tf.training.checkpoints import CheckpointStore, named_variables
from electra_tf.training.distribution import strategy_for
from electra_tf.training.optimizers import AdamW
from electra_tf.training.schedules import WarmupPolynomialDecay

_POLICIES = {"none": "float32", "bfloat16": "mixed_bfloat16"}
# TensorFlow cannot compile a step that spans devices.
JIT_COMPILE = {"none": "auto", "mirrored": False}
# Flags without effect on a probe, apart from those of recipes and tasks.
_NOT_FROZEN = ("callback", "lora_rank", "pooling", "head_init")
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
    return cli.ERROR if len(report["failed_seeds"]) == len(report["seeds"]) else cli.OK


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
    fields.check_dependencies(config)
    try:
        if config.search.search:
            config = searched(config, log, task)
        ready = prepare(config, log, task)
        with files.owned(ready.folder.path):
            report = ready.probe() if config.run.frozen else ready.finish(ready.train())
    except Stopped as signal:
        log(f"{signal}: {callbacks.SAVED_AND_STOPPED}")
        return None
    log(f"the run took {tqdm.format_interval(round(time.monotonic() - began))}")
    return report


def searched(
    config: FinetuneConfig, log: Log, task: Task | None = None
) -> FinetuneConfig:
    """Runs ``--search``; returns the config with the best values.

    Trials train on four fifths of the training examples and are scored on the rest. The
    evaluation data is read only to raise its errors early.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UserError("--search needs the package optuna: pip install optuna.")
    # Only a search needs it.
    from electra_tf.runs.search import Search, space

    whole = FinetuningRun(config, log, task)
    examples = [*whole.data.train, *whole.data.tuning]
    if len(examples) < _FEWEST_TO_SEARCH:
        raise UserError(
            f"{len(examples)} training examples are too few for --search, which holds "
            f"a fifth of them out: it takes at least {_FEWEST_TO_SEARCH}."
        )
    split = dataclasses.replace(
        whole.data.task,
        source=HeldOut(lambda _: examples, "search", _SEARCH_PERIOD),
        eval_splits=("search",),
        test_splits=(),
    )
    values = fields.to_flat(config) | whole.settings
    chosen = space(config.search.search, values)
    log(f"search: chooses on {len(split.examples('search'))} training examples")
    home = FinetuningFolder(whole.folder.path / layout.SEARCHING)
    fixed = {
        **{"seeds": 1, "train_fraction": 1.0, "callback": (), "overwrite": False},
        **dict.fromkeys(("export_saved_model", "export_litert", "export_onnx"), False),
        "export_precision": "float32",
    }

    def attempt(number: int, values: Mapping[str, float]) -> tuple[float, str]:
        # The previous trial is in search.json; its checkpoints would fill the disk.
        files.remove(home.path / f"trial-{number - 1}")
        place = str(home.path / f"trial-{number}")
        flags = config.trying({**fixed, "output_dir": place, **values})
        (result,) = prepare(flags, lambda line: None, split).train()
        return _score(result, "search", split.main_metric), result["failure"]

    with files.owned(whole.folder.path):
        if not home.resumes(whole.described):
            whole.begin()
            # The folder of checkpoints comes last: it marks the search as started.
            home.describe(whole.described)
            home.checkpoints.mkdir()
        search = Search(
            space=chosen,
            first={name: values[name] for name in chosen},
            trials=config.search.search_trials,
            seed=config.run.seed,
            metric=split.main_metric,
            greater_is_better=split.greater_is_better,
            folder=whole.folder.path,
            log=log,
        )
        best = search(attempt)
    # Keeps --search, so that the same command resumes this run.
    return config.trying({**best, "search": config.search.search})


def prepare(
    config: FinetuneConfig, log: Log, task: Task | None = None
) -> FinetuningRun:
    """Returns a run that is ready to be trained or probed; changes no file."""
    ready = FinetuningRun(config, log, task)
    if not config.run.frozen:
        ready.build(config)
    return ready


class FinetuningRun:
    """A run: its encoder, settings, tokenized data and output folder.

    Reads, checks and tokenizes the inputs; changes no file before ``begin``.

    Attributes:
        baseline: scores of the majority baseline, by evaluation split.
        described: the content of config.json.
        main: the main evaluation split and its main metric.
        trainer: trains the model; after ``build``.
        scorer: a float32 copy of the model; after ``train`` with the best weights.
        best_seed: the first seed with the best main score; after ``train``.
    """

    trainer: Trainer
    scorer: Outputs
    best_seed: int

    def __init__(self, config: FinetuneConfig, log: Log, task: Task | None = None):
        options = config.run
        self.log, self._init = log, options.init
        self.seeds = range(options.seed, options.seed + options.seeds)
        self._eval_batch_size = options.eval_batch_size
        self._precision = options.export_precision
        self._max_score_loss = options.max_score_loss
        # Outputs of the search before this run.
        self._keep = (layout.SEARCHED, layout.SEARCHING) if config.search.search else ()
        if options.export_onnx:
            export.require_onnx()
        # Imported here, to raise the errors first.
        self._callbacks = callbacks.named_callbacks(options.callback)
        task = task or finetuning_tasks.task(config, log)
        wanted = {
            "saved_model": options.export_saved_model,
            "model.tflite": options.export_litert,
            "model.onnx": options.export_onnx,
        }
        self._exports = [name for name, is_wanted in wanted.items() if is_wanted]
        if self._exports and type(task).serving_outputs is Task.serving_outputs:
            raise UserError(
                f"The task {task.name} has no serving_outputs, which exports need: "
                "pass --noexport_saved_model."
            )
        if options.frozen or config.recipe.head_init == "probe":
            frozen.check(task, "--frozen" if options.frozen else "--head_init=probe")
        self.folder = FinetuningFolder(Path(options.output_dir or f"runs/{task.name}"))
        self._check_folder(config, task)
        self._strategy = equal_shares(config)
        with self._strategy.scope():
            self.start = pretrained(config, log)
        self.settings = settings(config, task, self.start, log)
        self.data = TaskData(
            task,
            self.start.tokenizer,
            self.settings["max_seq_length"],
            train_fraction=config.data.train_fraction,
            seed=options.seed,
            log=log,
        )
        self.main = self.data.eval_splits[0], task.main_metric
        self.baseline = {
            split: self.data.task.baseline(self.data.train, self.data.examples[split])
            for split in self.data.eval_splits
        }
        log(f"baseline  {brief(self.baseline[self.main[0]])}")
        digest = hashlib.sha256()
        for weight in self.start.encoder.get_weights():
            digest.update(weight.tobytes())
        self.described = {
            "config": fields.to_flat(config),
            "settings": self.settings,
            "data": {"encoder": digest.hexdigest()[:32], **self.data.keys},
        }

    def _check_folder(self, config: FinetuneConfig, task: Task) -> None:
        """Raises ValueError if the run would replace inputs or another run."""
        options, folder = config.run, self.folder
        if not options.frozen:
            files.check_checkpoint_path(folder.path)
        searches = bool(config.search.search)
        folder.check(task.name, overwrite=options.overwrite, searches=searches)
        # A symbolic link counts as the file that it names.
        encoder = named(options.encoder).resolve()
        inputs = [("encoder", str(encoder if encoder.is_dir() else encoder.parent))]
        for flag in finetuning_tasks.FILES:
            if path := getattr(config.data, flag):
                inputs.append((flag, path))
        check_keeps(folder.path, layout.OUTPUTS, inputs, "output_dir")

    def begin(self, keep: Collection[str] = ()) -> None:
        """Resumes the run in the folder, or replaces all outputs except ``keep``."""
        if self.folder.resumes(self.described):
            self.folder.describe(self.described)
            return
        self.folder.begin(
            self.data.task,
            self.start.tokenizer,
            self.settings["max_seq_length"],
            self.described,
            self.start.trained_length,
            keep=keep,
        )

    def probe(self) -> dict[str, Any]:
        """Trains a linear probe on the frozen encoder, or on a random one per seed."""
        self.begin()
        data, batch_size, results = self.data, self._eval_batch_size, []
        is_random = self._init == "random"
        # The probe of a pretrained encoder depends on no seed.
        for seed in self.seeds if is_random else self.seeds[:1]:
            keras.utils.set_random_seed(seed)
            # Scores are float32, whatever --mixed_precision is.
            encoder = fresh_copy(self.start.encoder, "float32")
            if not is_random:
                encoder.set_weights(self.start.encoder.get_weights())
            model = frozen.probe(encoder, data.task, data.train_rows, batch_size)
            shares = tf.nn.softmax(model.head.mixture).numpy()
            self.log(f"shares of the layers: {' '.join(f'{x:.2f}' for x in shares)}")
            outputs = Outputs(model, batch_size)
            data.tune(outputs)
            scores = {name: data.score(name, outputs)[1] for name in data.eval_splits}
            self.folder.record({"seed": seed, **scores[self.main[0]]})
            results.append({"seed": seed, "scores": scores, "failure": ""})
        report = self._summary(results)
        self.folder.finish(report)
        return report

    def _summary(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        report = finetuning_report.summary(results, self.baseline, self.main)
        report |= {"task": self.data.task.name, "init": self._init}
        self.log(finetuning_report.table(report))
        return report

    def build(self, config: FinetuneConfig) -> None:
        """Builds ``trainer``, and ``scorer`` of a float32 copy of its model."""
        data, chosen, batch_size = self.data, self.settings, self._eval_batch_size
        split = self.main[0]
        options, recipe, lengths = config.run, config.recipe, data.train_rows.lengths
        buckets = bucket_lengths(lengths, chosen["max_seq_length"])
        order = TrainingOrder(lengths, recipe.train_batch_size, buckets)
        total_steps = max(1, int(order.steps_per_pass * chosen["epochs"]))

        def start_head(model: TaskModel) -> None:
            frozen.start_head(model, data.task, data.train_rows, batch_size)
            self.log("the head starts as a probe of the encoder's states")

        keras.utils.set_random_seed(options.seed)
        with self._strategy.scope():
            model = data.task.build_model(self.start.encoder)
            if recipe.lora_rank:
                model.enable_lora(recipe.lora_rank)
            model.compile(
                optimizer=optimizer(recipe, chosen, model, total_steps),
                loss=data.task.loss(chosen["reduction"]),
                jit_compile=JIT_COMPILE[options.distribution],
            )
            self.trainer = Trainer(
                model,
                data.train_rows,
                order,
                total_steps=total_steps,
                log=self.log,
                record=self.folder.record,
                log_steps=options.log_steps,
                random_encoder=options.init == "random",
                start_head=start_head if recipe.head_init == "probe" else None,
                evaluate=lambda: self._scored(model, [split])[split][1],
                callbacks=self._callbacks,
            )
        self.log(
            f"{chosen['size']} encoder, {model.count_params():,} parameters; "
            f"{total_steps} steps of {order.batch_size}; rate "
            f"{chosen['learning_rate']:g}, layer-wise decay "
            f"{chosen['layerwise_decay']:g}, weight decay {chosen['weight_decay']:g}"
        )
        self.scorer = Outputs(model.fresh(0, dtype="float32"), batch_size)

    def _scored(
        self, model: TaskModel, splits: Sequence[str]
    ) -> dict[str, tuple[Any, Scores]]:
        self.scorer.model.set_weights(model.get_weights())
        self.data.tune(self.scorer)
        return {split: self.data.score(split, self.scorer) for split in splits}

    def train(self) -> list[dict[str, Any]]:
        """Trains and scores the remaining seeds; raises ``Stopped`` after a signal.

        Returns the results; ``scorer`` has the weights of ``best_seed``.
        """
        folder, data, (split, metric) = self.folder, self.data, self.main
        trainer = self.trainer
        self.begin(keep=self._keep)
        results = folder.done()
        if results:
            self.log(f"{len(results)} of {len(self.seeds)} seeds are done")

        def best() -> int:
            scores = [_score(result, split, metric) for result in results]
            greater = data.task.greater_is_better
            return results[first_best(scores, greater_is_better=greater)]["seed"]

        def weights(seed: int) -> CheckpointStore:
            variables = named_variables(self.scorer.model)
            return CheckpointStore(folder.weights(seed), variables, log=self.log)

        for seed in self.seeds[len(results) :]:
            # Scores a diverged seed like others; the remaining seeds still run.
            failure = trainer.train(seed, folder)
            scored = self._scored(trainer.model, data.eval_splits)
            scores = {name: own for name, (_, own) in scored.items()}
            for name, own in scores.items():
                folder.record({"seed": seed, "split": name, **own})
            has_diverged = _has_diverged(trainer.model)
            if has_diverged:
                failure = failure or "a weight is not finite"
            if not failure:
                failure = data.task.failure(*scored[split], self.baseline[split])
            self.log(f"seed {seed}  {brief(scores[split])}")
            if failure:
                self.log(f"seed {seed}  FAILED: {failure}")
            results.append({"seed": seed, "scores": scores, "failure": failure})
            if has_diverged:
                results[-1]["diverged"] = True
            if best() == seed:
                weights(seed).save(seed)
            # Written after the weights: a seed with this file is not trained again.
            folder.finish_seed(results[-1], best())
        if weights(best()).restore_latest() is None:
            raise FileNotFoundError(
                f"{folder.weights(best())} lacks the weights of the finished seed "
                f"{best()}: restore them, or start a new run with --overwrite."
            )
        data.tune(self.scorer)
        self.best_seed = best()
        return results

    def finish(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """Writes predictions, exports and report; takes the results of ``train``."""
        folder, data, model = self.folder, self.data, self.scorer.model
        split, metric = self.main
        report = self._summary(results) | {"exported_seed": self.best_seed}
        answers = {name: data.answers(name, self.scorer) for name in data.examples}
        report |= finetuning_report.examine(data, answers[split], self.log)
        if len(report["failed_seeds"]) == len(results):
            self.log("every seed failed; exiting with code 1")
        folder.describe_tuned(data.task)
        finetuning_report.write_predictions(data, answers, folder.path)
        if model.encoder.lora_rank:
            model.save_lora_weights(folder.path / layout.ADAPTER)
            # Exports have one product per kernel.
            model = model.merge_lora()
        models.save(model, folder.path / layout.MODEL)
        # A later fine-tuning of this encoder needs the same recipe.
        if recipe := recommended(self.described["config"]["encoder"]):
            files.write_json(folder.path / RECIPE, recipe)
        for name in self._exports:
            self._export(name, model, answers[split], report)
        # Imported late: only a finished run needs it.
        from electra_tf.folders.cards import task_card

        # After all required outputs: results.json marks the run as finished.
        folder.finish(report, task_card(folder, report))
        plot_seeds(folder.path, metric, self.baseline[split].get(metric), self.log)
        self.log(f"seed {self.best_seed} is in {folder.path}")
        return report

    def _export(
        self, name: str, model: TaskModel, answers: Any, report: dict[str, Any]
    ) -> None:
        task, path = self.data.task, self.folder.path / name
        is_int8 = self._precision == "int8"
        if name == "saved_model":
            export.export_saved_model(
                model,
                task,
                self.start.tokenizer,
                str(path),
                self.settings["max_seq_length"],
                "float32" if is_int8 else self._precision,
            )
            self.log(f"saved model for serving: {path}")
        else:
            write = export.export_onnx if name == "model.onnx" else export.export_litert
            accept = functools.partial(self._accept, answers, path, report)
            options = {"precision": "int8", "accept": accept} if is_int8 else {}
            difference = write(model, task, str(path), **options)
            self.log(f"{name}: at most {difference:.1g} from the model on a test batch")

    def _accept(
        self, answers: Any, path: Path, report: dict[str, Any], run: export.Run
    ) -> None:
        """Scores a converted int8 model; raises UserError if it loses too much."""
        # A file of an earlier attempt.
        path.unlink(missing_ok=True)
        data, (split, metric) = self.data, self.main

        def inference(inputs: Mapping[str, tf.Tensor]) -> Any:
            outputs = run({name: x.numpy() for name, x in inputs.items()})
            return outputs.get("logits", outputs)

        file = types.SimpleNamespace(inference=inference)
        after = data.score(split, Outputs(file, self._eval_batch_size))[1][metric]
        before = data.task.score(answers, data.examples[split])[metric]
        loss = before - after if data.task.greater_is_better else after - before
        text = (
            f"{path.name} in int8: {metric} {after:.2f} on {split}, {before:.2f} in "
            f"float32, a loss of {loss:.2f}"
        )
        # Not `>`, so that NaN fails too.
        if not loss <= self._max_score_loss:
            raise UserError(
                f"{text}, which exceeds --max_score_loss={self._max_score_loss:g}: "
                "the file was not written. Run the command again, with a larger limit "
                "or without --export_precision; it does not train again."
            )
        self.log(text)
        own = {"float32": before, "int8": after, "loss": loss}
        report.setdefault("int8", {})[path.name] = own


def _has_diverged(model: keras.Model) -> bool:
    """Returns True if a weight is not finite."""
    return not all(np.isfinite(weight).all() for weight in model.get_weights())


def _score(result: Mapping[str, Any], split: str, metric: str) -> float:
    """Returns a score of a seed, NaN if it diverged.

    Such a model ranks last: its constant answers can reach the score of the baseline.
    """
    return math.nan if result.get("diverged") else result["scores"][split][metric]


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
    given = {n: getattr(config.data, n) for n in ("vocab_file", *fields.CASING)}
    tokenizer = home.tokenizer(log, **given)
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


def settings(
    config: FinetuneConfig, task: Task, start: Pretrained, log: Log
) -> dict[str, Any]:
    """Returns the hyperparameters after preset, task and flags, as in config.json.

    Logs a warning if rows can exceed the pretraining length. Raises ValueError if they
    can exceed the positions of the encoder.
    """
    encoder, preset = start.encoder, RECIPES[config.recipe.preset]
    size = encoder_size(encoder.hidden_size)
    positions, trained = encoder.embeddings.max_positions, start.trained_length
    most = positions if task.splits_long else math.inf
    length = config.data.max_seq_length or min(task.max_seq_length, most)
    if length > positions:
        raise UserError(
            f"--max_seq_length={length} (default: {task.max_seq_length}) exceeds the "
            f"{positions} positions of the encoder: lower it."
        )
    if trained is not None and length > trained:
        log(
            f"warning: max_seq_length {length} exceeds the {trained} tokens of "
            "pretraining: position embeddings of later tokens are untrained; pass "
            f"--max_seq_length={trained}"
        )
    chosen = {
        "size": size,
        "learning_rate": preset.learning_rate[size],
        "weight_decay": preset.weight_decay,
        "layerwise_decay": preset.layerwise_decay[size],
        "layerwise_exponent": preset.layerwise_exponent,
        "reduction": preset.reduction,
        "epochs": task.epochs,
        "max_seq_length": length,
    }
    given = {n: x for n, x in vars(config.recipe).items() if x is not None}
    return chosen | {name: given[name] for name in chosen if name in given}


def optimizer(
    recipe: RecipeConfig,
    chosen: Mapping[str, Any],
    model: TaskModel,
    total_steps: int,
) -> AdamW:
    """Builds AdamW with warmup, decay and layer-wise learning rates."""
    return AdamW(
        WarmupPolynomialDecay(
            chosen["learning_rate"],
            total_steps,
            warmup_steps=int(recipe.warmup_proportion * total_steps),
        ),
        weight_decay=chosen["weight_decay"],
        bias_correction=recipe.adam_bias_correction,
        clip_norm=recipe.clip_norm,
        learning_rate_multipliers=layerwise_multipliers(
            model, chosen["layerwise_decay"], chosen["layerwise_exponent"]
        ),
    )

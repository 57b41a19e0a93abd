"""One fine-tuning run: from an encoder and a task to scores and a served model.

`run_finetuning.py` is flags, this is what they do. The steps are `run`, in order.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

import keras

from electra_tf import finetune_build as build
from electra_tf import serving
from electra_tf.finetune_config import FinetuneConfig
from electra_tf.finetune_data import Scorer, TaskData
from electra_tf.finetune_folder import check_output, new_folder
from electra_tf.finetune_report import (
    RESULTS,
    MetricsFile,
    SeedResult,
    summary,
    table,
    write_json,
)
from electra_tf.finetune_trainer import Trainer, Watch, brief, clock
from electra_tf.tasks import plots
from electra_tf.tasks.batching import TrainingOrder, bucket_lengths

Log = Callable[[str], None]


def main(config: FinetuneConfig, log: Log | None = None) -> int:
    """Runs; says what is wrong in one line where that is enough.

    Returns:
        The exit code: 0 done, 1 error.
    """
    try:
        run(config, log or _say)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; without results.json the run is not finished\n")
        return 1
    return 0


def run(config: FinetuneConfig, log: Log) -> dict[str, Any]:
    """Trains all seeds, scores them, and exports the best one.

    Args:
        config: What to do.
        log: Receives one line of progress.

    Returns:
        What results.json holds: scores per seed, their summary, the baseline.

    Raises:
        ValueError: Config, data, vocabulary or encoder are not what they should be.
        OSError: A file is missing or cannot be written.
    """
    began = time.monotonic()
    if config.run.export_onnx:
        # Now, and not when everything is trained.
        serving.require_onnx()
    task = build.task(config, log)
    check_output(config.output_dir, task.name, overwrite=config.run.overwrite)
    strategy = build.strategy(config)
    with strategy.scope():
        start = build.pretrained(config, log)
    settings = build.settings(config, task, start)
    log(build.untrained_positions(settings, start))
    data = TaskData(config, task, start.tokenizer, settings.max_seq_length, log)
    task = data.task

    folder = new_folder(config, task, settings, start)
    with strategy.scope():
        model, trainer = _trainer(config, task, start, settings, data, log)
    scorer = Scorer(model, config.run.eval_batch_size)
    baseline = data.baseline()
    log(f"baseline  {brief(baseline[data.eval_splits[0]])}")
    record = MetricsFile(folder / "metrics.jsonl")

    seeds = _Seeds(config, data, trainer, scorer, baseline, record, log)
    results, best = [], None
    for seed in range(config.run.seed, config.run.seed + config.run.seeds):
        results.append(seeds.run(seed))
        main_score = results[-1].scores[data.eval_splits[0]][task.main_metric]
        main_score *= 1 if task.greater_is_better else -1
        if best is None or main_score > best[0]:
            best = (main_score, seed, model.get_weights())
    _, best_seed, weights = best
    scorer.take(weights)

    report = summary(results, baseline, (data.eval_splits[0], task.main_metric))
    report |= {"task": task.name, "exported_seed": best_seed, "init": config.run.init}
    log(table(report))
    answers = _write(task, data, scorer, folder)
    _export(config, task, start, settings, scorer.model, folder, log)
    record({"summary": report["summary"]})
    # After all that is needed: this file says that the run is finished.
    write_json(folder / RESULTS, report)
    _draw(task, answers, data.examples[data.eval_splits[0]], report, folder, log)
    log(f"seed {best_seed} is in {folder}; took {clock(time.monotonic() - began)}")
    return report


def _trainer(config, task, start, settings, data, log):
    keras.utils.set_random_seed(config.run.seed)
    model = task.build_model(start.encoder)
    bucketing = config.data.length_bucketing
    order = TrainingOrder(
        data.train_rows.lengths,
        config.recipe.train_batch_size,
        bucket_lengths(settings.max_seq_length)
        if bucketing
        else (settings.max_seq_length,),
        window=50 if bucketing else 1,
    )
    total_steps = max(1, int(order.steps_per_pass * settings.epochs))
    model.compile(
        optimizer=build.optimizer(config, settings, model, total_steps),
        loss=task.loss(settings.reduction),
        jit_compile=build.JIT_COMPILE[config.run.distribution],
    )
    head = sum(variable.numpy().size for variable in model.head.variables)
    log(
        f"{settings.size} encoder, {model.count_params():,} parameters, {head:,} in "
        f"the head; {total_steps} steps of {order.batch_size}; rate "
        f"{settings.learning_rate:g}, layer-wise decay {settings.layerwise_decay:g} "
        f"({settings.layerwise_exponent}), weight decay {settings.weight_decay:g}, "
        f"{settings.reduction} loss"
    )
    random_encoder = config.run.init == "random"
    return model, Trainer(
        model,
        data.train_rows,
        order,
        total_steps=total_steps,
        random_encoder=random_encoder,
    )


@dataclasses.dataclass(frozen=True)
class _Seeds:
    """Trains and scores seeds; what stays the same between them."""

    config: FinetuneConfig
    data: TaskData
    trainer: Trainer
    scorer: Scorer
    baseline: dict[str, dict[str, float]]
    record: MetricsFile
    log: Log

    def run(self, seed: int) -> SeedResult:
        """One seed from the start to its scores."""
        failure = ""
        try:
            self.trainer.train(seed, self._watch())
        except FloatingPointError as error:
            failure = str(error)
        self.scorer.take(self.trainer.model.get_weights())
        scores = {}
        for split in reversed(self.data.eval_splits):
            answers, scores[split] = self.data.scored(self.scorer, split)
            self.record({"seed": seed, "split": split, **scores[split]})
        main = self.data.eval_splits[0]
        if not failure:
            task = self.data.task
            failure = task.failure(answers, scores[main], self.baseline[main])
        self.log(f"seed {seed}  {brief(scores[main])}")
        self.log(f"seed {seed}  FAILED: {failure}" if failure else "")
        ordered = {split: scores[split] for split in self.data.eval_splits}
        return SeedResult(seed, ordered, failure)

    def _watch(self) -> Watch:
        recipe = self.config.recipe
        choosing = recipe.early_stopping_patience or recipe.keep == "best"
        return Watch(
            self._evaluate if choosing else None,
            self.data.task.greater_is_better,
            recipe.early_stopping_patience,
            recipe.keep == "best",
            self.log,
            self.record,
            self.config.run.log_steps,
        )

    def _evaluate(self):
        self.scorer.take(self.trainer.model.get_weights())
        _, scores = self.data.scored(self.scorer, self.data.eval_splits[0])
        return scores[self.data.task.main_metric], scores


def _write(task, data, scorer, folder):
    """Predictions and submissions of the exported model; returns the main answers."""
    written = {}
    for split in (*data.eval_splits, *data.test_splits):
        answers = written[split] = data.answers(scorer, split)
        suffix = f"_{split}" if len(written) > 1 else ""
        path = str(folder / f"predictions{suffix}.tsv")
        task.write(answers, data.examples[split], path)
        task.submit(answers, data.examples[split], split, str(folder / "submission"))
    return written[data.eval_splits[0]]


def _draw(task, answers, examples, report, folder, log):
    """Pictures; one that cannot be drawn is no reason to lose a trained model."""
    try:
        task.picture(answers, examples, str(folder))
        if len(report["seeds"]) > 1:
            _draw_seeds(report, folder)
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        log(f"warning: a picture is missing: {type(error).__name__} {said}")


def _draw_seeds(report, folder):
    split, main = report["main_split"], report["main_metric"]
    plots.seeds(
        {result["seed"]: result["scores"][split][main] for result in report["seeds"]},
        report["failed_seeds"],
        report["summary"][split][main]["baseline"],
        f"{report['task']} {main}",
        str(folder),
    )


def _export(config, task, start, settings, model, folder, log):
    model.save(folder / "model.keras")
    length = settings.max_seq_length
    if config.run.export_saved_model:
        serving.export_saved_model(
            model, task, start.tokenizer, str(folder / "saved_model"), length
        )
        log(f"saved model for serving: {folder / 'saved_model'}")
    exports = (
        (config.run.export_litert, serving.export_litert, "model.tflite"),
        (config.run.export_onnx, serving.export_onnx, "model.onnx"),
    )
    for wanted, export, name in exports:
        if wanted:
            difference = export(model, task, str(folder / name))
            log(f"{name}: at most {difference:.1g} from the model on a test batch")


def _say(line: str) -> None:
    if line:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

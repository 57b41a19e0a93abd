"""What a pretraining run prints and leaves behind."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf import build, costs, samples
from electra_tf import config as config_lib
from electra_tf.config import PretrainConfig
from electra_tf.pretraining import PretrainingModel
from electra_tf.pretraining.baselines import COPYING, TrivialBaselines
from electra_tf.pretraining.phases import learned_weights
from electra_tf.training.checkpoints import check_config
from electra_tf.training.curves import plot_curves
from electra_tf.training.sinks import MetricsLog

Log = Callable[[str], None]

METRICS = "metrics.jsonl"
_PACKAGES = ("tensorflow", "keras", "tensorflow-text", "tokenizers", "numpy")

# Held-out number -> (what to call it, format, the trivial predictor beside it).
_ROWS = {
    "generator_loss": ("generator loss (nats)", "{:.3f}", "unigram frequencies"),
    "generator_accuracy": ("generator accuracy", "{:.2%}", "most common token"),
    "masked_lm_loss": ("masked LM loss (nats)", "{:.3f}", "unigram frequencies"),
    "masked_lm_accuracy": ("masked LM accuracy", "{:.2%}", "most common token"),
    "discriminator_loss": ("discriminator loss (nats)", "{:.4f}", "base rate"),
    "discriminator_accuracy": ("discriminator accuracy", "{:.2%}", "majority class"),
    "discriminator_auc": ("discriminator AUC", "{:.3f}", "chance"),
    "prediction_loss": ("prediction loss (nats)", "{:.4f}", "keep or unigram"),
    "prediction_accuracy": ("prediction accuracy", "{:.2%}", "keep every token"),
    "corrected_accuracy": ("replaced tokens corrected", "{:.2%}", "keep every token"),
    "copy_auc": ("copy gate AUC", "{:.3f}", "chance"),
    "sentence_loss": ("sentence loss (nats)", "{:.4f}", "base rate"),
    "sentence_accuracy": ("sentence accuracy", "{:.2%}", "majority class"),
}


def check_flags(config: PretrainConfig) -> None:
    """Refuses to resume ``model_dir`` with other flags, before any data is touched.

    Raises:
        ValueError: naming each field that differs, with both values.
    """
    ignore = [*may_differ(type(config)), "data.*"]
    check_config(config.run.model_dir, {"config": _flat(config)}, ignore=ignore)


def settings(config: PretrainConfig, data: build.PretrainingData) -> dict:
    """What ``config.json`` holds: every resolved flag, data, versions, commit."""
    return {
        "config": _flat(config),
        "data": {
            "vocabulary_sha256": data.vocabulary.sha256,
            "records_sha256": _records_hash(data),
            "lower_case": data.lower_case,
            "strip_accents": data.strip_accents,
        },
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "commit": _commit(),
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _flat(config: PretrainConfig) -> dict:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in config_lib.to_flat(config).items()
    }


def may_differ(config_class: type = PretrainConfig) -> list[str]:
    """Fields of ``settings`` that a resumption may change: paths and logging."""
    flags = [f"config.{name}" for name in config_lib.resumable_fields(config_class)]
    return [*flags, "versions.*", "commit", "written"]


def _records_hash(data: build.PretrainingData) -> str:
    """Changes with the content of the records; by name and size without manifest."""
    shards = (
        [(shard.name, shard.sha256) for shard in data.manifest.train]
        if data.manifest
        else [(Path(path).name, os.path.getsize(path)) for path in data.train_files]
    )
    return hashlib.sha256(repr(shards).encode()).hexdigest()


def _commit() -> str | None:
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return found.stdout.strip() or None


def model_summary(
    config: PretrainConfig, model: PretrainingModel, data: build.PretrainingData
) -> str:
    """One paragraph on what is about to be trained on what."""
    encoder = config.encoder
    lines = [
        f"{_system(config)}: {_size(model):,} parameters; encoder "
        f"{encoder.num_layers} layers x {encoder.hidden_size}, "
        f"{len(data.vocabulary):,} tokens in the vocabulary"
    ]
    if data.manifest:
        per_pass = data.manifest.num_records
        passes = config.run.num_train_steps * config.run.train_batch_size / per_pass
        lines.append(
            f"{per_pass:,} training records of {data.manifest.num_tokens:,} tokens; "
            f"{config.run.num_train_steps:,} steps of {config.run.train_batch_size} "
            f"are {passes:.1f} passes"
        )
    return "\n".join(lines)


def finish(
    config: PretrainConfig,
    model: PretrainingModel,
    data: build.PretrainingData,
    log: Log,
    *,
    write: bool,
) -> None:
    """Evaluates on the held-out text, saves the models, draws, says what is next.

    Args:
        config: of the run.
        model: trained.
        data: of the run.
        log: receives messages.
        write: whether this process writes files (one of several workers does).
    """
    model_dir = Path(config.run.model_dir)
    dataset = build.eval_dataset(config, data)
    baselines = {}
    if dataset is None:
        log("no held-out records: nothing to evaluate on")
    else:
        logs = model.evaluate(dataset, verbose=0, return_dict=True)
        logs = {name: float(np.ravel(value)[0]) for name, value in logs.items()}
        baselines = _baselines(config, data, dataset, logs)
        log(held_out_table(logs, baselines))
        if write:
            held_out = {f"eval_{name}": value for name, value in logs.items()}
            step = config.run.num_train_steps
            MetricsLog(model_dir / METRICS, first_step=step)(step, held_out)
    if not write:
        return
    for name, part in model.artifacts().items():
        _save(part, model_dir / f"{name}.keras")
    if (model_dir / METRICS).exists():
        plot_curves(
            model_dir / METRICS,
            model_dir / "curves.png",
            baselines=baselines,
        )
    if dataset is not None:
        sample = samples.text_sample(model, data.vocabulary.tokens, dataset)
        (model_dir / "samples.txt").write_text(sample, encoding="utf-8")
        log("held-out text, corrupted and judged (all of it in samples.txt):\n")
        log("\n".join(sample.splitlines()[:14]))
    log(_next_steps(model_dir, model))


def _save(model: tf.keras.Model, path: Path) -> None:
    """Saves under another name first: the file is there whole or not at all."""
    part = path.with_name(f"part-{path.name}")
    model.save(part)
    os.replace(part, path)


def _baselines(
    config: PretrainConfig,
    data: build.PretrainingData,
    dataset: tf.data.Dataset,
    logs: Mapping[str, float],
) -> dict[str, float]:
    """The trivial predictor's value for each held-out number."""
    reads_masked_text = config.generator_kind == "masked_lm"
    mask_id = data.vocabulary.mask_id if reads_masked_text else None
    trivial = TrivialBaselines(data.token_counts, mask_id)
    for batch in dataset.as_numpy_iterator():
        trivial.update(batch)
    return trivial.scores(logs)


def held_out_table(logs: Mapping[str, float], baselines: Mapping[str, float]) -> str:
    """Held-out numbers with the trivial predictor's beside them, as text."""
    lines = [f"{'held-out text':<28}{'this model':>12}{'trivial':>12}  trivial means"]
    for name, (label, pattern, trivial) in _ROWS.items():
        if name in logs:
            value, baseline = pattern.format(logs[name]), baselines[name]
            lines.append(
                f"{label:<28}{value:>12}{pattern.format(baseline):>12}  {trivial}"
            )
            if f"{name}{COPYING}" in baselines:
                copying = pattern.format(baselines[f"{name}{COPYING}"])
                lines.append(f"{copying:>52}  and copying what shows")
    if "replaced_fraction" in logs:
        lines.append(f"{'tokens replaced':<28}{logs['replaced_fraction']:>12.2%}")
    if "discriminator_precision" in logs:
        lines[-1] += (
            f"  precision {logs['discriminator_precision']:.1%}, recall "
            f"{logs['discriminator_recall']:.1%}"
        )
    return "\n".join(lines)


def dry_run_report(
    config: PretrainConfig, model: PretrainingModel, data: build.PretrainingData
) -> str:
    """Sizes, FLOPs, memory and data of a run that was built and not started."""
    run, vocab_size = config.run, len(data.vocabulary)
    slots = config.predictions_per_seq
    phases = costs.phases(config, vocab_size)
    rows = run.train_batch_size // run.gradient_accumulation_steps
    memory = costs.memory(config, vocab_size)
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in memory.items())
    counts = {
        name: _size(part)
        for name, part in [*model.artifacts().items(), ("all, shared once", model)]
    }
    return "\n".join(
        [
            model_summary(config, model, data),
            "parameters: "
            + ", ".join(f"{name} {count:,}" for name, count in counts.items()),
            *_flops_lines(config, phases),
            f"memory estimate in GiB on one device with {rows} rows at once: {parts}",
            f"held-out records: {len(data.eval_files)} files; one mask has {slots} "
            "slots per row",
            "dry run: nothing was trained.",
        ]
    )


def _flops_lines(config: PretrainConfig, phases: Sequence[costs.Phase]) -> list[str]:
    """FLOPs of each phase and of all, under both rules."""
    line = "FLOPs {}: {:.3g} (matrix products), {:.3g} (the original's rules)"
    totals = [0.0, 0.0]
    lines = []
    for phase in phases:
        name = f", phase {phase.name} of {phase.steps:,} steps"
        step = [
            costs.step_flops(config, phase, rule=rule)
            for rule in ("matmul", "original")
        ]
        lines.append(line.format(f"per step{name if len(phases) > 1 else ''}", *step))
        totals = [
            total + phase.steps * one for total, one in zip(totals, step, strict=True)
        ]
    return [*lines, line.format("in total", *totals)]


def _size(model: tf.keras.Model) -> int:
    """Number of parameters, frozen ones included; no counters, no random seeds."""
    return sum(int(np.prod(v.shape)) for v in learned_weights(model))


def _system(config: PretrainConfig) -> str:
    """The objective and what differs from the plain joint training of it."""
    choices = {
        "generator": (config.generator.generator, "masked_lm"),
        "sharing": (config.generator.sharing, "tied"),
        "training": (config.training.training, "joint"),
        "freeze_generator": (config.training.freeze_generator, False),
        "sentence_weight": (config.objective.sentence_weight, 0.0),
    }
    other = [f"{n}={value}" for n, (value, usual) in choices.items() if value != usual]
    return ", ".join([config.objective.objective, *other])


def _next_steps(model_dir: Path, model: PretrainingModel) -> str:
    saved = ", ".join(f"{name}.keras" for name in model.artifacts())
    return (
        f"\n{model_dir} holds {saved}, vocab.txt, config.json, {METRICS}, curves.png, "
        "samples.txt, checkpoints/ and tensorboard/. Next:\n"
        f"  python run_finetuning.py --flagfile=configs/tasks/tiny.cfg "
        f"--encoder={model_dir / 'encoder.keras'}\n"
        f"  tensorboard --logdir={model_dir / 'tensorboard'}"
    )

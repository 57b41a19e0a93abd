"""What a pretraining run prints and leaves behind."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf import build, flops
from electra_tf import config as config_lib
from electra_tf.config import PretrainConfig
from electra_tf.layers.chunked import CHUNK_ROWS
from electra_tf.pretraining import PretrainingModel
from electra_tf.pretraining.baselines import TrivialBaselines
from electra_tf.training import report
from electra_tf.training.checkpoints import check_config
from electra_tf.training.sinks import MetricsLog

Log = Callable[[str], None]

METRICS = "metrics.jsonl"
# Everything a run writes into its folder; what is not listed is never deleted.
_OUTPUTS = (
    "checkpoints",
    "config.json",
    "curves.png",
    "data",
    "discriminator.keras",
    "encoder.keras",
    "generator.keras",
    METRICS,
    "samples.txt",
    "tensorboard",
    "vocab.txt",
)
_PACKAGES = ("tensorflow", "keras", "tensorflow-text", "tokenizers", "numpy")
_SAMPLE_ROWS = 6

# Held-out number -> (what to call it, format, the trivial predictor beside it).
_ROWS = {
    "generator_loss": ("generator loss (nats)", "{:.3f}", "unigram frequencies"),
    "generator_accuracy": ("generator accuracy", "{:.2%}", "most common token"),
    "masked_lm_loss": ("masked LM loss (nats)", "{:.3f}", "unigram frequencies"),
    "masked_lm_accuracy": ("masked LM accuracy", "{:.2%}", "most common token"),
    "discriminator_loss": ("discriminator loss (nats)", "{:.4f}", "base rate"),
    "discriminator_accuracy": ("discriminator accuracy", "{:.2%}", "majority class"),
    "discriminator_auc": ("discriminator AUC", "{:.3f}", "chance"),
}


def delete_run(model_dir: Path) -> None:
    """Deletes what a run wrote into ``model_dir``, and nothing else."""
    for name in _OUTPUTS:
        path = model_dir / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


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
    count = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    encoder = config.encoder
    lines = [
        f"{config.objective.objective}: {count:,} parameters; encoder "
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
        baselines = _baselines(data, dataset, logs)
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
        report.plot_curves(
            model_dir / METRICS,
            model_dir / "curves.png",
            baselines=baselines,
        )
    if dataset is not None:
        sample = text_sample(model, data, dataset)
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
    data: build.PretrainingData, dataset: tf.data.Dataset, logs: Mapping[str, float]
) -> dict[str, float]:
    """The trivial predictor's value for each held-out number."""
    trivial = TrivialBaselines(build.training_token_counts(data))
    for batch in dataset.as_numpy_iterator():
        trivial.update(batch)
    generator = trivial.generator()
    discriminator = trivial.discriminator(logs.get("replaced_fraction", 0.0))
    found = {
        "generator_loss": generator["loss"],
        "generator_accuracy": generator["accuracy"],
        "masked_lm_loss": generator["loss"],
        "masked_lm_accuracy": generator["accuracy"],
        "discriminator_loss": discriminator["loss"],
        "discriminator_accuracy": discriminator["accuracy"],
        "discriminator_auc": discriminator["auc"],
    }
    return {name: value for name, value in found.items() if name in logs}


def held_out_table(logs: Mapping[str, float], baselines: Mapping[str, float]) -> str:
    """Held-out numbers with the trivial predictor's beside them, as text."""
    lines = [f"{'held-out text':<28}{'this model':>12}{'trivial':>12}  trivial means"]
    for name, (label, pattern, trivial) in _ROWS.items():
        if name in logs:
            value, baseline = pattern.format(logs[name]), baselines[name]
            lines.append(
                f"{label:<28}{value:>12}{pattern.format(baseline):>12}  {trivial}"
            )
    if "replaced_fraction" in logs:
        lines.append(
            f"{'tokens replaced':<28}{logs['replaced_fraction']:>12.2%}  precision "
            f"{logs['discriminator_precision']:.1%}, recall "
            f"{logs['discriminator_recall']:.1%}"
        )
    return "\n".join(lines)


def text_sample(
    model: PretrainingModel, data: build.PretrainingData, dataset: tf.data.Dataset
) -> str:
    """Held-out rows: original, corrupted, and the verdict on every token."""
    batch = next(iter(dataset))
    found = {"original_ids": batch["input_ids"], "input_mask": batch["input_mask"]}
    found |= model.examine(batch, seed=tf.constant([0, 0]))
    found = {name: value.numpy() for name, value in found.items()}
    tokens = np.array(data.vocabulary.tokens, dtype=object)
    render = _verdicts if "replaced_probability" in found else _fills
    texts = []
    for row in range(min(_SAMPLE_ROWS, len(found["input_mask"]))):
        real = found["input_mask"][row] > 0
        if real.any():
            texts.append(render(tokens, {k: v[row][real] for k, v in found.items()}))
    return "\n\n\n".join(texts) + "\n"


def _verdicts(tokens: np.ndarray, row: Mapping[str, np.ndarray]) -> str:
    return report.text_sample(
        list(tokens[row["original_ids"]]),
        list(tokens[row["corrupted_ids"]]),
        probabilities=list(row["replaced_probability"]),
        is_masked=list(row["is_masked"]),
    )


def _fills(tokens: np.ndarray, row: Mapping[str, np.ndarray]) -> str:
    """The text with every masked token as [original -> most probable]."""
    columns = (row["original_ids"], row["corrupted_ids"], row["is_masked"])
    return " ".join(
        f"[{tokens[original]} -> {tokens[filled]}]" if masked else tokens[original]
        for original, filled, masked in zip(*columns, strict=True)
    )


def dry_run_report(
    config: PretrainConfig, model: PretrainingModel, data: build.PretrainingData
) -> str:
    """Sizes, FLOPs, memory and data of a run that was built and not started."""
    run, length = config.run, config.data.max_seq_length
    slots = build.masking(config, data).max_predictions_per_seq
    rows = run.train_batch_size // run.gradient_accumulation_steps
    encoder = _shape(config.encoder, len(data.vocabulary))
    generator = dataclasses.replace(
        _shape(config.generator_encoder, len(data.vocabulary)),
        num_towers=config.generator_towers,
    )
    pair = {"discriminator": encoder, "generator": generator}
    networks = {"electra": pair, "electric": pair, "mlm": {"generator": encoder}}[
        config.objective.objective
    ]
    # Two towers predict every token; of their logits a chunk exists at a time.
    predicted, held = (
        (slots, slots)
        if networks["generator"].num_towers == 1
        else (length, slots + CHUNK_ROWS // rows)
    )
    work = {
        rule: flops.training_flops(
            **networks,
            sequence_length=length,
            batch_size=run.train_batch_size,
            predicted_fraction=predicted / length,
            rule=rule,
        )
        for rule in flops.RULES
    }
    memory = flops.memory_estimate(
        encoder,
        networks["generator"] if "discriminator" in networks else None,
        batch_size=rows,
        sequence_length=length,
        predictions=held,
        activation_bytes=4 if run.mixed_precision == "none" else 2,
    )
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in memory.items())
    counts = {
        name: sum(int(np.prod(v.shape)) for v in part.trainable_variables)
        for name, part in [*model.artifacts().items(), ("all, shared once", model)]
    }
    total = {rule: value * run.num_train_steps for rule, value in work.items()}
    return "\n".join(
        [
            model_summary(config, model, data),
            "parameters: "
            + ", ".join(f"{name} {count:,}" for name, count in counts.items()),
            f"FLOPs per step: {work['matmul']:.3g} (matrix products), "
            f"{work['original']:.3g} (the original's rules)",
            f"FLOPs in total: {total['matmul']:.3g} (matrix products), "
            f"{total['original']:.3g} (the original's rules)",
            f"memory estimate in GiB on one device with {rows} rows at once: {parts}",
            f"held-out records: {len(data.eval_files)} files; one mask has {slots} "
            "slots per row",
            "dry run: nothing was trained.",
        ]
    )


def _shape(encoder: config_lib.EncoderConfig, vocab_size: int) -> flops.EncoderShape:
    return flops.EncoderShape(
        hidden_size=encoder.hidden_size,
        num_layers=encoder.num_layers,
        embedding_size=encoder.embedding_size,
        feed_forward_size=encoder.intermediate_size,
        num_heads=encoder.num_heads,
        vocab_size=vocab_size,
        max_positions=encoder.max_positions,
    )


def _next_steps(model_dir: Path, model: PretrainingModel) -> str:
    saved = ", ".join(f"{name}.keras" for name in model.artifacts())
    return (
        f"\n{model_dir} holds {saved}, vocab.txt, config.json, {METRICS}, curves.png, "
        "samples.txt, checkpoints/ and tensorboard/. Next:\n"
        f"  python run_finetuning.py --flagfile=configs/tasks/tiny.cfg "
        f"--encoder={model_dir / 'encoder.keras'}\n"
        f"  tensorboard --logdir={model_dir / 'tensorboard'}"
    )

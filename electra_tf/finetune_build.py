"""From a fine-tuning config to objects: the only file that chooses."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from electra_tf import finetune_checks, model_folder
from electra_tf.data import installed
from electra_tf.data.tokenizer import WordPiece
from electra_tf.encoder import TextEncoder
from electra_tf.finetune_config import FinetuneConfig
from electra_tf.finetune_tasks import STRUCTURED
from electra_tf.tasks import glue
from electra_tf.tasks.base import Task
from electra_tf.tasks.classification import Classification
from electra_tf.tasks.documentation import documentation_task
from electra_tf.tasks.heads import TaskModel, fresh_copy
from electra_tf.tasks.multilabel import MultiLabel
from electra_tf.tasks.recipe import RECIPES, encoder_size, layerwise_multipliers
from electra_tf.tasks.regression import Regression
from electra_tf.tasks.tables import HeldOut, TableSource
from electra_tf.training.distribution import strategy_for
from electra_tf.training.optimizers import AdamW
from electra_tf.training.schedules import WarmupPolynomialDecay

POLICIES = {"none": "float32", "bfloat16": "mixed_bfloat16"}
Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """What a pretraining run leaves for fine-tuning.

    Attributes:
        encoder: The encoder; its compute dtype is the run's.
        tokenizer: The tokenizer it was trained with.
        trained_length: Tokens per example in pretraining; None if unknown.
        pretraining: The flags of the pretraining run; empty if unknown.
    """

    encoder: TextEncoder
    tokenizer: WordPiece
    trained_length: int | None
    pretraining: dict[str, Any]


def pretrained(config: FinetuneConfig, log: Log) -> Pretrained:
    """Loads encoder and vocabulary.

    Raises:
        ValueError: They are damaged, do not fit each other, or are something else.
        OSError: They are missing.
    """
    path = Path(config.run.encoder)
    path = path / "encoder.keras" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(
            f"No encoder at {path}: set --encoder to the encoder.keras of a finished "
            "pretraining run (for a quick one: python run_pretraining.py "
            "--flagfile=configs/tiny.cfg)."
        )
    encoder = model_folder.load(
        path, TextEncoder, "Give the encoder.keras that a pretraining run saved."
    )
    encoder = _with_weights(
        fresh_copy(encoder, POLICIES[config.run.mixed_precision]), encoder
    )
    described = model_folder.read_config(path.parent)
    flags = model_folder.flags(described)
    tokenizer = model_folder.tokenizer(
        path.parent,
        described,
        log,
        vocab_file=config.data.vocab_file,
        lower_case=config.data.lower_case,
        strip_accents=config.data.strip_accents,
    )
    if len(tokenizer.vocabulary) != encoder.embeddings.vocab_size:
        raise ValueError(
            f"The vocabulary has {len(tokenizer.vocabulary)} tokens but the encoder "
            f"{path} has embeddings for {encoder.embeddings.vocab_size}: set "
            "--vocab_file to the vocabulary it was pretrained with."
        )
    known = model_folder.vocabulary_sha256(described)
    if known not in (None, tokenizer.vocabulary.sha256):
        raise ValueError(
            f"The vocabulary has {len(tokenizer.vocabulary)} tokens as the encoder "
            f"{path}, but other ones, or another order, than config.json beside it "
            "says: set --vocab_file to the vocabulary it was pretrained with."
        )
    return Pretrained(encoder, tokenizer, flags.get("max_seq_length"), flags)


def strategy(config: FinetuneConfig) -> tf.distribute.Strategy:
    """How training is spread over devices.

    Raises:
        ValueError: The devices cannot have equal shares of a batch.
    """
    chosen = strategy_for(config.run.distribution)
    rows, devices = config.recipe.train_batch_size, chosen.num_replicas_in_sync
    if rows % devices:
        # Keras averages the means of the devices, which must not differ in weight.
        raise ValueError(
            f"--train_batch_size={rows} is not divisible by the {devices} devices of "
            f"--distribution={config.run.distribution}: give a multiple."
        )
    return chosen


# TensorFlow cannot compile a step that spans devices.
JIT_COMPILE = {"none": "auto", "mirrored": False}


def _with_weights(model, other):
    model.set_weights(other.get_weights())
    return model


def _glue(config: FinetuneConfig, log: Log) -> Task:
    if not config.data.data_dir:
        raise ValueError(
            f"--task={config.run.task} needs --data_dir, the folder of its files "
            f"({glue.ROWS[config.run.task].folder} of GLUE)."
        )
    task = glue.glue_task(config.run.task, config.data.data_dir, log=log)
    return dataclasses.replace(
        task,
        double_pairs=task.double_pairs and config.data.pair_doubling,
        dropout=config.recipe.head_dropout,
        **_weighting(config, task),
    )


def _weighting(config, task):
    if isinstance(task, Classification):
        return {"class_weights": config.data.class_weights}
    return {}


def _table(config: FinetuneConfig, log: Log) -> Task:
    data = config.data
    if not data.train:
        raise ValueError(
            f"--task={config.run.task} needs --train, a .csv, .tsv or .jsonl table "
            "with the columns --text and --label."
        )
    source = TableSource(
        files={"train": data.train, "eval": data.eval, "test": data.test},
        text=tuple(data.text),
        label=tuple(data.label),
        kind=config.run.task,
        separator=data.label_separator,
    )
    if not data.eval:
        log("no --eval: a tenth of --train is held out")
        source = HeldOut(source)
    return _TABLES[config.run.task](
        name=config.run.task,
        source=source,
        pair=len(data.text) == 2,
        eval_splits=("eval",),
        test_splits=("test",) if data.test else (),
        dropout=config.recipe.head_dropout,
        **_table_options(config),
    )


_TABLES = {
    "classification": Classification,
    "multilabel": MultiLabel,
    "regression": Regression,
}


def _table_options(config):
    data = config.data
    if config.run.task == "classification":
        return {"class_weights": data.class_weights}
    if config.run.task == "multilabel":
        return {"labels": tuple(data.label) if len(data.label) > 1 else None}
    return {"label_range": tuple(map(float, data.label_range)) or None}


def _documentation(config: FinetuneConfig, log: Log) -> Task:
    log("reading the documentation of the installed packages")
    return dataclasses.replace(
        documentation_task(installed.prose),
        dropout=config.recipe.head_dropout,
        class_weights=config.data.class_weights,
    )


TASKS: dict[str, Callable[[FinetuneConfig, Log], Task]] = {
    **dict.fromkeys(glue.ROWS, _glue),
    **dict.fromkeys(_TABLES, _table),
    "documentation": _documentation,
    **STRUCTURED,
}


def task(config: FinetuneConfig, log: Log) -> Task:
    """The task called `--task`.

    Raises:
        ValueError: There is none of that name, a flag it needs is missing, or one is
            given that it does not read.
        FileNotFoundError: A file that a flag names is missing.
    """
    name = config.run.task
    if name not in TASKS:
        close = difflib.get_close_matches(name, TASKS, 3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"Unknown --task={name}.{hint} Tasks: {', '.join(TASKS)}.")
    finetune_checks.check(config)
    return TASKS[name](config, log)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The numbers of a run, after preset, task and flags.

    Attributes:
        size: What the encoder counts as: small, base or large.
        learning_rate: Peak of the schedule.
        weight_decay: Decoupled weight decay.
        layerwise_decay: Factor of the rate per layer.
        layerwise_exponent: "exact" or "original".
        reduction: "sum" or "mean".
        epochs: Passes over the training rows.
        max_seq_length: Most tokens of a row.
    """

    size: str
    learning_rate: float
    weight_decay: float
    layerwise_decay: float
    layerwise_exponent: str
    reduction: str
    epochs: float
    max_seq_length: int


def settings(config: FinetuneConfig, chosen: Task, start: Pretrained) -> Settings:
    """Fills in what the flags leave open.

    Raises:
        ValueError: Examples may be longer than the encoder's position table.
    """
    recipe, preset = config.recipe, RECIPES[config.recipe.preset]
    size = encoder_size(start.encoder.hidden_size)
    positions = start.encoder.embeddings.max_positions
    default = chosen.max_seq_length
    if chosen.splits_long:
        default = min(default, positions)
    length = config.data.max_seq_length or default
    if length > positions:
        raise ValueError(
            f"--max_seq_length={length} (the default of {chosen.name} is "
            f"{chosen.max_seq_length}) exceeds the {positions} positions of the "
            f"encoder: set it to {positions} or less."
        )
    return Settings(
        size=size,
        learning_rate=_given(recipe.learning_rate, preset.learning_rate[size]),
        weight_decay=_given(recipe.weight_decay, preset.weight_decay),
        layerwise_decay=_given(recipe.layerwise_decay, preset.layerwise_decay[size]),
        layerwise_exponent=_given(recipe.layerwise_exponent, preset.layerwise_exponent),
        reduction=_given(recipe.loss_reduction, preset.reduction),
        epochs=_given(recipe.epochs, chosen.epochs),
        max_seq_length=length,
    )


def _given(value, default):
    return default if value in (None, "preset") else value


def untrained_positions(chosen: Settings, start: Pretrained) -> str:
    """A warning when examples may be longer than those of pretraining; else empty."""
    trained = start.trained_length
    if trained is None or chosen.max_seq_length <= trained:
        return ""
    return (
        f"warning: max_seq_length {chosen.max_seq_length} exceeds the {trained} tokens "
        f"of pretraining: position embeddings from {trained} on are untrained. "
        f"Pretrain longer sequences or pass --max_seq_length={trained}."
    )


def optimizer(
    config: FinetuneConfig, chosen: Settings, model: TaskModel, total_steps: int
) -> AdamW:
    """AdamW with one rate per layer."""
    return AdamW(
        WarmupPolynomialDecay(
            chosen.learning_rate,
            total_steps,
            warmup_steps=int(config.recipe.warmup_proportion * total_steps),
            combine=config.recipe.lr_schedule,
        ),
        weight_decay=chosen.weight_decay,
        clip_norm=config.recipe.clip_norm,
        learning_rate_multipliers=layerwise_multipliers(
            model, chosen.layerwise_decay, chosen.layerwise_exponent
        ),
    )

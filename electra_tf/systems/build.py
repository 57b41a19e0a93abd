"""From a config to objects: data, models ready to be trained, phases, optimizers.

Which objective, generator, sharing and training a config asks for is looked up in the
tables of ``rows.py``. Everything that is made here takes plain arguments.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from electra_tf.cli import Log
from electra_tf.config.pretraining import LEFT_ROWS, PretrainConfig
from electra_tf.data import pipeline
from electra_tf.data.masking import LinearMaskRate, Masking
from electra_tf.data.prepared import PretrainingData, built_data, given_data
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.pretraining import (
    CategoricalSampler,
    Electra,
    ExponentialDecay,
    JointObjective,
    LeaveRows,
    LinearChange,
    Phase,
    PretrainingModel,
    SentenceDetection,
)
from electra_tf.pretraining.annealing import Schedule
from electra_tf.systems import rows
from electra_tf.systems.rows import GENERATORS, OBJECTIVES, SHARINGS, TRAININGS, Words
from electra_tf.training import AdamW, WarmupPolynomialDecay

POLICIES = {"none": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
TEMPERATURES = {"linear": LinearChange, "exponential": ExponentialDecay}


def pretraining_data(config: PretrainConfig, log: Log) -> PretrainingData:
    """Finds or makes vocabulary and records.

    What is missing, damaged or does not fit the rest is a ValueError; what cannot be
    read or written an OSError.
    """
    data = config.data
    shared = {
        "vocab_file": data.vocab_file,
        "max_seq_length": data.max_seq_length,
        "lower_case": data.lower_case,
        "strip_accents": data.strip_accents,
        "log": log,
    }
    if data.records:
        shared["weighted"] = bool(data.weights)
        return given_data(data.records, eval_patterns=data.eval_records, **shared)
    return _built(config, shared)


def _built(config: PretrainConfig, shared: Mapping[str, Any]) -> PretrainingData:
    data = config.data
    return built_data(
        data.corpus,
        data.data_dir or os.path.join(config.run.model_dir, "data"),
        vocab_size=data.vocab_size,
        segmenting=data.segmenting,
        blank_lines_separate=data.blank_lines_separate,
        eval_fraction=data.eval_fraction,
        seed=config.run.seed,
        num_processes=data.num_processes,
        tfds_data_dir=data.tfds_data_dir,
        **shared,
    )


# What a rule reads of the training text.
_MASKING_NEEDS = {"rare_tokens": lambda data: {"token_counts": data.token_counts}}


def masking(
    config: PretrainConfig,
    data: PretrainingData,
    *,
    mask_rate: float | LinearMaskRate | None = None,
) -> Masking:
    """The masking step; ``mask_rate`` takes the place of the configured schedule."""
    vocabulary, choice = data.vocabulary, config.masking
    steps = choice.mask_rate_steps or config.run.num_train_steps
    schedule = LinearMaskRate(choice.mask_rate, config.last_mask_rate, steps)
    read = _MASKING_NEEDS.get(choice.mask_select, lambda _: {})
    return Masking(
        len(vocabulary),
        vocabulary.mask_id,
        pad_id=vocabulary.pad_id,
        never_masked=(vocabulary.cls_id, vocabulary.sep_id),
        max_seq_length=config.data.max_seq_length,
        mask_rate=mask_rate or schedule,
        max_predictions_per_seq=choice.max_predictions_per_seq,
        rule=choice.mask_rule,
        select=choice.mask_select,
        continuation=[token.startswith("##") for token in vocabulary.tokens],
        rarity_power=choice.mask_rarity_power,
        **read(data),
    )


def train_dataset(
    config: PretrainConfig, data: PretrainingData, *, start_step: int = 0
) -> tf.data.Dataset:
    """Training batches from ``start_step`` on."""
    return train_batches(config, data)(start_batch=start_step)


def train_batches(
    config: PretrainConfig,
    data: PretrainingData,
    *,
    worker: int = 0,
    workers: int = 1,
) -> Callable[..., tf.data.Dataset]:
    """A function of ``start_batch`` that makes the training batches from there on.

    With ``--file_sharding``, those of this ``worker``, for ``tf.distribute``.
    """
    static = config.masking.masking == "static"
    make = functools.partial(
        pipeline.pretraining_dataset,
        data.groups or data.train_files,
        weights=config.data.weights,
        batch_size=config.run.train_batch_size,
        masking=masking(config, data),
        sep_id=data.vocabulary.sep_id,
        seed=config.run.seed,
        mask_variants=config.masking.mask_variants if static else None,
        shuffle_buffer=config.data.shuffle_buffer,
    )
    if not config.data.file_sharding or workers == 1:
        return make
    own = functools.partial(make, worker=worker, workers=workers)
    return lambda **start: pipeline.for_one_worker(own(**start), workers)


def eval_dataset(
    config: PretrainConfig, data: PretrainingData
) -> tf.data.Dataset | None:
    """Batches of the held-out text, always masked the same way; None without any."""
    if not data.eval_files:
        return None
    dataset = pipeline.pretraining_dataset(
        data.eval_files,
        batch_size=config.run.eval_batch_size,
        masking=masking(config, data, mask_rate=config.last_mask_rate),
        sep_id=data.vocabulary.sep_id,
        training=False,
        seed=config.run.seed,
    )
    limit = config.run.max_eval_batches
    return dataset.take(limit) if limit else dataset


def special_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    """Ids that are neither masked nor predicted: [CLS], [SEP] and [MASK]."""
    return (vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)


def model(
    config: PretrainConfig, vocab_size: int, special_ids: Sequence[int] = ()
) -> PretrainingModel:
    """The model, initialized from ``config.run.seed``, not yet compiled.

    Two-tower generators need ``special_ids``, those of the function of that name.
    """
    keras.utils.set_random_seed(config.run.seed)
    words = Words(vocab_size, tuple(special_ids))
    micro_batches = config.run.gradient_accumulation_steps
    step = {"gradient_accumulation_steps": micro_batches, "seed": config.run.seed}
    objective_row = OBJECTIVES[config.objective.objective]
    if objective_row.one_network is not None:
        table = rows.embeddings(config.encoder, words.size)
        encoder = rows.encoder(config.encoder, table, "encoder")
        return objective_row.one_network(encoder, **step)
    # The order is part of a run: each part draws its first weights when it is made.
    encoders = SHARINGS[config.generator.sharing].make(config, words.size)
    generator_row = GENERATORS[config.generator_kind]
    generator = generator_row.make(encoders, words, step)
    objective = objective_row.make(encoders.discriminator.embeddings)
    draw = sampler(config)
    if config.objective.sentence_weight > 0:
        # The sentence-level loss needs rows that are as they were.
        objective = JointObjective(
            objective,
            SentenceDetection(name="sentence"),
            config.objective.sentence_weight,
            name="joint",
        )
        draw = LeaveRows(draw, LEFT_ROWS)
    model_class = objective_row.model_class or generator_row.model_class
    return TRAININGS[config.training.training].make(config, model_class)(
        generator,
        encoders.discriminator,
        objective=objective,
        sampler=draw,
        sampling_dropout=not config.samples_apart,
        special_ids=special_ids,
        generator_weight=config.objective.generator_weight,
        discriminator_weight=config.objective.discriminator_weight,
        name="electra",
        **step,
    )


def sampler(config: PretrainConfig) -> CategoricalSampler:
    """What draws the replacements."""
    choice = config.generator
    temperature: float | Schedule = choice.temperature
    if choice.final_temperature is not None:
        temperature = TEMPERATURES[choice.temperature_shape](
            choice.temperature, choice.final_temperature, choice.temperature_steps
        )
    return CategoricalSampler(temperature, choice.disallow_correct)


def phases(config: PretrainConfig, model: PretrainingModel) -> list[Phase]:
    """What is trained when; the model of the last phase is the whole one."""
    made = []
    for plan in TRAININGS[config.training.training].plan(config):
        options = {}
        if plan.is_frozen:
            options["frozen"] = model.generator
        if plan.copies_generator:
            take, source = model.discriminator.take_over, model.generator.encoder
            options["hand_over"] = functools.partial(take, source)
        trained = model.generator if plan.generator_alone else model
        made.append(Phase(plan.name, trained, plan.steps, **options))
    return made


def optimizer(config: PretrainConfig, phase: Phase) -> AdamW:
    """Adam and schedule of one phase, over the steps of that phase.

    A generator with its own rate is a group of variables within the one optimizer.
    What it shares with the discriminator, and what belongs to neither alone, stays
    with the discriminator, which is what the run is for.
    """
    choice = config.optimizer
    rate = choice.learning_rate
    own_rate = choice.generator_learning_rate
    groups = {}
    if phase.name == "generator":
        rate = own_rate or rate
    elif phase.frozen is None and own_rate is not None:
        variables = _generator_only(phase.model)
        groups["learning_rate_multipliers"] = [(variables, own_rate / rate)]
    return AdamW(
        WarmupPolynomialDecay(
            rate,
            phase.steps,
            warmup_steps=choice.warmup_steps,
            power=choice.lr_decay_power,
            combine=choice.lr_schedule,
        ),
        weight_decay=choice.weight_decay,
        beta_1=choice.adam_beta_1,
        beta_2=choice.adam_beta_2,
        epsilon=choice.adam_epsilon,
        bias_correction=choice.adam_bias_correction,
        clip_norm=choice.clip_norm,
        clipping=choice.clipping,
        **groups,
    )


def _generator_only(model: Electra) -> list[keras.Variable]:
    """What only the generator's loss trains, in a model of both networks."""
    others = (*model.discriminator.weights, *model.objective.weights)
    names = {variable.path for variable in others}
    return [v for v in model.trainable_variables if v.path not in names]


def compiled_phases(
    config: PretrainConfig, vocab_size: int, special_ids: Sequence[int] = ()
) -> list[Phase]:
    """The phases of a run, each model with its optimizer and all slots.

    Call in a scope. Joint training is one phase; the model of the last phase holds
    all networks. Arguments as ``model``.
    """
    keras.mixed_precision.set_global_policy(POLICIES[config.run.mixed_precision])
    whole = model(config, vocab_size, special_ids)
    all_phases = phases(config, whole)
    for phase in all_phases:
        phase.set_trainable()
        phase.model.compile(
            optimizer=optimizer(config, phase),
            jit_compile=config.run.jit_compile,
            steps_per_execution=config.run.steps_per_execution,
        )
        phase.model.optimizer.build(phase.model.trainable_variables)
    return all_phases


def compiled_model(
    config: PretrainConfig, vocab_size: int, special_ids: Sequence[int] = ()
) -> PretrainingModel:
    """The model of the last phase, ready for ``fit``; call in a scope."""
    return compiled_phases(config, vocab_size, special_ids)[-1].model

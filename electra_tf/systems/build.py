"""Builds data, models, phases and optimizers from a config."""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import keras
import tensorflow as tf

from electra_tf import pretraining
from electra_tf.cli import Log
from electra_tf.config.pretraining import LEFT_ROWS, EncoderConfig, PretrainConfig
from electra_tf.config.records import CorpusFlags, RecordsConfig
from electra_tf.data import pipeline
from electra_tf.data.masking import Masking
from electra_tf.data.prepared import PretrainingData, built_data, given_data
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.layers import DeltaEmbedding, SharedWordEmbedding, TextEmbedding
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining.base import Phase
from electra_tf.training import AdamW, WarmupPolynomialDecay
from electra_tf.training.schedules import Schedule

POLICIES = {"none": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
_ADVERSARIAL = {
    "reinforce": pretraining.ReinforceElectra,
    "gumbel": pretraining.GumbelElectra,
}
# Creates a custom objective; called in the scope of the strategy.
MakeObjective = Callable[[], pretraining.Objective]


def pretraining_data(config: PretrainConfig, log: Log) -> PretrainingData:
    """Returns vocabulary and records, and builds them if necessary."""
    data = config.data
    if data.records:
        return given_data(data, log)
    shared = {leaf.name: getattr(data, leaf.name) for leaf in fields(CorpusFlags)}
    folder = data.data_dir or os.path.join(config.run.model_dir, "data")
    records = RecordsConfig(output_dir=folder, seed=config.run.seed, **shared)
    return built_data(records, log, outputs=[config.run.model_dir])


def masking(config: PretrainConfig, data: PretrainingData, mask_rate: float) -> Masking:
    """Builds the masking step, with ``mask_rate`` in the first step of training."""
    vocabulary, choice = data.vocabulary, config.masking
    counts = data.token_counts if choice.mask_select == "rare_tokens" else None
    return Masking(
        len(vocabulary),
        vocabulary.mask_id,
        pad_id=vocabulary.pad_id,
        never_masked=(vocabulary.cls_id, vocabulary.sep_id),
        max_seq_length=config.data.max_seq_length,
        mask_rate=mask_rate,
        final_mask_rate=config.last_mask_rate,
        steps=config.run.num_train_steps,
        rule=choice.mask_rule,
        select=choice.mask_select,
        continuation=[token.startswith("##") for token in vocabulary.tokens],
        token_counts=counts,
    )


def train_batches(
    config: PretrainConfig, data: PretrainingData
) -> Callable[..., tf.data.Dataset]:
    """Returns a function that builds the dataset from batch ``start_batch`` on."""
    variants = {} if config.masking.masking == "static" else {"mask_variants": None}
    return functools.partial(
        pipeline.pretraining_dataset,
        data.train_files,
        batch_size=config.run.train_batch_size,
        masking=masking(config, data, config.masking.mask_rate),
        sep_id=data.vocabulary.sep_id,
        seed=config.run.seed,
        shuffle_buffer=config.data.shuffle_buffer,
        **variants,
    )


def eval_dataset(
    config: PretrainConfig, data: PretrainingData
) -> tf.data.Dataset | None:
    """Returns batches with a fixed masking, or None without held-out text."""
    if not data.eval_files:
        return None
    return pipeline.pretraining_dataset(
        data.eval_files,
        batch_size=config.run.eval_batch_size,
        masking=masking(config, data, config.last_mask_rate),
        sep_id=data.vocabulary.sep_id,
        training=False,
        seed=config.run.seed,
        max_batches=config.run.max_eval_batches or None,
    )


def special_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    """Returns ids that are neither masked nor predicted: [CLS], [SEP] and [MASK]."""
    return (vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)


def build_model(
    config: PretrainConfig,
    vocab_size: int,
    special_ids: Sequence[int] = (),
    make_objective: MakeObjective | None = None,
) -> pretraining.PretrainingModel:
    """Builds the uncompiled model of all networks from ``config.run.seed``."""
    keras.utils.set_random_seed(config.run.seed)
    names = ("gradient_accumulation_steps", "seed")
    step = {name: getattr(config.run, name) for name in names}
    # Creation draws the initial weights, so its order is fixed.
    if config.objective.objective == "mlm":
        table = _make_table(config.encoder, vocab_size)
        encoder = _make_encoder(config.encoder, table, "encoder")
        return pretraining.MaskedLM(encoder, name="masked_lm", **step)
    generator_table, table = _make_tables(config, vocab_size)
    discriminator = _make_encoder(config.encoder, table, "discriminator")
    generator = _make_generator(
        config, generator_table, discriminator, special_ids, step
    )
    # Creation by a factory, since a strategy's variables must be created in its scope.
    is_factory = not isinstance(make_objective, keras.layers.Layer)
    make = make_objective or functools.partial(named_objective, config, table)
    objective = make() if is_factory else None
    if not isinstance(objective, pretraining.Objective):
        raise UserError(
            "objective= must be a subclass of pretraining.Objective, or a function "
            f"without arguments that returns an instance: got {make_objective}."
        )
    draw = sampler(config)
    if config.objective.sentence_weight > 0:
        # The sentence-level loss needs uncorrupted rows.
        sentence = pretraining.SentenceDetection(name="sentence")
        weight = config.objective.sentence_weight
        objective = pretraining.JointObjective(
            objective, sentence, weight, name="joint"
        )
        draw = pretraining.LeaveRows(draw, LEFT_ROWS)
    model_class, adversarial = pretraining.Electra, {}
    if config.objective.objective == "electric":
        model_class = pretraining.Electric
    elif config.training.training in _ADVERSARIAL:
        model_class = _ADVERSARIAL[config.training.training]
        adversarial = {"adversarial_weight": adversarial_weight(config)}
    return model_class(
        generator,
        discriminator,
        objective=objective,
        sampler=draw,
        sampling_dropout=not config.samples_apart,
        special_ids=special_ids,
        discriminator_weight=config.objective.discriminator_weight,
        name="electra",
        **adversarial,
        **step,
    )


def _make_encoder(
    config: EncoderConfig, embeddings: TextEmbedding, name: str, **options: Any
) -> TextEncoder:
    # The other fields are arguments of the encoder.
    of_table = ("embedding_size", "max_positions", "position_init")
    own = {key: x for key, x in vars(config).items() if key not in of_table}
    return TextEncoder(embeddings, name=name, **own, **options)


def _make_table(
    config: EncoderConfig, vocab_size: int, name: str = "embeddings"
) -> TextEmbedding:
    return TextEmbedding(
        vocab_size,
        config.embedding_size,
        max_positions=config.max_positions,
        dropout=config.dropout,
        initializer_range=config.initializer_range,
        position_init=config.position_init,
        name=name,
    )


def _make_tables(
    config: PretrainConfig, vocab_size: int
) -> tuple[TextEmbedding, TextEmbedding]:
    # ``--init_from`` expects the name "embeddings" under every kind of sharing.
    sharing = config.generator.sharing
    if sharing == "gdes":
        # Gradient-disentangled embedding sharing (DeBERTaV3, section 3.3).
        table = _make_table(config.generator_encoder, vocab_size)
        rate = config.encoder.dropout
        delta = DeltaEmbedding(table, dropout=rate, name="discriminator_embeddings")
        return table, delta
    table = _make_table(config.encoder, vocab_size)
    if sharing == "token":
        rate = config.generator_encoder.dropout
        words = SharedWordEmbedding(table, dropout=rate, name="generator_embeddings")
        return words, table
    if sharing in ("nes", "untied"):
        # "nes": two tables of the full embedding size (DeBERTaV3, section 3).
        # "untied": of the hidden size, as ``untied_generator_embeddings`` originally.
        name = "generator_embeddings"
        return _make_table(config.generator_encoder, vocab_size, name), table
    # "tied": all tables and their LayerNorm (section 3.2 of the paper, and its code).
    # "all": the whole encoder.
    return table, table


def _make_generator(
    config: PretrainConfig,
    embeddings: TextEmbedding,
    discriminator: TextEncoder,
    special_ids: Sequence[int],
    step: dict[str, int],
) -> keras.Model:
    kind = config.generator_kind
    if kind in ("unigram", "uniform"):
        # Token counts are set from the data when a run begins.
        return pretraining.UnigramGenerator(embeddings.vocab_size, name="generator")
    sizes = config.generator_encoder
    if kind == "two_tower":
        left, right = (
            _make_encoder(sizes, embeddings, f"generator_{name}", direction=name)
            for name in ("left_to_right", "right_to_left")
        )
        return pretraining.TwoTowerGenerator(
            left, right, special_ids=special_ids, name="two_tower", **step
        )
    encoder = discriminator
    if config.generator.sharing != "all":
        encoder = _make_encoder(sizes, embeddings, "generator")
    return pretraining.MaskedLM(encoder, name="masked_lm", **step)


def named_objective(
    config: PretrainConfig, table: TextEmbedding
) -> pretraining.Objective:
    """Builds the objective of ``--objective`` on the discriminator's embeddings."""
    match config.objective.objective:
        case "electra":
            return pretraining.ReplacedTokenDetection(name="objective")
        case "electra_15":
            return pretraining.ReplacedTokenDetection("masked", name="objective")
        case "replace_mlm":
            return pretraining.TokenPrediction(table, name="objective")
        case "all_tokens_mlm":
            return pretraining.CopyingTokenPrediction(table, name="objective")
    return pretraining.NoiseContrastiveEstimation(name="objective")


def sampler(config: PretrainConfig) -> pretraining.CategoricalSampler:
    """Builds the sampler of the replacements."""
    choice = config.generator
    temperature: float | Schedule = choice.temperature
    if choice.final_temperature is not None:
        is_linear = choice.temperature_shape == "linear"
        change = pretraining.LinearChange if is_linear else pretraining.ExponentialDecay
        temperature = change(
            choice.temperature, choice.final_temperature, choice.temperature_steps
        )
    return pretraining.CategoricalSampler(temperature, choice.disallow_correct)


def adversarial_weight(config: PretrainConfig) -> float | Schedule:
    """Returns the weight of the adversarial term, or its schedule."""
    choice = config.training
    weight, start = choice.adversarial_weight, choice.adversarial_start
    if choice.adversarial_steps:
        return pretraining.LinearChange(0.0, weight, choice.adversarial_steps, start)
    return pretraining.LinearChange(0.0, weight, 1, start - 1) if start else weight


def phases(config: PretrainConfig, model: pretraining.PretrainingModel) -> list[Phase]:
    """Returns the phases of a run; the last one trains the model of all networks."""
    steps = config.run.num_train_steps
    if config.training.training != "two_stage":
        frozen = model.generator if config.training.freeze_generator else None
        return [Phase(config.objective.objective, model, steps, frozen)]
    # Two-stage training: section 3.2 of the paper, "Training Algorithms".
    first, hand_over = config.generator_steps, None
    if config.training.two_stage_copy:
        source = model.generator.encoder
        hand_over = functools.partial(model.discriminator.take_over, source)
    return [
        Phase("generator", model.generator, first),
        Phase("discriminator", model, steps - first, model.generator, hand_over),
    ]


def optimizer(config: PretrainConfig, phase: Phase) -> AdamW:
    """Builds the optimizer of a phase, with a schedule over the steps of that phase."""
    choice, model = config.optimizer, phase.model
    rate, own_rate = choice.learning_rate, choice.generator_learning_rate
    multipliers = None
    if own_rate is not None and not isinstance(model, pretraining.Electra):
        rate = own_rate
    elif own_rate is not None and phase.frozen is None:
        # The generator's learning rate does not apply to shared variables.
        others = (*model.discriminator.weights, *model.objective.weights)
        shared = {v.path for v in others}
        own = [v for v in model.trainable_variables if v.path not in shared]
        multipliers = [(own, own_rate / rate)]
    schedule = {"warmup_steps": choice.warmup_steps, "combine": choice.lr_schedule}
    return AdamW(
        WarmupPolynomialDecay(rate, phase.steps, **schedule),
        weight_decay=choice.weight_decay,
        bias_correction=choice.adam_bias_correction,
        clip_norm=choice.clip_norm,
        learning_rate_multipliers=multipliers,
    )


def compiled_phases(
    config: PretrainConfig,
    vocab_size: int,
    special_ids: Sequence[int] = (),
    make_objective: MakeObjective | None = None,
) -> list[Phase]:
    """Returns the phases of a run, their models compiled and their slots built.

    Call in the scope of the strategy. Arguments as in ``build_model``.
    """
    keras.mixed_precision.set_global_policy(POLICIES[config.run.mixed_precision])
    model = build_model(config, vocab_size, special_ids, make_objective)
    all_phases = phases(config, model)
    for phase in all_phases:
        phase.set_trainable()
        phase.model.compile(optimizer=optimizer(config, phase), jit_compile=False)
        phase.model.optimizer.build(phase.model.trainable_variables)
    return all_phases

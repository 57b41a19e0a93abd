"""From a config to the model that is trained: objectives, generators, samplers.

A part of ``build.py``, with the same rule: a choice is a row in a table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras

from electra_tf import networks
from electra_tf.config import LEFT_ROWS, PretrainConfig
from electra_tf.layers import TextEmbedding
from electra_tf.networks import Networks
from electra_tf.pretraining import (
    CategoricalSampler,
    CopyingTokenPrediction,
    Electra,
    Electric,
    GumbelElectra,
    JointObjective,
    LeaveRows,
    MaskedLM,
    NoiseContrastiveEstimation,
    Objective,
    PretrainingModel,
    ReinforceElectra,
    ReplacedTokenDetection,
    SentenceDetection,
    TokenPrediction,
    TwoTowerElectra,
    TwoTowerGenerator,
    UnigramGenerator,
)
from electra_tf.pretraining.schedules import ExponentialDecay, LinearChange, Schedule

# What the discriminator is asked, given the embeddings it reads.
QUESTIONS: dict[str, Callable[[TextEmbedding], Objective]] = {
    "electra": lambda _: ReplacedTokenDetection(name="objective"),
    "electra_15": lambda _: ReplacedTokenDetection("masked", name="objective"),
    "replace_mlm": lambda table: TokenPrediction(table, name="objective"),
    "all_tokens_mlm": lambda table: CopyingTokenPrediction(table, name="objective"),
    "electric": lambda _: NoiseContrastiveEstimation(name="objective"),
}


class Words(NamedTuple):
    """What models know of the vocabulary.

    Attributes:
        size: V.
        special_ids: ids that are neither masked nor predicted.
    """

    size: int
    special_ids: tuple[int, ...] = ()


def _masked_lm_generator(found: Networks, words: Words, step) -> MaskedLM:
    del words
    return MaskedLM(found.generator("generator"), name="masked_lm", **step)


def _two_tower_generator(found: Networks, words: Words, step) -> TwoTowerGenerator:
    left, right = (
        found.generator(f"generator_{direction}", direction=direction)
        for direction in ("left_to_right", "right_to_left")
    )
    return TwoTowerGenerator(
        left, right, special_ids=words.special_ids, name="two_tower", **step
    )


def _fixed_generator(found: Networks, words: Words, step) -> UnigramGenerator:
    """A distribution over the vocabulary, uniform until it is given counts."""
    del found, step
    return UnigramGenerator(words.size, name="generator")


# Generator -> how it is built, and the model that trains it by its own loss.
GENERATORS: dict[str, tuple[Callable[..., keras.Model], type[Electra]]] = {
    "masked_lm": (_masked_lm_generator, Electra),
    "two_tower": (_two_tower_generator, TwoTowerElectra),
    "unigram": (_fixed_generator, Electra),
    "uniform": (_fixed_generator, Electra),
}
# Objectives whose model is another one.
MODELS: dict[str, type[Electra]] = {"electric": Electric}

TEMPERATURES: dict[str, type] = {
    "linear": LinearChange,
    "exponential": ExponentialDecay,
}


def sampler(config: PretrainConfig) -> CategoricalSampler:
    """What draws the replacements."""
    return CategoricalSampler(_temperature(config), config.generator.disallow_correct)


def _temperature(config: PretrainConfig) -> float | Schedule:
    choice = config.generator
    if choice.final_temperature is None:
        return choice.temperature
    return TEMPERATURES[choice.temperature_shape](
        choice.temperature, choice.final_temperature, choice.temperature_steps
    )


def _mixture(config: PretrainConfig) -> float | Schedule:
    choice = config.training
    weight, start = choice.adversarial_weight, choice.adversarial_start
    if choice.adversarial_steps:
        return LinearChange(0.0, weight, choice.adversarial_steps, start)
    return LinearChange(0.0, weight, 1, start - 1) if start else weight


def _plain(config: PretrainConfig, model_class: type) -> Callable[..., Electra]:
    del config
    return model_class


def _reinforce(config: PretrainConfig, model_class: type) -> Callable[..., Electra]:
    del model_class
    return functools.partial(ReinforceElectra, adversarial_weight=_mixture(config))


def _gumbel(config: PretrainConfig, model_class: type) -> Callable[..., Electra]:
    del model_class
    return functools.partial(
        GumbelElectra,
        adversarial_weight=_mixture(config),
        gumbel_temperature=config.training.gumbel_temperature,
    )


# How the generator learns -> what makes the model, given the one of its own loss.
TRAININGS: dict[str, Callable[[PretrainConfig, type], Callable[..., Electra]]] = {
    "joint": _plain,
    "two_stage": _plain,
    "reinforce": _reinforce,
    "gumbel": _gumbel,
}


def _electra(config: PretrainConfig, words: Words, **step: Any) -> Electra:
    found = networks.SHARINGS[config.generator.sharing](config, words.size)
    make_generator, model_class = GENERATORS[config.generator_kind]
    model_class = MODELS.get(config.objective.objective, model_class)
    generator = make_generator(found, words, step)
    question = QUESTIONS[config.objective.objective](found.discriminator.embeddings)
    objective, draw = SENTENCES[config.objective.sentence_weight > 0](
        config, question, sampler(config)
    )
    return TRAININGS[config.training.training](config, model_class)(
        generator,
        found.discriminator,
        objective=objective,
        sampler=draw,
        sampling_dropout=not config.samples_apart,
        generator_weight=config.objective.generator_weight,
        discriminator_weight=config.objective.discriminator_weight,
        name="electra",
        **step,
    )


def _with_sentences(config, objective, draw):
    """Adds the sentence-level loss, and leaves a fifth of the rows as they are."""
    sentence = SentenceDetection(name="sentence")
    weight = config.objective.sentence_weight
    joint = JointObjective(objective, sentence, weight, name="joint")
    return joint, LeaveRows(draw, LEFT_ROWS)


# Whether there is a sentence-level loss -> objective and sampler.
SENTENCES: dict[bool, Callable] = {
    False: lambda config, objective, draw: (objective, draw),
    True: _with_sentences,
}


def _masked_lm(config: PretrainConfig, words: Words, **step: Any) -> MaskedLM:
    table = networks.embeddings(config.encoder, words.size)
    encoder = networks.encoder(config.encoder, table, "encoder")
    return MaskedLM(encoder, name="masked_lm", **step)


OBJECTIVES: dict[str, Callable[..., PretrainingModel]] = {
    **dict.fromkeys(QUESTIONS, _electra),
    "mlm": _masked_lm,
}


def model(
    config: PretrainConfig, vocab_size: int, special_ids: Sequence[int] = ()
) -> PretrainingModel:
    """The model, initialized from ``config.run.seed``, not yet compiled.

    Args:
        config: of the run.
        vocab_size: V.
        special_ids: ids that are neither masked nor predicted, of [CLS], [SEP] and
            [MASK]; two-tower generators need them.
    """
    keras.utils.set_random_seed(config.run.seed)
    return OBJECTIVES[config.objective.objective](
        config,
        Words(vocab_size, tuple(special_ids)),
        gradient_accumulation_steps=config.run.gradient_accumulation_steps,
        seed=config.run.seed,
    )

"""From a config to the model that is trained: objectives, generators, samplers.

A part of ``build.py``, with the same rule: a choice is a row in a table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from electra_tf import networks
from electra_tf.config import LEFT_ROWS, PretrainConfig
from electra_tf.layers import TextEmbedding
from electra_tf.networks import Networks
from electra_tf.pretraining import (
    CategoricalSampler,
    CopyingTokenPrediction,
    Electra,
    GumbelElectra,
    JointObjective,
    LeaveRows,
    MaskedLM,
    Objective,
    PretrainingModel,
    ReinforceElectra,
    ReplacedTokenDetection,
    SentenceDetection,
    TokenPrediction,
    UnigramGenerator,
)
from electra_tf.pretraining.schedules import ExponentialDecay, LinearChange, Schedule

# What the discriminator is asked, given the embeddings it reads.
QUESTIONS: dict[str, Callable[[TextEmbedding], Objective]] = {
    "electra": lambda _: ReplacedTokenDetection(name="objective"),
    "electra_15": lambda _: ReplacedTokenDetection("masked", name="objective"),
    "replace_mlm": lambda table: TokenPrediction(table, name="objective"),
    "all_tokens_mlm": lambda table: CopyingTokenPrediction(table, name="objective"),
}


def _masked_lm_generator(found: Networks, vocab_size: int, step) -> MaskedLM:
    del vocab_size
    return MaskedLM(found.generator("generator"), name="masked_lm", **step)


def _fixed_generator(found: Networks, vocab_size: int, step) -> UnigramGenerator:
    """A distribution over the vocabulary, uniform until it is given counts."""
    del found, step
    return UnigramGenerator(vocab_size, name="generator")


GENERATORS: dict[str, Callable[..., keras.Model]] = {
    "masked_lm": _masked_lm_generator,
    "unigram": _fixed_generator,
    "uniform": _fixed_generator,
}

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


def _plain(config: PretrainConfig) -> Callable[..., Electra]:
    del config
    return Electra


def _reinforce(config: PretrainConfig) -> Callable[..., Electra]:
    return functools.partial(ReinforceElectra, adversarial_weight=_mixture(config))


def _gumbel(config: PretrainConfig) -> Callable[..., Electra]:
    return functools.partial(
        GumbelElectra,
        adversarial_weight=_mixture(config),
        gumbel_temperature=config.training.gumbel_temperature,
    )


# How the generator learns -> the class that takes its gradient, without the networks.
TRAININGS: dict[str, Callable[[PretrainConfig], Callable[..., Electra]]] = {
    "joint": _plain,
    "two_stage": _plain,
    "reinforce": _reinforce,
    "gumbel": _gumbel,
}


def _electra(config: PretrainConfig, vocab_size: int, **step: Any) -> Electra:
    found = networks.SHARINGS[config.generator.sharing](config, vocab_size)
    generator = GENERATORS[config.generator.generator](found, vocab_size, step)
    question = QUESTIONS[config.objective.objective](found.discriminator.embeddings)
    objective, draw = SENTENCES[config.objective.sentence_weight > 0](
        config, question, sampler(config)
    )
    return TRAININGS[config.training.training](config)(
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


def _masked_lm(config: PretrainConfig, vocab_size: int, **step: Any) -> MaskedLM:
    table = networks.embeddings(config.encoder, vocab_size)
    encoder = networks.encoder(config.encoder, table, "encoder")
    return MaskedLM(encoder, name="masked_lm", **step)


OBJECTIVES: dict[str, Callable[..., PretrainingModel]] = {
    **dict.fromkeys(QUESTIONS, _electra),
    "mlm": _masked_lm,
}


def model(config: PretrainConfig, vocab_size: int) -> PretrainingModel:
    """The model, initialized from ``config.run.seed``, not yet compiled."""
    keras.utils.set_random_seed(config.run.seed)
    return OBJECTIVES[config.objective.objective](
        config,
        vocab_size,
        gradient_accumulation_steps=config.run.gradient_accumulation_steps,
        seed=config.run.seed,
    )

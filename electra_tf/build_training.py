"""How networks are trained: from a config to phases, optimizers, first weights.

A part of ``build.py``, with the same rule: a choice is a row in a table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import keras

from electra_tf.config import PretrainConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.pretraining import Electra, PretrainingModel
from electra_tf.pretraining.phases import Phase, copy_weights
from electra_tf.training import AdamW, WarmupPolynomialDecay

if TYPE_CHECKING:
    from electra_tf.build import PretrainingData


def _one_phase(config: PretrainConfig, model: PretrainingModel) -> list[Phase]:
    frozen = model.generator if config.training.freeze_generator else None
    name = config.objective.objective
    return [Phase(name, model, config.run.num_train_steps, frozen=frozen)]


def _two_phases(config: PretrainConfig, model: Electra) -> list[Phase]:
    """Section 3.2 of the paper, "Training Algorithms": two-stage."""
    hand_over = HAND_OVERS[config.training.two_stage_copy](model)
    first = config.generator_steps
    second = config.run.num_train_steps - first
    return [
        Phase("generator", model.generator, first),
        Phase(
            "discriminator",
            model,
            second,
            frozen=model.generator,
            hand_over=hand_over,
        ),
    ]


HAND_OVERS: dict[bool, Callable[[Electra], Callable[[], None]]] = {
    True: lambda model: functools.partial(
        model.discriminator.take_over, model.generator.encoder
    ),
    False: lambda model: lambda: None,
}

PHASES: dict[str, Callable[..., list[Phase]]] = {
    "joint": _one_phase,
    "two_stage": _two_phases,
    "reinforce": _one_phase,
    "gumbel": _one_phase,
}


def phases(config: PretrainConfig, model: PretrainingModel) -> list[Phase]:
    """What is trained when; the model of the last phase is the whole one."""
    return PHASES[config.training.training](config, model)


def optimizer(config: PretrainConfig, phase: Phase) -> AdamW:
    """Adam and schedule of one phase, over the steps of that phase.

    A generator of its own rate or clip norm is a group of variables within the one
    optimizer. What it shares with the discriminator, and what belongs to neither
    alone, stays with the discriminator, which is what the run is for.
    """
    choice = config.optimizer
    rate, clip_norm, groups = _rates(config, phase)
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
        clip_norm=clip_norm,
        clipping=choice.clipping,
        **groups,
    )


def _rates(config, phase):
    """Rate and clip norm of a phase, and the options that set the generator apart."""
    choice = config.optimizer
    rate, norm = choice.generator_learning_rate, choice.generator_clip_norm
    if phase.name == "generator":
        return rate or choice.learning_rate, norm or choice.clip_norm, {}
    groups = {}
    if rate is not None and phase.frozen is None:
        factor = rate / choice.learning_rate
        groups["learning_rate_multipliers"] = [(_generator_only(phase.model), factor)]
    if norm is not None and phase.frozen is None:
        groups["clip_groups"] = {"generator": (_generator_only(phase.model), norm)}
    return choice.learning_rate, choice.clip_norm, groups


def _generator_only(model: Electra) -> list[keras.Variable]:
    """What only the generator's loss trains, in a model of both networks."""
    others = [*model.discriminator.weights, *model.objective.weights]
    names = {variable.path for variable in others}
    return [v for v in model.trainable_variables if v.path not in names]


def initialize_generator(
    config: PretrainConfig,
    model: PretrainingModel,
    data: PretrainingData,
    log: Callable[[str], None],
) -> None:
    """Gives the generator of a fresh run what it starts with beside random weights.

    A resumed run has it from its checkpoint.

    Raises:
        ValueError: if the weights to start from are missing or do not fit.
    """
    if config.generator.generator == "unigram":
        model.generator.set_counts(data.token_counts)
    if config.training.generator_init_from:
        source = Path(config.training.generator_init_from)
        _load_generator(source, model.generator, data.vocabulary)
        log(f"generator from {source}")


def _load_generator(
    source: Path, generator: keras.Model, vocabulary: Vocabulary
) -> None:
    file = source / "generator.keras" if source.is_dir() else source
    if not file.exists():
        raise ValueError(
            f"--generator_init_from={source}: there is no {file}. Name the model_dir "
            "of a run that ended, or a generator.keras."
        )
    text = file.parent / "vocab.txt"
    if text.exists() and Vocabulary.load(text).sha256 != vocabulary.sha256:
        raise ValueError(
            f"--generator_init_from={source}: that generator speaks another "
            f"vocabulary, {text}. Pass --vocab_file={text} and rebuild the records "
            "with it."
        )
    loaded = keras.saving.load_model(file, compile=False)
    try:
        copy_weights(loaded, generator)
    except ValueError as error:
        raise ValueError(
            f"--generator_init_from={source} does not fit: {error} Set "
            "--generator_hidden_size, --generator_layers and --embedding_size to its "
            "sizes."
        ) from error

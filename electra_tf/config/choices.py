"""Objectives, generators, sharings and trainings by name: meanings, facts, own checks.

Standard library only: ``--help`` and the checks of a config read this without
TensorFlow. How each is made, what it costs and what it reports are the rows of
``electra_tf/systems/rows.py``, which add their names here when they come from outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from electra_tf.config.fields import Choices

# When a ``PretrainConfig`` is impossible, and what to say then; the text is formatted
# with the config as ``c``.
Check = tuple[Callable[[Any], bool], str]


@dataclasses.dataclass(frozen=True)
class Choice:
    """A name that a flag may have, and what must not go with it where it is chosen."""

    meaning: str
    checks: tuple[Check, ...] = dataclasses.field(default=(), kw_only=True)

    def __str__(self) -> str:
        return self.meaning


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveChoice(Choice):
    """An objective; ``generator`` is the only one for it, whatever the flag says.

    It ``can_reward`` an adversarial generator if it has a loss at each token.
    """

    one_network: bool = False
    generator: str | None = None
    can_reward: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorChoice(Choice):
    """A generator; in the masked text that it may read some of its targets show."""

    has_network: bool = True
    reads_masked_text: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharingChoice(Choice):
    """A sharing.

    It is ``separate`` if training the discriminator leaves the generator as it is; with
    ``own_width`` the generator's tables have its hidden size.
    """

    separate: bool = False
    one_encoder: bool = False
    own_width: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingChoice(Choice):
    """A training.

    ``in_stages`` the generator is trained first, and then frozen; it ``is_adversarial``
    if it learns from the discriminator, and ``is_relaxed`` if through relaxed samples.
    """

    in_stages: bool = False
    is_adversarial: bool = False
    is_relaxed: bool = False


def objective_of(c: Any) -> ObjectiveChoice:
    """The chosen objective of a ``PretrainConfig``."""
    return OBJECTIVES[c.objective.objective]


def generator_of(c: Any) -> GeneratorChoice:
    """The generator of a ``PretrainConfig``, which may follow from the objective."""
    return GENERATORS[c.generator_kind]


def sharing_of(c: Any) -> SharingChoice:
    """The chosen sharing of a ``PretrainConfig``."""
    return SHARINGS[c.generator.sharing]


def training_of(c: Any) -> TrainingChoice:
    """The chosen training of a ``PretrainConfig``."""
    return TRAININGS[c.training.training]


def has_own_rate_or_clip(c: Any) -> bool:
    """Whether the generator's variables are a group of the optimizer."""
    own = c.optimizer.generator_learning_rate, c.optimizer.generator_clip_norm
    return own != (None, None)


def _has_settings_of_two(c: Any) -> bool:
    """Whether something is set that only a second network would read."""
    return (
        c.generator.sharing != "tied"
        or c.training.training != "joint"
        or c.training.freeze_generator
        or c.training.generator_init_from is not None
        or has_own_rate_or_clip(c)
    )


_ONE_NETWORK = (
    (
        lambda c: (
            c.generator.generator != "masked_lm"
            or c.objective.sentence_weight > 0
            or _has_settings_of_two(c)
        ),
        "--objective={c.objective.objective} trains one network, so settings of a "
        "generator, of a discriminator or of how the two are trained (--generator, "
        "--sharing, --sentence_weight, --training, --freeze_generator, "
        "--generator_init_from, --generator_learning_rate, --generator_clip_norm) have "
        "nothing to act on: leave them out.",
    ),
)
_ELECTRIC = (
    (
        lambda c: c.generator.generator not in ("masked_lm", "two_tower"),
        "--objective=electric draws its noise from a two-tower generator, not from "
        "--generator={c.generator.generator}: leave that out.",
    ),
    (
        lambda c: (
            c.generator.temperature != 1
            or c.generator.final_temperature is not None
            or c.generator.disallow_correct
            or c.objective.sentence_weight > 0
            or c.samples_apart
        ),
        "--objective=electric compares tokens with the very distribution the noise is "
        "drawn from: leave --temperature=1 and --nodisallow_correct, and leave out "
        "--final_temperature, --nosampling_dropout and --sentence_weight.",
    ),
)
OBJECTIVES = Choices(
    electra=ObjectiveChoice("replaced token detection", can_reward=True),
    electra_15=ObjectiveChoice("replaced token detection at masked positions only"),
    replace_mlm=ObjectiveChoice("the original token there, from the corrupted text"),
    all_tokens_mlm=ObjectiveChoice("the original of every token, with a copy gate"),
    electric=ObjectiveChoice(
        "energies against the noise of a two-tower generator",
        generator="two_tower",
        checks=_ELECTRIC,
    ),
    mlm=ObjectiveChoice(
        "BERT's masked LM: one network, no discriminator",
        one_network=True,
        checks=_ONE_NETWORK,
    ),
)

_NO_NETWORK = (
    (
        lambda c: not c.generator.sampling_dropout or _has_settings_of_two(c),
        "--generator={c.generator.generator} has no network: it cannot be trained in "
        "stages or against the discriminator, frozen, loaded, shared or untied, and "
        "has no dropout, learning rate or clip of its own. Leave those flags out.",
    ),
)
_TWO_TOWERS = (
    (
        lambda c: c.training.training != "joint",
        "--training={c.training.training} is there for a generator that reads masked "
        "text, and two towers (--generator=two_tower, --objective=electric) read the "
        "whole text but for each token: use --training=joint.",
    ),
    (
        lambda c: sharing_of(c).one_encoder,
        "--sharing={c.generator.sharing} has one encoder for both networks, and the "
        "two towers (--generator=two_tower, --objective=electric) read in one "
        "direction each: share less.",
    ),
)
GENERATORS = Choices(
    masked_lm=GeneratorChoice("reads the masked text", reads_masked_text=True),
    two_tower=GeneratorChoice(
        "reads the unmasked text from the left and from the right (ELECTRA-TT; always "
        "so in electric)",
        checks=_TWO_TOWERS,
    ),
    unigram=GeneratorChoice(
        "token frequencies of the training text; nothing is trained",
        has_network=False,
        checks=_NO_NETWORK,
    ),
    uniform=GeneratorChoice(
        "every token alike; nothing is trained", has_network=False, checks=_NO_NETWORK
    ),
)

_ONE_ENCODER = (
    (
        lambda c: (
            (c.generator.generator_hidden_size, c.generator.generator_layers) != (1, 1)
        ),
        "--sharing={c.generator.sharing} makes one encoder both generator and "
        "discriminator, but --generator_hidden_size="
        "{c.generator.generator_hidden_size:g} and --generator_layers="
        "{c.generator.generator_layers:g}: set both to 1, or share less.",
    ),
)
SHARINGS = Choices(
    tied=SharingChoice("all embedding tables"),
    token=SharingChoice("the word table"),
    untied=SharingChoice(
        "nothing (the generator's tables have its own width)",
        separate=True,
        own_width=True,
    ),
    nes=SharingChoice(
        "nothing (the generator's tables have the full width)", separate=True
    ),
    gdes=SharingChoice(
        "tables without the discriminator's gradient, plus deltas of its own",
        separate=True,
    ),
    all=SharingChoice(
        "everything: one encoder is both", one_encoder=True, checks=_ONE_ENCODER
    ),
)

_TWO_STAGE = (
    (
        lambda c: not 0 < c.generator_steps < c.run.num_train_steps,
        "--generator_steps={c.generator_steps} must be between 1 and num_train_steps - "
        "1 = {c.run.num_train_steps} - 1: the rest is the second stage.",
    ),
    (
        lambda c: c.training.two_stage_copy and c.generator_encoder != c.encoder,
        "--training=two_stage starts the discriminator from the generator's weights, "
        "so both need one size, tables included: add --generator_hidden_size=1 "
        "--generator_layers=1 --sharing=nes (or gdes), or --notwo_stage_copy to start "
        "it from fresh ones (which the paper saw fail).",
    ),
    (
        lambda c: (
            c.training.freeze_generator or c.training.generator_init_from is not None
        ),
        "--training=two_stage trains the generator first and freezes it then. To use a "
        "trained one from the start, leave --training=joint with --freeze_generator.",
    ),
)
_ADVERSARIAL = (
    (
        lambda c: not objective_of(c).can_reward or c.objective.sentence_weight > 0,
        "--training={c.training.training} rewards the generator with the loss of the "
        "discriminator's verdict on each token, as the paper does: use it with "
        "--objective=electra and without --sentence_weight.",
    ),
    (
        lambda c: sharing_of(c).one_encoder,
        "--training={c.training.training} sets two networks against each other, and "
        "--sharing={c.generator.sharing} has one encoder for both: share less.",
    ),
    (
        lambda c: c.samples_apart,
        "--training={c.training.training} learns from the very forward pass that is "
        "sampled from: drop --nosampling_dropout, or set --dropout=0 and "
        "--attention_dropout=0.",
    ),
    (
        lambda c: c.masking.mask_select == "with_replacement",
        "--training={c.training.training} rewards each sample at its own position, and "
        "--mask_select=with_replacement puts several at one: use another rule.",
    ),
)
_GUMBEL = (
    *_ADVERSARIAL,
    (
        lambda c: c.objective.discriminator_weight <= 0,
        "--training=gumbel trains the generator by the discriminator's gradient: "
        "--discriminator_weight must be positive.",
    ),
)
TRAININGS = Choices(
    joint=TrainingChoice("both by their own loss"),
    two_stage=TrainingChoice(
        "the generator first, then the discriminator", in_stages=True, checks=_TWO_STAGE
    ),
    reinforce=TrainingChoice(
        "the generator is rewarded for fooling the discriminator",
        is_adversarial=True,
        checks=_ADVERSARIAL,
    ),
    gumbel=TrainingChoice(
        "the generator follows the discriminator's gradient through a relaxation",
        is_adversarial=True,
        is_relaxed=True,
        checks=_GUMBEL,
    ),
)

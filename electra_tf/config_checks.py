"""Combinations of training settings that cannot be, each with a sentence that says why.

Standard library only. A check is a row: (when it applies, when it is broken, what to
say); the config is handed in, so that ``config.py`` can import this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ADVERSARIAL = ("reinforce", "gumbel")

Check = tuple[Callable[[Any], bool], Callable[[Any], bool], str]


def check_training(config: Any) -> None:
    """Raises ValueError for the first broken row of ``CHECKS``.

    Args:
        config: a ``PretrainConfig``.
    """
    for applies, broken, message in CHECKS:
        if applies(config) and broken(config):
            raise ValueError(message.format(c=config))


def _is_mlm(c):
    return c.objective.objective == "mlm"


def _is_adversarial(c):
    return c.training.training in ADVERSARIAL


def _is_two_stage(c):
    return c.training.training == "two_stage"


def _has_no_network(c):
    return c.generator.generator in ("unigram", "uniform")


def _freezes(c):
    return c.training.freeze_generator


def _has_own_generator_settings(c):
    return (
        c.generator.generator != "masked_lm"
        or c.generator.sharing != "tied"
        or c.training.training != "joint"
        or c.training.freeze_generator
        or c.training.generator_init_from is not None
        or _has_own_rate_or_clip(c)
    )


def _has_own_rate_or_clip(c):
    optimizer = c.optimizer
    return (
        optimizer.generator_learning_rate is not None
        or optimizer.generator_clip_norm is not None
    )


def _uses_adversarial_flags(c):
    t = c.training
    return t.adversarial_weight != 1 or bool(t.adversarial_start or t.adversarial_steps)


def _sizes_differ(c):
    sizes = (c.generator.generator_hidden_size, c.generator.generator_layers)
    return sizes != (1, 1)


CHECKS: tuple[Check, ...] = (
    (
        _is_mlm,
        _has_own_generator_settings,
        "--objective=mlm trains one network, so settings of a generator or of how two "
        "networks are trained (--generator, --sharing, --training, --freeze_generator, "
        "--generator_init_from, --generator_learning_rate, --generator_clip_norm) have "
        "nothing to act on: leave them out.",
    ),
    (
        _has_no_network,
        lambda c: (
            c.training.training != "joint"
            or _freezes(c)
            or c.training.generator_init_from is not None
            or c.generator.sharing != "tied"
            or not c.generator.sampling_dropout
            or _has_own_rate_or_clip(c)
        ),
        "--generator={c.generator.generator} has no network: it cannot be trained in "
        "stages or against the discriminator, frozen, loaded or untied, and has no "
        "dropout, learning rate or clip of its own. Leave those flags out.",
    ),
    (
        lambda c: not _is_two_stage(c),
        lambda c: (
            c.training.generator_steps is not None or not c.training.two_stage_copy
        ),
        "--generator_steps and --notwo_stage_copy are settings of "
        "--training=two_stage, and --training is {c.training.training}.",
    ),
    (
        lambda c: not _is_adversarial(c),
        _uses_adversarial_flags,
        "--adversarial_weight, --adversarial_start and --adversarial_steps are "
        "settings of --training=reinforce and gumbel, and --training is "
        "{c.training.training}.",
    ),
    (
        lambda c: c.training.training != "gumbel",
        lambda c: c.training.gumbel_temperature != 1,
        "--gumbel_temperature is a setting of --training=gumbel, and --training is "
        "{c.training.training}.",
    ),
    (
        lambda c: c.generator_is_frozen,
        lambda c: c.generator.sharing == "tied",
        "A frozen generator (--training=two_stage or --freeze_generator) cannot share "
        "its embedding tables: training the discriminator would change them under the "
        "generator, freezing them would freeze them for the discriminator. Add "
        "--sharing=untied.",
    ),
    (
        _is_two_stage,
        lambda c: not 0 < c.generator_steps < c.run.num_train_steps,
        "--generator_steps={c.generator_steps} must be between 1 and num_train_steps - "
        "1 = {c.run.num_train_steps} - 1: the rest is the second stage.",
    ),
    (
        lambda c: _is_two_stage(c) and c.training.two_stage_copy,
        _sizes_differ,
        "--training=two_stage starts the discriminator from the generator's weights, "
        "so both need one size: add --generator_hidden_size=1 --generator_layers=1, or "
        "--notwo_stage_copy to start it from fresh ones (which the paper saw fail).",
    ),
    (
        _is_two_stage,
        lambda c: _freezes(c) or c.training.generator_init_from is not None,
        "--training=two_stage trains the generator first and freezes it then. To use a "
        "trained one from the start, leave --training=joint with --freeze_generator.",
    ),
    (
        _freezes,
        lambda c: not (c.training.generator_init_from or c.run.init_from),
        "--freeze_generator without weights would sample noise for the whole run: add "
        "--generator_init_from, the model_dir of a finished run.",
    ),
    (
        _freezes,
        lambda c: _is_adversarial(c) or _has_own_rate_or_clip(c),
        "--freeze_generator leaves nothing to train in the generator: drop "
        "--training={c.training.training}, --generator_learning_rate and "
        "--generator_clip_norm, or the freezing.",
    ),
    (
        _is_adversarial,
        lambda c: c.objective.objective != "electra",
        "--training={c.training.training} needs the discriminator's verdict on every "
        "token as reward: use it with --objective=electra, not "
        "{c.objective.objective}.",
    ),
    (
        _is_adversarial,
        lambda c: not c.generator.sampling_dropout,
        "--training={c.training.training} learns from the very forward pass that is "
        "sampled from: drop --nosampling_dropout, or set --dropout=0 and "
        "--attention_dropout=0.",
    ),
    (
        _is_adversarial,
        lambda c: c.masking.mask_select == "with_replacement",
        "--training={c.training.training} rewards each sample at its own position, and "
        "--mask_select=with_replacement puts several at one: use tokens or "
        "whole_words.",
    ),
    (
        lambda c: c.training.training == "gumbel",
        lambda c: c.objective.discriminator_weight <= 0,
        "--training=gumbel trains the generator by the discriminator's gradient: "
        "--discriminator_weight must be positive.",
    ),
)

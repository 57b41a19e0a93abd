"""Combinations of settings that cannot be, or are probably not meant, as two tables.

Standard library only. A check is a row: (when it applies, when it is broken, what to
say), a warning (when it applies, what to say); the config is handed in, so that
``config.py`` can import this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ADVERSARIAL = ("reinforce", "gumbel")
# Sharings in which training the discriminator leaves the generator as it is.
SEPARATE = ("untied", "nes", "gdes")

Predicate = Callable[[Any], bool]


def check(config: Any) -> None:
    """Raises ValueError for the first broken row of ``CHECKS``.

    Args:
        config: a ``PretrainConfig``.
    """
    for applies, broken, message in CHECKS:
        if applies(config) and broken(config):
            raise ValueError(message.format(c=config))


def warnings(config: Any) -> list[str]:
    """The messages of all rows of ``WARNINGS`` that apply.

    Args:
        config: a ``PretrainConfig``.
    """
    return [
        message.format(c=config) for applies, message in WARNINGS if applies(config)
    ]


def _is_mlm(c):
    return c.objective.objective == "mlm"


def _is_adversarial(c):
    return c.training.training in ADVERSARIAL


def _is_two_stage(c):
    return c.training.training == "two_stage"


def _copies(c):
    return _is_two_stage(c) and c.training.two_stage_copy


def _is_electric(c):
    return c.objective.objective == "electric"


def _has_towers(c):
    return c.generator_kind == "two_tower"


def _has_no_network(c):
    return c.generator.generator in ("unigram", "uniform")


def _freezes(c):
    return c.training.freeze_generator


def _shares_all(c):
    return c.generator.sharing == "all"


def _has_own_generator_settings(c):
    return (
        c.generator.generator != "masked_lm"
        or c.generator.sharing != "tied"
        or c.objective.sentence_weight > 0
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


def _fractions_differ_from_1(c):
    return (c.generator.generator_hidden_size, c.generator.generator_layers) != (1, 1)


def _shortest_phase(c):
    return min(
        steps
        for steps in (c.generator_steps, c.run.num_train_steps - c.generator_steps)
        if steps
    )


CHECKS: tuple[tuple[Predicate, Predicate, str], ...] = (
    (
        _is_mlm,
        _has_own_generator_settings,
        "--objective=mlm trains one network, so settings of a generator, of a "
        "discriminator or of how the two are trained (--generator, --sharing, "
        "--sentence_weight, --training, --freeze_generator, --generator_init_from, "
        "--generator_learning_rate, --generator_clip_norm) have nothing to act on: "
        "leave them out.",
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
        "stages or against the discriminator, frozen, loaded, shared or untied, and "
        "has no dropout, learning rate or clip of its own. Leave those flags out.",
    ),
    (
        _is_electric,
        lambda c: c.generator.generator not in ("masked_lm", "two_tower"),
        "--objective=electric draws its noise from a two-tower generator, not from "
        "--generator={c.generator.generator}: leave that out.",
    ),
    (
        _is_electric,
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
    (
        _has_towers,
        lambda c: c.training.training != "joint",
        "--training={c.training.training} is there for a generator that reads masked "
        "text, and two towers (--generator=two_tower, --objective=electric) read the "
        "whole text but for each token: use --training=joint.",
    ),
    (
        _has_towers,
        _shares_all,
        "--sharing=all has one encoder for both networks, and the two towers "
        "(--generator=two_tower, --objective=electric) read in one direction each: "
        "share less.",
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
        _shares_all,
        _fractions_differ_from_1,
        "--sharing=all makes one encoder both generator and discriminator, but "
        "--generator_hidden_size={c.generator.generator_hidden_size:g} and "
        "--generator_layers={c.generator.generator_layers:g}: set both to 1, or share "
        "less.",
    ),
    (
        lambda c: c.generator_is_frozen,
        lambda c: c.generator.sharing not in SEPARATE,
        "A frozen generator (--training=two_stage or --freeze_generator) cannot share "
        "variables as --sharing={c.generator.sharing} does: training the discriminator "
        "would change them under the generator, freezing them would freeze them for "
        "the discriminator. Add --sharing=nes, untied or gdes.",
    ),
    (
        _is_two_stage,
        lambda c: not 0 < c.generator_steps < c.run.num_train_steps,
        "--generator_steps={c.generator_steps} must be between 1 and num_train_steps - "
        "1 = {c.run.num_train_steps} - 1: the rest is the second stage.",
    ),
    (
        _copies,
        lambda c: c.generator_encoder != c.encoder,
        "--training=two_stage starts the discriminator from the generator's weights, "
        "so both need one size, tables included: add --generator_hidden_size=1 "
        "--generator_layers=1 --sharing=nes (or gdes), or --notwo_stage_copy to start "
        "it from fresh ones (which the paper saw fail).",
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
        lambda c: c.objective.objective != "electra" or c.objective.sentence_weight > 0,
        "--training={c.training.training} rewards the generator with the loss of the "
        "discriminator's verdict on each token, as the paper does: use it with "
        "--objective=electra and without --sentence_weight.",
    ),
    (
        _is_adversarial,
        _shares_all,
        "--training={c.training.training} sets two networks against each other, and "
        "--sharing=all has one encoder for both: share less.",
    ),
    (
        _is_adversarial,
        lambda c: c.samples_apart,
        "--training={c.training.training} learns from the very forward pass that is "
        "sampled from: drop --nosampling_dropout, or set --dropout=0 and "
        "--attention_dropout=0.",
    ),
    (
        _is_adversarial,
        lambda c: c.masking.mask_select == "with_replacement",
        "--training={c.training.training} rewards each sample at its own position, and "
        "--mask_select=with_replacement puts several at one: use another rule.",
    ),
    (
        lambda c: c.training.training == "gumbel",
        lambda c: c.objective.discriminator_weight <= 0,
        "--training=gumbel trains the generator by the discriminator's gradient: "
        "--discriminator_weight must be positive.",
    ),
    (
        lambda c: c.optimizer.lr_schedule == "sequential",
        lambda c: c.optimizer.warmup_steps >= _shortest_phase(c),
        "--lr_schedule=sequential decays after the warm-up, and --warmup_steps="
        "{c.optimizer.warmup_steps} leaves no step for it in a phase (--num_train_steps"
        "={c.run.num_train_steps}): shorten the warm-up, train longer, or use "
        "--lr_schedule=product.",
    ),
)


WARNINGS: tuple[tuple[Predicate, str], ...] = (
    (
        lambda c: c.encoder.hidden_size >= 768 and c.optimizer.learning_rate > 3e-4,
        "learning_rate {c.optimizer.learning_rate:g} with hidden_size "
        "{c.encoder.hidden_size}: base and large train at 2e-4 in the paper, and 5e-4 "
        "(ELECTRA-Small's) is known to diverge. Start from configs/base.cfg or "
        "configs/large.cfg.",
    ),
    (
        lambda c: c.optimizer.warmup_steps >= _shortest_phase(c),
        "warmup_steps {c.optimizer.warmup_steps} is not below the steps of a phase "
        "(num_train_steps is {c.run.num_train_steps}): the rate never peaks.",
    ),
    (
        lambda c: (
            not _is_mlm(c)
            and not _has_no_network(c)
            and not _shares_all(c)
            and not _copies(c)
            and c.generator.generator_hidden_size > 0.5
            and c.generator.generator_layers > 0.5
        ),
        "The generator is more than half the discriminator: the paper found 1/4 to 1/2 "
        "best, a stronger one makes the task too hard (Figure 3).",
    ),
)

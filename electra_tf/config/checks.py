"""Combinations of settings that cannot be, or are probably not meant.

What does not go with one objective, generator, sharing or training stands beside its
name (``choices.py``); here is what follows from facts about several. Standard library
only; the config is handed in, so that ``config/pretraining.py`` can import this.
"""

from __future__ import annotations

from typing import Any

from electra_tf.config.choices import (
    Check,
    generator_of,
    has_own_rate_or_clip,
    objective_of,
    sharing_of,
    training_of,
)
from electra_tf.errors import UserError


def check(config: Any) -> None:
    """Raises ValueError for the first check that finds the config impossible."""
    choices = (objective_of, generator_of, sharing_of, training_of)
    own = (row for chosen in choices for row in chosen(config).checks)
    for is_broken, message in (*own, *CHECKS):
        if is_broken(config):
            raise UserError(message.format(c=config))


def warnings(config: Any) -> list[str]:
    """The messages of all rows of ``WARNINGS`` that apply."""
    return [text.format(c=config) for applies, text in WARNINGS if applies(config)]


def _shortest_phase(c: Any) -> int:
    steps = (c.generator_steps, c.run.num_train_steps - c.generator_steps)
    return min(filter(None, steps))


CHECKS: tuple[Check, ...] = (
    (
        lambda c: c.data.file_sharding and c.run.distribution != "multi_worker",
        "--file_sharding is a setting of --distribution=multi_worker, and "
        "--distribution is {c.run.distribution}.",
    ),
    (
        lambda c: (
            not training_of(c).in_stages
            and (
                c.training.generator_steps is not None or not c.training.two_stage_copy
            )
        ),
        "--generator_steps and --notwo_stage_copy are settings of "
        "--training=two_stage, and --training is {c.training.training}.",
    ),
    (
        lambda c: (
            not training_of(c).is_adversarial
            and (
                c.training.adversarial_weight != 1
                or bool(c.training.adversarial_start or c.training.adversarial_steps)
            )
        ),
        "--adversarial_weight, --adversarial_start and --adversarial_steps are "
        "settings of --training=reinforce and gumbel, and --training is "
        "{c.training.training}.",
    ),
    (
        lambda c: not training_of(c).is_relaxed and c.training.gumbel_temperature != 1,
        "--gumbel_temperature is a setting of --training=gumbel, and --training is "
        "{c.training.training}.",
    ),
    (
        lambda c: c.generator_is_frozen and not sharing_of(c).separate,
        "A frozen generator (--training=two_stage or --freeze_generator) cannot share "
        "variables as --sharing={c.generator.sharing} does: training the discriminator "
        "would change them under the generator, freezing them would freeze them for "
        "the discriminator. Add --sharing=nes, untied or gdes.",
    ),
    (
        lambda c: (
            c.training.freeze_generator
            and not (c.training.generator_init_from or c.run.init_from)
        ),
        "--freeze_generator without weights would sample noise for the whole run: add "
        "--generator_init_from, the model_dir of a finished run.",
    ),
    (
        lambda c: (
            c.training.freeze_generator
            and (training_of(c).is_adversarial or has_own_rate_or_clip(c))
        ),
        "--freeze_generator leaves nothing to train in the generator: drop "
        "--training={c.training.training}, --generator_learning_rate and "
        "--generator_clip_norm, or the freezing.",
    ),
    (
        lambda c: (
            c.optimizer.lr_schedule == "sequential"
            and c.optimizer.warmup_steps >= _shortest_phase(c)
        ),
        "--lr_schedule=sequential decays after the warm-up, and --warmup_steps="
        "{c.optimizer.warmup_steps} leaves no step for it in a phase (--num_train_steps"
        "={c.run.num_train_steps}): shorten the warm-up, train longer, or use "
        "--lr_schedule=product.",
    ),
)


WARNINGS: tuple[Check, ...] = (
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
            not objective_of(c).one_network
            and generator_of(c).has_network
            and not sharing_of(c).one_encoder
            and not (training_of(c).in_stages and c.training.two_stage_copy)
            and c.generator.generator_hidden_size > 0.5
            and c.generator.generator_layers > 0.5
        ),
        "The generator is more than half the discriminator: the paper found 1/4 to 1/2 "
        "best, a stronger one makes the task too hard (Figure 3).",
    ),
)

"""Validation of combinations of pretraining flags: errors and warnings.

Limits of single flags, and flags that require another flag, are in ``field(...)``.
"""

from __future__ import annotations

from typing import Any

from electra_tf.config.choices import ADVERSARIAL, SEPARATE
from electra_tf.errors import UserError

# A `PretrainConfig`, whose module imports this one.
PretrainConfig = Any


def validate(config: PretrainConfig) -> None:
    """Raises UserError for a combination of flags that cannot be trained."""
    _validate_data(config)
    if config.objective.objective == "mlm":
        _validate_one_network(config)
    else:
        _validate_objective(config)
        _validate_generator(config)
        _validate_training(config)
    optimizer = config.optimizer
    if optimizer.lr_schedule == "sequential" and _never_peaks(config):
        raise UserError(
            "--lr_schedule=sequential decays after the warm-up, and --warmup_steps="
            f"{optimizer.warmup_steps} leaves no step for it in a phase "
            f"(--num_train_steps={config.run.num_train_steps}): shorten the warm-up, "
            "train longer, or use --lr_schedule=product."
        )


def warnings(config: PretrainConfig) -> list[str]:
    """Returns warnings about combinations that are allowed but probably a mistake."""
    messages = []
    rate, hidden_size = config.optimizer.learning_rate, config.encoder.hidden_size
    if hidden_size >= 768 and rate > 3e-4:
        messages.append(
            f"learning_rate {rate:g} with hidden_size {hidden_size}: base and large "
            "train at 2e-4 in the paper, and 5e-4 (ELECTRA-Small's) is known to "
            "diverge. Start from configs/base.cfg or configs/large.cfg."
        )
    if _never_peaks(config):
        messages.append(
            f"warmup_steps {config.optimizer.warmup_steps} is not below the steps of a "
            f"phase (num_train_steps is {config.run.num_train_steps}): the rate never "
            "peaks."
        )
    generator, training = config.generator, config.training
    copied = training.training == "two_stage" and training.two_stage_copy
    large = generator.generator_hidden_size > 0.5 and generator.generator_layers > 0.5
    if (
        large
        and config.has_generator_network
        and generator.sharing != "all"
        and not copied
    ):
        messages.append(
            "The generator is more than half the discriminator: the paper found 1/4 to "
            "1/2 best, a stronger one makes the task too hard (Figure 3)."
        )
    return messages


def _validate_data(c: PretrainConfig) -> None:
    if c.data.max_seq_length > c.encoder.max_positions:
        raise UserError(
            f"--max_seq_length={c.data.max_seq_length} exceeds "
            f"--max_positions={c.encoder.max_positions}."
        )
    if c.run.distribution == "multi_worker" and not c.data.records:
        raise UserError(
            "--distribution=multi_worker needs --records that every worker can read: "
            "build them first with `python -m electra_tf records`."
        )


def _has_settings_of_two(c: PretrainConfig) -> bool:
    """Whether a flag is set that only applies to a trained second network."""
    return (
        c.generator.sharing != "tied"
        or c.training.training != "joint"
        or c.training.freeze_generator
        or c.training.generator_init_from is not None
        or c.optimizer.generator_learning_rate is not None
    )


def _validate_one_network(c: PretrainConfig) -> None:
    has_generator = c.generator.generator != "masked_lm"
    if has_generator or c.objective.sentence_weight > 0 or _has_settings_of_two(c):
        raise UserError(
            f"--objective={c.objective.objective} trains one network, so settings of a "
            "generator, of a discriminator or of their joint training (--generator, "
            "--sharing, --sentence_weight, --training, --freeze_generator, "
            "--generator_init_from, --generator_learning_rate) have no effect: leave "
            "them out."
        )


def _validate_objective(c: PretrainConfig) -> None:
    if c.objective.objective != "electric":
        return
    generator = c.generator
    if generator.generator not in ("masked_lm", "two_tower"):
        raise UserError(
            "--objective=electric draws its noise from a two-tower generator, not from "
            f"--generator={generator.generator}: leave that out."
        )
    if (
        generator.temperature != 1
        or generator.final_temperature is not None
        or generator.disallow_correct
        or c.objective.sentence_weight > 0
        or c.samples_apart
    ):
        raise UserError(
            "--objective=electric needs noise from the distribution that its loss "
            "contains: leave --temperature=1 and --nodisallow_correct, and leave "
            "out --final_temperature, --nosampling_dropout and --sentence_weight."
        )


def _validate_generator(c: PretrainConfig) -> None:
    generator = c.generator
    if not c.has_generator_network:
        if not generator.sampling_dropout or _has_settings_of_two(c):
            raise UserError(
                f"--generator={generator.generator} has no network: it cannot be "
                "trained in stages or against the discriminator, frozen, loaded, "
                "shared or untied, and has no dropout or learning rate of its own. "
                "Leave those flags out."
            )
        return
    if c.generator_kind == "two_tower":
        towers = "two towers (--generator=two_tower, --objective=electric)"
        if c.training.training != "joint":
            raise UserError(
                f"--training={c.training.training} needs a generator of masked text, "
                f"and {towers} read unmasked text: use --training=joint."
            )
        if generator.sharing == "all":
            raise UserError(
                f"--sharing=all has one encoder for both networks, and {towers} read "
                "in one direction each: share less."
            )
    sizes = (generator.generator_hidden_size, generator.generator_layers)
    if generator.sharing == "all" and sizes != (1, 1):
        raise UserError(
            "--sharing=all makes one encoder both generator and discriminator, but "
            f"--generator_hidden_size={sizes[0]:g} and --generator_layers="
            f"{sizes[1]:g}: set both to 1, or share less."
        )


def _validate_training(c: PretrainConfig) -> None:
    training = c.training
    if training.training == "two_stage":
        _validate_two_stage(c)
    if training.training in ADVERSARIAL:
        _validate_adversarial(c)
    if c.generator_is_frozen and c.generator.sharing not in SEPARATE:
        raise UserError(
            "A frozen generator (--training=two_stage or --freeze_generator) cannot "
            f"share variables as --sharing={c.generator.sharing} does: training the "
            "discriminator would change them under the generator, freezing them would "
            "freeze them for the discriminator. Add --sharing=nes, untied or gdes."
        )
    if not training.freeze_generator:
        return
    if not (training.generator_init_from or c.run.init_from):
        raise UserError(
            "--freeze_generator without weights would sample noise for the whole run: "
            "add --generator_init_from, the model_dir of a finished run."
        )
    own_rate = c.optimizer.generator_learning_rate is not None
    if training.training in ADVERSARIAL or own_rate:
        raise UserError(
            "--freeze_generator leaves nothing to train in the generator: drop "
            f"--training={training.training} and --generator_learning_rate, or the "
            "freezing."
        )


def _validate_two_stage(c: PretrainConfig) -> None:
    if not 0 < c.generator_steps < c.run.num_train_steps:
        raise UserError(
            f"--generator_steps={c.generator_steps} must be between 1 and "
            f"num_train_steps - 1 = {c.run.num_train_steps} - 1: the rest is the "
            "second stage."
        )
    if c.training.two_stage_copy and c.generator_encoder != c.encoder:
        raise UserError(
            "--training=two_stage starts the discriminator from the generator's "
            "weights, so both need one size, tables included: add "
            "--generator_hidden_size=1 --generator_layers=1 --sharing=nes (or gdes), "
            "or --notwo_stage_copy to start it from random weights (which failed "
            "in the paper)."
        )
    if c.training.freeze_generator or c.training.generator_init_from is not None:
        raise UserError(
            "--training=two_stage trains the generator first, then freezes it. To use "
            "a trained generator from the start, leave --training=joint with "
            "--freeze_generator."
        )


def _validate_adversarial(c: PretrainConfig) -> None:
    name = c.training.training
    if c.objective.objective != "electra" or c.objective.sentence_weight > 0:
        raise UserError(
            f"--training={name} rewards the generator with the loss of the "
            "discriminator's verdict on each token, as the paper does: use it with "
            "--objective=electra and without --sentence_weight."
        )
    if c.generator.sharing == "all":
        raise UserError(
            f"--training={name} sets two networks against each other, and "
            "--sharing=all has one encoder for both: share less."
        )
    if c.samples_apart:
        raise UserError(
            f"--training={name} needs samples of the forward pass that has the "
            "gradient: drop --nosampling_dropout, or set --dropout=0 and "
            "--attention_dropout=0."
        )
    if c.masking.mask_select == "with_replacement":
        raise UserError(
            f"--training={name} rewards each sample at its own position, and "
            "--mask_select=with_replacement repeats positions: use another rule."
        )
    if name == "gumbel" and c.objective.discriminator_weight <= 0:
        raise UserError(
            "--training=gumbel trains the generator by the discriminator's gradient: "
            "--discriminator_weight must be positive."
        )


def _never_peaks(c: PretrainConfig) -> bool:
    """Whether the warm-up is at least as long as the shortest phase."""
    phases = (c.generator_steps, c.run.num_train_steps - c.generator_steps)
    return c.optimizer.warmup_steps >= min(filter(None, phases))

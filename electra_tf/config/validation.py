"""Choices of pretraining flags, and validation of their combinations.

Limits of single flags, and flags that exclude or require another one, are in
``field(...)``.
"""

from typing import Any

from electra_tf.config.fields import require

# A `PretrainConfig`, whose module imports this one.
PretrainConfig = Any

OBJECTIVES = {
    "electra": "replaced token detection",
    "electra_15": "replaced token detection at masked positions only",
    "replace_mlm": "the original of masked tokens, from the corrupted text",
    "all_tokens_mlm": "the original of every token, with a copy gate",
    "electric": "energies against the noise of a two-tower generator",
    "mlm": "BERT's masked LM: one network, no discriminator",
}
GENERATORS = {
    "masked_lm": "reads the masked text",
    "two_tower": (
        "reads the unmasked text from the left and from the right (ELECTRA-TT; always "
        "so in electric)"
    ),
    "unigram": "token frequencies of the training text; nothing is trained",
    "uniform": "equal probability for every token; nothing is trained",
}
SHARINGS = {
    "tied": "all embedding tables",
    "token": "the word table",
    "untied": "no table (the generator's tables have the generator's width)",
    "nes": "no table (the generator's tables have the full width)",
    "gdes": (
        "tables without the discriminator's gradient, plus deltas of the discriminator"
    ),
    "all": "everything: one encoder is both",
}
TRAININGS = {
    "joint": "both by their own loss",
    "two_stage": "the generator first, then the discriminator",
    "reinforce": "the generator is rewarded for fooling the discriminator",
    "gumbel": (
        "the generator follows the discriminator's gradient through a relaxation"
    ),
}
# Sharing that lets the discriminator train without a change of the generator.
SEPARATE = ("untied", "nes", "gdes")
# Algorithms that train the generator against the discriminator.
ADVERSARIAL = ("reinforce", "gumbel")


def validate(config: PretrainConfig) -> None:
    """Raises UserError for a combination of flags that cannot be trained."""
    run, data, optimizer = config.run, config.data, config.optimizer
    require(
        data.max_seq_length <= config.encoder.max_positions,
        f"--max_seq_length={data.max_seq_length} exceeds "
        f"--max_positions={config.encoder.max_positions}.",
    )
    require(
        run.distribution != "multi_worker" or bool(data.records),
        "--distribution=multi_worker needs --records that every worker can read: "
        "build them first with `electra-tf records`.",
    )
    require(
        optimizer.lr_schedule != "sequential" or not _never_peaks(config),
        "--lr_schedule=sequential decays after the warm-up, and "
        f"--warmup_steps={optimizer.warmup_steps} leaves no step for it in a phase "
        f"(--num_train_steps={run.num_train_steps}): shorten the warm-up, train "
        "longer, or use --lr_schedule=product.",
    )
    require(
        config.objective.objective != "electric"
        or config.generator.generator in ("masked_lm", "two_tower"),
        "--objective=electric draws its noise from two towers: leave out "
        f"--generator={config.generator.generator}.",
    )
    if config.has_generator_network:
        _validate_generator(config)
    if config.training.training == "two_stage":
        _validate_two_stage(config)
    if config.training.training in ADVERSARIAL:
        _validate_adversarial(config)


def warnings(
    config: PretrainConfig, sizes: tuple[float, float] | None = None
) -> dict[str, str]:
    """Returns warnings about allowed flags that are probably a mistake, by flag.

    ``sizes`` are width and depth of the generator relative to the discriminator; the
    default is the flags'. The doctor shows the text after the first ". " as advice.
    """
    messages, generator, training = {}, config.generator, config.training
    rate, hidden_size = config.optimizer.learning_rate, config.encoder.hidden_size
    if hidden_size >= 768 and rate > 3e-4:
        messages["learning_rate"] = (
            f"learning_rate {rate:g} with hidden_size {hidden_size}: base and large "
            "train at 2e-4 in the paper, and 5e-4 (ELECTRA-Small's) is known to "
            "diverge. Use --learning_rate=2e-4 (configs/base.cfg, configs/large.cfg)."
        )
    if _never_peaks(config):
        messages["warmup_steps"] = (
            f"warmup_steps {config.optimizer.warmup_steps} is not below the steps of a "
            f"phase (num_train_steps is {config.run.num_train_steps}): the rate never "
            "peaks. Lower --warmup_steps; the paper has 1 % to 2.5 % of the steps."
        )
    start, steps = training.adversarial_start, config.run.num_train_steps
    if start >= steps:
        messages["adversarial_start"] = (
            f"adversarial_start {start} leaves no adversarial update "
            f"(num_train_steps is {steps}). Lower --adversarial_start."
        )
    width, depth = sizes or (
        generator.generator_hidden_size,
        generator.generator_layers,
    )
    copied = training.training == "two_stage" and training.two_stage_copy
    is_one = generator.sharing == "all" or copied
    if min(width, depth) > 0.5 and config.has_generator_network and not is_one:
        messages["generator_hidden_size"] = (
            f"the generator is more than half the discriminator ({width:.3g} of the "
            f"width and {depth:.3g} of the layers): in the paper 1/4 to 1/2 is best, "
            "and an equal one loses 3 GLUE points (Figure 3). Lower "
            "--generator_hidden_size or --generator_layers."
        )
    return messages


def _validate_generator(c: PretrainConfig) -> None:
    generator, training = c.generator, c.training
    sizes = (generator.generator_hidden_size, generator.generator_layers)
    if generator.sharing == "all":
        require(
            c.generator_kind != "two_tower" and training.training not in ADVERSARIAL,
            "--sharing=all has one encoder for both networks: it excludes two towers "
            "(--generator=two_tower, --objective=electric) and adversarial training.",
        )
        require(
            sizes == (1, 1),
            "--sharing=all makes one encoder both generator and discriminator, but "
            f"--generator_hidden_size={sizes[0]:g} and --generator_layers="
            f"{sizes[1]:g}: set both to 1, or share less.",
        )
    require(
        not c.generator_is_frozen or generator.sharing in SEPARATE,
        "A frozen generator (--training=two_stage or --freeze_generator) cannot share "
        f"variables as --sharing={generator.sharing} does: they would be trained with "
        "the discriminator. Add --sharing=nes, untied or gdes.",
    )
    if training.freeze_generator:
        require(
            bool(training.generator_init_from or c.run.init_from),
            "--freeze_generator without weights would sample noise for the whole run: "
            "add --generator_init_from, the model_dir of a finished run.",
        )
        require(
            c.optimizer.generator_learning_rate is None,
            "--freeze_generator leaves nothing to train in the generator: leave out "
            "--generator_learning_rate.",
        )


def _validate_two_stage(c: PretrainConfig) -> None:
    require(
        0 < c.generator_steps < c.run.num_train_steps,
        f"--generator_steps={c.generator_steps} must be between 1 and "
        f"num_train_steps - 1 = {c.run.num_train_steps} - 1: the rest is the second "
        "stage.",
    )
    require(
        not c.training.two_stage_copy or c.generator_encoder == c.encoder,
        "--training=two_stage starts the discriminator from the generator's weights, "
        "so both need one size, tables included. Add --generator_hidden_size=1 "
        "--generator_layers=1 --sharing=nes (or gdes), or --notwo_stage_copy to start "
        "it from random weights (which failed in the paper).",
    )


def _validate_adversarial(c: PretrainConfig) -> None:
    name = c.training.training
    require(
        c.objective.objective == "electra",
        f"--training={name} rewards the generator with the discriminator's loss for "
        "each token, as the paper does: use it with --objective=electra.",
    )
    require(
        not c.samples_apart,
        f"--training={name} needs samples of the forward pass that has the gradient: "
        "drop --nosampling_dropout, or set --dropout=0 and --attention_dropout=0.",
    )
    require(
        c.masking.mask_select != "with_replacement",
        f"--training={name} rewards each sample at its own position, and "
        "--mask_select=with_replacement repeats positions: use another rule.",
    )
    require(
        name != "gumbel" or c.objective.discriminator_weight > 0,
        "--training=gumbel trains the generator by the discriminator's gradient: "
        "--discriminator_weight must be positive.",
    )


def _never_peaks(c: PretrainConfig) -> bool:
    """Returns True if the warm-up is at least as long as the shortest phase."""
    phases = (c.generator_steps, c.run.num_train_steps - c.generator_steps)
    return c.optimizer.warmup_steps >= min(filter(None, phases))

"""Choices of pretraining flags, and validation of combinations beyond ``field``."""

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
    "two_tower": "reads unmasked text from both sides (ELECTRA-TT; always in electric)",
    "unigram": "token frequencies of the training text; nothing is trained",
    "uniform": "equal probability for every token; nothing is trained",
}
SHARINGS = {
    "tied": "all embedding tables",
    "token": "the word table",
    "untied": "no table (the generator's tables have the generator's width)",
    "nes": "no table (the generator's tables have the full width)",
    "gdes": "tables without the discriminator's gradient, plus its deltas",
    "all": "everything: one encoder is both",
}
TRAININGS = {
    "joint": "both by their own loss",
    "two_stage": "the generator first, then the discriminator",
    "reinforce": "the generator is rewarded for fooling the discriminator",
    "gumbel": "the generator follows the discriminator's gradient, relaxed",
}
# Sharing that lets the discriminator train without a change of the generator.
SEPARATE = ("untied", "nes", "gdes")
# Algorithms that train the generator against the discriminator.
ADVERSARIAL = ("reinforce", "gumbel")


def validate(config: PretrainConfig) -> None:
    """Raises UserError for a combination of flags that cannot be trained."""
    steps, generator = config.run.num_train_steps, config.generator
    sizes = (generator.generator_hidden_size, generator.generator_layers)
    training, name = config.training, config.training.training
    require(
        config.data.max_seq_length <= config.encoder.max_positions,
        f"--max_seq_length={config.data.max_seq_length} exceeds "
        f"--max_positions={config.encoder.max_positions}.",
    )
    require(
        config.run.distribution != "multi_worker" or bool(config.data.records),
        "--distribution=multi_worker needs --records that every worker can read: "
        "build them first with `electra-tf records`.",
    )
    if config.has_generator_network and generator.sharing == "all":
        require(
            config.generator_kind != "two_tower" and name not in ADVERSARIAL,
            "--sharing=all has one encoder for both networks: it excludes two towers "
            "and adversarial training.",
        )
        require(
            sizes == (1, 1),
            f"--sharing=all with --generator_hidden_size={sizes[0]:g} and "
            f"--generator_layers={sizes[1]:g}: set both to 1.",
        )
    if config.has_generator_network and config.generator_is_frozen:
        require(
            generator.sharing in SEPARATE,
            "A frozen generator (two_stage, --freeze_generator) cannot share variables "
            "that are trained. Add --sharing=nes, untied or gdes.",
        )
        require(
            bool(training.generator_init_from or config.run.init_from)
            or not training.freeze_generator,
            "--freeze_generator without weights would sample noise: add "
            "--generator_init_from, the model_dir of a finished run.",
        )
    if name == "two_stage":
        require(
            0 < config.generator_steps < steps,
            f"--generator_steps={config.generator_steps} must be between 1 and "
            f"num_train_steps - 1 = {steps - 1}.",
        )
        require(
            not training.two_stage_copy or config.generator_encoder == config.encoder,
            "--training=two_stage copies the generator to the discriminator, so both "
            "need one size. Add --generator_hidden_size=1 --generator_layers=1 "
            "--sharing=nes (or gdes), or --notwo_stage_copy (failed in the paper).",
        )
    require(
        config.optimizer.lr_schedule != "sequential" or not _never_peaks(config),
        f"--warmup_steps={config.optimizer.warmup_steps} leaves no step for the decay "
        "of --lr_schedule=sequential: shorten it, or use --lr_schedule=product.",
    )
    if name in ADVERSARIAL:
        require(
            config.objective.objective == "electra",
            f"--training={name} rewards the generator with the discriminator's loss, "
            "as the paper does: use it with --objective=electra.",
        )
        require(
            not config.samples_apart,
            f"--training={name} needs samples of the forward pass with the gradient: "
            "drop --nosampling_dropout, or set --dropout=0 and --attention_dropout=0.",
        )
        require(
            config.masking.mask_select != "with_replacement",
            f"--training={name} rewards each sample at its own position: leave out "
            "--mask_select=with_replacement.",
        )
        require(
            name != "gumbel" or config.objective.discriminator_weight > 0,
            "--training=gumbel: --discriminator_weight must be positive.",
        )


def warnings(config: PretrainConfig) -> list[str]:
    """Returns warnings about allowed flags that are probably a mistake."""
    messages, generator, training = [], config.generator, config.training
    optimizer, hidden_size = config.optimizer, config.encoder.hidden_size
    rate, warmup = optimizer.learning_rate, optimizer.warmup_steps
    if hidden_size >= 768 and rate > 3e-4:
        messages.append(
            f"learning_rate {rate:g} with hidden_size {hidden_size}: base and large "
            "train at 2e-4 in the paper, and 5e-4 (ELECTRA-Small's) is known to "
            "diverge. Use --learning_rate=2e-4."
        )
    if _never_peaks(config):
        messages.append(
            f"warmup_steps {warmup} is not below the steps of a phase (num_train_steps "
            f"is {config.run.num_train_steps}): the rate never peaks. Lower "
            "--warmup_steps; the paper has 1 % to 2.5 % of the steps."
        )
    elif not warmup and not optimizer.adam_bias_correction:
        messages.append(
            f"learning_rate {rate:g} without warm-up and bias correction: the first "
            "updates are three to six times too long. Set --warmup_steps, or "
            "--adam_bias_correction."
        )
    start, steps = training.adversarial_start, config.run.num_train_steps
    if start >= steps:
        messages.append(
            f"adversarial_start {start} leaves no adversarial update "
            f"(num_train_steps is {steps}). Lower --adversarial_start."
        )
    width, depth = generator.generator_hidden_size, generator.generator_layers
    copied = training.training == "two_stage" and training.two_stage_copy
    is_one = generator.sharing == "all" or copied
    if min(width, depth) > 0.5 and config.has_generator_network and not is_one:
        messages.append(
            f"the generator is more than half the discriminator ({width:.3g} of the "
            f"width and {depth:.3g} of the layers): in the paper 1/4 to 1/2 is best, "
            "and an equal one loses 3 GLUE points (Figure 3). Lower "
            "--generator_hidden_size or --generator_layers."
        )
    return messages


def _never_peaks(c: PretrainConfig) -> bool:
    """Returns True if the warm-up is at least as long as the shortest phase."""
    phases = (c.generator_steps, c.run.num_train_steps - c.generator_steps)
    return c.optimizer.warmup_steps >= min(filter(None, phases))

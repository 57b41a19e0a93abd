"""What a pretraining run is: frozen dataclasses, standard library only.

Every field is one command-line flag of the same name (``flags.py``); its help text
is the field's ``help``. Groups check what they can know alone; ``PretrainConfig``
checks what needs several of them. The numbers of the paper's Table 6 stand in
``configs/*.cfg``, not here: the defaults below are those that are common to all sizes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from electra_tf.config_checks import check_training


def _field(default: Any, help_text: str, **metadata: Any) -> Any:
    return dataclasses.field(default=default, metadata={"help": help_text, **metadata})


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where, how long, on what."""

    model_dir: str = _field(
        "runs/electra", "Folder for everything the run leaves.", resumable=True
    )
    num_train_steps: int = _field(1_000_000, "Optimizer updates in total.")
    train_batch_size: int = _field(
        128, "Rows per update, over all replicas and micro-batches."
    )
    gradient_accumulation_steps: int = _field(
        1, "Micro-batches per update: the memory of one, the result of all."
    )
    eval_batch_size: int = _field(128, "Rows per evaluation batch.", resumable=True)
    eval_steps: int = _field(
        10_000,
        "Evaluate on the held-out text every so many steps; 0: only at the end.",
        resumable=True,
    )
    max_eval_batches: int = _field(
        100, "Batches of held-out text per evaluation; 0: all.", resumable=True
    )
    save_checkpoint_steps: int = _field(
        1000, "Steps between checkpoints.", resumable=True
    )
    keep_checkpoints: int = _field(
        5, "Checkpoints to keep; older ones are deleted.", resumable=True
    )
    log_steps: int = _field(
        100, "Steps between log lines and logged points.", resumable=True
    )
    seed: int = _field(0, "Of weights, data order, masks, samples and dropout.")
    init_from: str | None = _field(
        None,
        "Start from the weights (not the optimizer) of this folder: a model_dir or "
        "one of its checkpoints.",
        resumable=True,
    )
    distribution: Literal["none", "mirrored", "multi_worker", "tpu"] = _field(
        "none",
        "tf.distribute strategy: none (one device), mirrored (all GPUs of this "
        "machine), multi_worker (TF_CONFIG), tpu.",
        resumable=True,
    )
    tpu: str = _field("", "TPU name or address; empty: the local one.", resumable=True)
    mixed_precision: Literal["none", "bfloat16", "float16"] = _field(
        "none", "Compute dtype; weights stay float32."
    )
    jit_compile: bool = _field(False, "Compile the whole training step with XLA.")
    steps_per_execution: int = _field(
        1,
        "Steps per call into the runtime; logs and checkpoints come at multiples.",
        resumable=True,
    )
    overwrite: bool = _field(
        False,
        "Start anew although model_dir holds a run: deletes that run.",
        resumable=True,
    )
    dry_run: bool = _field(
        False,
        "Build everything, print sizes, FLOPs, memory and data statistics, stop.",
        resumable=True,
    )

    def __post_init__(self):
        for name in (
            "num_train_steps",
            "train_batch_size",
            "gradient_accumulation_steps",
            "eval_batch_size",
            "save_checkpoint_steps",
            "keep_checkpoints",
            "log_steps",
            "steps_per_execution",
        ):
            value = getattr(self, name)
            _require(value >= 1, f"--{name} must be at least 1, got {value}.")
        for name in ("eval_steps", "max_eval_batches", "seed"):
            value = getattr(self, name)
            _require(value >= 0, f"--{name} must not be negative, got {value}.")
        _require(
            self.train_batch_size % self.gradient_accumulation_steps == 0,
            f"--train_batch_size={self.train_batch_size} is not divisible by "
            f"--gradient_accumulation_steps={self.gradient_accumulation_steps}.",
        )
        _require(
            not (
                self.jit_compile and self.distribution in ("mirrored", "multi_worker")
            ),
            "--jit_compile cannot be combined with "
            f"--distribution={self.distribution}: TensorFlow cannot compile a step "
            "that spans devices. Drop one of the two.",
        )
        _require(
            self.steps_per_execution == 1
            or self.distribution not in ("mirrored", "multi_worker"),
            f"--steps_per_execution={self.steps_per_execution} cannot be combined with "
            f"--distribution={self.distribution}: Keras 3.15 cannot loop over steps "
            "that span devices. Use 1.",
        )
        _require(
            not (self.mixed_precision == "float16" and self.distribution != "none"),
            "--mixed_precision=float16 works on one device only (Keras's loss "
            "scaling looks at one replica's gradients): use bfloat16.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Text, vocabulary, records."""

    corpus: tuple[str, ...] = _field(
        ("installed",),
        "Text: files, folders, globs (.txt, .gz), tfds:NAME, or 'installed', the "
        "documentation of the Python packages on this machine.",
        resumable=True,
    )
    tfds_data_dir: str | None = _field(
        None, "Where TensorFlow Datasets looks for prepared data.", resumable=True
    )
    vocab_file: str | None = _field(
        None,
        "WordPiece vocabulary, one token per line; default: trained on the corpus.",
        resumable=True,
    )
    vocab_size: int = _field(30522, "Entries of a vocabulary that is trained.")
    records: tuple[str, ...] = _field(
        (),
        "TFRecord files or globs made earlier; the corpus is then not read.",
        resumable=True,
    )
    eval_records: tuple[str, ...] = _field(
        (),
        "Held-out TFRecord files; default: eval-* beside the training records.",
        resumable=True,
    )
    data_dir: str | None = _field(
        None,
        "Where vocabulary and records are kept; default: model_dir/data.",
        resumable=True,
    )
    lower_case: bool = _field(True, "Lower-case the text.")
    strip_accents: bool = _field(True, "Strip accents (only with lower_case).")
    blank_lines_separate: bool = _field(True, "A blank line ends a document.")
    segmenting: Literal["carry", "original"] = _field(
        "carry",
        "How documents become examples: carry overflow on to the next one, or discard "
        "it as the original code.",
    )
    max_seq_length: int = _field(128, "Tokens per example.")
    eval_fraction: float = _field(0.01, "Share of documents held out.")
    num_processes: int = _field(
        0, "Processes that build records; 0: one per core.", resumable=True
    )
    shuffle_buffer: int = _field(100_000, "Records shuffled together.")

    def __post_init__(self):
        _require(
            self.max_seq_length >= 8,
            f"--max_seq_length must be at least 8, got {self.max_seq_length}.",
        )
        _require(
            0 < self.eval_fraction < 0.5,
            f"--eval_fraction must be in (0, 0.5), got {self.eval_fraction}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Which positions, shown how."""

    masking: Literal["static", "dynamic"] = _field(
        "static",
        "static: a record is masked in the same mask_variants ways, pass after pass; "
        "dynamic: anew in every pass.",
    )
    mask_variants: int = _field(10, "Ways to mask a record under static masking.")
    mask_rate: float = _field(0.15, "Share of a row's tokens that is chosen.")
    mask_rule: Literal["electra", "bert"] = _field(
        "electra",
        "electra: 85 % [MASK], 15 % kept; bert: 80 % [MASK], 10 % random, 10 % kept.",
    )
    mask_select: Literal["tokens", "whole_words", "with_replacement"] = _field(
        "tokens",
        "Exactly the asked number of tokens, whole words, or the original's draws "
        "with replacement.",
    )
    max_predictions_per_seq: int | None = _field(
        None, "Slots per row; default int((mask_rate + 0.005) * max_seq_length)."
    )

    def __post_init__(self):
        _require(
            0 < self.mask_rate <= 1,
            f"--mask_rate must be in (0, 1], got {self.mask_rate}.",
        )
        _require(
            self.mask_variants >= 1,
            f"--mask_variants must be at least 1, got {self.mask_variants}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The discriminator (or BERT's) encoder; defaults are ELECTRA-Small's."""

    num_layers: int = _field(12, "Transformer layers.")
    hidden_size: int = _field(256, "Width of the hidden states.")
    num_heads: int = _field(4, "Attention heads.")
    intermediate_size: int = _field(1024, "Width of the feed-forward layer.")
    embedding_size: int = _field(128, "Width of the embedding tables.")
    max_positions: int = _field(512, "Rows of the position table.")
    dropout: float = _field(0.1, "Of embeddings, attention output, feed-forward.")
    attention_dropout: float = _field(0.1, "Of attention probabilities.")

    def __post_init__(self):
        _require(
            self.hidden_size % self.num_heads == 0,
            f"--hidden_size={self.hidden_size} is not divisible by "
            f"--num_heads={self.num_heads}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """The generator, as fractions of the discriminator, and how it is sampled from."""

    generator: Literal["masked_lm", "unigram", "uniform"] = _field(
        "masked_lm",
        "masked_lm: a network; unigram: token frequencies of the training text; "
        "uniform: every token alike. The last two train nothing.",
    )
    sharing: Literal["tied", "untied"] = _field(
        "tied",
        "tied: one set of embedding tables for both networks; untied: one for each.",
    )
    generator_hidden_size: float = _field(
        0.25, "Width as a fraction: hidden, feed-forward and heads."
    )
    generator_layers: float = _field(1.0, "Depth as a fraction.")
    temperature: float = _field(1.0, "Divides the logits that are sampled from.")
    final_temperature: float | None = _field(
        None, "Where the temperature goes; default: it stays."
    )
    temperature_steps: int | None = _field(
        None,
        "linear: updates until final_temperature; exponential: the time constant, "
        "updates until 37 % of the way are left.",
    )
    temperature_shape: Literal["linear", "exponential"] = _field(
        "linear", "How the temperature changes; exponential as in Fast-ELECTRA."
    )
    disallow_correct: bool = _field(False, "Never sample the original token.")
    sampling_dropout: bool = _field(
        True,
        "Sample with the generator's dropout on, as the original; off costs one more "
        "forward pass of a generator that is trained.",
    )

    def __post_init__(self):
        for name in ("generator_hidden_size", "generator_layers"):
            value = getattr(self, name)
            _require(0 < value <= 1, f"--{name} must be in (0, 1], got {value}.")
        for name in ("temperature", "final_temperature"):
            value = getattr(self, name)
            _require(
                value is None or value > 0, f"--{name} must be positive, got {value}."
            )
        _require(
            (self.final_temperature is None) == (self.temperature_steps is None),
            f"--final_temperature={self.final_temperature} and --temperature_steps="
            f"{self.temperature_steps}: a schedule needs both, a constant temperature "
            "neither.",
        )
        _require(
            self.temperature_steps is None or self.temperature_steps >= 1,
            f"--temperature_steps must be at least 1, got {self.temperature_steps}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What is trained."""

    objective: Literal["electra", "mlm"] = _field(
        "electra", "electra: replaced token detection; mlm: BERT's masked LM."
    )
    generator_weight: float = _field(1.0, "Weight of the generator's loss.")
    discriminator_weight: float = _field(50.0, "Weight of the discriminator's loss.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How the two networks are trained: together, in turn, or against each other."""

    training: Literal["joint", "two_stage", "reinforce", "gumbel"] = _field(
        "joint",
        "joint: both by their own loss; two_stage: the generator first, then the "
        "discriminator; reinforce, gumbel: the generator is trained to fool the "
        "discriminator.",
    )
    generator_steps: int | None = _field(
        None, "two_stage: updates of the first stage; default: half of all."
    )
    two_stage_copy: bool = _field(
        True, "two_stage: start the discriminator from the generator's weights."
    )
    adversarial_weight: float = _field(
        1.0,
        "reinforce, gumbel: share of the adversarial term in the generator's loss; the "
        "rest is maximum likelihood.",
    )
    adversarial_start: int = _field(
        0, "reinforce, gumbel: updates of maximum likelihood only, at first."
    )
    adversarial_steps: int = _field(
        0, "reinforce, gumbel: updates from there until adversarial_weight; 0: at once."
    )
    gumbel_temperature: float = _field(
        1.0, "gumbel: of the softmax that gradients take for the samples."
    )
    freeze_generator: bool = _field(
        False, "Sample from the generator without training it."
    )
    generator_init_from: str | None = _field(
        None,
        "Start the generator from this: the model_dir of a finished run, of either "
        "objective, or its generator.keras.",
        resumable=True,
    )

    def __post_init__(self):
        _require(
            0 <= self.adversarial_weight <= 1,
            f"--adversarial_weight must be in [0, 1], got {self.adversarial_weight}.",
        )
        for name in ("adversarial_start", "adversarial_steps"):
            value = getattr(self, name)
            _require(value >= 0, f"--{name} must not be negative, got {value}.")
        _require(
            self.gumbel_temperature > 0,
            f"--gumbel_temperature must be positive, got {self.gumbel_temperature}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam as the original code has it."""

    learning_rate: float = _field(5e-4, "Peak, before the product with the decay.")
    warmup_steps: int = _field(10_000, "Steps of linear warm-up.")
    lr_decay_power: float = _field(1.0, "Power of the polynomial decay; 1: linear.")
    lr_schedule: Literal["product", "sequential"] = _field(
        "product",
        "product: warm-up times decay, as the original code; sequential: decay "
        "begins after the warm-up.",
    )
    weight_decay: float = _field(0.01, "Decoupled; not on biases and LayerNorm.")
    adam_beta_1: float = _field(0.9, "Decay of the first moment.")
    adam_beta_2: float = _field(0.999, "Decay of the second moment.")
    adam_epsilon: float = _field(1e-6, "Added outside the root.")
    adam_bias_correction: bool = _field(False, "Textbook Adam; the original has none.")
    clip_norm: float = _field(1.0, "Joint norm that gradients are clipped to.")
    generator_learning_rate: float | None = _field(
        None,
        "Peak rate of the generator's own variables; default: learning_rate. What both "
        "networks share goes with the discriminator.",
    )
    generator_clip_norm: float | None = _field(
        None,
        "Clip the generator's own gradient to this norm, apart from the rest; default: "
        "one joint norm.",
    )
    clipping: Literal["after_reduction", "per_replica"] = _field(
        "after_reduction",
        "Clip the summed gradient once, or each replica's as the original on TPU.",
    )

    def __post_init__(self):
        _require(
            self.learning_rate > 0,
            f"--learning_rate must be positive, got {self.learning_rate}.",
        )
        _require(
            self.warmup_steps >= 0,
            f"--warmup_steps must not be negative, got {self.warmup_steps}.",
        )
        for name in ("generator_learning_rate", "generator_clip_norm"):
            value = getattr(self, name)
            _require(
                value is None or value > 0, f"--{name} must be positive, got {value}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """One pretraining run."""

    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    encoder: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    generator: GeneratorConfig = dataclasses.field(default_factory=GeneratorConfig)
    objective: ObjectiveConfig = dataclasses.field(default_factory=ObjectiveConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)

    def __post_init__(self):
        _require(
            self.data.max_seq_length <= self.encoder.max_positions,
            f"--max_seq_length={self.data.max_seq_length} exceeds "
            f"--max_positions={self.encoder.max_positions}.",
        )
        _require(
            self.run.distribution != "multi_worker" or bool(self.data.records),
            "--distribution=multi_worker needs --records that every worker can read: "
            "build them first with `python -m electra_tf.data.build_records`.",
        )
        check_training(self)

    @property
    def generator_is_frozen(self) -> bool:
        """Whether the generator stays as it is while the discriminator learns."""
        training = self.training
        return training.freeze_generator or training.training == "two_stage"

    @property
    def generator_steps(self) -> int:
        """Updates of the generator alone, before the discriminator's."""
        if self.training.training != "two_stage":
            return 0
        return self.training.generator_steps or self.run.num_train_steps // 2

    @property
    def generator_encoder(self) -> EncoderConfig:
        """Sizes of the generator: heads of the discriminator's size, at least one.

        The original's formula: hidden = round(hidden * fraction), feed-forward four
        times that (as the discriminator's ratio), heads = max(1, hidden // head size).
        """
        encoder, fraction = self.encoder, self.generator.generator_hidden_size
        hidden_size = round(encoder.hidden_size * fraction)
        head_size = encoder.hidden_size // encoder.num_heads
        return dataclasses.replace(
            encoder,
            num_layers=max(
                1, round(encoder.num_layers * self.generator.generator_layers)
            ),
            hidden_size=hidden_size,
            num_heads=max(1, hidden_size // head_size),
            intermediate_size=round(
                encoder.intermediate_size * hidden_size / encoder.hidden_size
            ),
        )

    def warnings(self) -> list[str]:
        """Choices that are allowed and probably not meant."""
        found = []
        if self.encoder.hidden_size >= 768 and self.optimizer.learning_rate > 3e-4:
            found.append(
                f"learning_rate {self.optimizer.learning_rate:g} with hidden_size "
                f"{self.encoder.hidden_size}: base and large train at 2e-4 in the "
                "paper, and 5e-4 (ELECTRA-Small's) is known to diverge. Start from "
                "configs/base.cfg or configs/large.cfg."
            )
        if self.optimizer.warmup_steps >= self.run.num_train_steps:
            found.append(
                f"warmup_steps {self.optimizer.warmup_steps} is not below "
                f"num_train_steps {self.run.num_train_steps}: the rate never peaks."
            )
        if (
            self.objective.objective == "electra"
            and self.generator.generator == "masked_lm"
            and self.training.training != "two_stage"
            and self.generator.generator_hidden_size > 0.5
            and self.generator.generator_layers > 0.5
        ):
            found.append(
                "The generator is more than half the discriminator: the paper found "
                "1/4 to 1/2 best, a stronger one makes the task too hard (Figure 3)."
            )
        return found


def fields(config_class: type = PretrainConfig):
    """Yields (group name, dataclass field) for every leaf, in order of definition."""
    for group in dataclasses.fields(config_class):
        for leaf in dataclasses.fields(group.default_factory):
            yield group.name, leaf


def to_flat(config: PretrainConfig) -> dict[str, Any]:
    """All fields as one flat dict, by flag name."""
    return {
        leaf.name: getattr(getattr(config, group), leaf.name)
        for group, leaf in fields(type(config))
    }


def from_flat(values: dict[str, Any], config_class: type = PretrainConfig):
    """The inverse of ``to_flat``; missing names take their defaults."""
    groups: dict[str, dict[str, Any]] = {}
    for group, leaf in fields(config_class):
        if leaf.name in values:
            value = values[leaf.name]
            value = tuple(value) if isinstance(value, list) else value
            groups.setdefault(group, {})[leaf.name] = value
    built = {
        group.name: group.default_factory(**groups.get(group.name, {}))
        for group in dataclasses.fields(config_class)
    }
    return config_class(**built)


def resumable_fields(config_class: type = PretrainConfig) -> frozenset[str]:
    """Fields that may differ between a run and its resumption."""
    return frozenset(
        leaf.name for _, leaf in fields(config_class) if leaf.metadata.get("resumable")
    )

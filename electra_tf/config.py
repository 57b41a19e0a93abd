"""What a pretraining run is: frozen dataclasses, standard library only.

Every field is one command-line flag of the same name (``flags.py``); its help text
is the field's ``help``. Groups check what they can know alone; ``PretrainConfig``
checks what needs several of them. The numbers of the paper's Table 6 stand in
``configs/*.cfg``, not here: the defaults below are those that are common to all sizes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal


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
        "Start from the weights (not the optimizer) of this folder, and with its "
        "vocabulary: a model_dir, one of its checkpoints, or what electra_tf.convert "
        "has written.",
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
    final_mask_rate: float | None = _field(
        None, "Rate that mask_rate goes to, linearly; default: it stays."
    )
    mask_rate_steps: int | None = _field(
        None, "Steps until final_mask_rate is reached; default: num_train_steps."
    )
    mask_select: Literal[
        "tokens", "whole_words", "spans", "rare_tokens", "with_replacement"
    ] = _field(
        "tokens",
        "Exactly the asked number of tokens, whole words, spans of words (SpanBERT), "
        "rare tokens more often, or the original's draws with replacement.",
    )
    mask_rarity_power: float = _field(
        0.5, "rare_tokens: a token that occurs n times weighs n to the minus this."
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
            self.final_mask_rate is None or 0 < self.final_mask_rate <= 1,
            f"--final_mask_rate must be in (0, 1], got {self.final_mask_rate}.",
        )
        _require(
            self.mask_rate_steps is None
            or (self.mask_rate_steps >= 1 and self.final_mask_rate is not None),
            f"--mask_rate_steps={self.mask_rate_steps} must be at least 1 and needs "
            "--final_mask_rate, the rate after these steps.",
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
    """The generator, as fractions of the discriminator."""

    generator_hidden_size: float = _field(
        0.25, "Width as a fraction: hidden, feed-forward and heads."
    )
    generator_layers: float = _field(1.0, "Depth as a fraction.")
    generator: Literal["masked_lm", "two_tower"] = _field(
        "masked_lm",
        "masked_lm: reads the masked text; two_tower: reads the unmasked text from the "
        "left and from the right (ELECTRA-TT; always so in electric).",
    )
    temperature: float = _field(1.0, "Divides the logits that are sampled from.")
    disallow_correct: bool = _field(False, "Never sample the original token.")

    def __post_init__(self):
        for name in ("generator_hidden_size", "generator_layers"):
            value = getattr(self, name)
            _require(0 < value <= 1, f"--{name} must be in (0, 1], got {value}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What is trained."""

    objective: Literal["electra", "electric", "mlm"] = _field(
        "electra",
        "electra: replaced token detection; electric: energies against the noise of a "
        "two-tower generator; mlm: BERT's masked LM.",
    )
    generator_weight: float = _field(1.0, "Weight of the generator's loss.")
    discriminator_weight: float = _field(50.0, "Weight of the discriminator's loss.")


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """One pretraining run."""

    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    encoder: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    generator: GeneratorConfig = dataclasses.field(default_factory=GeneratorConfig)
    objective: ObjectiveConfig = dataclasses.field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)

    def __post_init__(self):
        _require(
            self.data.max_seq_length <= self.encoder.max_positions,
            f"--max_seq_length={self.data.max_seq_length} exceeds "
            f"--max_positions={self.encoder.max_positions}.",
        )
        _require(
            self.objective.objective != "electric"
            or (
                self.generator.temperature == 1 and not self.generator.disallow_correct
            ),
            "--objective=electric compares tokens with the distribution the noise is "
            "drawn from: leave --temperature=1 and --nodisallow_correct.",
        )
        _require(
            self.run.distribution != "multi_worker" or bool(self.data.records),
            "--distribution=multi_worker needs --records that every worker can read: "
            "build them first with `python -m electra_tf.data.build_records`.",
        )

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

    @property
    def generator_towers(self) -> int:
        """Encoders in the generator: two in the two-tower one."""
        names = (self.objective.objective, self.generator.generator)
        return 2 if "electric" in names or "two_tower" in names else 1

    @property
    def last_mask_rate(self) -> float:
        """The mask rate at the end of its schedule, and of every evaluation."""
        final = self.masking.final_mask_rate
        return self.masking.mask_rate if final is None else final

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

"""What a pretraining run is: frozen dataclasses, standard library only.

Every field is one command-line flag of the same name (``flags.py``); its help text
is the field's ``help``. Groups check what they can know alone; ``PretrainConfig``
checks what needs several of them. The numbers of the paper's Table 6 stand in
``configs/*.cfg``, not here: the defaults below are those that are common to all sizes.
``config_system.py`` has the groups that say which system is trained.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from electra_tf import config_checks
from electra_tf.config_fields import (
    NOT_NEGATIVE,
    SEED,
    Allowed,
    at_least,
    check_numbers,
)
from electra_tf.config_fields import field as _field
from electra_tf.config_fields import require as _require
from electra_tf.config_system import (
    EncoderConfig,
    GeneratorConfig,
    MaskingConfig,
    ObjectiveConfig,
    OptimizerConfig,
    TrainingConfig,
)

__all__ = [
    "LEFT_ROWS",
    "DataConfig",
    "EncoderConfig",
    "GeneratorConfig",
    "MaskingConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "PretrainConfig",
    "RunConfig",
    "TrainingConfig",
    "fields",
    "from_flat",
    "resumable_fields",
    "to_flat",
]

# Share of rows that stay uncorrupted beside a sentence-level loss (the paper's).
LEFT_ROWS = 0.2
_HELD_OUT = Allowed("be in (0, 0.5)", lambda value: 0 < value < 0.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where, how long, on what."""

    model_dir: str = _field(
        "runs/electra", "Folder for everything the run leaves.", resumable=True
    )
    num_train_steps: int = _field(
        1_000_000, "Optimizer updates in total.", allowed=at_least(1)
    )
    train_batch_size: int = _field(
        128,
        "Rows per update, over all replicas and micro-batches.",
        allowed=at_least(1),
    )
    gradient_accumulation_steps: int = _field(
        1,
        "Micro-batches per update: the memory of one, the result of all.",
        allowed=at_least(1),
    )
    eval_batch_size: int = _field(
        128, "Rows per evaluation batch.", resumable=True, allowed=at_least(1)
    )
    eval_steps: int = _field(
        10_000,
        "Evaluate on the held-out text every so many steps; 0: only at the end.",
        resumable=True,
        allowed=NOT_NEGATIVE,
    )
    max_eval_batches: int = _field(
        100,
        "Batches of held-out text per evaluation; 0: all.",
        resumable=True,
        allowed=NOT_NEGATIVE,
    )
    save_checkpoint_steps: int = _field(
        1000, "Steps between checkpoints.", resumable=True, allowed=at_least(1)
    )
    keep_checkpoints: int = _field(
        5,
        "Checkpoints to keep; older ones are deleted.",
        resumable=True,
        allowed=at_least(1),
    )
    log_steps: int = _field(
        100,
        "Steps between log lines and logged points.",
        resumable=True,
        allowed=at_least(1),
    )
    seed: int = _field(
        0, "Of weights, data order, masks, samples and dropout.", allowed=SEED
    )
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
        "Steps per call into the runtime; logs and checkpoints come at multiples, and "
        "at the end.",
        resumable=True,
        allowed=at_least(1),
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
        check_numbers(self)
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
    vocab_size: int = _field(
        30522, "Entries of a vocabulary that is trained.", allowed=at_least(1)
    )
    records: tuple[str, ...] = _field(
        (),
        "TFRecord files, globs or folders made earlier; the corpus is then not read.",
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
    max_seq_length: int = _field(128, "Tokens per example.", allowed=at_least(8))
    eval_fraction: float = _field(
        0.01, "Share of documents held out.", allowed=_HELD_OUT
    )
    num_processes: int = _field(
        0,
        "Processes that build records; 0: one per core.",
        resumable=True,
        allowed=NOT_NEGATIVE,
    )
    shuffle_buffer: int = _field(
        100_000, "Records shuffled together.", allowed=at_least(1)
    )

    def __post_init__(self):
        check_numbers(self)


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
        config_checks.check(self)

    @property
    def generator_kind(self) -> str:
        """As ``--generator``; Electric always has two towers."""
        if self.objective.objective == "electric":
            return "two_tower"
        return self.generator.generator

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
        given = self.training.generator_steps
        return self.run.num_train_steps // 2 if given is None else given

    @property
    def generator_encoder(self) -> EncoderConfig:
        """Sizes and dropout of the generator's encoder.

        The original's formula: hidden = round(hidden * fraction), feed-forward four
        times that (as the discriminator's ratio), heads = max(1, hidden // head size).
        Untied tables have its hidden size. A generator that is never trained and
        sampled from without dropout has none.

        Raises:
            ValueError: the fraction gives no generator.
        """
        encoder, fraction = self.encoder, self.generator.generator_hidden_size
        hidden_size = round(encoder.hidden_size * fraction)
        head_size = encoder.hidden_size // encoder.num_heads
        changed = {
            "num_layers": max(
                1, round(encoder.num_layers * self.generator.generator_layers)
            ),
            "hidden_size": hidden_size,
            "num_heads": max(1, hidden_size // head_size),
            "intermediate_size": round(
                encoder.intermediate_size * hidden_size / encoder.hidden_size
            ),
        }
        if self.generator.sharing == "untied":
            changed["embedding_size"] = hidden_size
        if self.training.freeze_generator and not self.generator.sampling_dropout:
            changed |= {"dropout": 0.0, "attention_dropout": 0.0}
        try:
            return dataclasses.replace(encoder, **changed)
        except ValueError as error:
            raise ValueError(
                f"--generator_hidden_size={fraction:g} makes a generator of width "
                f"{hidden_size} with {changed['num_heads']} heads, which cannot be: "
                f"{error} Choose another fraction."
            ) from error

    @property
    def samples_apart(self) -> bool:
        """Whether the samples take a forward pass of the generator of their own.

        Without any dropout the same pass serves both.
        """
        generator = self.generator_encoder
        return not self.generator.sampling_dropout and bool(
            generator.dropout or generator.attention_dropout
        )

    @property
    def last_mask_rate(self) -> float:
        """The mask rate at the end of its schedule, and of every evaluation."""
        final = self.masking.final_mask_rate
        return self.masking.mask_rate if final is None else final

    @property
    def predictions_per_seq(self) -> int:
        """Slots per row for masked positions: the original's number by default."""
        highest = max(self.masking.mask_rate, self.last_mask_rate)
        given = self.masking.max_predictions_per_seq
        default = max(1, int((highest + 0.005) * self.data.max_seq_length))
        return default if given is None else given

    @property
    def sampled_rate(self) -> float:
        """Share of tokens that samples stand in for, at the lowest mask rate."""
        left = LEFT_ROWS if self.objective.sentence_weight else 0.0
        return min(self.masking.mask_rate, self.last_mask_rate) * (1 - left)

    def warnings(self) -> list[str]:
        """Choices that are allowed and probably not meant."""
        return config_checks.warnings(self)


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

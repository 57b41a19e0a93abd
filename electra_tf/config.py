"""What a pretraining run is: frozen dataclasses, standard library only.

Every field is one command-line flag of the same name (``flags.py``); its help text
is the field's ``help``. Groups check what they can know alone; ``PretrainConfig``
checks what needs several of them. The numbers of the paper's Table 6 stand in
``configs/*.cfg``, not here: the defaults below are those that are common to all sizes.
``config_run.py`` has the groups of the run and its data, ``config_system.py`` those
that say which system is trained.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from electra_tf import config_checks
from electra_tf.config_fields import require
from electra_tf.config_run import DataConfig, RunConfig
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
        require(
            self.data.max_seq_length <= self.encoder.max_positions,
            f"--max_seq_length={self.data.max_seq_length} exceeds "
            f"--max_positions={self.encoder.max_positions}.",
        )
        require(
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

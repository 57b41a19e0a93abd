"""The groups of a run's config that say which system is trained, and how.

Frozen dataclasses of flags, as in ``config.py``, which puts them together. Groups check
what they can know alone, ``config_checks.py`` what needs several of them.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from electra_tf.config_fields import (
    ANY,
    BELOW_1,
    CLIP,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    WEIGHT,
    at_least,
    check_numbers,
    field,
    require,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Which positions, shown how."""

    masking: Literal["static", "dynamic"] = field(
        "static",
        "static: a record is masked in the same mask_variants ways, pass after pass; "
        "dynamic: anew in every pass.",
    )
    mask_variants: int = field(
        10, "Ways to mask a record under static masking.", allowed=at_least(1)
    )
    mask_rate: float = field(
        0.15, "Share of a row's tokens that is chosen.", allowed=SHARE
    )
    mask_rule: Literal["electra", "bert"] = field(
        "electra",
        "electra: 85 % [MASK], 15 % kept; bert: 80 % [MASK], 10 % random, 10 % kept.",
    )
    final_mask_rate: float | None = field(
        None, "Rate that mask_rate goes to, linearly; default: it stays.", allowed=SHARE
    )
    mask_rate_steps: int | None = field(
        None,
        "Steps until final_mask_rate is reached; default: num_train_steps.",
        allowed=at_least(1),
    )
    mask_select: Literal[
        "tokens", "whole_words", "spans", "rare_tokens", "with_replacement"
    ] = field(
        "tokens",
        "Exactly the asked number of tokens, whole words, spans of words (SpanBERT), "
        "rare tokens more often, or the original's draws with replacement.",
    )
    mask_rarity_power: float = field(
        0.5,
        "rare_tokens: a token that occurs n times weighs n to the minus this.",
        allowed=ANY,
    )
    max_predictions_per_seq: int | None = field(
        None,
        "Slots per row; default int((mask_rate + 0.005) * max_seq_length).",
        allowed=at_least(1),
    )

    def __post_init__(self):
        check_numbers(self)
        require(
            self.mask_rate_steps is None or self.final_mask_rate is not None,
            f"--mask_rate_steps={self.mask_rate_steps} needs --final_mask_rate, the "
            "rate after these steps.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The discriminator (or BERT's) encoder; defaults are ELECTRA-Small's."""

    num_layers: int = field(12, "Transformer layers.", allowed=at_least(1))
    hidden_size: int = field(256, "Width of the hidden states.", allowed=at_least(1))
    num_heads: int = field(4, "Attention heads.", allowed=at_least(1))
    intermediate_size: int = field(
        1024, "Width of the feed-forward layer.", allowed=at_least(1)
    )
    embedding_size: int = field(
        128, "Width of the embedding tables.", allowed=at_least(1)
    )
    max_positions: int = field(512, "Rows of the position table.", allowed=at_least(1))
    dropout: float = field(
        0.1, "Of embeddings, attention output, feed-forward.", allowed=BELOW_1
    )
    attention_dropout: float = field(
        0.1, "Of attention probabilities.", allowed=BELOW_1
    )
    initializer_range: float = field(
        0.02,
        "Standard deviation of tables and layers at the start (truncated normal); of "
        "heads it is 0.02. The paper's 0.02 leaves narrow networks with uniform "
        "attention; about sqrt(1 / hidden_size) does not (docs/experiments.md).",
        allowed=POSITIVE,
    )
    position_init: Literal["truncated_normal", "sinusoidal"] = field(
        "truncated_normal",
        "Start of the position table, which is trained in any case. sinusoidal: sines "
        "and cosines, which tell from the first step how far tokens are apart.",
    )

    def __post_init__(self):
        check_numbers(self)
        require(
            self.position_init != "sinusoidal" or self.embedding_size % 2 == 0,
            "--position_init=sinusoidal needs an even --embedding_size, got "
            f"{self.embedding_size}.",
        )
        require(
            self.hidden_size % self.num_heads == 0,
            f"--hidden_size={self.hidden_size} is not divisible by "
            f"--num_heads={self.num_heads}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """The generator, as fractions of the discriminator, and how it is sampled from."""

    generator: Literal["masked_lm", "two_tower", "unigram", "uniform"] = field(
        "masked_lm",
        "masked_lm: reads the masked text; two_tower: reads the unmasked text from the "
        "left and from the right (ELECTRA-TT; always so in electric); unigram: token "
        "frequencies of the training text; uniform: every token alike. The last two "
        "train nothing.",
    )
    sharing: Literal["tied", "token", "untied", "nes", "gdes", "all"] = field(
        "tied",
        "What generator and discriminator share: tied: all embedding tables; token: "
        "the word table; untied: nothing (generator tables of its own width); nes: "
        "nothing (full width); gdes: tables without the discriminator's gradient, "
        "plus its own deltas; all: one encoder.",
    )
    generator_hidden_size: float = field(
        0.25, "Width as a fraction: hidden, feed-forward and heads.", allowed=SHARE
    )
    generator_layers: float = field(1.0, "Depth as a fraction.", allowed=SHARE)
    temperature: float = field(
        1.0, "Divides the logits that are sampled from.", allowed=POSITIVE
    )
    final_temperature: float | None = field(
        None, "Where the temperature goes; default: it stays.", allowed=POSITIVE
    )
    temperature_steps: int | None = field(
        None,
        "linear: updates until final_temperature; exponential: the time constant, "
        "updates until 37 % of the way are left.",
        allowed=at_least(1),
    )
    temperature_shape: Literal["linear", "exponential"] = field(
        "linear", "How the temperature changes; exponential as in Fast-ELECTRA."
    )
    disallow_correct: bool = field(False, "Never sample the original token.")
    sampling_dropout: bool = field(
        True,
        "Sample with the generator's dropout on, as the original; off costs one more "
        "forward pass of a generator that is trained.",
    )

    def __post_init__(self):
        check_numbers(self)
        require(
            (self.final_temperature is None) == (self.temperature_steps is None),
            f"--final_temperature={self.final_temperature} and --temperature_steps="
            f"{self.temperature_steps}: a schedule needs both, a constant temperature "
            "neither.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What is trained."""

    objective: Literal[
        "electra", "electra_15", "replace_mlm", "all_tokens_mlm", "electric", "mlm"
    ] = field(
        "electra",
        "electra: replaced token detection; electra_15: at masked positions only; "
        "replace_mlm: the original token there, from the corrupted text; "
        "all_tokens_mlm: the original of every token, with a copy gate; electric: "
        "energies against the noise of a two-tower generator; mlm: BERT's masked LM.",
    )
    generator_weight: float = field(
        1.0, "Weight of the generator's loss.", allowed=NOT_NEGATIVE
    )
    discriminator_weight: float = field(
        50.0, "Weight of the discriminator's loss.", allowed=NOT_NEGATIVE
    )
    sentence_weight: float = field(
        0.0,
        "Above 0: also ask whether the input was corrupted at all, and leave a fifth "
        "of the rows as they are; weight beside the discriminator's token loss.",
        allowed=NOT_NEGATIVE,
    )

    def __post_init__(self):
        check_numbers(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How the two networks are trained: together, in turn, or against each other."""

    training: Literal["joint", "two_stage", "reinforce", "gumbel"] = field(
        "joint",
        "joint: both by their own loss; two_stage: the generator first, then the "
        "discriminator; reinforce, gumbel: the generator is trained to fool the "
        "discriminator.",
    )
    generator_steps: int | None = field(
        None,
        "two_stage: updates of the first stage; default: half of all.",
        allowed=at_least(1),
    )
    two_stage_copy: bool = field(
        True, "two_stage: start the discriminator from the generator's weights."
    )
    adversarial_weight: float = field(
        1.0,
        "reinforce, gumbel: share of the adversarial term in the generator's loss; the "
        "rest is maximum likelihood.",
        allowed=WEIGHT,
    )
    adversarial_start: int = field(
        0,
        "reinforce, gumbel: updates of maximum likelihood only, at first.",
        allowed=NOT_NEGATIVE,
    )
    adversarial_steps: int = field(
        0,
        "reinforce, gumbel: updates from there until adversarial_weight; 0: at once.",
        allowed=NOT_NEGATIVE,
    )
    gumbel_temperature: float = field(
        1.0,
        "gumbel: of the softmax that gradients take for the samples.",
        allowed=POSITIVE,
    )
    freeze_generator: bool = field(
        False, "Sample from the generator without training it."
    )
    generator_init_from: str | None = field(
        None,
        "Start the generator from this: the model_dir of a finished run, of either "
        "objective, or its generator.keras.",
        resumable=True,
    )

    def __post_init__(self):
        check_numbers(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam as the original code has it."""

    learning_rate: float = field(
        5e-4, "Peak, before the product with the decay.", allowed=POSITIVE
    )
    warmup_steps: int = field(10_000, "Steps of linear warm-up.", allowed=NOT_NEGATIVE)
    lr_decay_power: float = field(
        1.0, "Power of the polynomial decay; 1: linear.", allowed=NOT_NEGATIVE
    )
    lr_schedule: Literal["product", "sequential"] = field(
        "product",
        "product: warm-up times decay, as the original code; sequential: decay "
        "begins after the warm-up.",
    )
    weight_decay: float = field(
        0.01, "Decoupled; not on biases and LayerNorm.", allowed=NOT_NEGATIVE
    )
    adam_beta_1: float = field(0.9, "Decay of the first moment.", allowed=BELOW_1)
    adam_beta_2: float = field(0.999, "Decay of the second moment.", allowed=BELOW_1)
    adam_epsilon: float = field(1e-6, "Added outside the root.", allowed=POSITIVE)
    adam_bias_correction: bool = field(False, "Textbook Adam; the original has none.")
    clip_norm: float = field(
        1.0, "Joint norm that gradients are clipped to.", allowed=CLIP
    )
    generator_learning_rate: float | None = field(
        None,
        "Peak rate of the generator's own variables; default: learning_rate. What both "
        "networks share goes with the discriminator.",
        allowed=POSITIVE,
    )
    generator_clip_norm: float | None = field(
        None,
        "Clip the generator's own gradient to this norm, apart from the rest; default: "
        "one joint norm.",
        allowed=CLIP,
    )
    clipping: Literal["after_reduction", "per_replica"] = field(
        "after_reduction",
        "Clip the summed gradient once, or each replica's as the original on TPU.",
    )

    def __post_init__(self):
        check_numbers(self)

"""Flags of pretraining; ``configs/*.cfg`` has the sizes of the paper's Table 6."""

import dataclasses
import functools
import math
from typing import Any, ClassVar, Literal

from electra_tf.config import fields, validation
from electra_tf.config.fields import MAX_SEED, Group, field, require, resumable_field
from electra_tf.config.records import CorpusFlags
from electra_tf.config.validation import GENERATORS, OBJECTIVES, SHARINGS, TRAININGS
from electra_tf.errors import explained


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(Group):
    """Output, steps, batch size and devices."""

    model_dir: str = resumable_field("Output folder of the run.", "runs/electra")
    num_train_steps: int = field("Optimizer updates in total.", 1_000_000, min=1)
    train_batch_size: int = field("Rows per update, over all replicas.", 128, min=1)
    gradient_accumulation_steps: int = field(
        "Micro-batches per update, which save memory and keep the result.", 1, min=1
    )
    eval_batch_size: int = resumable_field("Rows per evaluation batch.", 128, min=1)
    eval_steps: int = resumable_field(
        "Steps between evaluations on held-out text; 0: only at the end.", 10_000, min=0
    )
    max_eval_batches: int = resumable_field(
        "Batches per evaluation, spread over the held-out text; 0: all.", 100, min=0
    )
    save_checkpoint_steps: int = resumable_field(
        "Steps between checkpoints.", 1000, min=1
    )
    keep_checkpoints: int = resumable_field(
        "Checkpoints to keep; older ones are deleted.", 5, min=1
    )
    log_steps: int = resumable_field("Steps between logged points.", 100, min=1)
    seed: int = field(
        "Seed of weights, data order, masks, samples, dropout.", 0, min=0, max=MAX_SEED
    )
    init_from: str | None = field(
        "Initial weights, without the optimizer: mini, a model_dir of any objective, "
        "one of its checkpoints, or an import of electra-tf convert. Its vocabulary, "
        "casing, sizes and recipe (steps, warm-up, batch size, rate, weight decay, "
        "bias correction, dropout, mask rate) replace flags that are not given."
    )
    distribution: Literal["none", "mirrored", "multi_worker", "tpu"] = resumable_field(
        "tf.distribute strategy: none (one device), mirrored (all GPUs of this "
        "machine), multi_worker (TF_CONFIG), tpu (TPU_NAME; default: the local one).",
        "none",
    )
    mixed_precision: Literal["none", "bfloat16", "float16"] = field(
        "Compute dtype; weights stay float32.", "none"
    )
    callback: tuple[str, ...] = fields.callbacks()
    overwrite: bool = resumable_field("Delete the run in model_dir and restart.", False)
    dry_run: bool = resumable_field("Print sizes, FLOPs, statistics; no files.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Keras's loss scaling uses one replica's gradients.
        require(
            self.mixed_precision != "float16" or self.distribution == "none",
            "--mixed_precision=float16 works on one device only: use bfloat16.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(CorpusFlags):
    """Corpus, vocabulary and records."""

    records: tuple[str, ...] = resumable_field(
        "Existing TFRecord files, globs or folders, in place of the corpus.", ()
    )
    eval_records: tuple[str, ...] = resumable_field(
        "Held-out files; default: eval-* beside --records.", (), only_with="records"
    )
    data_dir: str | None = resumable_field(
        "Folder of vocabulary and records; default: model_dir/data."
    )
    shuffle_buffer: int = field("Records shuffled together.", 100_000, min=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig(Group):
    """Masking."""

    masking: Literal["static", "dynamic"] = field(
        "static: ten masks per record in turn; dynamic: new ones per pass.", "static"
    )
    mask_rate: float = field("Share of a row's tokens to mask.", 0.15, above=0, max=1)
    mask_rule: Literal["electra", "bert"] = field(
        "electra: 85 % [MASK], 15 % kept; bert: 80 % [MASK], 10 % random, 10 % kept.",
        "electra",
        # Other generators do not read the masked text.
        only_with="objective!=electric,generator!=two_tower|unigram|uniform",
    )
    final_mask_rate: float | None = field(
        "Rate of the last step, reached linearly; default: constant.", above=0, max=1
    )
    mask_select: Literal["tokens", "whole_words", "rare_tokens", "with_replacement"] = (
        field(
            "Exactly mask_rate of the tokens: single ones, whole words, or rare ones "
            "more often (weight (n + 1)^-0.5 for n occurrences). with_replacement: "
            "the original's draws.",
            "tokens",
        )
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(Group):
    """Encoder of the discriminator or masked LM; the defaults are ELECTRA-Small's."""

    num_layers: int = field("Transformer layers.", 12, min=1)
    hidden_size: int = field("Width of the hidden states.", 256, min=1)
    num_heads: int = field("Attention heads.", 4, min=1)
    intermediate_size: int = field("Width of the feed-forward layer.", 1024, min=1)
    embedding_size: int = field("Width of the embedding tables.", 128, min=1)
    max_positions: int = field("Rows of the position table.", 512, min=1)
    dropout: float = field("Dropout of embeddings and sub-layers.", 0.1, min=0, below=1)
    attention_dropout: float = field("Dropout of attention.", 0.1, min=0, below=1)
    initializer_range: float = field(
        "Standard deviation of weights; heads have 0.02. The paper's 0.02 leaves "
        "narrow networks with uniform attention; about sqrt(1 / hidden_size) does "
        "not.",
        0.02,
        above=0,
    )
    position_init: Literal["truncated_normal", "sinusoidal"] = field(
        "Initial position table, which is trained in any case. sinusoidal: sines and "
        "cosines, which encode distances from the first step.",
        "truncated_normal",
    )
    remat: bool = resumable_field(
        "Gradient checkpointing: keep only the input of each layer and run it again "
        "in the backward pass. Less memory, a quarter more time, same result. FLOPs "
        "are counted without it.",
        False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
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


# Conditions (`only_with`) of flags that need a generator with a network, and of flags
# that change the distribution of samples, which Electric's loss contains.
_NETWORK = "objective!=mlm,generator!=unigram|uniform"
_SAMPLER = "objective!=mlm|electric"
# Uniform samples are the same at any temperature.
_TEMPERATURE = f"{_SAMPLER},generator!=uniform"
# Fields of two-stage and of adversarial training.
_two_stage_field = functools.partial(field, only_with="training=two_stage")
_adversarial_field = functools.partial(field, only_with="training=reinforce|gumbel")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorConfig(Group):
    """Generator: sizes relative to the discriminator, and sampling."""

    generator: str = field(
        "Source of the replacements.",
        "masked_lm",
        choices=GENERATORS,
        only_with="objective!=mlm|electric",
    )
    sharing: str = field(
        "Variables both networks share.", "tied", choices=SHARINGS, only_with=_NETWORK
    )
    generator_hidden_size: float = field(
        "Width as a fraction: hidden, feed-forward and heads.", 0.25, above=0, max=1
    )
    generator_layers: float = field("Depth as a fraction.", 1.0, above=0, max=1)
    temperature: float = field(
        "Divisor of the logits before sampling.", 1.0, above=0, only_with=_TEMPERATURE
    )
    final_temperature: float | None = field(
        "Temperature after a schedule; default: constant.",
        above=0,
        only_with=_TEMPERATURE,
    )
    temperature_steps: int | None = field(
        "linear: updates to final_temperature; exponential: time constant in updates.",
        min=1,
        only_with=_SAMPLER,
    )
    temperature_shape: Literal["linear", "exponential"] = field(
        "Schedule; Fast-ELECTRA: exponential.", "linear", only_with="final_temperature"
    )
    disallow_correct: bool = field("Never sample originals.", False, only_with=_SAMPLER)
    sampling_dropout: bool = field(
        "Sample with the generator's dropout (original); off: one more forward pass "
        "if the generator is trained.",
        True,
        only_with=f"{_NETWORK},{_SAMPLER}",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.final_temperature is None) == (self.temperature_steps is None),
            f"--final_temperature={self.final_temperature} and --temperature_steps="
            f"{self.temperature_steps}: a schedule needs both.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Group):
    """Objective and loss weights."""

    objective: str = field("Pretraining objective.", "electra", choices=OBJECTIVES)
    discriminator_weight: float = field(
        "Weight of the discriminator's loss.", 50.0, min=0, only_with="objective!=mlm"
    )
    sentence_weight: float = field(
        "Weight of a sentence-level loss. Above 0, a fifth of the rows stays "
        "uncorrupted, and [CLS] detects the others.",
        0.0,
        min=0,
        only_with=f"{_SAMPLER},training!=reinforce|gumbel",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(Group):
    """Training of the two networks: joint, two-stage or adversarial."""

    training: str = field(
        "Training algorithm of the two networks.",
        "joint",
        choices=TRAININGS,
        only_with="objective!=mlm|electric,generator!=two_tower|unigram|uniform",
    )
    generator_steps: int | None = _two_stage_field(
        "Updates of stage one; default: half of all.", min=1
    )
    two_stage_copy: bool = _two_stage_field(
        "Start the discriminator from the generator's weights.", True
    )
    adversarial_weight: float = _adversarial_field(
        "Share of the adversarial term in the generator's loss.", 1.0, min=0, max=1
    )
    adversarial_start: int = _adversarial_field(
        "Initial updates by maximum likelihood only.", 0, min=0
    )
    adversarial_steps: int = _adversarial_field(
        "Updates from there to adversarial_weight; 0: at once.", 0, min=0
    )
    freeze_generator: bool = field(
        "Sample from the generator without training it.",
        False,
        only_with=f"{_NETWORK},training!=two_stage|reinforce|gumbel",
    )
    generator_init_from: str | None = field(
        "Initial weights of the generator: a finished run of ELECTRA or masked LM, or "
        "its generator.keras.",
        only_with=f"{_NETWORK},training!=two_stage",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Group):
    """Optimizer: AdamW of the original code."""

    learning_rate: float = field("Peak learning rate.", 5e-4, above=0)
    warmup_steps: int = field("Steps of linear warm-up.", 10_000, min=0)
    lr_schedule: Literal["product", "sequential"] = field(
        "product: warm-up times decay (original); sequential: decay after the warm-up.",
        "product",
    )
    weight_decay: float = field(
        "Decoupled weight decay, not on biases and LayerNorm.", 0.01, min=0
    )
    adam_bias_correction: bool = field(
        "Bias correction (Kingma and Ba's epsilon hat), unlike the original; without "
        "it the first updates are larger.",
        False,
    )
    clip_norm: float = field(
        "Maximum global gradient norm.", 1.0, above=0, max=math.inf
    )
    generator_learning_rate: float | None = field(
        "Peak rate of the generator's own variables; default: learning_rate.",
        above=0,
        only_with=f"{_NETWORK},!freeze_generator",
    )


# Fraction of uncorrupted rows with a sentence-level loss, as in the paper.
LEFT_ROWS = 0.2


def max_predictions(max_seq_length: int, mask_rate: float) -> int:
    """Returns P of the original: 19 for (128, 0.15), 130 for (512, 0.25)."""
    return min(max_seq_length, max(1, int((mask_rate + 0.005) * max_seq_length)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    r"""Pretrains ELECTRA, or BERT's masked LM, from raw text.

    Examples:
      # Five to six minutes on two CPU cores, without a download.
      python -m electra_tf pretrain --flagfile=configs/tiny.cfg

      # ELECTRA-Small on your own text.
      python -m electra_tf pretrain --flagfile=configs/small.cfg --corpus=my_text/ \
          --model_dir=runs/mine --mixed_precision=bfloat16

      # Existing records, on all GPUs of this machine.
      python -m electra_tf pretrain --flagfile=configs/base.cfg \
          --distribution=mirrored --records='data/train-*.tfrecord' \
          --vocab_file=data/vocab.txt

    The same command resumes an interrupted run. Exit codes: 0 done, 1 error, 75 stopped
    by SIGTERM or SIGINT after saving a checkpoint.
    """

    # Removed flags of earlier versions with their defaults.
    REMOVED: ClassVar[dict[str, Any]] = {
        "adam_beta_1": 0.9,
        "adam_beta_2": 0.999,
        "adam_epsilon": 1e-6,
        "clipping": "after_reduction",
        "corpus_weights": [],
        "damaged_records": "stop",
        "file_sharding": False,
        "generator_clip_norm": None,
        "generator_weight": 1.0,
        "gumbel_temperature": 1.0,
        "jit_compile": False,
        "lr_decay_power": 1.0,
        "mask_rarity_power": 0.5,
        "mask_rate_steps": None,
        "mask_variants": 10,
        "max_predictions_per_seq": None,
    }

    # Names of the fields that the user has set, of a config from the command line.
    given: ClassVar[frozenset[str]] = frozenset()

    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    encoder: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    generator: GeneratorConfig = dataclasses.field(default_factory=GeneratorConfig)
    objective: ObjectiveConfig = dataclasses.field(default_factory=ObjectiveConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        validation.validate(self)

    @property
    def generator_kind(self) -> str:
        """Value of ``--generator``; always "two_tower" for electric."""
        is_electric = self.objective.objective == "electric"
        return "two_tower" if is_electric else self.generator.generator

    @property
    def has_generator_network(self) -> bool:
        """True if the run has a generator with a network."""
        has_network = self.generator_kind in ("masked_lm", "two_tower")
        return has_network and self.objective.objective != "mlm"

    @property
    def generator_is_frozen(self) -> bool:
        """True if the generator is frozen while the discriminator trains."""
        return self.training.freeze_generator or self.training.training == "two_stage"

    @property
    def generator_steps(self) -> int:
        """Updates of the generator before the discriminator's; 0 without stages."""
        if self.training.training != "two_stage":
            return 0
        given = self.training.generator_steps
        return self.run.num_train_steps // 2 if given is None else given

    @property
    def generator_encoder(self) -> EncoderConfig:
        """Config of the generator's encoder, by the formulas of the original code.

        The feed-forward ratio and the head size are the discriminator's.
        """
        encoder, fraction = self.encoder, self.generator.generator_hidden_size
        hidden_size = round(encoder.hidden_size * fraction)
        head_size = encoder.hidden_size // encoder.num_heads
        num_layers = encoder.num_layers * self.generator.generator_layers
        inner_size = encoder.intermediate_size * hidden_size / encoder.hidden_size
        changed = {
            "num_layers": max(1, round(num_layers)),
            "hidden_size": hidden_size,
            "num_heads": max(1, hidden_size // head_size),
            "intermediate_size": round(inner_size),
        }
        if self.generator.sharing == "untied":
            changed["embedding_size"] = hidden_size
        # A frozen generator without sampling dropout has no dropout.
        if self.training.freeze_generator and not self.generator.sampling_dropout:
            changed |= {"dropout": 0.0, "attention_dropout": 0.0}
        with explained(
            f"--generator_hidden_size={fraction:g} makes a generator of width "
            f"{hidden_size} with {changed['num_heads']} heads"
        ):
            return dataclasses.replace(encoder, **changed)

    @property
    def samples_apart(self) -> bool:
        """True if sampling needs a separate forward pass, without dropout."""
        if self.generator.sampling_dropout or not self.has_generator_network:
            return False
        encoder = self.generator_encoder
        return bool(encoder.dropout or encoder.attention_dropout)

    @property
    def last_mask_rate(self) -> float:
        """The final mask rate, also used in evaluations."""
        final = self.masking.final_mask_rate
        return self.masking.mask_rate if final is None else final

    @property
    def predictions_per_seq(self) -> int:
        """Maximum number of masked positions per row."""
        highest = max(self.masking.mask_rate, self.last_mask_rate)
        return max_predictions(self.data.max_seq_length, highest)

    @property
    def sampled_rate(self) -> float:
        """Fraction of tokens that are replaced by samples, at the lowest mask rate."""
        left = LEFT_ROWS if self.objective.sentence_weight else 0.0
        return min(self.masking.mask_rate, self.last_mask_rate) * (1 - left)

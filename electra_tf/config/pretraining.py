"""Flags of pretraining; standard library only.

``validation.py`` checks combinations of flags. The model sizes of the paper's Table 6
are in ``configs/*.cfg``; the defaults below apply to all sizes.
"""

import dataclasses
import math
from typing import Any, ClassVar, Literal

from electra_tf.config import validation
from electra_tf.config.fields import (
    MAX_SEED,
    Group,
    callbacks,
    field,
    require,
)
from electra_tf.config.records import CorpusFlags
from electra_tf.config.validation import GENERATORS, OBJECTIVES, SHARINGS, TRAININGS
from electra_tf.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(Group):
    """Output, steps, batch size and devices."""

    model_dir: str = field("runs/electra", "Output folder of the run.", resumable=True)
    num_train_steps: int = field(1_000_000, "Optimizer updates in total.", min=1)
    train_batch_size: int = field(
        128, "Rows per update, over all replicas and micro-batches.", min=1
    )
    gradient_accumulation_steps: int = field(
        1, "Micro-batches per update, which save memory and keep the result.", min=1
    )
    eval_batch_size: int = field(
        128, "Rows per evaluation batch.", resumable=True, min=1
    )
    eval_steps: int = field(
        10_000,
        "Evaluate on the held-out text every so many steps; 0: only at the end.",
        resumable=True,
        min=0,
    )
    max_eval_batches: int = field(
        100,
        "Batches per evaluation, spread over the held-out text; 0: all.",
        resumable=True,
        min=0,
    )
    save_checkpoint_steps: int = field(
        1000, "Steps between checkpoints.", resumable=True, min=1
    )
    keep_checkpoints: int = field(
        5, "Checkpoints to keep; older ones are deleted.", resumable=True, min=1
    )
    log_steps: int = field(
        100, "Steps between log lines and logged points.", resumable=True, min=1
    )
    seed: int = field(
        0,
        "Seed of weights, data order, masks, samples and dropout.",
        min=0,
        max=MAX_SEED,
    )
    init_from: str | None = field(
        None,
        "Initial weights, without the optimizer: mini, a model_dir of any objective, "
        "one of its checkpoints, or an import of electra-tf convert. Its vocabulary, "
        "casing, sizes and recipe (steps, warm-up, batch size, rate, weight decay, "
        "bias correction, dropout, mask rate) replace flags that are not given.",
        resumable=True,
    )
    distribution: Literal["none", "mirrored", "multi_worker", "tpu"] = field(
        "none",
        "tf.distribute strategy: none (one device), mirrored (all GPUs of this "
        "machine), multi_worker (TF_CONFIG), tpu (TPU_NAME; default: the local one).",
        resumable=True,
    )
    mixed_precision: Literal["none", "bfloat16", "float16"] = field(
        "none", "Compute dtype; weights stay float32."
    )
    callback: tuple[str, ...] = callbacks()
    overwrite: bool = field(
        False, "Delete the run in model_dir and start again.", resumable=True
    )
    dry_run: bool = field(
        False,
        "Print sizes, FLOPs and data statistics, without writing files.",
        resumable=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.train_batch_size % self.gradient_accumulation_steps == 0,
            f"--train_batch_size={self.train_batch_size} is not divisible by "
            f"--gradient_accumulation_steps={self.gradient_accumulation_steps}.",
        )
        require(
            not (self.mixed_precision == "float16" and self.distribution != "none"),
            "--mixed_precision=float16 works on one device only (Keras's loss "
            "scaling uses one replica's gradients): use bfloat16.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(CorpusFlags):
    """Corpus, vocabulary and records."""

    records: tuple[str, ...] = field(
        (),
        "Existing TFRecord files, globs or folders, in place of the corpus.",
        resumable=True,
    )
    eval_records: tuple[str, ...] = field(
        (),
        "Held-out TFRecord files; default: eval-* beside the training records.",
        only_with="records",
        resumable=True,
    )
    data_dir: str | None = field(
        None,
        "Folder of vocabulary and records; default: model_dir/data.",
        resumable=True,
    )
    shuffle_buffer: int = field(100_000, "Records shuffled together.", min=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig(Group):
    """Masking."""

    masking: Literal["static", "dynamic"] = field(
        "static",
        "static: each record has ten masks, which the passes use in turn; dynamic: "
        "every pass draws new masks.",
    )
    mask_rate: float = field(0.15, "Share of a row's tokens to mask.", above=0, max=1)
    mask_rule: Literal["electra", "bert"] = field(
        "electra",
        "electra: 85 % [MASK], 15 % kept; bert: 80 % [MASK], 10 % random, 10 % kept.",
        # Other generators do not read the masked text.
        only_with="objective!=electric,generator!=two_tower|unigram|uniform",
    )
    final_mask_rate: float | None = field(
        None,
        "Mask rate at the end of a linear change; default: constant.",
        above=0,
        max=1,
    )
    mask_select: Literal[
        "tokens", "whole_words", "spans", "rare_tokens", "with_replacement"
    ] = field(
        "tokens",
        "Exactly mask_rate of the tokens: single ones, whole words, spans of words "
        "(SpanBERT), or rare ones more often (weight (n + 1)^-0.5 for n occurrences). "
        "with_replacement: the original's draws.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(Group):
    """Encoder of the discriminator or masked LM; the defaults are ELECTRA-Small's."""

    num_layers: int = field(12, "Transformer layers.", min=1)
    hidden_size: int = field(256, "Width of the hidden states.", min=1)
    num_heads: int = field(4, "Attention heads.", min=1)
    intermediate_size: int = field(1024, "Width of the feed-forward layer.", min=1)
    embedding_size: int = field(128, "Width of the embedding tables.", min=1)
    max_positions: int = field(512, "Rows of the position table.", min=1)
    dropout: float = field(
        0.1, "Dropout of embeddings and the outputs of sub-layers.", min=0, below=1
    )
    attention_dropout: float = field(
        0.1, "Dropout of attention probabilities.", min=0, below=1
    )
    initializer_range: float = field(
        0.02,
        "Standard deviation of initial tables and layers (truncated normal); heads "
        "have 0.02. The paper's 0.02 leaves narrow networks with uniform attention; "
        "about sqrt(1 / hidden_size) does not.",
        above=0,
    )
    position_init: Literal["truncated_normal", "sinusoidal"] = field(
        "truncated_normal",
        "Initial position table, which is trained in any case. sinusoidal: sines and "
        "cosines, which encode distances from the first step.",
    )
    remat: bool = field(
        False,
        "Gradient checkpointing: keep only the input of each layer and run the layer "
        "again in the backward pass. Less memory, about a quarter more time, the same "
        "result. FLOPs are counted without it.",
        resumable=True,
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorConfig(Group):
    """Generator: sizes relative to the discriminator, and sampling."""

    generator: str = field(
        "masked_lm",
        "Source of the replacements.",
        choices=GENERATORS,
        only_with="objective!=mlm",
    )
    sharing: str = field(
        "tied",
        "Variables that both networks share.",
        choices=SHARINGS,
        only_with=_NETWORK,
    )
    generator_hidden_size: float = field(
        0.25, "Width as a fraction: hidden, feed-forward and heads.", above=0, max=1
    )
    generator_layers: float = field(1.0, "Depth as a fraction.", above=0, max=1)
    temperature: float = field(
        1.0, "Divisor of the logits before sampling.", above=0, only_with=_TEMPERATURE
    )
    final_temperature: float | None = field(
        None,
        "Temperature at the end of a schedule; default: constant.",
        above=0,
        only_with=_TEMPERATURE,
    )
    temperature_steps: int | None = field(
        None,
        "linear: updates until final_temperature; exponential: the time constant, the "
        "updates after which 37 % of the change is left.",
        min=1,
        only_with=_SAMPLER,
    )
    temperature_shape: Literal["linear", "exponential"] = field(
        "linear",
        "Shape of the schedule; exponential as in Fast-ELECTRA.",
        only_with="final_temperature",
    )
    disallow_correct: bool = field(
        False, "Never sample the original token.", only_with=_SAMPLER
    )
    sampling_dropout: bool = field(
        True,
        "Sample with the generator's dropout on, as the original; off needs one "
        "more forward pass if the generator is trained.",
        only_with=f"{_NETWORK},{_SAMPLER}",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.final_temperature is None) == (self.temperature_steps is None),
            f"--final_temperature={self.final_temperature} and --temperature_steps="
            f"{self.temperature_steps}: a schedule needs both, a constant temperature "
            "neither.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Group):
    """Objective and loss weights."""

    objective: str = field("electra", "Pretraining objective.", choices=OBJECTIVES)
    discriminator_weight: float = field(
        50.0, "Weight of the discriminator's loss.", min=0, only_with="objective!=mlm"
    )
    sentence_weight: float = field(
        0.0,
        "Weight of a sentence-level loss beside the discriminator's token loss. Above "
        "0, a fifth of the rows stays uncorrupted, and [CLS] detects the others.",
        min=0,
        only_with=f"{_SAMPLER},training!=reinforce|gumbel",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(Group):
    """Training of the two networks: joint, two-stage or adversarial."""

    training: str = field(
        "joint",
        "Training algorithm of the two networks.",
        choices=TRAININGS,
        only_with="objective!=mlm|electric,generator!=two_tower|unigram|uniform",
    )
    generator_steps: int | None = field(
        None,
        "two_stage: updates of the first stage; default: half of all.",
        min=1,
        only_with="training=two_stage",
    )
    two_stage_copy: bool = field(
        True,
        "two_stage: start the discriminator from the generator's weights.",
        only_with="training=two_stage",
    )
    adversarial_weight: float = field(
        1.0,
        "reinforce, gumbel: share of the adversarial term in the generator's loss; the "
        "rest is maximum likelihood.",
        min=0,
        max=1,
        only_with="training=reinforce|gumbel",
    )
    adversarial_start: int = field(
        0,
        "reinforce, gumbel: initial updates by maximum likelihood only.",
        min=0,
        only_with="training=reinforce|gumbel",
    )
    adversarial_steps: int = field(
        0,
        "reinforce, gumbel: updates from there to adversarial_weight; 0: at once.",
        min=0,
        only_with="training=reinforce|gumbel",
    )
    freeze_generator: bool = field(
        False,
        "Sample from the generator without training it.",
        only_with=f"{_NETWORK},training!=two_stage|reinforce|gumbel",
    )
    generator_init_from: str | None = field(
        None,
        "Initial weights of the generator: the model_dir of a finished run of ELECTRA "
        "or masked LM, or its generator.keras.",
        resumable=True,
        only_with=f"{_NETWORK},training!=two_stage",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Group):
    """Optimizer: AdamW of the original code."""

    learning_rate: float = field(5e-4, "Peak learning rate.", above=0)
    warmup_steps: int = field(10_000, "Steps of linear warm-up.", min=0)
    lr_schedule: Literal["product", "sequential"] = field(
        "product",
        "product: warm-up times decay, as the original code; sequential: decay "
        "begins after the warm-up.",
    )
    weight_decay: float = field(
        0.01, "Decoupled weight decay, not on biases and LayerNorm.", min=0
    )
    adam_bias_correction: bool = field(
        False,
        "Bias-corrected moments; the original has none. As in TensorFlow's kernel the "
        "correction leaves epsilon as it is (Kingma and Ba's epsilon hat).",
    )
    clip_norm: float = field(
        1.0, "Maximum global norm of the gradients.", above=0, max=math.inf
    )
    generator_learning_rate: float | None = field(
        None,
        "Peak learning rate of the generator's own variables, without shared ones; "
        "default: learning_rate.",
        above=0,
        only_with=_NETWORK,
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
      # About five minutes on two CPU cores, without a download.
      python -m electra_tf pretrain --flagfile=configs/tiny.cfg

      # ELECTRA-Small on your own text.
      python -m electra_tf pretrain --flagfile=configs/small.cfg --corpus=my_text/ \
          --model_dir=runs/mine --mixed_precision=bfloat16

      # Existing records, on all GPUs of this machine.
      python -m electra_tf pretrain --flagfile=configs/base.cfg \
          --distribution=mirrored --records='data/train-*.tfrecord' \
          --vocab_file=data/vocab.txt

      # Print sizes, FLOPs and data statistics without training.
      python -m electra_tf pretrain --flagfile=configs/large.cfg --dry_run

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

        hidden = round(hidden * fraction); the feed-forward ratio and the head size are
        the discriminator's; heads = max(1, hidden // head size). Untied embeddings have
        the generator's hidden size. A frozen generator without sampling dropout has no
        dropout.

        Raises ValueError if the sizes are invalid.
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
            raise UserError(
                f"--generator_hidden_size={fraction:g} makes a generator of width "
                f"{hidden_size} with {changed['num_heads']} heads: "
                f"{error} Choose another fraction."
            ) from error

    @property
    def samples_apart(self) -> bool:
        """True if sampling needs a separate forward pass, without dropout."""
        if self.generator.sampling_dropout or not self.has_generator_network:
            return False
        generator = self.generator_encoder
        return bool(generator.dropout or generator.attention_dropout)

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

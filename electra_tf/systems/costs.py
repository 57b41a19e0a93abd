"""FLOPs and parameters of a pretraining run, computed from its config.

Two rules count FLOPs:

- "original" reproduces the script behind the paper's numbers. Every mathematical
  operation is one, a matrix product 2mn, the embedding lookup a dense one-hot product.
  The backward pass costs as much as the forward pass.
- "matmul" is the usual model-FLOPs convention: matrix products only, the lookup is
  free, and the backward pass costs twice the forward pass.

Heads count at their positions; recomputed logits count once. Sampling, unigram and
uniform generators, ``gdes`` sums, the sentence-level unit and updates do not count.
"""

import os

from electra_tf.config.pretraining import EncoderConfig, PretrainConfig
from electra_tf.errors import UserError

# Cost of forward and backward pass in forward passes, by rule.
RULES = {"original": 2, "matmul": 3}
# Operations per element under the "original" rule.
_DROPOUT = 4
_LAYER_NORM = 5
_ACTIVATION = 8
_SOFTMAX = 5

_SEGMENTS = 2


def phases(
    config: PretrainConfig, vocab_size: int, *, rule: str = "matmul"
) -> list[tuple[int, float]]:
    """Returns the updates of each phase of a run, and the FLOPs of an update.

    ``vocab_size`` may be below ``--vocab_size``.
    """
    steps, first = config.run.num_train_steps, config.generator_steps
    tokens = config.run.train_batch_size * config.data.max_seq_length
    flops, passes = _Flops(config, vocab_size, rule), RULES[rule]
    main = tokens * passes * flops.discriminator()
    if not config.has_generator_network:
        return [(steps, main)]
    trained = tokens * flops.generator(passes)
    beside = tokens * flops.generator(1) if config.generator_is_frozen else trained
    if config.samples_apart:
        beside += tokens * flops.samples()
    if config.training.training != "two_stage":
        return [(steps, beside + main)]
    return [(first, trained), (steps - first, beside + main)]


def run_flops(
    config: PretrainConfig, vocab_size: int, *, rule: str = "matmul"
) -> float:
    """Returns the FLOPs of a run."""
    return sum(steps * flops for steps, flops in phases(config, vocab_size, rule=rule))


class _Flops:
    """FLOPs of a forward pass per token of the input, by one rule."""

    def __init__(self, config: PretrainConfig, vocab_size: int, rule: str):
        self.config, self.vocab_size = config, vocab_size
        self.length = config.data.max_seq_length
        self.masked = config.predictions_per_seq / self.length
        self.original = rule == "original"  # As a factor, 0 or 1.

    def discriminator(self) -> float:
        """Returns the FLOPs of encoder and head."""
        encoder, d = self.config.encoder, self.config.encoder.hidden_size
        masked_lm = self._transform(encoder, d) + self._logits(encoder)
        match self.config.objective.objective:
            case "mlm" | "replace_mlm":
                head = self.masked * masked_lm
            case "all_tokens_mlm":
                head = masked_lm + self._unit(d)  # The copy gate.
            case _:
                # Everywhere, even if the loss covers only masked positions.
                head = 2 * d * (d + 1) + self.original * (1 + _ACTIVATION) * d
        return self._encoder(encoder) + head

    def generator(self, passes: int) -> float:
        """Returns the FLOPs of ``passes`` through encoder or towers and head."""
        encoder = self.config.generator_encoder
        logits = self._logits(encoder)
        if self.config.generator_kind == "two_tower":
            # It predicts every token; sampling needs logits at masked positions.
            sampling = 0 if self.config.samples_apart else self.masked * logits
            return passes * (self._towers(encoder) + logits) + sampling
        flops = self.samples()
        if self.config.training.training == "gumbel" and not self.original:
            # Relaxed one-hots times the table, as "original" counts every lookup.
            flops += self.masked * logits
        elif self.config.training.training == "reinforce":  # The reward baseline.
            flops += self.masked * self._unit(encoder.hidden_size)
        return passes * flops

    def samples(self) -> float:
        """Returns the FLOPs of the generator's logits at masked positions."""
        encoder = self.config.generator_encoder
        logits = self.masked * self._logits(encoder)
        if self.config.generator_kind == "two_tower":
            return self._towers(encoder) + logits
        transform = self.masked * self._transform(encoder, encoder.hidden_size)
        return self._encoder(encoder) + transform + logits

    def _towers(self, e: EncoderConfig) -> float:
        return 2 * self._encoder(e) + self._transform(e, 2 * e.hidden_size)

    def _encoder(self, e: EncoderConfig) -> float:
        d, f, width = e.hidden_size, e.intermediate_size, e.embedding_size
        embeddings = 2 * width * d * (width != d)
        layer = 8 * d * d + 4 * d * self.length + 4 * d * f
        if self.original:
            rows = self.vocab_size + self.length + _SEGMENTS
            embeddings += 2 * width * rows + d * (width != d)
            embeddings += (2 + _LAYER_NORM + _DROPOUT) * width
            biases = 5 * d + f
            layer += biases + (_SOFTMAX + _DROPOUT + 1) * self.length * e.num_heads
            layer += _ACTIVATION * f
            # Dropout, residual sum and layer normalization occur twice.
            layer += 2 * (_DROPOUT + 1 + _LAYER_NORM) * d
        return embeddings + e.num_layers * layer

    # Heads at one position.

    def _transform(self, e: EncoderConfig, inputs: int) -> float:
        """Returns the FLOPs of a masked LM's hidden layer."""
        others = self.original * (1 + _ACTIVATION + _LAYER_NORM)
        return (2 * inputs + others) * e.embedding_size

    def _logits(self, e: EncoderConfig) -> float:
        others = self.original * (_SOFTMAX + 2)
        return (2 * e.embedding_size + others) * self.vocab_size

    def _unit(self, inputs: int) -> float:
        """Returns the FLOPs of a linear unit with a sigmoid."""
        return 2 * inputs + self.original * (1 + _ACTIVATION)


def parameters(config: PretrainConfig, vocab_size: int) -> int:
    """Counts the trainable parameters of a run, shared ones once.

    Without the reward baseline (D parameters) and the sentence-level unit.
    """
    encoder, d = config.encoder, config.encoder.hidden_size
    count = _table_parameters(encoder, vocab_size) + _encoder_parameters(encoder)
    match config.objective.objective:
        case "mlm" | "replace_mlm":
            count += _masked_lm_parameters(encoder, d, vocab_size)
        case "all_tokens_mlm":
            count += _masked_lm_parameters(encoder, d, vocab_size) + d + 1
        case _:
            count += d * (d + 1) + d + 1
    if not config.has_generator_network:
        return count
    generator, sharing = config.generator_encoder, config.generator.sharing
    towers = 2 if config.generator_kind == "two_tower" else 1
    if sharing != "all":
        count += towers * _encoder_parameters(generator)
    if sharing in ("token", "untied", "nes"):
        count += _table_parameters(generator, vocab_size)
    if sharing == "token":
        count -= vocab_size * generator.embedding_size
    if sharing == "gdes":
        # Deltas and a LayerNorm on top of the generator's tables.
        count += _table_parameters(encoder, vocab_size)
    outputs = towers * generator.hidden_size
    return count + _masked_lm_parameters(generator, outputs, vocab_size)


def _table_parameters(e: EncoderConfig, vocab_size: int) -> int:
    return (vocab_size + e.max_positions + _SEGMENTS + 2) * e.embedding_size


def _encoder_parameters(e: EncoderConfig) -> int:
    d, f = e.hidden_size, e.intermediate_size
    projection = (e.embedding_size + 1) * d if e.embedding_size != d else 0
    layer = 4 * (d * d + d) + (2 * d * f + f + d) + 4 * d
    return projection + e.num_layers * layer


def _masked_lm_parameters(e: EncoderConfig, inputs: int, vocab_size: int) -> int:
    # A tied table counts as the encoder's.
    return (inputs + 3) * e.embedding_size + vocab_size


def check_fits(config: PretrainConfig, vocab_size: int) -> None:
    """Raises UserError if the weights alone need more memory than the machine has."""
    try:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return  # The system does not report its memory.
    needed = 4 * parameters(config, vocab_size)
    if needed > available:
        names = ("hidden_size", "num_layers", "intermediate_size", "embedding_size")
        flags = [f"--{name}={getattr(config.encoder, name)}" for name in names]
        raise UserError(
            f"the weights of this network need {needed / 1e9:,.0f} GB, and this "
            f"machine has {available / 1e9:,.0f}: lower {', '.join(flags)} or "
            f"--vocab_size={vocab_size}."
        )

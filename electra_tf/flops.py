"""Analytic FLOPs, parameter counts and memory of encoders, from plain numbers.

Letters: S sequence length, V vocabulary, E embedding size, D hidden size, F
feed-forward size, N heads, L layers. Two rules of counting:

- "original" reproduces the script behind the paper's numbers: every mathematical
  operation is one, a matrix product 2mn, the embedding lookup a dense one-hot product,
  and the backward pass costs as much as the forward pass.
- "matmul" is the usual model-FLOPs convention: matrix products only, the lookup is
  free, and the backward pass costs twice the forward pass.

The masked-LM head runs at predicted positions only, under both rules.
"""

import dataclasses

# Operations per element in the original's counting.
_DROPOUT = 4
_LAYER_NORM = 5
_ACTIVATION = 8
_SOFTMAX = 5

# 80 of 512, what the original script assumes for every model.
ORIGINAL_PREDICTED_FRACTION = 0.15625


@dataclasses.dataclass(frozen=True)
class EncoderShape:
    """Sizes of one Transformer encoder with its embeddings.

    Args:
        hidden_size: D.
        num_layers: L.
        embedding_size: E; None is D, and then there is no projection.
        feed_forward_size: F; None is 4 D.
        num_heads: N; None is one head per 64 of D, at least 1.
        vocab_size: V.
        max_positions: rows of the position table.
        num_segments: rows of the segment table.
        num_towers: encoders of this shape side by side, which share the embeddings and
            whose outputs are concatenated: 2 in the two-tower generator.
    """

    hidden_size: int
    num_layers: int
    embedding_size: int | None = None
    feed_forward_size: int | None = None
    num_heads: int | None = None
    vocab_size: int = 30522
    max_positions: int = 512
    num_segments: int = 2
    num_towers: int = 1

    def __post_init__(self):
        """Fills in the sizes that follow from others."""
        derived = {
            "embedding_size": self.hidden_size,
            "feed_forward_size": 4 * self.hidden_size,
            "num_heads": max(1, self.hidden_size // 64),
        }
        for name, value in derived.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def has_projection(self) -> bool:
        """Whether embeddings are projected to the hidden size."""
        return self.embedding_size != self.hidden_size

    @property
    def output_size(self) -> int:
        """Width of what a head reads."""
        return self.num_towers * self.hidden_size


def parameter_count(
    discriminator: EncoderShape, generator: EncoderShape | None = None
) -> dict[str, int]:
    """Counts the trainable parameters of an encoder, or of ELECTRA with both.

    Args:
        discriminator: the encoder with the replaced-token head.
        generator: the masked LM sharing its embeddings; None leaves it out.

    Returns:
        Dict of part to count. `backbone` is what fine-tuning starts from;
        `discriminator` adds its head; `joint` is everything, shared tables once.
    """
    d = discriminator
    tables = d.vocab_size + d.max_positions + d.num_segments
    counts = {
        "embeddings": (tables + 2) * d.embedding_size,
        "projection": _projection_parameters(d),
        "layer": _layer_parameters(d),
        "encoder": d.num_layers * _layer_parameters(d),
        "head": d.hidden_size * (d.hidden_size + 1) + d.hidden_size + 1,
    }
    counts["backbone"] = sum(counts[n] for n in ("embeddings", "projection", "encoder"))
    counts["discriminator"] = counts["backbone"] + counts["head"]
    if generator is None:
        return counts
    g = generator
    own = {
        "generator_projection": g.num_towers * _projection_parameters(g),
        "generator_encoder": g.num_towers * g.num_layers * _layer_parameters(g),
        "generator_head": (g.output_size + 3) * g.embedding_size + g.vocab_size,
    }
    return {**counts, **own, "joint": counts["discriminator"] + sum(own.values())}


def training_flops(
    *,
    discriminator: EncoderShape | None = None,
    generator: EncoderShape | None = None,
    sequence_length: int,
    batch_size: int = 1,
    steps: float = 1,
    predicted_fraction: float = ORIGINAL_PREDICTED_FRACTION,
    rule: str = "original",
) -> float:
    """FLOPs of a pretraining run.

    Args:
        discriminator: encoder with a replaced-token head; None for BERT.
        generator: encoder with a masked-LM head; a BERT is a generator alone.
        sequence_length: S.
        batch_size: sequences per step.
        steps: number of steps.
        predicted_fraction: share of positions the masked-LM head runs at (19 / 128 with
            19 predictions per sequence).
        rule: "original" or "matmul".

    Raises:
        ValueError: unknown rule, or no encoder.
    """
    if discriminator is None and generator is None:
        raise ValueError("training_flops needs a discriminator, a generator, or both.")
    count = _rule(rule)
    per_token = 0.0
    if discriminator is not None:
        per_token += count.encoder(discriminator, sequence_length)
        per_token += count.replaced_token_head(discriminator)
    if generator is not None:
        per_token += generator.num_towers * count.encoder(generator, sequence_length)
        per_token += predicted_fraction * count.masked_lm_head(generator)
    return count.passes * per_token * sequence_length * batch_size * steps


def inference_flops(
    encoder: EncoderShape, *, sequence_length: int, rule: str = "original"
) -> float:
    """FLOPs of one sequence through a discriminator and its head, forward only.

    Raises:
        ValueError: unknown rule.
    """
    count = _rule(rule)
    per_token = count.encoder(encoder, sequence_length)
    return (per_token + count.replaced_token_head(encoder)) * sequence_length


def memory_estimate(
    discriminator: EncoderShape,
    generator: EncoderShape | None = None,
    *,
    batch_size: int,
    sequence_length: int,
    predictions: int = 0,
    activation_bytes: int = 4,
) -> dict[str, int]:
    """Estimates the bytes of one training step on one device.

    With P parameters, T = batch_size * sequence_length tokens and a bytes per
    activation value:

        weights = gradients = 4 P,  slots = 8 P  (two float32 moments)
        activations = a * T * (2 E + sum over layers (12 D + 2 F + N S))
                      + 3 * 4 * batch_size * predictions * V

    12 D: input, query, key, value, context, both residual sums, both layer norms, and
    their dropout; 2 F: before and after the activation; N S: attention probabilities,
    kept once with their dropout in the sign; the last term: float32 logits, their
    softmax and gradient.
    Workspaces of kernels, the input pipeline and fragmentation are not included, so
    leave a margin of about a third.

    Returns:
        Dict of weights, gradients, slots, activations, total.
    """
    counts = parameter_count(discriminator, generator)
    parameters = counts.get("joint", counts["discriminator"])
    tokens = batch_size * sequence_length
    encoders = [discriminator] + ([generator] if generator else [])
    values = tokens * sum(_kept_per_token(e, sequence_length) for e in encoders)
    logits = batch_size * predictions * discriminator.vocab_size
    parts = {
        "weights": 4 * parameters,
        "gradients": 4 * parameters,
        "slots": 8 * parameters,
        "activations": activation_bytes * values + 12 * logits,
    }
    return {**parts, "total": sum(parts.values())}


class _OriginalRule:
    """Every operation counts; per token."""

    passes = 2

    def encoder(self, e, s):
        return self._embeddings(e, s) + e.num_layers * self._layer(e, s)

    def _embeddings(self, e, s):
        lookups = 2 * e.embedding_size * (e.vocab_size + s + e.num_segments)
        element_wise = (2 + _LAYER_NORM + _DROPOUT) * e.embedding_size
        projection = 2 * e.embedding_size * e.hidden_size + e.hidden_size
        return lookups + element_wise + (projection if e.has_projection else 0)

    def _layer(self, e, s):
        d, f, n = e.hidden_size, e.feed_forward_size, e.num_heads
        attention = 3 * (2 * d * d + d) + 4 * d * s + 2 * d * d + d
        attention += (_SOFTMAX + _DROPOUT + 1) * s * n
        feed_forward = 4 * d * f + f + d + _ACTIVATION * f
        # Two times dropout, residual sum and layer normalization.
        return attention + feed_forward + 2 * (_DROPOUT + 1 + _LAYER_NORM) * d

    def masked_lm_head(self, e):
        hidden = (2 * e.output_size + 1 + _ACTIVATION + _LAYER_NORM) * e.embedding_size
        return hidden + (2 * e.embedding_size + _SOFTMAX + 2) * e.vocab_size

    def replaced_token_head(self, e):
        return (2 * e.hidden_size + 1 + _ACTIVATION + 2) * e.hidden_size


class _MatmulRule:
    """Matrix products only; per token."""

    passes = 3

    def encoder(self, e, s):
        d, f = e.hidden_size, e.feed_forward_size
        layer = 8 * d * d + 4 * d * s + 4 * d * f
        projection = 2 * e.embedding_size * d if e.has_projection else 0
        return projection + e.num_layers * layer

    def masked_lm_head(self, e):
        return 2 * e.embedding_size * (e.output_size + e.vocab_size)

    def replaced_token_head(self, e):
        return 2 * e.hidden_size * (e.hidden_size + 1)


RULES = {"original": _OriginalRule(), "matmul": _MatmulRule()}


def _rule(name):
    if name not in RULES:
        raise ValueError(f"rule is {name!r}; allowed are {', '.join(RULES)}.")
    return RULES[name]


def _projection_parameters(e):
    return (e.embedding_size + 1) * e.hidden_size if e.has_projection else 0


def _layer_parameters(e):
    d, f = e.hidden_size, e.feed_forward_size
    return 4 * (d * d + d) + (2 * d * f + f + d) + 4 * d


def _kept_per_token(e, s):
    d, f, n = e.hidden_size, e.feed_forward_size, e.num_heads
    tower = 2 * e.embedding_size + e.num_layers * (12 * d + 2 * f + n * s)
    return e.num_towers * tower

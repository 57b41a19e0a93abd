"""FLOPs, parameters and activations of encoders and heads, from plain numbers.

Letters: S sequence length, V vocabulary, E embedding size, D hidden size, F
feed-forward size, N heads, L layers. FLOPs are counted by one of two rules:

- "original" reproduces the script behind the paper's numbers: every mathematical
  operation is one, a matrix product 2mn, the embedding lookup a dense one-hot product,
  and the backward pass costs as much as the forward pass.
- "matmul" is the usual model-FLOPs convention: matrix products only, the lookup is
  free, and the backward pass costs twice the forward pass.

A head counts at the positions it runs at, under both rules. ``costs.py`` says which
encoders and heads a run has. Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from electra_tf.errors import UserError

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

    None is D for E, without a projection then, 4 D for F, and one head per 64 of D, at
    least 1. ``num_towers`` encoders of this shape are side by side, share the
    embeddings and have their outputs concatenated: 2 in the two-tower generator.
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

    def __post_init__(self) -> None:
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


def forward_flops(
    encoder: EncoderShape,
    heads: Mapping[str, float],
    *,
    sequence_length: int,
    rule: str = "original",
) -> float:
    """FLOPs per token of a forward pass; ValueError for an unknown rule or head.

    ``heads`` maps names of ``HEADS`` to the share of the positions each runs at. All
    towers of the encoder count.
    """
    total = encoder.num_towers * get_rule(rule).encoder(encoder, sequence_length)
    for name, share in heads.items():
        total += share * head_flops(name, encoder, rule=rule)
    return total


def head_flops(name: str, encoder: EncoderShape, *, rule: str = "original") -> float:
    """FLOPs of a head at one position, forward only; ValueError as above."""
    return head(name).flops(get_rule(rule), encoder)


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
    """FLOPs of pretraining ELECTRA, or BERT, which is a generator alone.

    The discriminator has the replaced-token head at every position, the generator a
    masked-LM head at ``predicted_fraction`` of them (19 / 128 with 19 predictions per
    sequence). An unknown rule, or no encoder, is a ValueError.
    """
    pairs = (
        (discriminator, {"replaced_token": 1.0}),
        (generator, {"masked_lm": predicted_fraction}),
    )
    forward = [
        forward_flops(encoder, heads, sequence_length=sequence_length, rule=rule)
        for encoder, heads in pairs
        if encoder is not None
    ]
    if not forward:
        raise UserError("training_flops needs a discriminator, a generator, or both.")
    passes = get_rule(rule).passes
    return passes * sum(forward) * sequence_length * batch_size * steps


def inference_flops(
    encoder: EncoderShape, *, sequence_length: int, rule: str = "original"
) -> float:
    """FLOPs of one sequence through a discriminator and its head, forward only."""
    per_token = forward_flops(
        encoder, {"replaced_token": 1.0}, sequence_length=sequence_length, rule=rule
    )
    return per_token * sequence_length


class _OriginalRule:
    """Every operation counts; per token or position."""

    passes = 2

    def encoder(self, e: EncoderShape, s: int) -> int:
        return self._embeddings(e, s) + e.num_layers * self._layer(e, s)

    def _embeddings(self, e: EncoderShape, s: int) -> int:
        lookups = 2 * e.embedding_size * (e.vocab_size + s + e.num_segments)
        element_wise = (2 + _LAYER_NORM + _DROPOUT) * e.embedding_size
        projection = 2 * e.embedding_size * e.hidden_size + e.hidden_size
        return lookups + element_wise + (projection if e.has_projection else 0)

    def _layer(self, e: EncoderShape, s: int) -> int:
        d, f, n = e.hidden_size, e.feed_forward_size, e.num_heads
        attention = 3 * (2 * d * d + d) + 4 * d * s + 2 * d * d + d
        attention += (_SOFTMAX + _DROPOUT + 1) * s * n
        feed_forward = 4 * d * f + f + d + _ACTIVATION * f
        # Two times dropout, residual sum and layer normalization.
        return attention + feed_forward + 2 * (_DROPOUT + 1 + _LAYER_NORM) * d

    def masked_lm(self, e: EncoderShape) -> int:
        hidden = (2 * e.output_size + 1 + _ACTIVATION + _LAYER_NORM) * e.embedding_size
        return hidden + self.logits(e)

    def logits(self, e: EncoderShape) -> int:
        return (2 * e.embedding_size + _SOFTMAX + 2) * e.vocab_size

    def replaced_token(self, e: EncoderShape) -> int:
        return (2 * e.hidden_size + 1 + _ACTIVATION + 2) * e.hidden_size

    def linear_unit(self, e: EncoderShape) -> int:
        return 2 * e.output_size + 1 + _ACTIVATION

    def relaxed_lookup(self, e: EncoderShape) -> int:
        # Every lookup counts as this product already.
        del e
        return 0


class _MatmulRule:
    """Matrix products only; per token or position."""

    passes = 3

    def encoder(self, e: EncoderShape, s: int) -> int:
        d, f = e.hidden_size, e.feed_forward_size
        layer = 8 * d * d + 4 * d * s + 4 * d * f
        projection = 2 * e.embedding_size * d if e.has_projection else 0
        return projection + e.num_layers * layer

    def masked_lm(self, e: EncoderShape) -> int:
        return 2 * e.embedding_size * e.output_size + self.logits(e)

    def logits(self, e: EncoderShape) -> int:
        return 2 * e.embedding_size * e.vocab_size

    def replaced_token(self, e: EncoderShape) -> int:
        return 2 * e.hidden_size * (e.hidden_size + 1)

    def linear_unit(self, e: EncoderShape) -> int:
        return 2 * e.output_size

    def relaxed_lookup(self, e: EncoderShape) -> int:
        return self.logits(e)


RULES = {"original": _OriginalRule(), "matmul": _MatmulRule()}


@dataclasses.dataclass(frozen=True)
class HeadCost:
    """FLOPs of a head at one position, forward only, and its parameters.

    Tied tables are the encoder's. ``has_logits``: it makes V float32 logits there.
    """

    flops: Callable[[_OriginalRule | _MatmulRule, EncoderShape], float]
    parameters: Callable[[EncoderShape], int] = lambda e: 0
    has_logits: bool = False


# Open: an objective from outside may add a head of its own.
HEADS: dict[str, HeadCost] = {
    "masked_lm": HeadCost(
        lambda rule, e: rule.masked_lm(e),
        # The output matrix is the word table, which the encoder has already.
        lambda e: (e.output_size + 3) * e.embedding_size + e.vocab_size,
        has_logits=True,
    ),
    # The product with the word table alone, of rows that are there already.
    "logits": HeadCost(lambda rule, e: rule.logits(e), has_logits=True),
    "replaced_token": HeadCost(
        lambda rule, e: rule.replaced_token(e),
        lambda e: e.hidden_size * (e.hidden_size + 1) + e.hidden_size + 1,
    ),
    # One unit with a sigmoid: the copy gate, and the baseline of the rewards.
    "linear_unit": HeadCost(
        lambda rule, e: rule.linear_unit(e), lambda e: e.output_size + 1
    ),
    # Relaxed one-hot samples times the word table.
    "relaxed_lookup": HeadCost(lambda rule, e: rule.relaxed_lookup(e), has_logits=True),
}


def head(name: str) -> HeadCost:
    """Returns the head of that name; ValueError lists the known ones."""
    return _named("head", name, HEADS)


def get_rule(name: str) -> _OriginalRule | _MatmulRule:
    """Returns the rule of that name; ValueError lists the known ones."""
    return _named("rule", name, RULES)


def parameter_count(
    discriminator: EncoderShape,
    generator: EncoderShape | None = None,
    *,
    heads: Sequence[str] = ("replaced_token",),
    generator_heads: Sequence[str] = ("masked_lm",),
    unshared: int = 0,
    one_encoder: bool = False,
) -> dict[str, int]:
    """Counts the trainable parameters of an encoder, or of ELECTRA with both.

    Heads are keys of ``HEADS``; others are refused; ``unshared`` are parameters of
    embeddings beyond those that both networks use; with ``one_encoder`` the
    discriminator's encoder is the generator's, too.

    Returns counts by part. ``backbone`` is what fine-tuning starts from;
    ``discriminator`` adds its heads; ``joint`` is everything, shared variables once.
    """
    d = discriminator
    counts = {
        "embeddings": embedding_count(d),
        "projection": _projection_count(d),
        "layer": _layer_count(d),
        "encoder": d.num_layers * _layer_count(d),
        "head": sum(head(name).parameters(d) for name in heads),
    }
    counts["backbone"] = sum(counts[n] for n in ("embeddings", "projection", "encoder"))
    counts["discriminator"] = counts["backbone"] + counts["head"]
    if generator is None:
        return counts
    g = generator
    # An encoder that both networks use is the discriminator's.
    towers = 0 if one_encoder else g.num_towers
    own = {
        "generator_projection": towers * _projection_count(g),
        "generator_encoder": towers * g.num_layers * _layer_count(g),
        "generator_head": sum(head(name).parameters(g) for name in generator_heads),
        "unshared_embeddings": unshared,
    }
    return {**counts, **own, "joint": counts["discriminator"] + sum(own.values())}


def embedding_count(e: EncoderShape) -> int:
    """Parameters of the three tables and their LayerNorm."""
    return (e.vocab_size + e.max_positions + e.num_segments + 2) * e.embedding_size


def _projection_count(e: EncoderShape) -> int:
    return (e.embedding_size + 1) * e.hidden_size if e.has_projection else 0


def _layer_count(e: EncoderShape) -> int:
    d, f = e.hidden_size, e.feed_forward_size
    return 4 * (d * d + d) + (2 * d * f + f + d) + 4 * d


def kept_per_token(
    encoder: EncoderShape, sequence_length: int, *, remat: bool = False
) -> int:
    """Activation values needed backward of each token: 2 E + L (12 D + 2 F + N S).

    12 D: input, query, key, value, context, both residual sums, both layer norms, and
    their dropout; 2 F: before and after the activation; N S: attention probabilities,
    kept once with their dropout in the sign. All towers count. With ``remat`` it is
    2 E + L D, the inputs of the layers, and the values of the one layer at work.
    """
    e = encoder
    layer = 12 * e.hidden_size + 2 * e.feed_forward_size + e.num_heads * sequence_length
    if remat:
        inputs = 2 * e.embedding_size + e.num_layers * e.hidden_size
        return e.num_towers * inputs + layer
    return e.num_towers * (2 * e.embedding_size + e.num_layers * layer)


def _named(what: str, name: str, table: Mapping[str, Any]) -> Any:
    if name not in table:
        raise UserError(f"{what} is {name!r}; allowed are {', '.join(table)}.")
    return table[name]

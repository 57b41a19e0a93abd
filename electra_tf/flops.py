"""Analytic FLOPs of encoders and heads, from plain numbers.

Letters: S sequence length, V vocabulary, E embedding size, D hidden size, F
feed-forward size, N heads, L layers. Two rules of counting:

- "original" reproduces the script behind the paper's numbers: every mathematical
  operation is one, a matrix product 2mn, the embedding lookup a dense one-hot product,
  and the backward pass costs as much as the forward pass.
- "matmul" is the usual model-FLOPs convention: matrix products only, the lookup is
  free, and the backward pass costs twice the forward pass.

A head counts at the positions it runs at, under both rules. ``costs`` says which
encoders and heads a run has.
"""

import dataclasses
from collections.abc import Callable, Mapping

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


def forward_flops(
    encoder: EncoderShape,
    heads: Mapping[str, float],
    *,
    sequence_length: int,
    rule: str = "original",
) -> float:
    """FLOPs per token of a forward pass.

    Args:
        encoder: its shape; all towers count.
        heads: name of each head (a key of ``HEADS``) to the share of the positions it
            runs at.
        sequence_length: S.
        rule: "original" or "matmul".

    Raises:
        ValueError: unknown rule or head.
    """
    count = get_rule(rule)
    total = encoder.num_towers * count.encoder(encoder, sequence_length)
    for name, share in heads.items():
        total += share * head_flops(name, encoder, rule=rule)
    return total


def head_flops(name: str, encoder: EncoderShape, *, rule: str = "original") -> float:
    """FLOPs of a head at one position, forward only.

    Raises:
        ValueError: unknown rule or head.
    """
    _check("head", name, HEADS)
    return HEADS[name](get_rule(rule), encoder)


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
    """FLOPs of pretraining ELECTRA or BERT.

    Args:
        discriminator: encoder with the replaced-token head; None for BERT.
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
        raise ValueError("training_flops needs a discriminator, a generator, or both.")
    passes = get_rule(rule).passes
    return passes * sum(forward) * sequence_length * batch_size * steps


def inference_flops(
    encoder: EncoderShape, *, sequence_length: int, rule: str = "original"
) -> float:
    """FLOPs of one sequence through a discriminator and its head, forward only.

    Raises:
        ValueError: unknown rule.
    """
    heads = {"replaced_token": 1.0}
    per_token = forward_flops(
        encoder, heads, sequence_length=sequence_length, rule=rule
    )
    return per_token * sequence_length


class _OriginalRule:
    """Every operation counts; per token or position."""

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

    def masked_lm(self, e):
        hidden = (2 * e.output_size + 1 + _ACTIVATION + _LAYER_NORM) * e.embedding_size
        return hidden + self.logits(e)

    def logits(self, e):
        return (2 * e.embedding_size + _SOFTMAX + 2) * e.vocab_size

    def replaced_token(self, e):
        return (2 * e.hidden_size + 1 + _ACTIVATION + 2) * e.hidden_size

    def linear_unit(self, e):
        return 2 * e.output_size + 1 + _ACTIVATION

    def relaxed_lookup(self, e):
        # Every lookup counts as this product already.
        del e
        return 0


class _MatmulRule:
    """Matrix products only; per token or position."""

    passes = 3

    def encoder(self, e, s):
        d, f = e.hidden_size, e.feed_forward_size
        layer = 8 * d * d + 4 * d * s + 4 * d * f
        projection = 2 * e.embedding_size * d if e.has_projection else 0
        return projection + e.num_layers * layer

    def masked_lm(self, e):
        return 2 * e.embedding_size * e.output_size + self.logits(e)

    def logits(self, e):
        return 2 * e.embedding_size * e.vocab_size

    def replaced_token(self, e):
        return 2 * e.hidden_size * (e.hidden_size + 1)

    def linear_unit(self, e):
        return 2 * e.output_size

    def relaxed_lookup(self, e):
        return self.logits(e)


RULES = {"original": _OriginalRule(), "matmul": _MatmulRule()}

# FLOPs of each head at a position, from the rule and the shape of its encoder.
HEADS: dict[str, Callable] = {
    "masked_lm": lambda count, e: count.masked_lm(e),
    # The product with the word table alone, of rows that are there already.
    "logits": lambda count, e: count.logits(e),
    "replaced_token": lambda count, e: count.replaced_token(e),
    # One unit with a sigmoid: copy gate, and baseline of the rewards.
    "linear_unit": lambda count, e: count.linear_unit(e),
    # Relaxed one-hot samples times the word table.
    "relaxed_lookup": lambda count, e: count.relaxed_lookup(e),
}


def get_rule(name: str):
    """Returns the rule of that name; ValueError lists the known ones."""
    _check("rule", name, RULES)
    return RULES[name]


def _check(what, name, table):
    if name not in table:
        raise ValueError(f"{what} is {name!r}; allowed are {', '.join(table)}.")

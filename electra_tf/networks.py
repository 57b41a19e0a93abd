"""Both encoders of a run, and what they share: which objects they are built on.

A row of ``SHARINGS`` takes the config and the size of the vocabulary and returns the
``Networks``. The embeddings called "embeddings" are those that runs of another sharing
have, too (``--init_from``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from electra_tf.config import EncoderConfig, PretrainConfig
from electra_tf.encoder import TextEncoder
from electra_tf.layers import DeltaEmbedding, SharedWordEmbedding, TextEmbedding


class Networks(NamedTuple):
    """The discriminator's encoder, and a way to the generator's.

    Attributes:
        discriminator: the encoder.
        generator: called with a name and further arguments of ``TextEncoder``, builds
            an encoder of the generator's sizes on the generator's tables; not called
            for a generator that is no network.
    """

    discriminator: TextEncoder
    generator: Callable[..., TextEncoder]


def encoder(
    config: EncoderConfig, embeddings: TextEmbedding, name: str, **options
) -> TextEncoder:
    """An encoder of these sizes on these embeddings."""
    return TextEncoder(
        embeddings,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        initializer_range=config.initializer_range,
        name=name,
        **options,
    )


def embeddings(
    config: EncoderConfig, vocab_size: int, name: str = "embeddings"
) -> TextEmbedding:
    """Embeddings with tables of their own."""
    return TextEmbedding(
        vocab_size,
        config.embedding_size,
        max_positions=config.max_positions,
        dropout=config.dropout,
        initializer_range=config.initializer_range,
        position_init=config.position_init,
        name=name,
    )


def _networks(
    config: PretrainConfig, generators: TextEmbedding, discriminators: TextEmbedding
) -> Networks:
    return Networks(
        discriminator=encoder(config.encoder, discriminators, "discriminator"),
        generator=functools.partial(encoder, config.generator_encoder, generators),
    )


def tied(config: PretrainConfig, vocab_size: int) -> Networks:
    """All tables and their LayerNorm (section 3.2 of the paper, and its code)."""
    shared = embeddings(config.encoder, vocab_size)
    return _networks(config, shared, shared)


def token(config: PretrainConfig, vocab_size: int) -> Networks:
    """The word table alone, as most re-implementations."""
    own = embeddings(config.encoder, vocab_size)
    dropout = config.generator_encoder.dropout
    borrowing = SharedWordEmbedding(own, dropout=dropout, name="generator_embeddings")
    return _networks(config, borrowing, own)


def separate(config: PretrainConfig, vocab_size: int) -> Networks:
    """Nothing.

    "nes": tables of the full embedding size on both sides ("no embedding sharing" of
    DeBERTaV3, section 3, and "no weight tying" of the paper's section 3.2, where both
    networks have one size). "untied": the generator's have its hidden size and need no
    projection, as ``untied_generator_embeddings`` of the original code.
    """
    own = embeddings(config.encoder, vocab_size)
    others = embeddings(config.generator_encoder, vocab_size, "generator_embeddings")
    return _networks(config, others, own)


def gdes(config: PretrainConfig, vocab_size: int) -> Networks:
    """The generator's tables without their gradient, plus deltas of its own.

    Gradient-disentangled embedding sharing of DeBERTaV3 (section 3.3).
    """
    lender = embeddings(config.generator_encoder, vocab_size)
    delta = DeltaEmbedding(
        lender, dropout=config.encoder.dropout, name="discriminator_embeddings"
    )
    return _networks(config, lender, delta)


def one_encoder(config: PretrainConfig, vocab_size: int) -> Networks:
    """Everything: one encoder is both (section 3.2); their sizes are equal."""
    table = embeddings(config.encoder, vocab_size)
    both = encoder(config.encoder, table, "discriminator")
    return Networks(discriminator=both, generator=lambda *_, **__: both)


# What generator and discriminator share.
SHARINGS: dict[str, Callable[[PretrainConfig, int], Networks]] = {
    "tied": tied,
    "token": token,
    "untied": separate,
    "nes": separate,
    "gdes": gdes,
    "all": one_encoder,
}

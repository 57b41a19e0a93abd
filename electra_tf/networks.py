"""Both encoders of a run, and what they share: which objects they are built on.

Each function below takes the config and the size of the vocabulary and returns
(generator's encoder, discriminator's encoder); the table of them is in ``build.py``.
The embeddings called "embeddings" are those that runs of another sharing have, too
(``--init_from``).
"""

from __future__ import annotations

import dataclasses

from electra_tf.config import EncoderConfig, PretrainConfig
from electra_tf.encoder import TextEncoder
from electra_tf.layers import DeltaEmbedding, SharedWordEmbedding, TextEmbedding

Pair = tuple[TextEncoder, TextEncoder]


def encoder(config: EncoderConfig, embeddings: TextEmbedding, name: str) -> TextEncoder:
    """An encoder of these sizes on these embeddings."""
    return TextEncoder(
        embeddings,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        name=name,
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
        name=name,
    )


def _pair(
    config: PretrainConfig, generators: TextEmbedding, discriminators: TextEmbedding
) -> Pair:
    return (
        encoder(config.generator_encoder, generators, "generator"),
        encoder(config.encoder, discriminators, "discriminator"),
    )


def tied(config: PretrainConfig, vocab_size: int) -> Pair:
    """All tables and their LayerNorm (section 3.2 of the paper, and its code)."""
    shared = embeddings(config.encoder, vocab_size)
    return _pair(config, shared, shared)


def token(config: PretrainConfig, vocab_size: int) -> Pair:
    """The word table alone, as most re-implementations."""
    own = embeddings(config.encoder, vocab_size)
    borrowing = SharedWordEmbedding(
        own, dropout=config.encoder.dropout, name="generator_embeddings"
    )
    return _pair(config, borrowing, own)


def untied(config: PretrainConfig, vocab_size: int) -> Pair:
    """Nothing; the generator's tables have its hidden size and need no projection.

    The original code's ``untied_generator_embeddings``.
    """
    own = embeddings(config.encoder, vocab_size)
    others = embeddings(untied_generator(config), vocab_size, "generator_embeddings")
    return _pair(config, others, own)


def untied_generator(config: PretrainConfig) -> EncoderConfig:
    """Sizes of the generator of ``untied``."""
    sizes = config.generator_encoder
    return dataclasses.replace(sizes, embedding_size=sizes.hidden_size)


def nes(config: PretrainConfig, vocab_size: int) -> Pair:
    """Nothing; both have tables of the full embedding size.

    "No embedding sharing" of DeBERTaV3 (section 3), and "no weight tying" of the
    paper's section 3.2, where generator and discriminator have one size.
    """
    own = embeddings(config.encoder, vocab_size)
    others = embeddings(config.encoder, vocab_size, "generator_embeddings")
    return _pair(config, others, own)


def gdes(config: PretrainConfig, vocab_size: int) -> Pair:
    """The generator's tables without their gradient, plus deltas of its own.

    Gradient-disentangled embedding sharing of DeBERTaV3 (section 3.3).
    """
    lender = embeddings(config.encoder, vocab_size)
    delta = DeltaEmbedding(
        lender, dropout=config.encoder.dropout, name="discriminator_embeddings"
    )
    return _pair(config, lender, delta)


def one_encoder(config: PretrainConfig, vocab_size: int) -> Pair:
    """Everything: one encoder is both (section 3.2); their sizes must be equal."""
    shared = embeddings(config.encoder, vocab_size)
    both = encoder(config.encoder, shared, "discriminator")
    return both, both

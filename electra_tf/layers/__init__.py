"""Embeddings, Transformer blocks, encoders, heads and dropout."""

from electra_tf.layers.embeddings import (
    DeltaEmbedding,
    SharedWordEmbedding,
    TextEmbedding,
)
from electra_tf.layers.encoder import TextEncoder
from electra_tf.layers.heads import Dropout, MaskedLMHead, ReplacedTokenHead
from electra_tf.layers.randomness import split_seed
from electra_tf.layers.transformer import TransformerEncoder, TransformerEncoderBlock

__all__ = [
    "DeltaEmbedding",
    "Dropout",
    "MaskedLMHead",
    "ReplacedTokenHead",
    "SharedWordEmbedding",
    "TextEmbedding",
    "TextEncoder",
    "TransformerEncoder",
    "TransformerEncoderBlock",
    "split_seed",
]

"""Text from the documentation of installed packages, and models of small size."""

import functools
import itertools

import numpy as np

from electra_tf.data import Vocabulary, installed, train_vocabulary

VOCABULARY_SIZE = 30522
# Enough for the vocabulary.
_MODULES = 2000


@functools.cache
def paragraphs() -> tuple[str, ...]:
    """Returns paragraphs of prose from the first modules."""
    documents = itertools.islice(installed.documents(), _MODULES)
    return tuple(itertools.chain.from_iterable(documents))


def sentences(count: int) -> list[str]:
    """Returns starts of paragraphs, 5 to 60 words, uniformly; deterministic."""
    random = np.random.default_rng(0)
    enough = [text.split() for text in paragraphs() if len(text.split()) >= 60]
    chosen = random.permutation(len(enough))
    lengths = random.integers(5, 61, size=count)
    return [
        " ".join(enough[chosen[number % len(chosen)]][:length])
        for number, length in enumerate(lengths)
    ]


def small_encoder(vocabulary: Vocabulary, dtype: str = "float32"):
    """Returns a ``TextEncoder`` of ELECTRA-Small's size."""
    from electra_tf.layers import TextEmbedding
    from electra_tf.layers.encoder import TextEncoder

    return TextEncoder(
        TextEmbedding(len(vocabulary), 128, dtype=dtype),
        num_layers=12,
        hidden_size=256,
        num_heads=4,
        dtype=dtype,
    )


def small_peer(vocabulary: Vocabulary, layers: int = 12) -> tuple:
    """Returns a Hugging Face classifier of ELECTRA-Small's size and its tokenizer.

    With 4 layers it has the size of the embedded encoder "mini".
    """
    import transformers

    config = transformers.ElectraConfig(
        vocab_size=len(vocabulary),
        embedding_size=128,
        hidden_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    model = transformers.ElectraForSequenceClassification(config)
    return model, transformers.ElectraTokenizerFast(vocab=dict(vocabulary.ids))


def vocabulary() -> Vocabulary:
    """Returns a vocabulary of BERT's size: trained on the text, then filled up."""
    tokens = train_vocabulary(paragraphs(), VOCABULARY_SIZE)
    unused = [f"[unused{number}]" for number in range(VOCABULARY_SIZE - len(tokens))]
    return Vocabulary((*tokens, *unused))

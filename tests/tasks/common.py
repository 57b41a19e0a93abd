import json
import string

import keras
import numpy as np

from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.layers import TextEmbedding
from electra_tf.tasks.base import Example
from electra_tf.tasks.metrics import precision_recall_f1
from electra_tf.tasks.sentences import tag_counts
from tests import tiny

UNCASED = {"lower_case": True, "strip_accents": True}
TOKENS = (
    *SPECIAL_TOKENS,
    *("good", "bad", "fine", "poor", "great", "awful", "movie", "book"),
    *("song", "the", "a", "is", "was", "very", "not"),
    *(c for c in string.ascii_lowercase + string.digits + ".,!?'\"" if c != "a"),
    *(f"##{c}" for c in string.ascii_lowercase + string.digits),
)


def span_scores(labels, predictions):
    scores = precision_recall_f1(tag_counts(labels, predictions)[:, 2:].sum(0))
    return {name: scores[name] for name in ("f1", "precision", "recall")}


def tokenizer(tokens=TOKENS):
    return WordPiece(Vocabulary(tokens))


VOCAB_SIZE = len(TOKENS)


def encoder(*, vocab=VOCAB_SIZE, layers=2, seed=5, positions=64, dropout=0.1):
    keras.utils.set_random_seed(seed)
    table = TextEmbedding(vocab, 12, max_positions=positions, dropout=dropout)
    sizes = {"num_layers": layers, "hidden_size": 16, "dropout": dropout}
    return tiny.encoder(table, **sizes, name="discriminator")


def assert_same_weights(one, other):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def save_pretrained(folder, *, max_seq_length=32, **kwargs):
    """Writes the files of a pretraining run that fine-tuning loads."""
    folder.mkdir(parents=True, exist_ok=True)
    model = encoder(**kwargs)
    # Distinct embeddings, as after pretraining: the task then needs 80 steps.
    table = model.embeddings.word_embeddings
    table.assign(np.random.default_rng(0).normal(scale=0.5, size=table.shape))
    model.save(folder / "encoder.keras")
    Vocabulary(TOKENS).save(folder / "vocab.txt")
    flags = {**UNCASED, "max_seq_length": max_seq_length}
    data = {"vocabulary_sha256": Vocabulary(TOKENS).sha256}
    (folder / "config.json").write_text(json.dumps({"config": flags, "data": data}))
    return folder / "encoder.keras"


def sentiment(count, *, offset=0):
    """Returns separable examples of different lengths."""
    words = (("good", "fine", "great"), ("bad", "poor", "awful"))
    found = []
    for number in range(offset, offset + count):
        label = number % 2
        text = f"the movie is {'very ' * (number % 7)}{words[label][number // 2 % 3]}"
        found.append(Example(str(number), (text,), ("pos", "neg")[label]))
    return found


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)

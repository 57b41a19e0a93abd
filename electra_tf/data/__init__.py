"""From text to TFRecords: corpora, vocabularies, tokenizer, examples, records."""

from electra_tf.data.corpora import open_corpus
from electra_tf.data.documents import ExampleBuilder
from electra_tf.data.masking import Masking
from electra_tf.data.pipeline import masking_for, pretraining_dataset
from electra_tf.data.records import Manifest, parse_batch, read_manifest, write_shard
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary, train_vocabulary

__all__ = [
    "ExampleBuilder",
    "Manifest",
    "Masking",
    "Vocabulary",
    "WordPiece",
    "masking_for",
    "open_corpus",
    "parse_batch",
    "pretraining_dataset",
    "read_manifest",
    "train_vocabulary",
    "write_shard",
]

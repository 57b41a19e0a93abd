"""From text to TFRecords: corpora, vocabularies, tokenizer, examples, records."""

from electra_tf import lazily

# Lazy, so that the command of this package explains itself without TensorFlow.
_HOMES = {
    "ExampleBuilder": "electra_tf.data.documents",
    "Manifest": "electra_tf.data.records",
    "Masking": "electra_tf.data.masking",
    "Vocabulary": "electra_tf.data.vocabulary",
    "WordPiece": "electra_tf.data.tokenizer",
    "masking_for": "electra_tf.data.pipeline",
    "open_corpus": "electra_tf.data.corpora",
    "parse_batch": "electra_tf.data.pipeline",
    "pretraining_dataset": "electra_tf.data.pipeline",
    "read_manifest": "electra_tf.data.records",
    "train_vocabulary": "electra_tf.data.vocabulary",
    "write_shard": "electra_tf.data.records",
}

__getattr__, __dir__, __all__ = lazily(__name__, _HOMES)

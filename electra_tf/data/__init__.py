r"""Corpora, vocabularies, tokenizers, pretraining examples and TFRecord files.

Setup of the examples in this package:

    >>> from pathlib import Path
    >>> from electra_tf.config.records import RecordsConfig
    >>> from electra_tf.data import building
    >>> _ = Path("few.txt").write_text("the cat sat on the mat.\nit ran.\n\n" * 40)
    >>> sizes = {"vocab_size": 40, "max_seq_length": 16}
    >>> config = RecordsConfig(corpus=("few.txt",), output_dir="records", **sizes)
    >>> _ = building.build(config)
    >>> manifest = et.data.read_manifest("records")
"""

from electra_tf import lazily

# Lazy: ``electra-tf records --help`` must not import TensorFlow.
_HOMES = {
    "ExampleBuilder": "electra_tf.data.documents",
    "Manifest": "electra_tf.data.records",
    "Masking": "electra_tf.data.masking",
    "Vocabulary": "electra_tf.data.vocabulary",
    "WordPiece": "electra_tf.data.tokenizer",
    "load_passive": "electra_tf.data.tables",
    "masking_for": "electra_tf.data.pipeline",
    "open_corpus": "electra_tf.data.corpora",
    "parse_batch": "electra_tf.data.pipeline",
    "pretraining_dataset": "electra_tf.data.pipeline",
    "read_manifest": "electra_tf.data.records",
    "train_vocabulary": "electra_tf.data.vocabulary",
    "write_shard": "electra_tf.data.records",
}

__getattr__, __dir__, __all__ = lazily(__name__, _HOMES)

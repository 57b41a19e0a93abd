"""Flags that several commands share."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from electra_tf.config.fields import Group, field

# Tokenizer normalization options.
CASING = ("lower_case", "strip_accents")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerFlags(Group):
    """Tokenizer of a saved model."""

    vocab_file: str | None = field(
        None, "Vocabulary; default: vocab.txt beside the model.", resumable=True
    )
    lower_case: bool | None = field(
        None, "Lower-case the text; default: by config.json beside the model."
    )
    strip_accents: bool | None = field(None, "Strip accents; default: likewise.")

    @property
    def tokenization(self) -> dict[str, Any]:
        """Keyword arguments of a model folder's ``tokenizer``."""
        return {name: getattr(self, name) for name in ("vocab_file", *CASING)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusFlags(Group):
    """Corpus, vocabulary and examples."""

    corpus: tuple[str, ...] = field(
        ("installed",),
        "Text, comma-separated: files (UTF-8, .jsonl, .csv, .tsv or .parquet; also "
        "with .gz, .bz2, .xz or .zst), folders, patterns such as 'books/**/*.txt', "
        "tfds:NAME[:SPLIT[:FEATURE]], or installed, the documentation of the "
        "installed Python packages.",
        resumable=True,
    )
    text_column: str = field(
        "text", "Column of tables with the documents.", resumable=True
    )
    vocab_file: str | None = field(
        None,
        "WordPiece vocabulary, one token per line; default: vocab.txt in the folder of "
        "the records, which is trained on the corpus if it does not exist.",
        resumable=True,
    )
    vocab_size: int = field(30522, "Entries of a trained vocabulary.", min=1)
    lower_case: bool = field(True, "Lower-case the text.")
    strip_accents: bool = field(True, "Strip accents (only with lower_case).")
    blank_lines_separate: bool = field(
        True, "A blank line ends a document. Otherwise a file is one document."
    )
    segmenting: Literal["carry", "original"] = field(
        "carry",
        "carry: segments in text order, nothing is lost. original: the rule of the "
        "original code, which reorders lines and discards the rest.",
    )
    max_seq_length: int = field(128, "Tokens per example, with special tokens.", min=8)
    eval_fraction: float = field(
        0.01,
        "Share of the documents to hold out for evaluation, by a hash of their text; "
        "0: none. A small corpus holds out one document, if it has at most this share, "
        "or 5 %, of the text.",
        min=0,
        max=0.999,
    )


def callbacks() -> Any:
    """Returns the field of the flag ``callback``."""
    return field(
        (),
        "module:Class of a Keras callback without arguments, or module:function that "
        "returns a callback. May be given several times.",
        repeated=True,
        resumable=True,
    )

"""What a build of training records is: one flag per field."""

from __future__ import annotations

import dataclasses
from typing import Literal

from electra_tf.config.fields import (
    HELD_OUT,
    NOT_NEGATIVE,
    SEED,
    SHARE,
    Allowed,
    Group,
    at_least,
    field,
)

# A record is at most some megabytes, and a shard is held by one process.
_SHARD = Allowed("be in [0.01, 65536]", lambda value: 0.01 <= value <= 65_536)
_FROM_0_TO_1 = Allowed("be in [0, 1]", lambda value: 0 <= value <= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordsConfig(Group):
    r"""Builds TFRecords for pretraining from raw text.

    The text is one sentence or paragraph per line, with a blank line between documents.

    Examples:
      # The documentation of the installed Python packages: no download, under a minute.
      python -m electra_tf records --output_dir=records

      # Own text with a vocabulary of one's own (trained, and saved as vocab.txt).
      python -m electra_tf records --corpus=wiki.txt.gz,novels/ \
          --vocab_size=30522 --max_seq_length=512 --output_dir=records

      # One file is one document (blank lines mean nothing), with BERT's vocabulary.
      python -m electra_tf records --corpus='books/**/*.txt' \
          --noblank_lines_separate --vocab_file=vocab.txt --output_dir=records

    An interrupted build is resumed when the same command is given again. Finished
    records are never replaced without --overwrite.
    """

    corpus: tuple[str, ...] = field(
        ("installed",),
        "Where the text comes from, comma-separated: files (UTF-8, or .gz), folders, "
        "patterns such as 'books/**/*.txt', tfds:NAME[:SPLIT[:FEATURE]], or installed "
        "(the documentation of the installed Python packages).",
    )
    output_dir: str | None = field(None, "Folder to write to.", required=True)
    vocab_file: str | None = field(
        None,
        "Vocabulary, one token per line. If not given, OUTPUT_DIR/vocab.txt, which is "
        "trained on the corpus if it does not exist.",
    )
    vocab_size: int = field(
        30522, "Tokens of the vocabulary, if it is trained.", allowed=at_least(1)
    )
    max_seq_length: int = field(
        128, "Longest example, with special tokens.", allowed=at_least(8)
    )
    segmenting: Literal["carry", "original"] = field(
        "carry",
        "carry: segments in text order, nothing is lost. original: the rule of the "
        "original code, which reorders lines and discards what does not fit.",
    )
    lower_case: bool = field(True, "Lower-case the text.")
    strip_accents: bool = field(
        True, "Remove accents; only if the text is lower-cased."
    )
    blank_lines_separate: bool = field(
        True, "A blank line ends a document. Otherwise a file is one document."
    )
    eval_fraction: float = field(
        0.01,
        "Share of the documents to hold out for evaluation, chosen by their text. 0 "
        "holds out none; of few documents one, if it has at most this share, or 5 %, "
        "of the text.",
        allowed=HELD_OUT,
    )
    seed: int = field(0, "Seed of all random choices.", allowed=SEED)
    num_processes: int = field(
        0,
        "Processes; the records do not depend on it. 0: one per core, fewer for little "
        "text.",
        allowed=NOT_NEGATIVE,
    )
    shard_megabytes: float = field(
        48.0, "Size of a shard, about; small corpora get smaller ones.", allowed=_SHARD
    )
    dedup: Literal["none", "exact", "near"] = field(
        "none",
        "Documents that are left out because of earlier ones. exact: with the same "
        "lines. near: also with nearly the same words (MinHash of every five words in "
        "a row; needs datasketch).",
    )
    near_similarity: float = field(
        0.8,
        "Share of five-word sequences, of all that two documents have, that both must "
        "have for --dedup=near (Jaccard; estimated from 128 hashes).",
        allowed=SHARE,
    )
    min_characters: int = field(0, "Leave out shorter documents.", allowed=NOT_NEGATIVE)
    max_characters: int | None = field(
        None, "Leave out longer documents.", allowed=at_least(1)
    )
    min_letters: float = field(
        0.0,
        "Leave out documents with a smaller share of letters among what is no space: "
        "tables, logs, code. 0.6 keeps prose.",
        allowed=_FROM_0_TO_1,
    )
    max_repeated_lines: float = field(
        1.0,
        "Leave out documents that have a larger share of their characters in lines "
        "that were there before: menus, templates. 0.3 is usual.",
        allowed=_FROM_0_TO_1,
    )
    beam: str = field(
        "",
        "Flags of Apache Beam, in one: --beam='--runner=FlinkRunner --parallelism=8'. "
        "A pipeline then builds the records, the same ones, instead of processes here; "
        "its workers must see the text and OUTPUT_DIR under the same paths. Needs "
        "apache-beam.",
    )
    overwrite: bool = field(False, "Delete the records that OUTPUT_DIR already holds.")
    tfds_data_dir: str | None = field(None, "Folder of prepared TensorFlow Datasets.")

"""Flags of the corpus, and of `electra-tf records`."""

import dataclasses
from typing import Any, Literal

from electra_tf.config.fields import MAX_SEED, Group, field

# Flags that determine the records. Filters are settings only if they are used.
_SETTINGS = (
    *("max_seq_length", "segmenting", "lower_case", "strip_accents"),
    *("blank_lines_separate", "eval_fraction", "seed", "shard_megabytes"),
)
_FILTERS = ("dedup", "near_similarity", "min_characters", "decontaminate")


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
    strip_accents: bool = field(
        True,
        "Strip accents (only with lower_case). This merges words (German sch\u00f6n, "
        "schon) and deletes vowel signs and tone marks of Indic scripts, Thai, Hebrew "
        "and Arabic, and voicing marks of Japanese: there, use --nostrip_accents.",
    )
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordsConfig(CorpusFlags):
    r"""Builds TFRecords for pretraining from raw text.

    The text is one sentence or paragraph per line, with a blank line between documents.

    Examples:
      # The documentation of the installed Python packages, in under a minute.
      python -m electra_tf records --output_dir=records

      # Your own text; trains a vocabulary and saves it as vocab.txt.
      python -m electra_tf records --corpus=wiki.txt.gz,novels/ \
          --vocab_size=30522 --max_seq_length=512 --output_dir=records

      # One document per file (blank lines are ignored), with BERT's vocabulary.
      python -m electra_tf records --corpus='books/**/*.txt' \
          --noblank_lines_separate --vocab_file=vocab.txt --output_dir=records

    The same command resumes an interrupted build. Only --overwrite replaces finished
    records.
    """

    output_dir: str | None = field(None, "Folder to write to.", required=True)
    seed: int = field(0, "Seed of all random choices.", min=0, max=MAX_SEED)
    shard_megabytes: float = field(
        48.0,
        "Approximate size of a shard; small corpora get smaller ones.",
        min=0.01,
        max=65_536,
    )
    dedup: Literal["none", "exact", "near"] = field(
        "none",
        "Duplicates of earlier documents to leave out. exact: with the same lines. "
        "near: also with nearly the same words (MinHash of five-word sequences; needs "
        "datasketch).",
    )
    near_similarity: float = field(
        0.8,
        "Minimum Jaccard similarity of the five-word sequences of near duplicates, "
        "estimated from 128 hashes.",
        above=0,
        max=1,
        only_with="dedup=near",
    )
    min_characters: int = field(0, "Leave out shorter documents.", min=0)
    decontaminate: tuple[str, ...] = field(
        (),
        "Evaluation texts, given as in --corpus: leave out documents that share 13 "
        "consecutive words with them.",
    )
    beam: str = field(
        "",
        "Flags of Apache Beam in one string: '--runner=FlinkRunner --parallelism=8'. "
        "A pipeline builds the same records; its workers must see the text and "
        "OUTPUT_DIR under the same paths. Needs apache-beam.",
    )
    overwrite: bool = field(False, "Delete existing records in OUTPUT_DIR.")

    @property
    def filters(self) -> dict[str, Any]:
        """Document filters and deduplication that differ from the defaults."""
        return {
            name: getattr(self, name)
            for name in _FILTERS
            if getattr(self, name) != getattr(RecordsConfig, name)
        }

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the records, as in their manifest."""
        return {name: getattr(self, name) for name in _SETTINGS} | self.filters

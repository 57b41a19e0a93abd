"""Flags of the corpus, and of `electra-tf records`."""

import dataclasses
from typing import Any, Literal

from electra_tf.config.fields import MAX_SEED, Group, field, list_field, resumable_field

# Flags that determine the records. Filters are settings only if they are used.
_SETTINGS = (
    *("max_seq_length", "segmenting", "lower_case", "strip_accents"),
    *("blank_lines_separate", "eval_fraction", "seed", "shard_megabytes"),
)
_FILTERS = ("dedup", "near_similarity", "min_characters", "decontaminate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusFlags(Group):
    """Corpus, vocabulary and examples."""

    corpus: tuple[str, ...] = resumable_field(
        "Files (UTF-8, .jsonl, .csv, .tsv or .parquet; also with .gz, .bz2, .xz or "
        ".zst), folders, patterns such as 'books/**/*.txt', "
        "tfds:NAME[:SPLIT[:FEATURE]], or installed, the documentation of the "
        "installed Python packages.",
        ("installed",),
    )
    text_column: str = resumable_field("Column of tables with the documents.", "text")
    vocab_file: str | None = resumable_field(
        "WordPiece vocabulary, one token per line; default: vocab.txt in the folder of "
        "the records, which is trained on the corpus if it does not exist."
    )
    vocab_size: int = field("Size of a trained vocabulary.", 30522, min=1, max=1 << 24)
    lower_case: bool = field("Lower-case the text.", True)
    strip_accents: bool = field(
        "Strip accents (only with lower_case). This merges words (German sch\u00f6n, "
        "schon) and deletes vowel signs and tone marks of Indic scripts, Thai, Hebrew "
        "and Arabic, and voicing marks of Japanese: there, use --nostrip_accents.",
        True,
    )
    blank_lines_separate: bool = field(
        "A blank line ends a document. Otherwise a file is one document.", True
    )
    segmenting: Literal["carry", "original"] = field(
        "carry: segments in text order, nothing is lost. original: the rule of the "
        "original code, which reorders lines and discards the rest.",
        "carry",
    )
    max_seq_length: int = field("Tokens per example, with special tokens.", 128, min=8)
    eval_fraction: float = field(
        "Share of documents to hold out, by a hash of their text; 0: none. A small "
        "corpus holds out one document of at most this share, or 5 %.",
        0.01,
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

    The same command resumes a build. Only --overwrite replaces finished records.
    """

    output_dir: str | None = field("Folder to write to.", required=True)
    seed: int = field("Seed of all random choices.", 0, min=0, max=MAX_SEED)
    shard_megabytes: float = field(
        "Approximate size of a shard; small corpora get smaller ones.",
        48.0,
        min=0.01,
        max=65_536,
    )
    dedup: Literal["none", "exact", "near"] = field(
        "Duplicates of earlier documents to leave out. exact: same lines. near: also "
        "nearly the same words (MinHash of five-word sequences; needs datasketch).",
        "none",
    )
    near_similarity: float = field(
        "Minimum Jaccard similarity of near duplicates (128 hashes).",
        0.8,
        above=0,
        max=1,
        only_with="dedup=near",
    )
    min_characters: int = field("Leave out shorter documents.", 0, min=0)
    decontaminate: tuple[str, ...] = list_field(
        "Evaluation texts, given as in --corpus: leave out documents that share 13 "
        "words in a row."
    )
    beam: str = field(
        "Flags of Apache Beam in one string: '--runner=FlinkRunner --parallelism=8'. "
        "A pipeline builds the same records; its workers must see the text and "
        "OUTPUT_DIR under the same paths. Needs apache-beam.",
        "",
    )
    overwrite: bool = field("Delete existing records in OUTPUT_DIR.", False)

    @property
    def filters(self) -> dict[str, Any]:
        """Document filters and deduplication that differ from the defaults."""
        values = {name: getattr(self, name) for name in _FILTERS}
        return {n: v for n, v in values.items() if v != getattr(RecordsConfig, n)}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the records, as in their manifest."""
        return {name: getattr(self, name) for name in _SETTINGS} | self.filters

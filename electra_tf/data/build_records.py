r"""Builds TFRecords for pretraining from raw text.

The text is one sentence or paragraph per line, with a blank line between documents.

Examples:
  # The documentation of the installed Python packages: no download, under a minute.
  python -m electra_tf.data.build_records --output_dir=records

  # Own text with a vocabulary of one's own (trained, and saved as vocab.txt).
  python -m electra_tf.data.build_records --corpus=wiki.txt.gz,novels/ \
      --vocab_size=30522 --max_seq_length=512 --output_dir=records

  # One file is one document (blank lines mean nothing), with BERT's vocabulary.
  python -m electra_tf.data.build_records --corpus='books/**/*.txt' \
      --noblank_lines_separate --vocab_file=vocab.txt --output_dir=records

An interrupted build goes on when the same command is given again. Finished records are
never replaced without --overwrite.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from electra_tf.data import records
from electra_tf.data.corpora import (
    about_long_documents,
    corpus_hash,
    open_corpus,
    shareable,
)
from electra_tf.data.documents import SEGMENTING
from electra_tf.data.folder_lock import locked
from electra_tf.data.output_folder import (
    WORK,
    finish,
    keep_vocabulary,
    prepare_folder,
)
from electra_tf.data.records import Manifest
from electra_tf.data.sources import Source
from electra_tf.data.units import (
    Recipe,
    Unit,
    hold_out,
    plan_units,
)
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.data.vocabulary_file import prepare_vocabulary
from electra_tf.data.workers import Log, build_units, log_to_stderr

_TEXT_PER_RECORD_BYTE = 2  # A shard takes about half the bytes of its text.
_LARGEST_SHARD = 65_536
_MANY_UNKNOWN = 0.01
_NOTHING_HELD_OUT = (
    "warning: nothing is held out: every document is too large a part of the corpus. "
    "Separate documents by blank lines, or give other records with --eval_records."
)


def build_records(
    corpus: Sequence[str],
    output_dir: str | os.PathLike,
    *,
    vocabulary: Vocabulary,
    max_seq_length: int = 128,
    segmenting: str = "carry",
    lower_case: bool = True,
    strip_accents: bool = True,
    blank_lines_separate: bool = True,
    eval_fraction: float = 0.01,
    seed: int = 0,
    num_processes: int = 0,
    shard_megabytes: float = 48,
    overwrite: bool = False,
    tfds_data_dir: str | None = None,
    log: Log = log_to_stderr,
) -> Manifest:
    """Writes `train-*.tfrecord`, `eval-*.tfrecord`, `vocab.txt` and `manifest.json`.

    The records are a function of the corpus and the settings; the number of processes
    does not matter. An interrupted build is resumed; a finished build of the same
    settings is returned as it is, also when its text is gone or, for the corpus
    `installed`, other packages are installed now. A second process that builds in the
    same folder waits for the first. With several processes, call it from a script
    whose main part is under `if __name__ == "__main__"`.

    Args:
        corpus: Source specs, see `open_corpus`.
        output_dir: Folder to write to, created if needed.
        vocabulary: The vocabulary.
        max_seq_length: Longest example, special tokens included.
        segmenting: `"carry"` or `"original"`, see `ExampleBuilder`.
        lower_case: Whether the text is lower-cased.
        strip_accents: Whether accents are removed, if it is lower-cased.
        blank_lines_separate: Whether a blank line ends a document; else a file is one.
        eval_fraction: Share of the documents to hold out; 0 holds out none. Of few
            documents one, if it has no more than this share, or 5 %, of the text.
        seed: Seed of the segment lengths, pairs and the order in a shard.
        num_processes: Processes; 0 means one per core, fewer for little text.
        shard_megabytes: Size of a shard, about, from 0.01 to 65,536; small corpora get
            smaller ones.
        overwrite: Whether to delete other records in the folder first.
        tfds_data_dir: Folder of prepared TensorFlow Datasets.
        log: Called with messages and progress.

    Returns:
        The manifest.

    Raises:
        ValueError: The corpus is empty or unreadable, a setting is wrong, or the
            folder holds records made with other settings.
        OSError: The folder cannot be written or the disk is full.
    """
    if not 0 <= eval_fraction < 1:
        raise ValueError(f"eval_fraction must be in [0, 1), got {eval_fraction}")
    if not 0.01 <= shard_megabytes <= _LARGEST_SHARD:
        raise ValueError(
            f"shard_megabytes must be from 0.01 to {_LARGEST_SHARD}, got "
            f"{shard_megabytes}"
        )
    sources, corpus_sha256, unreadable = _open(
        corpus, blank_lines_separate=blank_lines_separate, tfds_data_dir=tfds_data_dir
    )
    settings = {
        "format_version": records.FORMAT_VERSION,
        "corpus_sha256": corpus_sha256,
        "vocabulary_sha256": vocabulary.sha256,
        "max_seq_length": max_seq_length,
        "segmenting": segmenting,
        "lower_case": lower_case,
        "strip_accents": strip_accents,
        "blank_lines_separate": blank_lines_separate,
        "eval_fraction": eval_fraction,
        "seed": seed,
        "shard_megabytes": shard_megabytes,
    }
    recipe = Recipe(
        vocabulary=vocabulary,
        max_seq_length=max_seq_length,
        segmenting=segmenting,
        lower_case=lower_case,
        strip_accents=strip_accents,
        seed=seed,
        held_out=range(0),
        folder=str(Path(output_dir, WORK)),
    )
    recipe.example_builder(Unit(0, ()), "train")  # Refuses wrong settings early.
    folder = Path(output_dir)
    if unreadable and (overwrite or not (folder / records.MANIFEST).exists()):
        raise unreadable
    with locked(folder, log):
        finished = prepare_folder(folder, settings, corpus, overwrite, log, unreadable)
        if finished:
            return finished
        keep_vocabulary(vocabulary, folder / "vocab.txt", overwrite)
        unit_bytes = int(shard_megabytes * 2**20 * _TEXT_PER_RECORD_BYTE)
        sources = list(shareable(sources, folder / WORK, unit_bytes // 16, log))
        if warning := about_long_documents(sources):
            log(warning)
        held_out = hold_out(sources, eval_fraction)
        if eval_fraction and not held_out:
            log(_NOTHING_HELD_OUT)
        recipe = dataclasses.replace(recipe, held_out=held_out)
        units = plan_units(sources, unit_bytes)
        results = build_units(recipe, units, num_processes, log)
        manifest = finish(folder, recipe, settings, corpus, results)
    unknown = manifest.corpus["unknown_tokens"] / manifest.num_tokens
    if unknown > _MANY_UNKNOWN:
        log(
            f"warning: {unknown:.1%} of the tokens are {vocabulary.unk}: the text has "
            "characters that the vocabulary lacks. Does it have the text's language "
            "and casing? A larger one has more characters."
        )
    log(
        f"wrote {manifest.num_records} records of {manifest.num_tokens} tokens in "
        f"{len(manifest.train)} shards, and "
        f"{sum(shard.records for shard in manifest.eval)} held out, to {folder}"
    )
    return manifest


def _open(
    corpus: Sequence[str], **options
) -> tuple[list[Source], str | None, ValueError | OSError | None]:
    """The sources and their hash, or what is wrong with them."""
    try:
        sources = open_corpus(corpus, **options)
        return sources, corpus_hash(sources), None
    except (ValueError, OSError) as error:
        return [], None, error


def _define_flags():
    flags.DEFINE_list(
        "corpus",
        ["installed"],
        "Where the text comes from, comma-separated: files (UTF-8, or .gz), folders, "
        "patterns such as 'books/**/*.txt', tfds:NAME[:SPLIT[:FEATURE]], or installed "
        "(the documentation of the installed Python packages).",
    )
    flags.DEFINE_string("output_dir", None, "Folder to write to.", required=True)
    flags.DEFINE_string(
        "vocab_file",
        None,
        "Vocabulary, one token per line. If not given, OUTPUT_DIR/vocab.txt, which is "
        "trained on the corpus if it does not exist.",
    )
    flags.DEFINE_integer(
        "vocab_size", 8192, "Tokens of the vocabulary, if it is trained.", lower_bound=1
    )
    flags.DEFINE_integer(
        "max_seq_length", 128, "Longest example, with special tokens.", lower_bound=5
    )
    flags.DEFINE_enum(
        "segmenting",
        "carry",
        sorted(SEGMENTING),
        "carry: segments in text order, nothing is lost. original: the rule of the "
        "original code, which reorders lines and discards what does not fit.",
    )
    flags.DEFINE_bool("lower_case", True, "Lower-case the text.")
    flags.DEFINE_bool(
        "strip_accents", True, "Remove accents; only if the text is lower-cased."
    )
    flags.DEFINE_bool(
        "blank_lines_separate",
        True,
        "A blank line ends a document. Otherwise a file is one document.",
    )
    flags.DEFINE_float(
        "eval_fraction",
        0.01,
        "Share of the documents to hold out for evaluation, chosen by their text. 0 "
        "holds out none; of few documents one, if it has at most this share, or 5 %, "
        "of the text.",
        lower_bound=0,
        upper_bound=0.999,
    )
    flags.DEFINE_integer("seed", 0, "Seed of all random choices.")
    flags.DEFINE_integer(
        "num_processes",
        0,
        "Processes; the records do not depend on it. 0: one per core, fewer for little "
        "text.",
        lower_bound=0,
    )
    flags.DEFINE_float(
        "shard_megabytes",
        48,
        "Size of a shard, about; small corpora get smaller ones.",
        lower_bound=0.01,
        upper_bound=_LARGEST_SHARD,
    )
    flags.DEFINE_bool(
        "overwrite", False, "Delete the records that OUTPUT_DIR already holds."
    )
    flags.DEFINE_string(
        "tfds_data_dir", None, "Folder of prepared TensorFlow Datasets."
    )


def _main(arguments: Sequence[str]) -> int:
    if len(arguments) > 1:
        log_to_stderr(f"error: unexpected arguments {arguments[1:]}; see --help")
        return 1
    try:
        _build_from_flags(flags.FLAGS)
    except (ValueError, OSError) as error:
        log_to_stderr(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        log_to_stderr("\ninterrupted; give the same command again to go on")
        return 130
    return 0


def _build_from_flags(values: flags.FlagValues):
    names = ("lower_case", "strip_accents", "tfds_data_dir")
    shared = {name: values[name].value for name in names}
    if values.vocab_file:
        vocabulary = Vocabulary.load(values.vocab_file)
    else:
        vocabulary = prepare_vocabulary(
            values.corpus,
            Path(values.output_dir, "vocab.txt"),
            size=values.vocab_size,
            overwrite=values.overwrite,
            **shared,
        )
    names = (
        "max_seq_length",
        "segmenting",
        "blank_lines_separate",
        "eval_fraction",
        "seed",
        "num_processes",
        "shard_megabytes",
        "overwrite",
    )
    build_records(
        values.corpus,
        values.output_dir,
        vocabulary=vocabulary,
        **shared,
        **{name: values[name].value for name in names},
    )


if __name__ == "__main__":
    _define_flags()
    app.run(_main)

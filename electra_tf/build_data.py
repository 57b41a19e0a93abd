"""From a config to vocabulary and record files: made here, or given."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf.config import PretrainConfig
from electra_tf.data import pipeline, records
from electra_tf.data.build_records import build_records
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.data.vocabulary_file import prepare_vocabulary
from electra_tf.pretraining.baselines import token_counts

_COUNTED_RECORDS = 200_000


@dataclasses.dataclass(frozen=True)
class PretrainingData:
    """Vocabulary and record files of a run.

    Attributes:
        vocabulary: the WordPiece vocabulary.
        train_files: TFRecord files that are trained on.
        eval_files: held-out TFRecord files; may be empty.
        manifest: what ``build_records`` wrote beside them, if it did; of several
            folders, all their shards.
        lower_case: casing of the text in the records.
        strip_accents: whether accents were stripped.
    """

    vocabulary: Vocabulary
    train_files: tuple[str, ...]
    eval_files: tuple[str, ...]
    manifest: records.Manifest | None
    lower_case: bool
    strip_accents: bool

    @functools.cached_property
    def token_counts(self) -> np.ndarray:
        """[V] counts of the tokens of the training records, special tokens not counted.

        Of the first 200,000 records, which fix the frequencies well enough.
        """
        stream = tf.data.TFRecordDataset(list(self.train_files)).take(_COUNTED_RECORDS)
        batches = stream.batch(1000).map(lambda b: records.parse_batch(b).flat_values)
        vocabulary = self.vocabulary
        counts = token_counts(batches.as_numpy_iterator(), len(vocabulary))
        counts[[vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id]] = 0
        return counts


def pretraining_data(
    config: PretrainConfig, log: Callable[[str], None]
) -> PretrainingData:
    """Finds or makes vocabulary and records.

    Raises:
        ValueError: if text, vocabulary or records are missing, damaged, or do not
            fit each other.
        OSError: if something cannot be read or written.
    """
    return (_given_records if config.data.records else _built_records)(config, log)


def _built_records(config, log):
    data = config.data
    folder = Path(data.data_dir or os.path.join(config.run.model_dir, "data"))
    shared = {
        "lower_case": data.lower_case,
        "strip_accents": data.strip_accents,
        "tfds_data_dir": data.tfds_data_dir,
        "log": log,
    }
    vocabulary = (
        Vocabulary.load(data.vocab_file)
        if data.vocab_file
        else prepare_vocabulary(
            data.corpus, folder / "vocab.txt", size=data.vocab_size, **shared
        )
    )
    manifest = build_records(
        data.corpus,
        folder,
        vocabulary=vocabulary,
        max_seq_length=data.max_seq_length,
        segmenting=data.segmenting,
        blank_lines_separate=data.blank_lines_separate,
        eval_fraction=data.eval_fraction,
        seed=config.run.seed,
        num_processes=data.num_processes,
        **shared,
    )
    return PretrainingData(
        vocabulary,
        tuple(str(folder / shard.name) for shard in manifest.train),
        tuple(str(folder / shard.name) for shard in manifest.eval),
        manifest,
        data.lower_case,
        data.strip_accents,
    )


def _given_records(config, log):
    data = config.data
    found = pipeline.expand_files(data.records)
    # A glob over a folder that build_records wrote names its held-out shards too.
    train_files = [path for path in found if not _is_held_out(path)]
    if not train_files:
        raise ValueError(
            f"--records={','.join(data.records)} names held-out files only "
            "(eval-*.tfrecord); name the training files."
        )
    folders = sorted({Path(path).parent for path in found})
    eval_files = (
        pipeline.expand_files(data.eval_records, in_folder=pipeline.HELD_OUT)
        if data.eval_records
        else [str(path) for f in folders for path in sorted(f.glob(pipeline.HELD_OUT))]
    )
    vocabulary = _vocabulary_of(folders, data.vocab_file)
    manifests = {
        folder: records.read_manifest(folder)
        for folder in folders
        if (folder / records.MANIFEST).exists()
    }
    for folder, manifest in manifests.items():
        _check_fit(folder, manifest, vocabulary, data.max_seq_length)
    for folder in folders:
        if folder not in manifests:
            log(f"{folder} has no manifest: records are taken as they are.")
    lower_case, strip_accents = _casing(manifests) or (
        data.lower_case,
        data.strip_accents,
    )
    return PretrainingData(
        vocabulary,
        tuple(train_files),
        tuple(eval_files),
        _joined(list(manifests.values())) if len(manifests) == len(folders) else None,
        lower_case,
        strip_accents,
    )


def _is_held_out(path: str) -> bool:
    return os.path.basename(path).startswith("eval-")


def _vocabulary_of(folders: Sequence[Path], vocab_file: str | None) -> Vocabulary:
    """The vocabulary that is given, or the one beside the records of all folders."""
    if vocab_file:
        return Vocabulary.load(vocab_file)
    beside = {
        path: Vocabulary.load(path)
        for folder in folders
        if (path := _beside(folder, "vocab.txt"))
    }
    if not beside:
        raise ValueError(
            f"No vocabulary for the records in {folders[0]}: pass --vocab_file, the "
            "vocabulary they were built with."
        )
    (first, vocabulary), *others = beside.items()
    for path, other in others:
        if other.sha256 != vocabulary.sha256:
            raise ValueError(
                f"The records were built with different vocabularies, {first} and "
                f"{path}: train on one of the folders, or rebuild them with one "
                "--vocab_file."
            )
    return vocabulary


def _beside(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name, folder.parent / name):
        if candidate.exists():
            return candidate
    return None


def _check_fit(folder, manifest, vocabulary, max_seq_length):
    theirs = manifest.vocabulary["sha256"]
    if theirs != vocabulary.sha256:
        raise ValueError(
            f"The records in {folder} were built with another vocabulary than the one "
            f"given or beside them (sha256 {theirs[:12]} against "
            f"{vocabulary.sha256[:12]}): pass --vocab_file with theirs, or rebuild "
            "them."
        )
    if manifest.settings["max_seq_length"] > max_seq_length:
        raise ValueError(
            f"The records in {folder} hold up to {manifest.settings['max_seq_length']} "
            f"tokens but --max_seq_length is {max_seq_length}: raise it or rebuild "
            "them."
        )


def _casing(manifests: dict[Path, records.Manifest]) -> tuple[bool, bool] | None:
    """Casing and accents of the records, the same in all folders; None if unknown."""
    found = {
        (manifest.settings["lower_case"], manifest.settings["strip_accents"]): folder
        for folder, manifest in manifests.items()
    }
    if len(found) > 1:
        raise ValueError(
            f"The records in {' and '.join(map(str, found.values()))} differ in "
            "lower_case or strip_accents: rebuild them with one casing."
        )
    return next(iter(found), None)


def _joined(manifests: Sequence[records.Manifest]) -> records.Manifest:
    """One manifest of all folders: their shards and counts, settings of the first."""
    first, *others = manifests
    return dataclasses.replace(
        first,
        corpus={
            name: sum((other.corpus[name] for other in others), start)
            for name, start in first.corpus.items()
            if all(name in other.corpus for other in others)
        },
        train=tuple(shard for manifest in manifests for shard in manifest.train),
        eval=tuple(shard for manifest in manifests for shard in manifest.eval),
    )

"""Vocabulary and record files of a pretraining run."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf.cli import Log
from electra_tf.config.fields import CASING
from electra_tf.config.pretraining import DataConfig
from electra_tf.config.records import RecordsConfig
from electra_tf.data import paths, pipeline, records
from electra_tf.data.building import build, warn_of_casing
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError

COUNTED_RECORDS = 200_000


@dataclasses.dataclass(frozen=True)
class PretrainingData:
    """Vocabulary, record files and casing of a pretraining run.

    ``eval_files`` are held out and may be empty. ``shards`` describe the training
    files; they are None if a file is in no manifest.
    """

    vocabulary: Vocabulary
    train_files: tuple[str, ...]
    eval_files: tuple[str, ...]
    shards: tuple[records.Shard, ...] | None
    lower_case: bool
    strip_accents: bool

    def naming_damage(self) -> contextlib.AbstractContextManager:
        """Raises ValueError with file and record if damaged records stop the block."""
        files = (*self.train_files, *self.eval_files)
        return pipeline.naming_damage(files, len(self.vocabulary))

    @functools.cached_property
    def token_counts(self) -> np.ndarray:
        """Token counts of 200,000 training records, spread over all files, [V]."""
        # The first files would be those of the first corpus.
        each = -(-COUNTED_RECORDS // len(self.train_files))
        files = tf.data.Dataset.from_tensor_slices([*self.train_files])
        stream = files.flat_map(lambda file: tf.data.TFRecordDataset(file).take(each))
        vocabulary, size = self.vocabulary, len(self.vocabulary)
        batches = stream.batch(1000).map(
            lambda batch: pipeline.parse_batch(batch, size).flat_values
        )
        counts = np.zeros(size, np.int64)
        with self.naming_damage():
            for ids in batches.as_numpy_iterator():
                counts += np.bincount(ids, minlength=size)
        counts[[vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id]] = 0
        return counts


def built_data(
    config: RecordsConfig, log: Log, outputs: Sequence[str] = ()
) -> PretrainingData:
    """Builds records from text, or reuses existing ones; see ``building.build``."""
    vocabulary, manifest = build(config, outputs=outputs, log=log)
    train_files, eval_files = (
        tuple(str(Path(config.output_dir, shard.name)) for shard in shards)
        for shards in (manifest.train, manifest.eval)
    )
    casing = (config.lower_case, config.strip_accents)
    return PretrainingData(vocabulary, train_files, eval_files, manifest.train, *casing)


def given_data(config: DataConfig, log: Log) -> PretrainingData:
    """Finds existing records; held-out files and vocabulary default to their folders'.

    The casing of the config applies to records without a manifest.
    """
    matches = pipeline.expand_files(config.records)
    train_files = pipeline.without_held_out(matches)
    if not train_files:
        raise UserError(
            f"--records={','.join(config.records)}: only held-out files "
            "(eval-*.tfrecord); name the training files."
        )
    folders, held_out = _folders(matches), pipeline.HELD_OUT
    if config.eval_records:
        eval_files = pipeline.expand_files(config.eval_records, in_folder=held_out)
    else:
        eval_files = [path for f in folders for path in paths.inside(f, held_out)]
    if config.vocab_file:
        vocabulary = Vocabulary.load(config.vocab_file)
    else:
        vocabulary = _vocabulary_of(folders)
    manifests = {}
    for folder in _folders([*matches, *eval_files]):
        if paths.exists(os.path.join(folder, records.MANIFEST)):
            manifests[folder] = records.read_manifest(folder)
        else:
            log(f"{folder} has no manifest: its records are not checked.")
    casing = {name: getattr(config, name) for name in CASING}
    if not manifests:
        warn_of_casing(vocabulary, config, log)
    for number, (folder, manifest) in enumerate(manifests.items()):
        stored = {name: manifest.settings[name] for name in CASING}
        if number and stored != casing:
            raise UserError(
                f"The records in {', '.join(manifests)} differ in lower_case or "
                "strip_accents: rebuild them with one casing."
            )
        casing = stored
        longest, limit = manifest.settings["max_seq_length"], config.max_seq_length
        if manifest.vocabulary["sha256"] != vocabulary.sha256:
            raise UserError(
                f"The records in {folder} were built with another vocabulary: pass it "
                "as --vocab_file, or rebuild the records."
            )
        if longest > limit:
            raise UserError(
                f"The records in {folder} hold up to {longest} tokens but "
                f"--max_seq_length is {limit}: raise it or rebuild them."
            )
        if longest < limit:
            log(
                f"warning: the records in {folder} hold at most {longest} tokens: "
                f"--max_seq_length={limit} only adds padding."
            )
    for name, value in casing.items():
        if value and not getattr(config, name):
            log(f"warning: --no{name} has no effect: the records have --{name}.")
    names = ("data_dir", "corpus", "text_column", "segmenting", "eval_fraction")
    for name in (*names, "blank_lines_separate"):
        if getattr(config, name) != getattr(DataConfig, name):
            log(f"warning: --{name} has no effect: --records are built already.")
    both = (*train_files, *eval_files)
    trained = {*map(paths.identity, train_files)}
    if shared := [path for path in eval_files if paths.identity(path) in trained]:
        log(
            f"warning: {len(shared)} files are read for training and for evaluation, "
            f"such as {min(shared)}: scores are not of held-out text."
        )
    if empty := [path for path in both if paths.size(path) == 0]:
        log(
            f"{len(empty)} of {len(both)} record files are empty (0 bytes, 0 records), "
            f"such as {empty[0]}"
        )
    known = {
        (folder, shard.name): shard
        for folder, manifest in manifests.items()
        for shard in (*manifest.train, *manifest.eval)
    }
    used = {(os.path.dirname(path) or ".", Path(path).name) for path in train_files}
    if lost := [x for x in used - known.keys() if x[0] in manifests]:
        raise UserError(
            f"{min(lost)[1]} is not in the manifest of {min(lost)[0]}: keep records of "
            "each build in their own folder, and name all folders in --records."
        )
    shards = None  # A part of them would give wrong counts.
    if known.keys() >= used:
        shards = tuple(shard for key, shard in known.items() if key in used)
    return PretrainingData(
        vocabulary, tuple(train_files), tuple(eval_files), shards, **casing
    )


def _vocabulary_of(folders: Sequence[str]) -> Vocabulary:
    """Loads the vocabulary of the records folders or their parents."""
    found = {}
    for folder in folders:
        for place in (folder, os.path.dirname(folder)):
            path = os.path.join(place, "vocab.txt")
            if paths.exists(path):
                found[path] = Vocabulary.load(path)
                break
    if not found:
        raise UserError(
            f"No vocabulary for the records in {folders[0]}: pass it as --vocab_file."
        )
    if len({vocabulary.sha256 for vocabulary in found.values()}) > 1:
        raise UserError(
            f"The records were built with different vocabularies, {', '.join(found)}: "
            "train on one of the folders, or rebuild them with one --vocab_file."
        )
    return next(iter(found.values()))


def _folders(files: Sequence[str]) -> list[str]:
    return sorted({os.path.dirname(path) or "." for path in files})

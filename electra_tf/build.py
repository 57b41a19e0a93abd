"""From a config to objects: data, and models ready to be trained.

This file and its parts, ``build_models.py`` and ``build_training.py``, are the only
ones that choose. Everything below takes plain arguments; a choice is a row in a table.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from electra_tf import build_models, build_training
from electra_tf.config import PretrainConfig
from electra_tf.data import pipeline, records
from electra_tf.data.build_records import build_records, prepare_vocabulary
from electra_tf.data.masking import LinearMaskRate, Masking
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.pretraining import PretrainingModel
from electra_tf.pretraining.baselines import token_counts
from electra_tf.pretraining.phases import Phase

POLICIES = {
    "none": "float32",
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
}
_COUNTED_RECORDS = 200_000


@dataclasses.dataclass(frozen=True)
class PretrainingData:
    """Vocabulary and record files of a run.

    Attributes:
        vocabulary: the WordPiece vocabulary.
        train_files: TFRecord files that are trained on.
        eval_files: held-out TFRecord files; may be empty.
        manifest: what ``build_records`` wrote beside them, if it did.
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
    folder = Path(found[0]).parent
    eval_files = (
        pipeline.expand_files(data.eval_records)
        if data.eval_records
        else sorted(str(path) for path in folder.glob("eval-*.tfrecord"))
    )
    if not train_files:
        raise ValueError(
            f"--records={','.join(data.records)} names held-out files only "
            "(eval-*.tfrecord); name the training files."
        )
    manifest = None
    if (folder / records.MANIFEST).exists():
        manifest = records.read_manifest(folder)
    vocab_file = data.vocab_file or _beside(folder, "vocab.txt")
    if vocab_file is None:
        raise ValueError(
            f"No vocabulary for the records in {folder}: pass --vocab_file, the "
            "vocabulary they were built with."
        )
    vocabulary = Vocabulary.load(vocab_file)
    if manifest is None:
        log(f"{folder} has no manifest: records are taken as they are.")
        return PretrainingData(
            vocabulary,
            tuple(train_files),
            tuple(eval_files),
            None,
            data.lower_case,
            data.strip_accents,
        )
    _check_fit(manifest, vocabulary, vocab_file, data.max_seq_length)
    return PretrainingData(
        vocabulary,
        tuple(train_files),
        tuple(eval_files),
        manifest,
        manifest.settings["lower_case"],
        manifest.settings["strip_accents"],
    )


def _is_held_out(path: str) -> bool:
    return os.path.basename(path).startswith("eval-")


def _beside(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name, folder.parent / name):
        if candidate.exists():
            return candidate
    return None


def _check_fit(manifest, vocabulary, vocab_file, max_seq_length):
    theirs = manifest.vocabulary["sha256"]
    if theirs != vocabulary.sha256:
        raise ValueError(
            f"The records were built with another vocabulary than {vocab_file} "
            f"(sha256 {theirs[:12]} against {vocabulary.sha256[:12]}): pass "
            "--vocab_file with theirs, or rebuild them."
        )
    if manifest.settings["max_seq_length"] > max_seq_length:
        raise ValueError(
            f"The records hold up to {manifest.settings['max_seq_length']} tokens but "
            f"--max_seq_length is {max_seq_length}: raise it or rebuild them."
        )


def _mask_rate(config: PretrainConfig) -> LinearMaskRate:
    return LinearMaskRate(
        config.masking.mask_rate,
        config.last_mask_rate,
        config.masking.mask_rate_steps or config.run.num_train_steps,
    )


# What a rule reads of the training text.
_MASKING_NEEDS = {"rare_tokens": lambda data: {"token_counts": data.token_counts}}


def masking(
    config: PretrainConfig,
    data: PretrainingData,
    *,
    mask_rate: float | LinearMaskRate | None = None,
) -> Masking:
    """The masking step; ``mask_rate`` takes the place of the configured schedule."""
    vocabulary = data.vocabulary
    read = _MASKING_NEEDS.get(config.masking.mask_select, lambda _: {})
    return Masking(
        len(vocabulary),
        vocabulary.mask_id,
        pad_id=vocabulary.pad_id,
        never_masked=(vocabulary.cls_id, vocabulary.sep_id),
        max_seq_length=config.data.max_seq_length,
        mask_rate=mask_rate or _mask_rate(config),
        max_predictions_per_seq=config.masking.max_predictions_per_seq,
        rule=config.masking.mask_rule,
        select=config.masking.mask_select,
        continuation=[token.startswith("##") for token in vocabulary.tokens],
        rarity_power=config.masking.mask_rarity_power,
        **read(data),
    )


def train_dataset(
    config: PretrainConfig, data: PretrainingData, *, start_step: int = 0
) -> tf.data.Dataset:
    """Training batches from ``start_step`` on."""
    static = config.masking.masking == "static"
    return pipeline.pretraining_dataset(
        data.train_files,
        batch_size=config.run.train_batch_size,
        masking=masking(config, data),
        sep_id=data.vocabulary.sep_id,
        seed=config.run.seed,
        mask_variants=config.masking.mask_variants if static else None,
        shuffle_buffer=config.data.shuffle_buffer,
        start_batch=start_step,
    )


def eval_dataset(
    config: PretrainConfig, data: PretrainingData
) -> tf.data.Dataset | None:
    """Batches of the held-out text, always masked the same way; None without any."""
    if not data.eval_files:
        return None
    dataset = pipeline.pretraining_dataset(
        data.eval_files,
        batch_size=config.run.eval_batch_size,
        masking=masking(config, data, mask_rate=config.last_mask_rate),
        sep_id=data.vocabulary.sep_id,
        training=False,
        seed=config.run.seed,
    )
    limit = config.run.max_eval_batches
    return dataset.take(limit) if limit else dataset


def special_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    """Ids that are neither masked nor predicted: [CLS], [SEP] and [MASK]."""
    return (vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)


def compiled_phases(
    config: PretrainConfig, vocab_size: int, special_ids: Sequence[int] = ()
) -> list[Phase]:
    """The phases of a run, each model with its optimizer and all slots.

    Call in a scope. Joint training is one phase; the model of the last phase holds
    all networks. Arguments as ``build_models.model``.
    """
    keras.mixed_precision.set_global_policy(POLICIES[config.run.mixed_precision])
    whole = build_models.model(config, vocab_size, special_ids)
    found = build_training.phases(config, whole)
    for phase in found:
        phase.set_trainable()
        phase.model.compile(
            optimizer=build_training.optimizer(config, phase),
            jit_compile=config.run.jit_compile,
            steps_per_execution=config.run.steps_per_execution,
        )
        phase.model.optimizer.build(phase.model.trainable_variables)
    return found


def compiled_model(
    config: PretrainConfig, vocab_size: int, special_ids: Sequence[int] = ()
) -> PretrainingModel:
    """The model of the last phase, ready for ``fit``; call in a scope."""
    return compiled_phases(config, vocab_size, special_ids)[-1].model

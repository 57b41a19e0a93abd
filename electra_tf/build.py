"""From a config to objects: the only file that chooses.

Everything below takes plain arguments; a choice is a row in a table here.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from electra_tf.config import EncoderConfig, PretrainConfig
from electra_tf.data import pipeline, records
from electra_tf.data.build_records import build_records, prepare_vocabulary
from electra_tf.data.masking import LinearMaskRate, Masking
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.encoder import TextEncoder
from electra_tf.layers import TextEmbedding
from electra_tf.pretraining import (
    CategoricalSampler,
    Electra,
    Electric,
    MaskedLM,
    PretrainingModel,
    TwoTowerElectra,
    TwoTowerGenerator,
)
from electra_tf.pretraining.baselines import token_counts
from electra_tf.training import AdamW, WarmupPolynomialDecay

POLICIES = {
    "none": "float32",
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
}


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


_COUNTED_RECORDS = 200_000


def training_token_counts(data: PretrainingData) -> np.ndarray:
    """How often each token occurs in the (first) training records, [V] int64."""
    stream = tf.data.TFRecordDataset(list(data.train_files)).take(_COUNTED_RECORDS)
    batches = stream.batch(1000).map(lambda b: records.parse_batch(b).flat_values)
    vocabulary = data.vocabulary
    counts = token_counts(batches.as_numpy_iterator(), len(vocabulary))
    counts[[vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id]] = 0
    return counts


def _mask_rate(config: PretrainConfig) -> LinearMaskRate:
    return LinearMaskRate(
        config.masking.mask_rate,
        config.last_mask_rate,
        config.masking.mask_rate_steps or config.run.num_train_steps,
    )


# What a rule reads of the training text.
_MASKING_NEEDS = {
    "rare_tokens": lambda data: {"token_counts": training_token_counts(data)}
}


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


def _encoder(
    config: EncoderConfig, embeddings: TextEmbedding, name: str, **options
) -> TextEncoder:
    return TextEncoder(
        embeddings,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        name=name,
        **options,
    )


def _embeddings(config: EncoderConfig, vocab_size: int) -> TextEmbedding:
    return TextEmbedding(
        vocab_size,
        config.embedding_size,
        max_positions=config.max_positions,
        dropout=config.dropout,
        name="embeddings",
    )


def _masked_lm_generator(config, embeddings, special_ids) -> MaskedLM:
    del special_ids
    encoder = _encoder(config.generator_encoder, embeddings, "generator")
    return MaskedLM(encoder, name="masked_lm")


def _two_tower_generator(config, embeddings, special_ids) -> TwoTowerGenerator:
    left, right = (
        _encoder(
            config.generator_encoder,
            embeddings,
            f"generator_{direction}",
            direction=direction,
        )
        for direction in ("left_to_right", "right_to_left")
    )
    return TwoTowerGenerator(left, right, special_ids=special_ids, name="two_tower")


# Generator -> how it is built, and the ELECTRA that trains it.
GENERATORS: dict[str, tuple[Callable, type[Electra]]] = {
    "masked_lm": (_masked_lm_generator, Electra),
    "two_tower": (_two_tower_generator, TwoTowerElectra),
}


def _electra(
    config: PretrainConfig, vocab_size: int, special_ids: Sequence[int], **step
) -> Electra:
    generator, model_class = GENERATORS[config.generator.generator]
    return _pair(config, vocab_size, special_ids, generator, model_class, **step)


def _electric(
    config: PretrainConfig, vocab_size: int, special_ids: Sequence[int], **step
) -> Electric:
    return _pair(
        config, vocab_size, special_ids, _two_tower_generator, Electric, **step
    )


def _pair(config, vocab_size, special_ids, generator, model_class, **step):
    embeddings = _embeddings(config.encoder, vocab_size)
    return model_class(
        generator(config, embeddings, special_ids),
        _encoder(config.encoder, embeddings, "discriminator"),
        sampler=CategoricalSampler(
            config.generator.temperature, config.generator.disallow_correct
        ),
        generator_weight=config.objective.generator_weight,
        discriminator_weight=config.objective.discriminator_weight,
        name=config.objective.objective,
        **step,
    )


def _masked_lm(
    config: PretrainConfig, vocab_size: int, special_ids: Sequence[int], **step
) -> MaskedLM:
    del special_ids
    embeddings = _embeddings(config.encoder, vocab_size)
    return MaskedLM(
        _encoder(config.encoder, embeddings, "encoder"), name="masked_lm", **step
    )


OBJECTIVES: dict[str, Callable[..., PretrainingModel]] = {
    "electra": _electra,
    "electric": _electric,
    "mlm": _masked_lm,
}


def special_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    """Ids that are neither masked nor predicted: [CLS], [SEP] and [MASK]."""
    return (vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)


def model(
    config: PretrainConfig, vocab_size: int, special_ids: Sequence[int] = ()
) -> PretrainingModel:
    """The model, initialized from ``config.run.seed``, not yet compiled.

    Args:
        config: of the run.
        vocab_size: V.
        special_ids: of the vocabulary; the two-tower generator needs them.
    """
    keras.utils.set_random_seed(config.run.seed)
    return OBJECTIVES[config.objective.objective](
        config,
        vocab_size,
        special_ids,
        gradient_accumulation_steps=config.run.gradient_accumulation_steps,
        seed=config.run.seed,
    )


def optimizer(config: PretrainConfig) -> AdamW:
    """Adam and schedule."""
    choice = config.optimizer
    return AdamW(
        WarmupPolynomialDecay(
            choice.learning_rate,
            config.run.num_train_steps,
            warmup_steps=choice.warmup_steps,
            power=choice.lr_decay_power,
            combine=choice.lr_schedule,
        ),
        weight_decay=choice.weight_decay,
        beta_1=choice.adam_beta_1,
        beta_2=choice.adam_beta_2,
        epsilon=choice.adam_epsilon,
        bias_correction=choice.adam_bias_correction,
        clip_norm=choice.clip_norm,
        clipping=choice.clipping,
    )


def compiled_model(
    config: PretrainConfig, vocab_size: int, special_ids: Sequence[int] = ()
) -> PretrainingModel:
    """``model`` and optimizer with all slots, ready for ``fit``; call in a scope."""
    keras.mixed_precision.set_global_policy(POLICIES[config.run.mixed_precision])
    built = model(config, vocab_size, special_ids)
    built.compile(
        optimizer=optimizer(config),
        jit_compile=config.run.jit_compile,
        steps_per_execution=config.run.steps_per_execution,
    )
    built.optimizer.build(built.trainable_variables)
    return built

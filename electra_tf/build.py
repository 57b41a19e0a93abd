"""From a config to objects: the only file that chooses.

Everything below takes plain arguments; a choice is a row in a table here.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from electra_tf import networks
from electra_tf.config import LEFT_ROWS, PretrainConfig
from electra_tf.data import pipeline, records
from electra_tf.data.build_records import build_records, prepare_vocabulary
from electra_tf.data.masking import Masking
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.layers import TextEmbedding
from electra_tf.pretraining import (
    CategoricalSampler,
    CopyingTokenPrediction,
    Electra,
    JointObjective,
    LeaveRows,
    MaskedLM,
    Objective,
    PretrainingModel,
    ReplacedTokenDetection,
    SentenceDetection,
    TokenPrediction,
)
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


def masking(config: PretrainConfig, vocabulary: Vocabulary) -> Masking:
    """The masking step."""
    return Masking(
        len(vocabulary),
        vocabulary.mask_id,
        pad_id=vocabulary.pad_id,
        never_masked=(vocabulary.cls_id, vocabulary.sep_id),
        max_seq_length=config.data.max_seq_length,
        mask_rate=config.masking.mask_rate,
        max_predictions_per_seq=config.masking.max_predictions_per_seq,
        rule=config.masking.mask_rule,
        select=config.masking.mask_select,
        continuation=[token.startswith("##") for token in vocabulary.tokens],
    )


def train_dataset(
    config: PretrainConfig, data: PretrainingData, *, start_step: int = 0
) -> tf.data.Dataset:
    """Training batches from ``start_step`` on."""
    static = config.masking.masking == "static"
    return pipeline.pretraining_dataset(
        data.train_files,
        batch_size=config.run.train_batch_size,
        masking=masking(config, data.vocabulary),
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
        masking=masking(config, data.vocabulary),
        sep_id=data.vocabulary.sep_id,
        training=False,
        seed=config.run.seed,
    )
    limit = config.run.max_eval_batches
    return dataset.take(limit) if limit else dataset


# What generator and discriminator share.
SHARINGS: dict[str, Callable[..., networks.Pair]] = {
    "tied": networks.tied,
    "token": networks.token,
    "untied": networks.untied,
    "nes": networks.nes,
    "gdes": networks.gdes,
    "all": networks.one_encoder,
}

# What the discriminator is asked, given the embeddings it reads.
QUESTIONS: dict[str, Callable[[TextEmbedding], Objective]] = {
    "electra": lambda _: ReplacedTokenDetection(name="objective"),
    "electra_15": lambda _: ReplacedTokenDetection("masked", name="objective"),
    "replace_mlm": lambda table: TokenPrediction(table, name="objective"),
    "all_tokens_mlm": lambda table: CopyingTokenPrediction(table, name="objective"),
}


def _electra(config: PretrainConfig, vocab_size: int, **step) -> Electra:
    generator, discriminator = SHARINGS[config.generator.sharing](config, vocab_size)
    objective = QUESTIONS[config.objective.objective](discriminator.embeddings)
    sampler = CategoricalSampler(
        config.generator.temperature, config.generator.disallow_correct
    )
    if config.objective.sentence_weight:
        objective, sampler = _with_sentences(config, objective, sampler)
    return Electra(
        MaskedLM(generator, name="masked_lm"),
        discriminator,
        objective=objective,
        sampler=sampler,
        generator_weight=config.objective.generator_weight,
        discriminator_weight=config.objective.discriminator_weight,
        name="electra",
        **step,
    )


def _with_sentences(config, objective, sampler):
    """Adds the sentence-level loss, and leaves a fifth of the rows as they are."""
    sentence = SentenceDetection(name="sentence")
    weight = config.objective.sentence_weight
    joint = JointObjective(objective, sentence, weight, name="joint")
    return joint, LeaveRows(sampler, LEFT_ROWS)


def _masked_lm(config: PretrainConfig, vocab_size: int, **step) -> MaskedLM:
    table = networks.embeddings(config.encoder, vocab_size)
    encoder = networks.encoder(config.encoder, table, "encoder")
    return MaskedLM(encoder, name="masked_lm", **step)


OBJECTIVES: dict[str, Callable[..., PretrainingModel]] = {
    **dict.fromkeys(QUESTIONS, _electra),
    "mlm": _masked_lm,
}


def model(config: PretrainConfig, vocab_size: int) -> PretrainingModel:
    """The model, initialized from ``config.run.seed``, not yet compiled."""
    keras.utils.set_random_seed(config.run.seed)
    return OBJECTIVES[config.objective.objective](
        config,
        vocab_size,
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


def compiled_model(config: PretrainConfig, vocab_size: int) -> PretrainingModel:
    """Model and optimizer with all slots, ready for ``fit``; call in a scope."""
    keras.mixed_precision.set_global_policy(POLICIES[config.run.mixed_precision])
    built = model(config, vocab_size)
    built.compile(
        optimizer=optimizer(config),
        jit_compile=config.run.jit_compile,
        steps_per_execution=config.run.steps_per_execution,
    )
    built.optimizer.build(built.trainable_variables)
    return built

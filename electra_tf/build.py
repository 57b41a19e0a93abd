"""From a config to objects: data, and models ready to be trained.

This file and its parts, ``build_data.py``, ``build_models.py`` and
``build_training.py``, are the only ones that choose. Everything below takes plain
arguments; a choice is a row in a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from electra_tf import build_models, build_training
from electra_tf.build_data import PretrainingData, pretraining_data
from electra_tf.config import PretrainConfig
from electra_tf.data import pipeline
from electra_tf.data.masking import LinearMaskRate, Masking
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.pretraining import PretrainingModel
from electra_tf.pretraining.phases import Phase

__all__ = [
    "POLICIES",
    "PretrainingData",
    "compiled_model",
    "compiled_phases",
    "eval_dataset",
    "masking",
    "pretraining_data",
    "special_ids",
    "train_dataset",
]

POLICIES = {
    "none": "float32",
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
}


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

"""Rebuilds a run's networks and restores a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.errors import UserError
from electra_tf.pretraining import PretrainingModel
from electra_tf.pretraining.phases import learned_weights
from electra_tf.systems import build, costs
from electra_tf.training.checkpoints import load_weights, named_variables


def described(
    flags: Mapping[str, Any], vocabulary: Vocabulary
) -> tuple[PretrainConfig, PretrainingModel]:
    """Builds the config and the untrained model from the flags of a config.json.

    Raises:
        ValueError: if the flags are invalid for this vocabulary.
    """
    config = fields.from_flat(flags, PretrainConfig)
    costs.check_fits(config, len(vocabulary))
    special_ids = build.special_ids(vocabulary)
    return config, build.build_model(config, len(vocabulary), special_ids)


def restore(model: PretrainingModel, prefix: str) -> None:
    """Loads a checkpoint (".../ckpt-100") of a run into its model.

    Raises:
        OSError: if the checkpoint is missing or damaged.
        ValueError: if it belongs to another model or to the first of two stages.
    """
    own = {id(variable) for variable in learned_weights(model)}
    learned = {n: v for n, v in named_variables(model).items() if id(v) in own}
    lacking = load_weights(prefix, learned).missing
    if lacking:
        raise UserError(
            f"{prefix} lacks {', '.join(lacking[:3])} of the model of config.json: it "
            "belongs to another run, or to a first stage without a discriminator."
        )

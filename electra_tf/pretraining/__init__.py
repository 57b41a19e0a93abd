"""Pretraining models and their objectives.

The examples of this package continue this session:

    >>> from electra_tf import pretraining
    >>> table = et.layers.TextEmbedding(100, 16, max_positions=32)
    >>> small = {"num_layers": 1, "num_heads": 1}
    >>> generator = et.MaskedLM(et.TextEncoder(table, hidden_size=16, **small))
    >>> discriminator = et.TextEncoder(table, hidden_size=32, **small)
    >>> left, right = (
    ...     et.TextEncoder(table, hidden_size=16, direction=direction, **small)
    ...     for direction in ("left_to_right", "right_to_left")
    ... )
    >>> towers = pretraining.TwoTowerGenerator(left, right, special_ids=(2, 3, 4))
"""

from electra_tf.pretraining.adversarial import GumbelElectra, ReinforceElectra
from electra_tf.pretraining.base import PretrainingModel
from electra_tf.pretraining.electra import Electra
from electra_tf.pretraining.electric import (
    Electric,
    EnergyModel,
    NoiseContrastiveEstimation,
    TwoTowerGenerator,
)
from electra_tf.pretraining.masked_lm import MaskedLM, UnigramGenerator
from electra_tf.pretraining.objectives import (
    CopyingTokenPrediction,
    Discriminator,
    JointObjective,
    Objective,
    ReplacedTokenDetection,
    ReplacedTokenDetector,
    SentenceDetection,
    TokenPrediction,
)
from electra_tf.pretraining.samplers import CategoricalSampler, GreedySampler, LeaveRows
from electra_tf.training.schedules import ExponentialDecay, LinearChange

__all__ = [
    "CategoricalSampler",
    "CopyingTokenPrediction",
    "Discriminator",
    "Electra",
    "Electric",
    "EnergyModel",
    "ExponentialDecay",
    "GreedySampler",
    "GumbelElectra",
    "JointObjective",
    "LeaveRows",
    "LinearChange",
    "MaskedLM",
    "NoiseContrastiveEstimation",
    "Objective",
    "PretrainingModel",
    "ReinforceElectra",
    "ReplacedTokenDetection",
    "ReplacedTokenDetector",
    "SentenceDetection",
    "TokenPrediction",
    "TwoTowerGenerator",
    "UnigramGenerator",
]

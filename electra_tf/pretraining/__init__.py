"""Pretraining models: what is trained, and on what question."""

from electra_tf.pretraining.adversarial import (
    GumbelElectra,
    ReinforceElectra,
    RewardBaseline,
)
from electra_tf.pretraining.annealing import ExponentialDecay, LinearChange
from electra_tf.pretraining.base import PretrainingModel
from electra_tf.pretraining.electra import Electra
from electra_tf.pretraining.electric import (
    Electric,
    EnergyModel,
    NoiseContrastiveEstimation,
    pseudo_log_likelihood,
)
from electra_tf.pretraining.generators import UnigramGenerator
from electra_tf.pretraining.masked_lm import MaskedLM
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
from electra_tf.pretraining.phases import Phase
from electra_tf.pretraining.samplers import CategoricalSampler, GreedySampler, LeaveRows
from electra_tf.pretraining.two_tower import TwoTowerElectra, TwoTowerGenerator

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
    "Phase",
    "PretrainingModel",
    "ReinforceElectra",
    "ReplacedTokenDetection",
    "ReplacedTokenDetector",
    "RewardBaseline",
    "SentenceDetection",
    "TokenPrediction",
    "TwoTowerElectra",
    "TwoTowerGenerator",
    "UnigramGenerator",
    "pseudo_log_likelihood",
]

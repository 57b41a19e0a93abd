"""Pretraining models: what is trained, and on what question."""

from electra_tf.pretraining.base import PretrainingModel
from electra_tf.pretraining.electra import Electra, ReplacedTokenDetector
from electra_tf.pretraining.electric import (
    Electric,
    EnergyModel,
    NoiseContrastiveEstimation,
    pseudo_log_likelihood,
)
from electra_tf.pretraining.masked_lm import MaskedLM
from electra_tf.pretraining.objectives import ReplacedTokenDetection
from electra_tf.pretraining.samplers import CategoricalSampler, GreedySampler
from electra_tf.pretraining.two_tower import TwoTowerElectra, TwoTowerGenerator

__all__ = [
    "CategoricalSampler",
    "Electra",
    "Electric",
    "EnergyModel",
    "GreedySampler",
    "MaskedLM",
    "NoiseContrastiveEstimation",
    "PretrainingModel",
    "ReplacedTokenDetection",
    "ReplacedTokenDetector",
    "TwoTowerElectra",
    "TwoTowerGenerator",
    "pseudo_log_likelihood",
]

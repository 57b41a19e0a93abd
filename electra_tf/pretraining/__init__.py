"""Pretraining models: what is trained, and on what question."""

from electra_tf.pretraining.adversarial import (
    GumbelElectra,
    ReinforceElectra,
    RewardBaseline,
)
from electra_tf.pretraining.base import PretrainingModel
from electra_tf.pretraining.electra import Electra, ReplacedTokenDetector
from electra_tf.pretraining.generators import UnigramGenerator
from electra_tf.pretraining.masked_lm import MaskedLM
from electra_tf.pretraining.objectives import ReplacedTokenDetection
from electra_tf.pretraining.phases import Phase
from electra_tf.pretraining.samplers import CategoricalSampler, GreedySampler
from electra_tf.pretraining.schedules import ExponentialDecay, LinearChange

__all__ = [
    "CategoricalSampler",
    "Electra",
    "ExponentialDecay",
    "GreedySampler",
    "GumbelElectra",
    "LinearChange",
    "MaskedLM",
    "Phase",
    "PretrainingModel",
    "ReinforceElectra",
    "ReplacedTokenDetection",
    "ReplacedTokenDetector",
    "RewardBaseline",
    "UnigramGenerator",
]

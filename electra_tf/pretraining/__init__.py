"""Pretraining models: what is trained, and on what question."""

from electra_tf.pretraining.base import PretrainingModel
from electra_tf.pretraining.electra import Electra, ReplacedTokenDetector
from electra_tf.pretraining.masked_lm import MaskedLM
from electra_tf.pretraining.objectives import ReplacedTokenDetection
from electra_tf.pretraining.samplers import CategoricalSampler, GreedySampler

__all__ = [
    "CategoricalSampler",
    "Electra",
    "GreedySampler",
    "MaskedLM",
    "PretrainingModel",
    "ReplacedTokenDetection",
    "ReplacedTokenDetector",
]

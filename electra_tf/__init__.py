"""ELECTRA pretraining, fine-tuning and serving on TensorFlow and Keras 3."""

from electra_tf import data, layers, losses, serving, tasks, training
from electra_tf.encoder import TextEncoder
from electra_tf.pretraining import (
    CategoricalSampler,
    Electra,
    MaskedLM,
    ReplacedTokenDetection,
    ReplacedTokenDetector,
)

__version__ = "0.1.0"

__all__ = [
    "CategoricalSampler",
    "Electra",
    "MaskedLM",
    "ReplacedTokenDetection",
    "ReplacedTokenDetector",
    "TextEncoder",
    "data",
    "layers",
    "losses",
    "serving",
    "tasks",
    "training",
]

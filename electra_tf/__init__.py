"""ELECTRA pretraining, fine-tuning and serving on TensorFlow and Keras 3."""

import os
import sys

# `python -m electra_tf.x` imports this package first: its own commands are quiet, a
# program that imports the library keeps TensorFlow's log as it has it.
if sys.argv[:1] == ["-m"]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

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

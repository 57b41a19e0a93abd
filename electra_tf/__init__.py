"""ELECTRA pretraining, fine-tuning and serving on TensorFlow and Keras 3.

Public names are imported on first use: ``--help`` does not import TensorFlow.

``load`` loads every saved model. Before ``keras.saving.load_model``, import
``electra_tf.api``, which registers all classes with Keras.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

# Silences all but fatal TensorFlow logs, unless a level is set: errors are raised.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__version__ = "0.3.0"


def lazily(
    module: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package with lazy imports.

    ``homes`` maps public names to their modules, or submodules to themselves.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        startup = importlib.import_module("electra_tf.config.startup")
        with startup.without_chatter():
            home = importlib.import_module(homes[name])
        value = home if homes[name].endswith(f".{name}") else getattr(home, name)
        setattr(sys.modules[module], name, value)
        return value

    return find, lambda: sorted([*vars(sys.modules[module]), *homes]), sorted(homes)


_HOMES = {
    "CategoricalSampler": "electra_tf.pretraining",
    "Electra": "electra_tf.pretraining",
    "MaskedLM": "electra_tf.pretraining",
    "QuestionAnswering": "electra_tf.api",
    "ReplacedTokenDetection": "electra_tf.pretraining",
    "ReplacedTokenDetector": "electra_tf.pretraining",
    "TextClassifier": "electra_tf.api",
    "UserError": "electra_tf.errors",
    "TextEncoder": "electra_tf.layers.encoder",
    "TokenClassifier": "electra_tf.api",
    "data": "electra_tf.data",
    "layers": "electra_tf.layers",
    "load": "electra_tf.api",
    "losses": "electra_tf.layers.losses",
    "serving": "electra_tf.serving",
    "tasks": "electra_tf.tasks",
    "training": "electra_tf.training",
}

# PEP 562: Python calls `__getattr__` for undefined names.
__getattr__, __dir__, __all__ = lazily(__name__, _HOMES)

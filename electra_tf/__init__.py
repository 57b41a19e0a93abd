"""ELECTRA pretraining, fine-tuning and serving on TensorFlow and Keras 3.

Importing this package does not import TensorFlow: each public name is imported when it
is first used, so that commands print their help in a fraction of a second.

``load`` reads every saved model. Import ``electra_tf.api`` before
``keras.saving.load_model``: it registers all classes with Keras.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

# `python -m electra_tf.x` imports this package first. Commands silence TensorFlow's
# log; programs that import the library keep it.
if sys.argv[:1] == ["-m"]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__version__ = "0.3.0"


def lazily(
    module: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package with lazy names.

    ``homes`` maps public names to their modules, or to the module of that name.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
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

# PEP 562: Python calls `__getattr__` for names that are not in the module yet.
__getattr__, __dir__, __all__ = lazily(__name__, _HOMES)

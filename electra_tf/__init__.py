"""ELECTRA pretraining, fine-tuning and serving on TensorFlow and Keras 3.

Importing this package loads no TensorFlow: each name below is imported when it is first
used, so that commands can explain themselves in a fraction of a second.
"""

import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# `python -m electra_tf.x` imports this package first: its own commands are quiet, a
# program that imports the library keeps TensorFlow's log as it has it.
if sys.argv[:1] == ["-m"]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__version__ = "0.2.0"


def lazily(
    module: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Makes `__getattr__`, `__dir__` and `__all__` of a package with lazy names.

    ``homes`` maps public names to the modules that have them; a module whose last part
    is the name stands for itself.
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

# PEP 562: Python asks these for names that the module does not have yet.
__getattr__, __dir__, __all__ = lazily(__name__, _HOMES)

# Classes that Keras knows as electra_tf>NAME, whether they are imported or not.
_REGISTERED = (
    "AdamW",
    "AnswerabilityLoss",
    "CategoricalSampler",
    "ClassificationHead",
    "CopyingTokenPrediction",
    "DeltaEmbedding",
    "Discriminator",
    "Dropout",
    "Electra",
    "Electric",
    "EnergyModel",
    "ExponentialDecay",
    "GreedySampler",
    "GumbelElectra",
    "HiddenClassificationHead",
    "IndependentSpanHead",
    "JointObjective",
    "LeaveRows",
    "LinearChange",
    "MaskedLM",
    "MaskedLMHead",
    "NoiseContrastiveEstimation",
    "PositionLoss",
    "QuestionAnswering",
    "ReinforceElectra",
    "ReplacedTokenDetection",
    "ReplacedTokenDetector",
    "ReplacedTokenHead",
    "RewardBaseline",
    "SentenceDetection",
    "SharedWordEmbedding",
    "SinusoidalRows",
    "SpanHead",
    "TaggingHead",
    "TaskModel",
    "TextClassifier",
    "TextEmbedding",
    "TextEncoder",
    "TokenClassifier",
    "TokenPrediction",
    "TransformerEncoder",
    "TransformerEncoderBlock",
    "TwoTowerElectra",
    "TwoTowerGenerator",
    "UnigramGenerator",
    "WarmupPolynomialDecay",
    "WordMean",
)


class _Unloaded:
    """Stands for a registered class in Keras until a saved model needs it.

    ``keras.saving.load_model`` after a mere ``import electra_tf`` finds it by name and
    calls ``from_config``, which imports everything that is registered; the class itself
    has taken the name by then.
    """

    def __init__(self, name: str):
        self._name = name

    def from_config(self, config: dict[str, Any]) -> Any:
        """Rebuilds an object of the class from its config."""
        for package in ("layers", "training", "pretraining", "tasks", "api"):
            importlib.import_module(f"electra_tf.{package}")
        registered = sys.modules["keras"].saving.get_custom_objects()
        return registered[self._name].from_config(config)


def _announce() -> None:
    """Tells Keras the names of all classes, without importing them."""
    registered = sys.modules["keras"].saving.get_custom_objects()
    for name in _REGISTERED:
        registered.setdefault(f"electra_tf>{name}", _Unloaded(f"electra_tf>{name}"))


class _AfterKeras(importlib.abc.MetaPathFinder):
    """Waits for the first import of Keras, which this package does not cause."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        """Lets others find Keras, and announces the classes once it is loaded."""
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            load = spec.loader.exec_module

            def load_and_announce(module: ModuleType) -> None:
                load(module)
                _announce()

            spec.loader.exec_module = load_and_announce
        return spec


if "keras" in sys.modules:
    _announce()
else:
    sys.meta_path.insert(0, _AfterKeras())

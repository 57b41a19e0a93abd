"""The public Python API: trainable text models and a loader of saved models.

Importing this package registers all Keras classes of the library.
"""

from electra_tf.api.loading import ExportedModel, PretrainedModel, load
from electra_tf.api.text_models import (
    QuestionAnswering,
    TextClassifier,
    TokenClassifier,
)

__all__ = [
    "ExportedModel",
    "PretrainedModel",
    "QuestionAnswering",
    "TextClassifier",
    "TokenClassifier",
    "load",
]

"""What a program of one's own holds: models that take texts, and whatever was saved.

Importing this package registers its classes with Keras.
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

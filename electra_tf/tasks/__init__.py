"""Fine-tuning tasks: data readers, tokenization, heads, losses and metrics.

Importing this package registers the classes of saved task models with Keras.

The examples of this package use these variables:

    >>> examples = [
    ...     et.tasks.Example("1", ("I liked it.",), "good"),
    ...     et.tasks.Example("2", ("A waste of time.",), "bad"),
    ... ]
    >>> task = et.tasks.Classification(name="mood", source=None, labels=("bad", "good"))
"""

from electra_tf.tasks.base import Example, Ragged, Rows, Task
from electra_tf.tasks.glue import glue_task
from electra_tf.tasks.heads import ClassificationHead, TaggingHead, TaskModel
from electra_tf.tasks.question_answering import QuestionAnswering
from electra_tf.tasks.recipe import RECIPES, layerwise_multipliers
from electra_tf.tasks.sentences import Sentence, SentenceSource
from electra_tf.tasks.span_head import SpanHead
from electra_tf.tasks.squad import Question, SquadSource
from electra_tf.tasks.tables import TableSource
from electra_tf.tasks.tagging import Tagging
from electra_tf.tasks.text import Classification, MultiLabel, Regression

__all__ = [
    "RECIPES",
    "Classification",
    "ClassificationHead",
    "Example",
    "MultiLabel",
    "Question",
    "QuestionAnswering",
    "Ragged",
    "Regression",
    "Rows",
    "Sentence",
    "SentenceSource",
    "SpanHead",
    "SquadSource",
    "TableSource",
    "Tagging",
    "TaggingHead",
    "Task",
    "TaskModel",
    "glue_task",
    "layerwise_multipliers",
]

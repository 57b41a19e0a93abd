"""Fine-tuning tasks: what is asked, how it is read, which network, how it is scored.

`task_names()` lists the names of the command line; the benchmark's tasks are rows of
`glue.ROWS`, the others are for the user's own tables or bring their own data.
"""

from electra_tf.tasks.base import Example, Ragged, Rows, Task
from electra_tf.tasks.batching import make_batch
from electra_tf.tasks.classification import Classification
from electra_tf.tasks.glue import glue_task
from electra_tf.tasks.heads import ClassificationHead, TaskModel
from electra_tf.tasks.multilabel import MultiLabel
from electra_tf.tasks.question_answering import QuestionAnswering
from electra_tf.tasks.recipe import RECIPES, layerwise_multipliers
from electra_tf.tasks.regression import Regression
from electra_tf.tasks.span_head import SpanHead
from electra_tf.tasks.squad_files import Question, SquadSource
from electra_tf.tasks.tables import TableSource
from electra_tf.tasks.tagging import Tagging
from electra_tf.tasks.tagging_files import Sentence, SentenceSource
from electra_tf.tasks.tagging_head import TaggingHead

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
    "make_batch",
]

"""What can be trained: one row per objective, generator, sharing and training.

``rows.py`` has the rows, ``build.py`` makes data, models and phases from a config,
``costs.py`` says what they take.
"""

from electra_tf.systems.rows import (
    GENERATORS,
    OBJECTIVES,
    SHARINGS,
    TRAININGS,
    GeneratorRow,
    ObjectiveRow,
    PhasePlan,
    SharingRow,
    TrainingRow,
    register,
)

__all__ = [
    "GENERATORS",
    "OBJECTIVES",
    "SHARINGS",
    "TRAININGS",
    "GeneratorRow",
    "ObjectiveRow",
    "PhasePlan",
    "SharingRow",
    "TrainingRow",
    "register",
]

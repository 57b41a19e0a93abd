"""Training infrastructure: optimizer, schedule, checkpoints, callbacks, reports.

Every class works alone in a plain `keras.Model.fit`.
"""

from electra_tf.training.optimizers import AdamW
from electra_tf.training.schedules import FitSchedule, WarmupPolynomialDecay

__all__ = ["AdamW", "FitSchedule", "WarmupPolynomialDecay"]

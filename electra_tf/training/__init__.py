"""Optimizer, learning-rate schedules, checkpoints, callbacks and metric logging."""

from electra_tf.training.optimizers import AdamW
from electra_tf.training.schedules import FitSchedule, WarmupPolynomialDecay

__all__ = ["AdamW", "FitSchedule", "WarmupPolynomialDecay"]

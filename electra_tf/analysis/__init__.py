"""Predictions of a pretrained pair for a text: verdicts, corruptions and fills."""

from electra_tf.analysis.inspector import Fills, Inspector, Verdicts

__all__ = ["Fills", "Inspector", "Verdicts"]

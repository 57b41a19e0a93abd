"""What a pretrained pair says of a text: verdicts, corruptions, fills."""

from electra_tf.analysis.inspector import Fills, Inspector, Verdicts

__all__ = ["Fills", "Inspector", "Verdicts"]

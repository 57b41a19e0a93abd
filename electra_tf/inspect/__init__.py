"""What a pretrained pair says of a text: verdicts, corruptions, fills."""

from electra_tf.inspect.inspector import Fills, Inspector, Verdicts

__all__ = ["Fills", "Inspector", "Verdicts"]

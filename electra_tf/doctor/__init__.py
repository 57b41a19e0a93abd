"""Checks checkpoints and configs for known problems."""

from electra_tf import lazily

_NAMES = ("Finding", "OK", "PROBLEM", "Subject", "WARNING", "examine", "read")
_NAMES += ("read_flagfile", "CHECKS")

# Lazy, since `--help` imports this package and must not wait for TensorFlow.
__getattr__, __dir__, __all__ = lazily(
    __name__, dict.fromkeys(_NAMES, "electra_tf.doctor.checks")
)

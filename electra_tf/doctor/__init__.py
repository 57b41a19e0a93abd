"""Checks for known traps, of checkpoints and configs of any origin."""

from electra_tf import lazily

_HOMES = {
    "FORMATS": "electra_tf.doctor.readers",
    "Finding": "electra_tf.doctor.subject",
    "OK": "electra_tf.doctor.subject",
    "PROBLEM": "electra_tf.doctor.subject",
    "Subject": "electra_tf.doctor.subject",
    "TRAPS": "electra_tf.doctor.report",
    "WARNING": "electra_tf.doctor.subject",
    "examine": "electra_tf.doctor.report",
    "read": "electra_tf.doctor.readers",
    "read_flagfile": "electra_tf.doctor.readers",
    "with_generator": "electra_tf.doctor.readers",
}

# Lazy, because `--help` imports this package and shall not wait for TensorFlow.
__getattr__, __dir__, __all__ = lazily(__name__, _HOMES)

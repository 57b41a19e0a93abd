"""Exports fine-tuned models, and runs and scores the exports."""

from electra_tf import lazily

_HOMES = {
    "Predictor": "electra_tf.serving.predictor",
    "ServingModule": "electra_tf.serving.export",
    "export_litert": "electra_tf.serving.export",
    "export_onnx": "electra_tf.serving.export",
    "export_saved_model": "electra_tf.serving.export",
}

# Lazy, because `--help` of commands does not import TensorFlow.
__getattr__, __dir__, __all__ = lazily(__name__, _HOMES)

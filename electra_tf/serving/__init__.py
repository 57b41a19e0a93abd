"""Models that answer without this library: exports, and predictions from them."""

from electra_tf import lazily

_HOMES = {
    "NumbersModule": "electra_tf.serving.export",
    "Predictor": "electra_tf.serving.predictor",
    "ServingModule": "electra_tf.serving.export",
    "export_litert": "electra_tf.serving.export",
    "export_onnx": "electra_tf.serving.export",
    "export_saved_model": "electra_tf.serving.export",
    "require_onnx": "electra_tf.serving.export",
}

# Lazy, because commands explain themselves without TensorFlow.
__getattr__, __dir__, __all__ = lazily(__name__, _HOMES)

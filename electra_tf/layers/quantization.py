"""int8 weights: ``model.quantize("int8")`` of Keras for the layers of this library.

``keras.Model.quantize`` calls ``quantize`` of each layer without sublayers. As in
``keras.layers.Dense`` and ``Embedding``, a weight becomes int8 with a float scale per
output channel (kernel) or row (table), and a product quantizes each row of activations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import tensorflow as tf
from keras.quantizers import AbsMaxQuantizer, Int8QuantizationConfig

from electra_tf.errors import UserError


class QuantizationInConfig:
    """Mixin that serializes the quantization of ``_int8_layers``."""

    def _int8_layers(self) -> Sequence[QuantizableLayer]:
        return [self]

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        parts = [layer.quantization_config for layer in self._int8_layers()]
        if any(parts):
            parts = [keras.saving.serialize_keras_object(part) for part in parts]
            config["quantization"] = parts
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        config = dict(config)
        parts = config.pop("quantization", ())
        instance = super().from_config(config)
        for layer, part in zip(instance._int8_layers(), parts, strict=bool(parts)):
            if part:
                layer.quantization_config = keras.saving.deserialize_keras_object(part)
                # Keras then calls ``quantize`` if the layer is built.
                name = layer.dtype_policy.name.removeprefix("int8_from_")
                layer.dtype_policy = f"int8_from_{name}"
        return instance


class QuantizableLayer(QuantizationInConfig):
    """Mixin of a layer with weights that become int8."""

    # Attributes of the weights, and the axis whose values share a scale.
    int8_weights: tuple[str, ...] = ()
    int8_axis = 0
    quantization_config: Int8QuantizationConfig | None = None

    def quantize(self, mode: str, config: Any, **_: Any) -> None:
        """Makes the weights int8; they are not trained any more.

        Raises ValueError for other modes, a second call, or if LoRA is enabled.
        """
        if mode != "int8":
            raise UserError(f"mode is {mode!r}: {self.name} allows only 'int8'.")
        check_without_lora(self)
        self.quantization_config = self.quantization_config or config
        self._make_int8()
        if not self.quantization_mode:
            self.dtype_policy = f"int8_from_{self.dtype_policy.name}"

    def _make_int8(self) -> None:
        """Replaces the weights; ``build`` calls it if the dtype policy is int8."""
        config = self.quantization_config or Int8QuantizationConfig()
        self.quantization_config = config
        quantizer = config.weight_quantizer or AbsMaxQuantizer()
        options = {"initializer": "zeros", "trainable": False, "autocast": False}
        for attribute in self.int8_weights:
            weight, axis = getattr(self, attribute), self.int8_axis
            values, scale = quantizer(weight.numpy(), axis=axis, to_numpy=True)
            scale = tf.squeeze(scale, axis)
            self._untrack_variable(weight)
            name = weight.name
            int8 = self.add_weight(values.shape, name=name, dtype="int8", **options)
            int8.scale = self.add_weight(
                scale.shape, name=f"{name}_scale", dtype="float32", **options
            )
            int8.activation_quantizer = config.activation_quantizer
            int8.assign(values)
            int8.scale.assign(scale)
            setattr(self, attribute, int8)
        self._is_quantized = True

    def _int8_call(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


def check_without_lora(layer: keras.layers.Layer) -> None:
    """Raises ValueError if a weight has factors of LoRA, which quantization loses."""
    if any(hasattr(variable, "lora") for variable in layer.weights):
        raise UserError("LoRA is enabled: call merge_lora() and quantize the copy.")


def modes(layer: keras.layers.Layer) -> tuple[str | None, ...]:
    """Returns the quantization modes of a layer and its sublayers, a key of traces."""
    return tuple(each.quantization_mode for each in layer._flatten_layers())


def int8_matmul(inputs: tf.Tensor, kernel: keras.Variable) -> tf.Tensor:
    """Multiplies rows [N, D] by an int8 kernel [D, F] in the dtype of the rows.

    The rows get the gradient of a product with the dequantized kernel.
    """

    @tf.custom_gradient
    def run(inputs: tf.Tensor, values: tf.Tensor, scale: tf.Tensor) -> tuple:
        def gradient(upstream: tf.Tensor) -> tuple:
            weights = tf.cast(tf.cast(values, tf.float32) / scale, upstream.dtype)
            return tf.matmul(upstream, weights, transpose_b=True), None, None

        rows, divisor = tf.cast(inputs, tf.float32), scale
        if kernel.activation_quantizer:
            rows, scale_of_rows = kernel.activation_quantizer(rows, axis=-1)
            divisor *= scale_of_rows
        # int32 if both factors are int8.
        product = tf.cast(keras.ops.matmul(rows, values), tf.float32)
        return tf.cast(product / divisor, inputs.dtype), gradient

    # Custom gradients cannot capture variables.
    return run(inputs, *map(tf.convert_to_tensor, (kernel, kernel.scale)))

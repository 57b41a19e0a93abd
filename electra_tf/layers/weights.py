"""Creation and use of weights in the layers.

Weights have the policy's variable dtype without Keras's autocast, because some
operations read them in float32 and others in bfloat16. Every weight needs its own
initializer instance: a reused one gives identical kernels.
"""

from collections.abc import Collection
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.layers.quantization import int8_matmul
from electra_tf.layers.serialization import Serializable

# A kernel and its bias, or a scale and a shift.
Pair = tuple[keras.Variable, keras.Variable]


@keras.saving.register_keras_serializable(package="electra_tf")
class SinusoidalRows(Serializable, keras.initializers.Initializer):
    """Sinusoidal initializer of a position table.

    Row p holds all sin(p w_i), then all cos(p w_i), w_i = 10000^(-i / n) and n =
    columns / 2 (Vaswani et al., 2017, section 3.5, which alternates them).
    ``deviation`` is the root mean square. Odd numbers of columns raise ValueError.
    """

    def __init__(self, deviation: float):
        self.deviation = deviation

    def __call__(self, shape: tuple[int, int], dtype: str | None = None) -> tf.Tensor:
        rows, columns = shape
        if columns % 2:
            raise ValueError(
                f"Sines and cosines need an even number of columns, got {columns}."
            )
        half = columns // 2
        angles = np.outer(np.arange(rows), 10000.0 ** (-np.arange(half) / half))
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        return keras.ops.convert_to_tensor(2**0.5 * self.deviation * table, dtype)


def check_positive(**sizes: int) -> None:
    """Raises ValueError unless all sizes are positive integers."""
    for name, size in sizes.items():
        if not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"{name} must be positive, got {size!r}: give an integer.")


def check_choice(name: str, value: Any, allowed: Collection[str]) -> None:
    """Raises ValueError if the value of an option is not one of ``allowed``."""
    if value not in allowed:
        raise UserError(f"{name} is {value!r}; allowed are {', '.join(allowed)}.")


def add_weight(
    layer: keras.layers.Layer,
    name: str,
    shape: tuple[int, ...],
    initializer: keras.initializers.Initializer | str = "zeros",
) -> keras.Variable:
    """Adds a weight that Keras does not autocast."""
    return layer.add_weight(shape, initializer, name=name, autocast=False)


def add_dense(
    layer: keras.layers.Layer,
    name: str,
    shape: tuple[int, ...],
    stddev: float | None = None,
) -> Pair:
    """Adds ``<name>_kernel`` of ``shape`` and a zero ``<name>_bias``; returns both.

    The kernel is initially truncated normal, or Glorot uniform without ``stddev``.
    """
    if stddev is None:
        start = keras.initializers.GlorotUniform()
    else:
        start = keras.initializers.TruncatedNormal(stddev=stddev)
    kernel = add_weight(layer, f"{name}_kernel", shape, start)
    return kernel, add_weight(layer, f"{name}_bias", shape[-1:])


def add_layer_norm(layer: keras.layers.Layer, name: str, size: int) -> Pair:
    """Adds ``<name>_gamma`` (ones) and ``<name>_beta`` (zeros); returns both."""
    gamma = add_weight(layer, f"{name}_gamma", (size,), "ones")
    return gamma, add_weight(layer, f"{name}_beta", (size,))


def matmul(inputs: tf.Tensor, kernel: keras.Variable) -> tf.Tensor:
    """Multiplies rows [N, D] by a kernel [D, F], with LoRA, in the rows' dtype."""
    if hasattr(kernel, "scale"):
        return int8_matmul(inputs, kernel)
    product = tf.matmul(inputs, tf.cast(kernel, inputs.dtype))
    if not hasattr(kernel, "lora"):
        return product
    a, b = (tf.cast(factor, inputs.dtype) for factor in kernel.lora)
    # Not inputs (W + A B): its gradient would be as large as the kernel's.
    return product + tf.matmul(tf.matmul(inputs, a), b)


def linear(inputs: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns inputs [..., D] times kernel [D, F] plus bias, in float32."""
    # The last product before a loss is float32 under every dtype policy.
    inputs, kernel, bias = (tf.cast(x, tf.float32) for x in (inputs, kernel, bias))
    return tf.tensordot(inputs, kernel, 1) + bias

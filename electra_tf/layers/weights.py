"""How the layers create and use their weights.

Weights are stored in the policy's variable dtype and cast where they are used, so
that each operation states its own precision. Every weight gets its own initializer:
one instance used twice would give two identical kernels.
"""

import keras
import tensorflow as tf


def truncated_normal(stddev):
    """Normal distribution cut at two `stddev` and not rescaled, as BERT's.

    The standard deviation of the cut distribution is 0.88 * `stddev`.
    """
    return keras.initializers.TruncatedNormal(stddev=stddev)


def add_dense(layer, name, shape, initializer):
    """Adds `<name>_kernel` of `shape` and a zero `<name>_bias`; returns both."""
    kernel = layer.add_weight(
        name=f"{name}_kernel", shape=shape, initializer=initializer, autocast=False
    )
    bias = layer.add_weight(
        name=f"{name}_bias", shape=shape[-1:], initializer="zeros", autocast=False
    )
    return kernel, bias


def add_layer_norm(layer, name, size):
    """Adds `<name>_gamma` (ones) and `<name>_beta` (zeros); returns both."""
    gamma = layer.add_weight(
        name=f"{name}_gamma", shape=(size,), initializer="ones", autocast=False
    )
    beta = layer.add_weight(
        name=f"{name}_beta", shape=(size,), initializer="zeros", autocast=False
    )
    return gamma, beta


def matmul(inputs, kernel):
    """Multiplies rows [N, D] by a kernel [D, F] in the dtype of the rows."""
    return tf.matmul(inputs, tf.cast(kernel, inputs.dtype))


def copy_own_weights(source, target):
    """Copies the variables a layer created itself; its parts keep theirs."""
    values = {}
    source.save_own_variables(values)
    target.load_own_variables(values)

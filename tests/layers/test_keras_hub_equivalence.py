"""The encoder block against keras-hub's block: outputs and gradients."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.layers import TransformerEncoderBlock
from tests.layers.helpers import randomized

keras_hub = pytest.importorskip("keras_hub")

SIZE, HEADS, WIDE = 16, 4, 32
MASK = tf.constant([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
HIDDEN = np.random.default_rng(3).normal(size=(2, 6, SIZE)).astype("float32")


def pairs(block, layer):
    """Variables of our block, and the ones of keras_hub's layer that they join."""
    attention = layer._self_attention_layer
    heads = [attention._query_dense, attention._key_dense, attention._value_dense]
    output = attention._output_dense
    wide = layer._feedforward_intermediate_dense
    narrow = layer._feedforward_output_dense
    first, second = layer._self_attention_layer_norm, layer._feedforward_layer_norm
    return [
        (block.qkv_kernel, [head.kernel for head in heads]),
        (block.qkv_bias, [head.bias for head in heads]),
        (block.attention_output_kernel, [output.kernel]),
        (block.attention_output_bias, [output.bias]),
        (block.attention_gamma, [first.gamma]),
        (block.attention_beta, [first.beta]),
        (block.intermediate_kernel, [wide.kernel]),
        (block.intermediate_bias, [wide.bias]),
        (block.output_kernel, [narrow.kernel]),
        (block.output_bias, [narrow.bias]),
        (block.output_gamma, [second.gamma]),
        (block.output_beta, [second.beta]),
    ]


@pytest.mark.parametrize("jit_compile", [None, True])
def test_outputs_and_gradients(jit_compile):
    block = TransformerEncoderBlock(WIDE, HEADS, dropout=0.0, attention_dropout=0.0)
    randomized(block, (None, None, SIZE))
    layer = keras_hub.layers.TransformerEncoder(
        intermediate_dim=WIDE,
        num_heads=HEADS,
        dropout=0.0,
        activation=functools.partial(keras.activations.gelu, approximate=False),
        layer_norm_epsilon=1e-12,
    )
    layer.build((None, None, SIZE))
    mapped = pairs(block, layer)
    for mine, parts in mapped:
        values = np.split(mine.numpy(), len(parts), axis=-1)
        for theirs, value in zip(parts, values, strict=True):
            theirs.assign(value.reshape(theirs.shape))
    weights = tf.cast(MASK, tf.float32)[..., tf.newaxis]
    cotangent = tf.constant(np.random.default_rng(4).normal(size=HIDDEN.shape))
    cotangent = tf.cast(cotangent, tf.float32) * weights

    def gradients(call, variables):
        def run(hidden):
            with tf.GradientTape() as tape:
                tape.watch(hidden)
                outputs = call(hidden)
                loss = tf.reduce_sum(outputs * cotangent)
            return outputs, *tape.gradient(loss, [hidden, *variables])

        if jit_compile is not None:
            run = tf.function(run, jit_compile=jit_compile)
        return run(tf.constant(HIDDEN))

    outputs, *ours = gradients(
        lambda x: block(x, MASK, training=True), [mine.value for mine, _ in mapped]
    )
    flat = [part.value for _, parts in mapped for part in parts]
    expected, *theirs = gradients(
        lambda x: layer(x, padding_mask=MASK, training=True), flat
    )
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    np.testing.assert_allclose(block(HIDDEN, MASK), expected, atol=1e-5)
    np.testing.assert_allclose(ours[0], theirs[0], atol=2e-5)
    remaining = iter(theirs[1:])
    for gradient, (mine, parts) in zip(ours[1:], mapped, strict=True):
        rows = (*mine.shape[:-1], -1)
        joined = np.concatenate([np.reshape(next(remaining), rows) for _ in parts], -1)
        np.testing.assert_allclose(gradient, joined, atol=2e-5, err_msg=mine.path)

"""How fast one training step of the encoder stack is, against keras_hub's layers.

    python benchmarks/encoder_speed.py

A step is forward and backward (no optimizer) through the Transformer stack of
ELECTRA-Small with dropout 0.1. All contenders run interleaved in one process. With
`--ablate`, further contenders each do one fused operation in plain TensorFlow instead.
"""

import os
import time
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

from electra_tf.layers import TransformerEncoder, fused, plain

LAYERS, SIZE, HEADS, WIDE, DROPOUT = 12, 256, 4, 1024, 0.1


def ours(policy):
    """The stack of this library."""
    encoder = TransformerEncoder(LAYERS, SIZE, HEADS, WIDE, dtype=policy)
    encoder.build()

    def run(hidden, mask, seed):
        return encoder(hidden, mask, training=True, seed=seed)

    return run, [v.value for v in encoder.trainable_variables]


def keras_hub_stack(policy):
    """The same stack of keras_hub's `TransformerEncoder` layers."""
    import keras_hub

    layers = [
        keras_hub.layers.TransformerEncoder(
            WIDE,
            HEADS,
            dropout=DROPOUT,
            activation=lambda x: keras.activations.gelu(x, approximate=False),
            layer_norm_epsilon=1e-12,
            dtype=policy,
        )
        for _ in range(LAYERS)
    ]
    for layer in layers:
        layer.build((None, None, SIZE))

    def run(hidden, mask, seed):
        del seed
        for layer in layers:
            hidden = layer(hidden, padding_mask=mask, training=True)
        return hidden

    return run, [v.value for layer in layers for v in layer.trainable_variables]


def without(name):
    """Our stack with one fused operation replaced by its plain namesake."""

    def contender(policy):
        run, variables = ours(policy)

        def patched(*arguments):
            with mock.patch.object(fused, name, getattr(plain, name)):
                return run(*arguments)

        return patched, variables

    return contender


CONTENDERS = {"keras_hub": keras_hub_stack, "electra_tf": ours}
ABLATIONS = {
    f"plain {name}": without(name)
    for name in ("attention", "bias_activation", "bias_drop_add_norm")
}


def training_step(contender, policy):
    """Compiles forward and backward; all gradients are needed for the result."""
    run, variables = contender(policy)

    @tf.function
    def step(hidden, mask, cotangent, seed):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            loss = tf.reduce_sum(
                tf.cast(run(hidden, mask, seed), tf.float32) * cotangent
            )
        gradients = tape.gradient(loss, [hidden, *variables])
        return tf.add_n([tf.reduce_sum(tf.cast(g, tf.float32)) for g in gradients])

    return step


def timed(step, inputs):
    """Seconds of one call, as a function; the call here compiles."""
    seeds = iter(range(1, 1 << 30))
    step(*inputs, tf.constant([0, 0])).numpy()

    def run():
        start = time.perf_counter()
        step(*inputs, tf.constant([next(seeds), 1])).numpy()
        return time.perf_counter() - start

    return run


def batch(rows, length, policy):
    """Random hidden states; a quarter of the rows is half padding."""
    rng = np.random.default_rng(0)
    mask = np.ones((rows, length), np.int32)
    mask[::4, length // 2 :] = 0
    hidden = rng.normal(size=(rows, length, SIZE))
    cotangent = rng.normal(size=hidden.shape)
    dtype = keras.dtype_policies.get(policy).compute_dtype
    return (
        tf.constant(hidden, dtype),
        tf.constant(mask),
        tf.constant(cotangent, tf.float32),
    )


def main():
    parser = harness.arguments(__doc__.splitlines()[0], rounds=10)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--policies", nargs="+", default=["mixed_bfloat16", "float32"])
    parser.add_argument("--ablate", action="store_true")
    arguments = parser.parse_args()
    contenders = {**CONTENDERS, **(ABLATIONS if arguments.ablate else {})}
    rows = []
    for policy in arguments.policies:
        inputs = batch(arguments.rows, arguments.length, policy)
        sides = {
            name: timed(training_step(contender, policy), inputs)
            for name, contender in contenders.items()
        }
        figures = harness.interleave(sides, arguments.rounds)
        rows += [
            harness.row(
                f"stack of small, {policy}: {name}",
                figures,
                ours=name,
                peer="keras_hub",
                unit="seconds",
            )
            for name in list(contenders)[1:]
        ]
    harness.report("encoder_speed", rows, arguments.output)


if __name__ == "__main__":
    main()

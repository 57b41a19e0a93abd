"""Time of one optimizer update on the variables of ELECTRA-Small.

    python benchmarks/optimizer_speed.py

Updates of all candidates take turns in one process; the unit is Keras's AdamW with
`global_clipnorm`, which does the same work.
"""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

from electra_tf.training.optimizers import AdamW

BASELINE = "keras AdamW + global_clipnorm"


def small_shapes(vocab_size=30522, layers=12):
    """Shapes of the joint trainable variables: 14,196,219 parameters."""
    shapes = [(vocab_size, 128), (512, 128), (2, 128), (128,), (128,), (vocab_size,)]
    for hidden in (256, 64):
        shapes += [(128, hidden), (hidden,)]
        shapes += layers * [
            *[(hidden, 3 * hidden), (3 * hidden,), (hidden, hidden), (hidden,)],
            *[(hidden, 4 * hidden), (4 * hidden,), (4 * hidden, hidden), (hidden,)],
            *[(hidden,)] * 4,
        ]
    shapes += [(64, 128), (128,), (128,), (128,), (256, 256), (256,), (256, 1), (1,)]
    return shapes


def make_update(optimizer, shapes, gradients, *, jit_compile=False):
    # Rank stands for role here: vectors are biases and layer normalizations.
    variables = [
        keras.Variable(np.full(s, 0.02, "float32"), name="w" if s[1:] else "bias")
        for s in shapes
    ]
    if not isinstance(optimizer, AdamW):
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.build(variables)

    @tf.function(jit_compile=jit_compile)
    def update():
        optimizer.apply(gradients, variables)

    return update


def candidates():
    keras_adamw = {"learning_rate": 1e-4, "weight_decay": 0.01, "epsilon": 1e-6}
    return {
        BASELINE: (keras.optimizers.AdamW(**keras_adamw, global_clipnorm=1.0), {}),
        "keras AdamW, no clip": (keras.optimizers.AdamW(**keras_adamw), {}),
        "electra_tf AdamW": (AdamW(1e-4), {}),
        "electra_tf AdamW, no clip": (AdamW(1e-4, clip_norm=None), {}),
        "electra_tf AdamW, XLA": (AdamW(1e-4), {"jit_compile": True}),
    }


def timed(update):
    """Seconds of one call, as a function; the call here compiles."""
    update()

    def run():
        start = time.perf_counter()
        update()
        return time.perf_counter() - start

    return run


def main():
    parser = harness.arguments(__doc__.splitlines()[0], rounds=40)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    shapes = small_shapes()
    gradients = [tf.constant(rng.normal(0, 0.01, s), tf.float32) for s in shapes]
    sides = {
        name: timed(make_update(optimizer, shapes, gradients, **options))
        for name, (optimizer, options) in candidates().items()
    }
    figures = harness.interleave(sides, arguments.rounds)
    rows = [
        harness.row(
            f"update of small: {name}",
            figures,
            ours=name,
            peer=BASELINE,
            unit="seconds",
        )
        for name in list(sides)[1:]
    ]
    parameters = int(sum(np.prod(shape) for shape in shapes))
    harness.report(
        "optimizer_speed",
        rows,
        arguments.output,
        parameters=parameters,
        variables=len(shapes),
    )


if __name__ == "__main__":
    main()

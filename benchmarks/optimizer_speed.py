"""Time of one optimizer update on the variables of ELECTRA-Small, as ratios.

Updates of all candidates are interleaved in one process; the ratio of the fastest
update of each to that of `keras.optimizers.AdamW` with `global_clipnorm` is reported,
since that is the one doing the same work. The first call (tracing, compiling) is
reported too.

    python benchmarks/optimizer_speed.py --rounds=40 --json=optimizer_speed.json
"""

import argparse
import json
import os
import platform
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

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


def measure(rounds):
    rng = np.random.default_rng(0)
    shapes = small_shapes()
    gradients = [tf.constant(rng.normal(0, 0.01, s), tf.float32) for s in shapes]
    updates, first = {}, {}
    for name, (optimizer, options) in candidates().items():
        start = time.perf_counter()
        updates[name] = make_update(optimizer, shapes, gradients, **options)
        updates[name]()
        first[name] = time.perf_counter() - start
    times = {name: [] for name in updates}
    for _ in range(rounds):
        for name, update in updates.items():
            start = time.perf_counter()
            update()
            times[name].append(time.perf_counter() - start)
    base = min(times[BASELINE]), float(np.median(times[BASELINE]))
    return {
        name: {
            "ratio_of_minima": round(min(seconds) / base[0], 3),
            "ratio_of_medians": round(float(np.median(seconds)) / base[1], 3),
            "minimum_ms": round(1e3 * min(seconds), 2),
            "first_call_s": round(first[name], 2),
        }
        for name, seconds in times.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", help="file to write the result to")
    args = parser.parse_args()
    result = {
        "parameters": int(sum(np.prod(s) for s in small_shapes())),
        "variables": len(small_shapes()),
        "rounds": args.rounds,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "updates": measure(args.rounds),
    }
    print("| update | of minima | of medians | first call, s |")
    print("|---|---|---|---|")
    for name, row in result["updates"].items():
        print(
            f"| {name} | {row['ratio_of_minima']:.2f} | "
            f"{row['ratio_of_medians']:.2f} | {row['first_call_s']:.1f} |"
        )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()

"""One training step of ELECTRA on a GPU, against the PyTorch step of ``step.py``.

    python benchmarks/gpu_step.py --side=ours --size=base --rows=64
    python benchmarks/gpu_step.py --side=pytorch --size=base --rows=64 --compile

Each command measures one side in a fresh process and appends a line to ``--output``.
The step is the same as in ``step.py``: bfloat16, dropout 0.1, a check of every loss.
The framework's allocator reports the peak memory.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import harness
import step as training_step


def ours(size, arguments: argparse.Namespace) -> Callable[[], dict]:
    """Returns a function that runs one step and returns its logs."""
    import keras
    import tensorflow as tf

    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)
    keras.utils.set_random_seed(1)
    config = training_step.config_of(size, arguments.precision)
    return training_step.build_step(config, size)


def peer(size, arguments: argparse.Namespace) -> Callable[[], None]:
    """Returns the step in PyTorch on the GPU, with autocast."""
    import torch

    torch.set_float32_matmul_precision("high")
    mode = "float32" if arguments.precision == "float32" else "autocast"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return training_step.peer(size, mode, device, arguments.compile)


def peak_bytes(side: str) -> int | None:
    """Returns the framework's peak GPU memory; None without a GPU."""
    if side == "pytorch":
        import torch

        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return None
    return tf.config.experimental.get_memory_info("GPU:0")["peak"]


def device_name(side: str) -> str:
    """Returns the name of the GPU, or "CPU"."""
    if side == "pytorch":
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    import tensorflow as tf

    for device in tf.config.list_physical_devices("GPU"):
        return tf.config.experimental.get_device_details(device)["device_name"]
    return "CPU"


def speed(size, arguments: argparse.Namespace) -> dict:
    """Returns tokens and FLOPs per second in rounds of ten steps, after a warm-up."""
    began = time.perf_counter()
    step = (ours if arguments.side == "ours" else peer)(size, arguments)
    step()
    first = time.perf_counter() - began
    seconds = []
    for _ in range(arguments.warmup):
        step()
    for _ in range(arguments.steps // 10):
        began = time.perf_counter()
        for _ in range(10):
            step()
        seconds.append((time.perf_counter() - began) / 10)
    tokens, each = size.rows * size.length, statistics.median(seconds)
    return {
        "step_seconds": each,
        "step_seconds_range": [min(seconds), max(seconds)],
        "tokens_per_second": tokens / each,
        "first_step_seconds": first,
        "peak_bytes": peak_bytes(arguments.side),
    }


def main() -> None:
    """Measures one side and appends a line."""
    parser = harness.parser(__doc__)
    parser.add_argument("--side", choices=("ours", "pytorch"), default="ours")
    parser.add_argument("--size", choices=training_step.SIZES, default="small")
    parser.add_argument("--rows", type=int, help="rows of a batch")
    parser.add_argument("--length", type=int, help="tokens of a row")
    parser.add_argument(
        "--precision", choices=("bfloat16", "float32"), default="bfloat16"
    )
    parser.add_argument("--compile", action="store_true", help="PyTorch's compiler")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--output", type=Path, default=harness.RESULTS / "gpu_step.jsonl"
    )
    arguments = parser.parse_args()
    changed = {"rows": arguments.rows, "length": arguments.length}
    size = training_step.SIZES[arguments.size]
    size = dataclasses.replace(size, **{n: v for n, v in changed.items() if v})
    row = {name: value for name, value in vars(arguments).items() if name != "output"}
    row |= {"rows": size.rows, "length": size.length}
    row |= speed(size, arguments)
    row["device"] = device_name(arguments.side)
    row["versions"] = harness.hardware()["versions"]
    with arguments.output.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row))


if __name__ == "__main__":
    main()

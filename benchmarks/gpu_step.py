"""One training step of ELECTRA on a GPU, against the PyTorch step of ``step.py``.

    python benchmarks/gpu_step.py --side=ours --size=base --rows=64
    python benchmarks/gpu_step.py --side=pytorch --size=base --rows=64 --compile

Each command measures one side in a fresh process and appends a line to ``--output``.
The step is the same as in ``step.py``: bfloat16, dropout 0.1, a check of every loss.
The framework's allocator reports the peak memory.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import dataclasses
import json
import statistics
import sys
import time

import harness
import step as training_step


def ours(size, options):
    """Returns our step, and a function for the device's name and peak memory."""
    import keras
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        sys.exit("error: no GPU.")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    keras.utils.set_random_seed(1)

    def device() -> dict:
        experimental = tf.config.experimental
        return {
            "device": experimental.get_device_details(gpus[0])["device_name"],
            "peak_bytes": experimental.get_memory_info("GPU:0")["peak"],
        }

    return training_step.ours(size, options.precision), device


def peer(size, options):
    """Returns the same in PyTorch, with autocast."""
    import torch

    torch.set_float32_matmul_precision("high")
    mode = "float32" if options.precision == "float32" else "autocast"

    def device() -> dict:
        peak = torch.cuda.max_memory_allocated()
        return {"device": torch.cuda.get_device_name(), "peak_bytes": peak}

    return training_step.peer(size, mode, "cuda", options.compile), device


def speed(size, options) -> dict:
    """Returns tokens per second in rounds of ten steps, after a warm-up, and memory."""
    began = time.perf_counter()
    step, device = (ours if options.side == "ours" else peer)(size, options)
    step()
    first = time.perf_counter() - began
    seconds = []
    for _ in range(options.warmup):
        step()
    for _ in range(options.steps // 10):
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
        **device(),
    }


def main() -> None:
    """Measures one side and appends a line."""
    parser = harness.parser(__doc__)
    parser.add_argument("--side", choices=("ours", "pytorch"), default="ours")
    parser.add_argument("--size", choices=training_step.SIZES, default="small")
    parser.add_argument("--rows", type=int, help="rows of a batch")
    parser.add_argument("--length", type=int, help="tokens of a row")
    precisions = ("bfloat16", "float32")
    parser.add_argument("--precision", choices=precisions, default="bfloat16")
    parser.add_argument("--compile", action="store_true", help="PyTorch's compiler")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50)
    parser.set_defaults(output=harness.RESULTS / "gpu_step.jsonl")
    options = parser.parse_args()
    size = training_step.SIZES[options.size]
    given = {"rows": options.rows or size.rows, "length": options.length or size.length}
    size = dataclasses.replace(size, **given)
    row = vars(options) | given | speed(size, options)
    del row["output"]
    row["versions"] = harness.hardware()["versions"]
    with options.output.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row))


if __name__ == "__main__":
    main()

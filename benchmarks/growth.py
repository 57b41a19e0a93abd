"""Speed and memory by batch size, sequence length and model size.

    python benchmarks/growth.py
    python benchmarks/growth.py --parts=length,remat

Each point is a fresh process. It runs the training step of ``step.py`` in bfloat16 and,
in the same rounds, the products of one layer for the share of the matmul rate. FLOPs
count matrix products only. If the share is constant, time is proportional to FLOPs.
"""

import dataclasses
import statistics

import harness
import step as training_step
from step import OURS, PRODUCTS, SIZES, Size

UNITS = {
    "tokens_per_second": "tokens/s",
    "share": "% of the matmul rate",
    "peak_mb": "MB at the peak",
}
SMALL = SIZES["small"]
# An equal number of tokens at every length, so that only the length differs.
TOKENS = 4096
AT_512 = {
    "2 x 256": Size(2, 256, 4, 128, 30522, 8, 512),
    "12 x 256 (small)": Size(12, 256, 4, 128, 30522, 8, 512),
    "12 x 512 (medium)": Size(12, 512, 8, 512, 30522, 4, 512),
    "12 x 768 (base)": Size(12, 768, 12, 768, 30522, 4, 512),
}
SHAPES = {
    "batch": [(rows, 128) for rows in (8, 16, 32, 64, 128)],
    "length": [(TOKENS // length, length) for length in (64, 128, 256, 512)],
}
# Points (size, --remat) by part and label.
PARTS = {
    part: {
        f"small, {rows} x {length}": (
            dataclasses.replace(SMALL, rows=rows, length=length),
            False,
        )
        for rows, length in shapes
    }
    for part, shapes in SHAPES.items()
}
PARTS["size"] = {
    f"{name}, {size.rows} x 512": (size, False) for name, size in AT_512.items()
}
PARTS["remat"] = {
    f"{label}, {'--remat' if remat else 'plain'}": (size, remat)
    for label, (size, _) in PARTS["size"].items()
    if size.layers == 12
    for remat in (False, True)
}


def _point(size: Size, remat: bool, rounds: int, seconds: float) -> dict:
    """Returns speed, share of the matmul rate and peak memory of one point."""
    import electra_tf.systems.build  # noqa: F401  # not part of the step's memory

    before = harness.peak_memory()
    step = training_step.ours(size, "bfloat16", remat=remat)
    step()
    peak = harness.peak_memory() - before
    sides = {
        OURS: training_step.rate(step, size.rows * size.length, seconds),
        PRODUCTS: training_step.products_rate(size, "bfloat16"),
    }
    figures = harness.interleave(sides, rounds)
    config = training_step.config_of(size, "bfloat16", remat)
    flops, shares = training_step.matmul_shares(config, figures)
    return {
        "tokens_per_second": statistics.median(figures[OURS]),
        "share": statistics.median(shares),
        "peak_mb": peak,
        "flops_per_token": flops,
    }


def main() -> None:
    parser = harness.arguments(__doc__, rounds=3)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=2.0, help="a point and round")
    options = parser.parse_args()
    results, rows = {}, []
    for part in options.parts.split(","):
        for label, (size, remat) in PARTS.get(part, {}).items():
            figures = harness.in_fresh_process(
                _point, size, remat, options.rounds, options.seconds
            )
            results.setdefault(part, {})[label] = figures
            rows += [
                {"what": f"{part}: {label}", "unit": unit, "ours": figures[key]}
                for key, unit in UNITS.items()
            ]
    harness.report("growth", rows, options.output, points=results)


if __name__ == "__main__":
    main()

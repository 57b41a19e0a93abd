"""How speed and memory grow: with the batch, the length and the size.

    python benchmarks/growth.py
    python benchmarks/growth.py --parts=length,remat

Each point is a process of its own, so that its peak memory is its own: the training
step of ``step.py`` in bfloat16, and the products of one layer in the same rounds, which
say what share of the matmul rate the step reaches. FLOPs are those of the products, so
a share that stays level means time that grows as the arithmetic does.
"""

import dataclasses
import statistics
from pathlib import Path

import harness
import step as training_step
from step import SIZES, Size

SMALL = SIZES["small"]
LENGTHS = (64, 128, 256, 512)
# As many tokens at every length, so that only the length differs.
TOKENS = 4096
AT_512 = {
    "2 x 256": Size(2, 256, 4, 128, 30522, 8, 512),
    "12 x 256 (small)": Size(12, 256, 4, 128, 30522, 8, 512),
    "12 x 512 (medium)": Size(12, 512, 8, 512, 30522, 4, 512),
    "12 x 768 (base)": Size(12, 768, 12, 768, 30522, 4, 512),
}
PARTS = {
    "batch": {
        f"small, {rows} x 128": (dataclasses.replace(SMALL, rows=rows), False)
        for rows in (8, 16, 32, 64, 128)
    },
    "length": {
        f"small, {TOKENS // length} x {length}": (
            dataclasses.replace(SMALL, rows=TOKENS // length, length=length),
            False,
        )
        for length in LENGTHS
    },
    "size": {
        f"{name}, {size.rows} x 512": (size, False) for name, size in AT_512.items()
    },
    "remat": {
        f"{name}, {size.rows} x 512, {'--remat' if remat else 'plain'}": (size, remat)
        for name, size in AT_512.items()
        if size.layers == 12
        for remat in (False, True)
    },
}


def _point(size: Size, remat: bool, rounds: int, seconds: float, pipe) -> None:
    """Sends speed, share of the matmul rate and peak memory of one point."""
    import electra_tf.systems.build  # noqa: F401  # not part of the step's memory
    from electra_tf.systems import costs

    before = harness.peak_memory()
    step = training_step.ours(size, "bfloat16", remat=remat)
    step()
    peak = harness.peak_memory() - before
    multiply, product_flops = training_step.products(size, "bfloat16")
    multiply()
    tokens = size.rows * size.length
    sides = {
        "step": training_step.rate(step, tokens, seconds),
        "products": training_step.rate(multiply, product_flops, 0.3),
    }
    figures = harness.interleave(sides, rounds)
    config = training_step.config_of(size, "bfloat16", remat=remat)
    (phase,) = costs.phases(config, size.vocab)
    flops = costs.step_flops(config, phase, rule="matmul") / tokens
    shares = [
        speed * flops / matmul
        for speed, matmul in zip(figures["step"], figures["products"], strict=True)
    ]
    pipe.send(
        {
            "tokens_per_second": statistics.median(figures["step"]),
            "share": 100 * statistics.median(shares),
            "peak_mb": peak,
            "flops_per_token": flops,
        }
    )


def draw(results: dict, path: Path) -> None:
    """One panel for each part: the share of the matmul rate, point by point."""
    import matplotlib.figure

    parts = {name: points for name, points in results.items() if name in PARTS}
    figure = matplotlib.figure.Figure(
        figsize=(4.2 * len(parts), 3.6), layout="constrained"
    )
    axes = figure.subplots(1, len(parts), squeeze=False, sharey=True)[0]
    for axis, (name, points) in zip(axes, parts.items(), strict=True):
        labels = [label.replace(", ", "\n") for label in points]
        # With and without --remat are pairs, and nothing that grows.
        style = "o" if name == "remat" else "o-"
        axis.plot([p["share"] for p in points.values()], style, color="#0B62A4")
        axis.set_xticks(range(len(labels)), labels, rotation=40, ha="right")
        axis.set_title(name, fontsize=10)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.25)
    axes[0].set_ylim(0, 100)
    axes[0].set_ylabel("% of the matmul rate")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measures, prints, draws and writes."""
    parser = harness.arguments(__doc__.splitlines()[0], rounds=3)
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
            for key, unit in (
                ("tokens_per_second", "tokens/s"),
                ("share", "% of the matmul rate"),
                ("peak_mb", "MB at the peak"),
            ):
                rows.append({"what": f"{part}: {label}", "unit": unit})
                rows[-1]["ours"] = figures[key]
    if results:
        pictures = harness.RESULTS.parent.parent / "docs" / "images"
        draw(results, pictures / "growth.png")
    harness.report("growth", rows, options.output, points=results)


if __name__ == "__main__":
    main()

"""bfloat16 against float32 over 2,000 steps on the same data: curves overlaid.

    python benchmarks/precision.py --runs=runs/precision

Two runs of configs/tiny.cfg that differ in --mixed_precision alone; the same command
resumes them. The table has the held-out values of both, the picture their curves.
"""

import subprocess
import sys
from pathlib import Path

import matplotlib.figure
from harness import arguments, report

from electra_tf.folders.pretraining import PretrainingFolder

ROOT = Path(__file__).parent.parent
SIDES = {"float32": "none", "bfloat16": "bfloat16"}
CURVES = {
    "generator_loss": "generator loss (nats)",
    "discriminator_loss": "discriminator loss (nats)",
    "discriminator_auc": "discriminator AUC",
}


def train(folder, precision, records, steps):
    """One run, or the rest of it."""
    subprocess.run(
        [
            *(sys.executable, str(ROOT / "run_pretraining.py")),
            f"--flagfile={ROOT / 'configs' / 'tiny.cfg'}",
            *(f"--model_dir={folder}", f"--mixed_precision={precision}"),
            *(f"--num_train_steps={steps}", f"--eval_steps={max(1, steps // 4)}"),
            *([f"--data_dir={records}"] if records else []),
        ],
        check=True,
    )


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/precision"))
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    rows, figure = [], matplotlib.figure.Figure(figsize=(12, 3.4), layout="constrained")
    axes = figure.subplots(1, len(CURVES))
    held_out = {}
    for side, precision in SIDES.items():
        folder = options.runs / side
        train(folder, precision, options.runs / "data", options.steps)
        run = PretrainingFolder(folder)
        held_out[side] = run.held_out()
        for axis, (name, label) in zip(axes, CURVES.items(), strict=True):
            points = [(m["step"], m[name]) for m in run.metrics() if name in m]
            axis.plot(*zip(*points[1:], strict=True), label=side, linewidth=1.1)
            axis.set_title(label, fontsize=10)
            axis.set_xlabel("step")
            axis.grid(alpha=0.25)
    axes[0].legend(fontsize=9)
    figure.savefig(ROOT / "docs" / "images" / "precision.png", dpi=110)
    for name in CURVES:
        for side in SIDES:
            row = {"what": f"held-out {name}, {side}", "unit": "", "rounds": 1}
            rows.append({**row, "ours": held_out[side]["eval_" + name]})
    report("precision", rows, options.output)


if __name__ == "__main__":
    main()

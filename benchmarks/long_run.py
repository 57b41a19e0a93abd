"""Whether memory and step time stay level over hours of pretraining: a picture, JSON.

    python benchmarks/long_run.py --model_dir=runs/long --hours=3
    python benchmarks/long_run.py --model_dir=runs/long --draw

Runs ``run_pretraining.py`` with checkpoints and evaluations for so many hours, looks at
the memory of the process every --interval seconds, and ends it with SIGTERM, after
which it must have saved. Flags that are not listed here are those of
``run_pretraining.py``. --draw reads what an earlier call has measured.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import harness
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SAMPLES, METRICS = "long_run.jsonl", "metrics.jsonl"
# More steps than there is time for.
DEFAULTS = (
    "--num_train_steps=2000000",
    "--save_checkpoint_steps=500",
    "--eval_steps=500",
    "--max_eval_batches=20",
    "--log_steps=50",
)


def memory_of(process: int) -> float:
    """Resident memory of a process in MB, 0 when it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return int(found[0]) / 1024 if found else 0.0


def measure(model_dir: Path, flags: list[str], hours: float, interval: float) -> int:
    """Runs so long, notes the memory; returns the exit code."""
    model_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "run_pretraining.py"), *flags]
    process = subprocess.Popen(
        [*command, f"--model_dir={model_dir}"], stdout=subprocess.DEVNULL
    )
    end = time.monotonic() + 3600 * hours
    try:
        with open(model_dir / SAMPLES, "w") as file:
            while time.monotonic() < end and process.poll() is None:
                row = {"time": time.time(), "megabytes": memory_of(process.pid)}
                print(json.dumps(row), file=file, flush=True)
                time.sleep(interval)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        code = process.wait()
    return code


def _rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def _slope(hours: np.ndarray, values: np.ndarray) -> float:
    """Change per hour of the straight line through the points."""
    return float(np.polyfit(hours, values, 1)[0])


def read(model_dir: Path) -> dict:
    """Memory and step time over the run, and how they change."""
    samples, metrics = _rows(model_dir / SAMPLES), _rows(model_dir / METRICS)
    timed = [row for row in metrics if row.get("steps_per_second")]
    if len(timed) < 10:
        raise SystemExit(f"error: only {len(timed)} windows in {model_dir / METRICS}")
    # The first window compiles; evaluations, pictures and buffers come into being soon
    # after it: what is level is level after the first tenth.
    start = samples[0]["time"]
    memory = np.array([[row["time"] - start, row["megabytes"]] for row in samples])
    memory = memory[memory[:, 1] > 0]
    steps = np.array(
        [[row["time"] - start, 1000 / row["steps_per_second"]] for row in timed]
    )
    memory[:, 0] /= 3600
    steps[:, 0] /= 3600
    late = [points[points[:, 0] > 0.1 * points[-1, 0]] for points in (memory, steps)]
    tenths = [
        [statistics.median(part[:, 1]) for part in np.array_split(points, 9)]
        for points in late
    ]
    checkpoints = sorted(
        (model_dir / "checkpoints").glob("*.index"),
        key=lambda path: int(path.stem.split("-")[1]),
    )
    return {
        "hours": float(memory[-1, 0]),
        "steps": int(timed[-1]["step"]),
        "evaluations": sum("eval_loss" in row for row in metrics),
        "last_checkpoint": checkpoints[-1].stem if checkpoints else None,
        "megabytes": {
            "after_a_tenth": tenths[0][0],
            "at_the_end": tenths[0][-1],
            "highest": float(memory[:, 1].max()),
            "per_hour": _slope(*late[0].T),
            "by_tenth": tenths[0],
        },
        "step_milliseconds": {
            "after_a_tenth": tenths[1][0],
            "at_the_end": tenths[1][-1],
            "per_hour": _slope(*late[1].T),
            "by_tenth": tenths[1],
        },
        "points": {"megabytes": memory.tolist(), "step_milliseconds": steps.tolist()},
    }


def draw(found: dict, path: Path) -> None:
    """Memory above, step time below, over hours."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5))
    titles = {"megabytes": "resident memory, MB", "step_milliseconds": "step, ms"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        points = np.array(found["points"][name])
        axis.plot(points[:, 0], points[:, 1], linewidth=0.8)
        axis.set_ylim(0, 1.25 * np.quantile(points[:, 1], 0.99))
        axis.set_ylabel(title)
        axis.grid(alpha=0.3)
    axes[0].set_title(
        f"{found['steps']:,} steps, {found['evaluations']} evaluations in "
        f"{found['hours']:.1f} hours"
    )
    axes[1].set_xlabel("hours")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Runs as a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model_dir", type=Path, required=True)
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--interval", type=float, default=5.0, help="seconds")
    parser.add_argument("--flagfile", default="configs/tiny.cfg")
    parser.add_argument("--draw", action="store_true", help="only read and draw")
    parser.add_argument(
        "--picture", type=Path, default=ROOT / "docs" / "images" / "long-run.png"
    )
    parser.add_argument("--json", type=Path, help="default: long_run.json in the run")
    options, others = parser.parse_known_args()
    code = None
    if not options.draw:
        flags = [f"--flagfile={options.flagfile}", *DEFAULTS, *others]
        code = measure(options.model_dir, flags, options.hours, options.interval)
        # 75: stopped by the signal, after saving.
        if code not in (0, 75):
            raise SystemExit(f"error: the run ended with exit code {code}")
    found = read(options.model_dir)
    draw(found, options.picture)
    output = options.json or options.model_dir / "long_run.json"
    about = {"hardware": harness.hardware(), "exit_code": code}
    output.write_text(json.dumps({**about, **found}) + "\n")
    shown = {name: value for name, value in found.items() if name != "points"}
    print(json.dumps(shown, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

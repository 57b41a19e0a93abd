"""Whether memory and step time stay level over hours of pretraining: a picture, JSON.

    python benchmarks/long_run.py --model_dir=runs/long --hours=3
    python benchmarks/long_run.py --model_dir=runs/long --draw

Runs ``run_pretraining.py`` with checkpoints and evaluations for so many hours, looks at
the memory and CPU time of the process every --interval seconds, and ends it with
SIGTERM, after which it must have saved. The same command goes on, and its picture has
all legs, one after the other. Flags that are not listed here are those of
``run_pretraining.py``. --draw reads what earlier calls have measured.
"""

import argparse
import itertools
import json
import os
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


def use_of(process: int) -> tuple[float, float] | None:
    """Resident memory in MB and CPU seconds of a process, None when it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        # What follows the name, in which anything may stand.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    if not found:
        return None
    ticks = int(fields[11]) + int(fields[12])
    return int(found[0]) / 1024, ticks / os.sysconf("SC_CLK_TCK")


def measure(model_dir: Path, flags: list[str], hours: float, interval: float) -> int:
    """Runs so long, notes the memory; returns the exit code."""
    model_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "run_pretraining.py"), *flags]
    process = subprocess.Popen(
        [*command, f"--model_dir={model_dir}"], stdout=subprocess.DEVNULL
    )
    end = time.monotonic() + 3600 * hours
    try:
        with open(model_dir / SAMPLES, "a") as file:
            while time.monotonic() < end and (use := use_of(process.pid)):
                row = {"process": process.pid, "time": time.time()}
                row |= {"megabytes": use[0], "cpu_seconds": use[1]}
                print(json.dumps(row), file=file, flush=True)
                time.sleep(interval)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        code = process.wait()
    return code


def _rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def _points(leg: list[dict], metrics: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Memory and CPU time of a step over the hours of one process, [N, 2] and [M, 2].

    CPU time, because what else runs on a machine does not change it. That of
    evaluations and checkpoints is in the steps they follow.
    """
    times = np.array([row["time"] for row in leg])
    memory = np.stack([times, [row["megabytes"] for row in leg]], 1)
    if len(metrics) < 10:
        raise SystemExit(f"error: only {len(metrics)} windows in {len(leg)} samples")
    at = np.array([row["time"] for row in metrics])
    spent = np.interp(at, times, [row["cpu_seconds"] for row in leg])
    steps = np.diff([row["step"] for row in metrics])
    cost = np.stack([at[1:], 1000 * np.diff(spent) / steps], 1)
    for points in (memory, cost):
        points[:, 0] = (points[:, 0] - times[0]) / 3600
    return memory, cost


def _course(points: np.ndarray) -> dict:
    """Where a value begins and ends, [N, 2] of hours and values, and how it changes.

    What is level is level after the first tenth of a process: before, it compiles, and
    evaluations, pictures and buffers come into being.
    """
    late = points[points[:, 0] > 0.1 * points[-1, 0]]
    parts = [statistics.median(part[:, 1]) for part in np.array_split(late, 9)]
    return {
        "after_a_tenth": parts[0],
        "at_the_end": parts[-1],
        "highest": float(points[:, 1].max()),
        "per_hour": float(np.polyfit(*late.T, 1)[0]),
    }


def read(model_dir: Path) -> dict:
    """Memory and CPU time of a step of every leg, and all points, leg after leg."""
    samples, metrics = _rows(model_dir / SAMPLES), _rows(model_dir / METRICS)
    legs, joined, hours = [], {"megabytes": [], "step_cpu_milliseconds": []}, 0.0
    for _, rows in itertools.groupby(samples, key=lambda row: row["process"]):
        leg = list(rows)
        start, end = leg[0]["time"], leg[-1]["time"]
        within = [row for row in metrics if start <= row["time"] <= end]
        timed = [row for row in within if row.get("steps_per_second")]
        found = dict(zip(joined, _points(leg, timed), strict=True))
        legs.append(
            {
                "hours": (end - start) / 3600,
                "steps": [timed[0]["step"], timed[-1]["step"]],
                "evaluations": sum("eval_loss" in row for row in within),
                **{name: _course(points) for name, points in found.items()},
            }
        )
        for name, points in found.items():
            joined[name] += (points + np.array([hours, 0])).tolist()
        hours += legs[-1]["hours"]
    return {"legs": legs, "points": joined}


def draw(found: dict, path: Path) -> None:
    """Memory above, CPU time of a step below, over the hours of all legs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5))
    titles = ("resident memory, MB", "step, ms of CPU time")
    legs = found["legs"]
    for axis, points, title in zip(axes, found["points"].values(), titles, strict=True):
        hours, values = np.array(points).T
        axis.plot(hours, values, linewidth=0.8)
        axis.set_ylim(0, 1.25 * np.quantile(values, 0.99))
        axis.set_ylabel(title)
        axis.grid(alpha=0.3)
        for end in np.cumsum([leg["hours"] for leg in legs])[:-1]:
            axis.axvline(end, color="black", linewidth=0.8, linestyle=":")
    steps = sum(last - first for first, last in (leg["steps"] for leg in legs))
    axes[0].set_title(
        f"{steps:,} steps, {sum(leg['evaluations'] for leg in legs)} evaluations in "
        f"{sum(leg['hours'] for leg in legs):.1f} hours"
    )
    axes[1].set_xlabel("hours; dotted: a new process goes on")
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

"""Whether memory and step time stay level over hours of pretraining.

    python benchmarks/long_run.py --model_dir=runs/long --hours=3
    python benchmarks/long_run.py --model_dir=runs/long --draw

Runs ``run_pretraining.py`` with checkpoints and evaluations, samples memory and CPU
time of the process every --interval seconds, and ends it with SIGTERM, after which it
must have saved. The same command goes on with the run; the picture has all legs. Other
flags are those of ``run_pretraining.py``. --draw only reads earlier samples.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness
import matplotlib.figure
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SAMPLES, METRICS = "long_run.jsonl", "metrics.jsonl"
# More steps than there is time for.
DEFAULTS = (
    "--num_train_steps=2000000 --save_checkpoint_steps=500 --eval_steps=500 "
    "--max_eval_batches=20 --log_steps=50"
)


def use_of(process):
    """Resident memory in MB and CPU seconds of a process; None if it is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        # After the name, which may contain anything.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    resident = [line.split()[1] for line in status if line.startswith("VmRSS:")]
    ticks = int(fields[11]) + int(fields[12])
    if not resident:
        return None
    return int(resident[0]) / 1024, ticks / os.sysconf("SC_CLK_TCK")


def measure(model_dir, flags, hours, interval):
    """Runs for some hours and writes samples; returns the exit code."""
    model_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "run_pretraining.py"), *flags]
    command += [f"--model_dir={model_dir}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
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


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def course(points):
    """The level of a value over hours, [N, 2], after the first tenth of a process."""
    late = points[points[:, 0] > 0.1 * points[-1, 0]]
    parts = [float(np.median(part[:, 1])) for part in np.array_split(late, 9)]
    slope = float(np.polyfit(*late.T, 1)[0])
    return {"after_a_tenth": parts[0], "at_the_end": parts[-1], "per_hour": slope}


def read(model_dir):
    """Memory and CPU time of a step of every process, and all points."""
    metrics = [r for r in rows_of(model_dir / METRICS) if r.get("steps_per_second")]
    legs, joined, hours = [], {"megabytes": [], "step_cpu_milliseconds": []}, 0.0
    samples = rows_of(model_dir / SAMPLES)
    for _, rows in itertools.groupby(samples, key=lambda row: row["process"]):
        leg = list(rows)
        times = np.array([row["time"] for row in leg])
        within = [row for row in metrics if times[0] <= row["time"] <= times[-1]]
        if len(within) < 10:
            sys.exit(f"error: only {len(within)} windows in {len(leg)} samples")
        at = np.array([row["time"] for row in within])
        spent = np.interp(at, times, [row["cpu_seconds"] for row in leg])
        cost = 1000 * np.diff(spent) / np.diff([row["step"] for row in within])
        memory = [row["megabytes"] for row in leg]
        parts = (np.stack([times, memory], 1), np.stack([at[1:], cost], 1))
        about = {"hours": (times[-1] - times[0]) / 3600}
        about["steps"] = [within[0]["step"], within[-1]["step"]]
        for name, points in zip(joined, parts, strict=True):
            points[:, 0] = (points[:, 0] - times[0]) / 3600
            about[name] = course(points)
            joined[name] += (points + np.array([hours, 0])).tolist()
        legs.append(about)
        hours += about["hours"]
    return {"legs": legs, "points": joined}


def draw(found, path):
    """Memory above, CPU time of a step below; a dotted line is a new process."""
    figure = matplotlib.figure.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    titles = ("resident memory, MB", "step, ms of CPU time")
    for axis, points, title in zip(axes, found["points"].values(), titles, strict=True):
        hours, values = np.array(points).T
        axis.plot(hours, values, linewidth=0.8)
        axis.set_ylim(0, 1.25 * np.quantile(values, 0.99))
        axis.set_ylabel(title)
        for end in np.cumsum([leg["hours"] for leg in found["legs"]])[:-1]:
            axis.axvline(end, color="black", linewidth=0.8, linestyle=":")
    axes[1].set_xlabel("hours")
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model_dir", type=Path, required=True)
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--interval", type=float, default=5.0, help="seconds")
    parser.add_argument("--flagfile", default="configs/tiny.cfg")
    parser.add_argument("--draw", action="store_true", help="only read and draw")
    picture = ROOT / "docs" / "images" / "long-run.png"
    parser.add_argument("--picture", type=Path, default=picture)
    options, others = parser.parse_known_args()
    code = None
    if not options.draw:
        flags = [f"--flagfile={options.flagfile}", *DEFAULTS.split(), *others]
        code = measure(options.model_dir, flags, options.hours, options.interval)
        # 75: stopped by the signal, after saving.
        if code not in (0, 75):
            sys.exit(f"error: the run ended with exit code {code}")
    found = read(options.model_dir)
    draw(found, options.picture)
    about = {"hardware": harness.hardware(), "exit_code": code}
    output = options.model_dir / "long_run.json"
    output.write_text(json.dumps({**about, **found}) + "\n")
    print(json.dumps(found["legs"], indent=2))


if __name__ == "__main__":
    main()

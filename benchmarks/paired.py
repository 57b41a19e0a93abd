"""Differences between two systems of a comparison, paired by seed, by task.

    python benchmarks/paired.py --results=RESULTS.jsonl --picture=PICTURE.png

RESULTS.jsonl is of `electra-tf compare`. The primary score is the mean of the probes
``--primary``. Intervals are paired 95 % t-intervals over the pretraining seeds.
"""

import collections

import harness
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from electra_tf import files
from electra_tf.comparison.report import probe_score


def differences(rows, one, other, primary):
    """Returns arrays [seeds, 2] of both systems' scores by task, the mean first."""
    scores = collections.defaultdict(dict)
    for row in rows:
        # A failed probe has no score; one that diverged counts as the baseline.
        if row["kind"] == "probe" and "score" in row:
            scores[row["probe"]][row["system"], row["seed"]] = probe_score(row)
    runs = set.intersection(*map(set, scores.values()))
    seeds = sorted(n for name, n in runs if name == one and (other, n) in runs)
    found = {
        task: np.array([[by_run[one, n], by_run[other, n]] for n in seeds])
        for task, by_run in scores.items()
    }
    mean = np.mean([found[task] for task in primary], axis=0)
    return {f"mean of {len(primary)}": mean, **found}


def interval(values):
    """Returns mean, low and high end of the 95 % t-interval."""
    ends = stats.ttest_1samp(values, 0).confidence_interval()
    return np.mean(values), ends.low, ends.high


def draw(found, one, other, path):
    """Draws the difference of every seed and the interval, one row per task."""
    figure = Figure(figsize=(7, 0.5 * len(found) + 1), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="gray", linewidth=1)
    for place, values in enumerate(found.values()):
        apart = values[:, 0] - values[:, 1]
        middle, low, high = interval(apart)
        color = "tab:orange" if place == 0 else "tab:blue"
        axes.plot(apart, [place + 0.2] * len(apart), "o", color=color, alpha=0.4, ms=4)
        axes.errorbar(
            middle, place, xerr=[[middle - low], [high - middle]], fmt="o", color=color
        )
    axes.set_yticks(range(len(found)), found)
    axes.invert_yaxis()
    axes.set_xlabel(f"points by which {one} is ahead of {other}, with 95 % intervals")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def main():
    """Prints the table and draws the picture."""
    parser = harness.parser(__doc__, output=False)
    parser.add_argument("--results", required=True)
    parser.add_argument("--systems", default="electra,mlm")
    parser.add_argument("--primary", default="chunking,sts,sick,cola,mrpc")
    parser.add_argument("--picture")
    options = parser.parse_args()
    one, other = options.systems.split(",")
    rows = files.read_json_lines(options.results)
    found = differences(rows, one, other, options.primary.split(","))
    print(f"| | {one} | {other} | difference | 95 % interval | seeds |")
    print("|---|---|---|---|---|---|")
    for task, values in found.items():
        means = values.mean(axis=0)
        middle, low, high = interval(values[:, 0] - values[:, 1])
        print(
            f"| {task} | {means[0]:.1f} | {means[1]:.1f} | {middle:+.2f} | "
            f"[{low:.2f}, {high:.2f}] | {len(values)} |"
        )
    if options.picture:
        draw(found, one, other, options.picture)


if __name__ == "__main__":
    main()

"""Reports of fine-tuning: scores, confidence intervals and predictions."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.folders.finetuning import METRICS, SUBMISSION
from electra_tf.runs.finetuning_tasks import TaskData
from electra_tf.tasks import glue

_MOST_CLASSES_SHOWN = 20
_MOST_IN_LEGEND = 9
Baseline = Mapping[str, Mapping[str, float]]


def summary(
    results: Sequence[Mapping[str, Any]], baseline: Baseline, main: tuple[str, str]
) -> dict[str, Any]:
    """Returns median, mean and standard deviation over seeds, by split and score.

    ``results`` hold the "seed", its "scores" by split and name, and its "failure", ""
    if it did not fail. Failed seeds count, too; without them the scores would be too
    high. ``main`` holds the main split and metric.
    """

    def over_seeds(split: str, name: str) -> dict[str, float]:
        values = np.array([result["scores"][split][name] for result in results])
        return {
            "median": float(np.median(values)),
            "mean": float(values.mean()),
            "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
            "min": float(values.min()),
            "max": float(values.max()),
            # Some scores have no baseline.
            "baseline": baseline[split].get(name, math.nan),
        }

    splits = {
        split: {name: over_seeds(split, name) for name in names}
        for split, names in results[0]["scores"].items()
    }
    return {
        "main_split": main[0],
        "main_metric": main[1],
        "summary": splits,
        "seeds": [*results],
        "failed_seeds": [each["seed"] for each in results if each["failure"]],
    }


def table(report: Mapping[str, Any]) -> str:
    """Formats the scores of all seeds on the main split as a table."""
    split = report["main_split"]
    names = list(report["summary"][split])
    rows = [["seed", *names, ""]]
    for result in report["seeds"]:
        values = [f"{result['scores'][split][name]:.2f}" for name in names]
        failure = f"failed: {result['failure']}" if result["failure"] else ""
        rows.append([str(result["seed"]), *values, failure])
    over_seeds = ("median", "mean", "std") if len(report["seeds"]) > 1 else ()
    for kind in (*over_seeds, "baseline"):
        values = [f"{report['summary'][split][name][kind]:.2f}" for name in names]
        rows.append([kind, *values, ""])
    width, *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [f"{split}, main score {report['main_metric']}:"]
    for first, *values, failure in rows:
        cells = [value.rjust(w) for value, w in zip(values, widths, strict=True)]
        lines.append("  ".join([first.ljust(width), *cells, failure]).rstrip())
    if failed := report["failed_seeds"]:
        lines.append(f"{len(failed)} of {len(report['seeds'])} seeds failed")
    return "\n".join(lines)


def examine(data: TaskData, answers: Any, log: Log) -> dict[str, Any]:
    """Evaluates the predictions on the main split in detail, for results.json.

    Returns scores by class, calibration error, confidence intervals and the comparison
    with the baseline, as far as the task has them.
    """
    task, main = data.task, data.eval_splits[0]
    examples, name = data.examples[main], task.main_metric
    report = task.details_of(answers, examples)
    intervals, above = task.noise(answers, examples, data.train)
    if classes := report.get("classes"):
        log(_class_table(classes))
        error = report["calibration_error"]
        log(f"calibration error of the probabilities {100 * error:.1f} %")
    if task.tunes:
        log(f"threshold {task.threshold:g}")
    counts = {main: len(examples), "train": len(data.train)}
    report |= {"intervals": intervals, "above_baseline": above, "examples": counts}
    if name in above:
        low, high = intervals[name]
        better = above[name][0] if task.greater_is_better else -above[name][1]
        side = "above" if task.greater_is_better else "below"
        not_ = "" if better > 0 else "not "
        report["verdict"] = f"{not_}{side} the baseline beyond noise"
        log(
            f"{name} has the 95 % interval {low:.2f} to {high:.2f} on {len(examples)} "
            f"examples: {report['verdict']}"
        )
    return report


def _class_table(classes: Mapping[str, Mapping[str, float]]) -> str:
    frequent = sorted(classes, key=lambda label: -classes[label]["support"])
    shown = frequent[:_MOST_CLASSES_SHOWN]
    width = max(map(len, (*shown, "label")))
    lines = [f"{'label':<{width}}  precision  recall      F1  support"]
    for label in shown:
        row = classes[label]
        shares = [100 * row[name] for name in ("precision", "recall", "f1")]
        text = "{:9.2f}  {:6.2f}  {:6.2f}".format(*shares)
        lines.append(f"{label:<{width}}  {text}  {row['support']:7d}")
    return "\n".join(lines)


def write_predictions(data: TaskData, answers: Mapping[str, Any], folder: Path) -> None:
    """Writes predictions and submissions of all splits."""
    for split, examples in data.examples.items():
        suffix = "" if split == data.eval_splits[0] else f"_{split}"
        path = str(folder / f"predictions{suffix}.tsv")
        data.task.write(answers[split], examples, path)
        if data.task.name in glue.ROWS and glue.is_unlabeled(split):
            predictions = data.task.readable(answers[split])
            target = str(folder / SUBMISSION)
            glue.write_submission(data.task.name, predictions, split, target)


def draw_curves(metric: str, baseline: float | None, folder: Path, log: Log) -> None:
    """Draws training loss and held-out score of each seed; logs errors.

    ``baseline``, a dashed line, is the score of the majority baseline.
    """
    figure = Figure(figsize=(8.8, 3.3), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    labels = {"loss": "training loss", metric: f"held-out {metric}"}
    try:
        rows = files.read_json_lines(folder / METRICS)
        for axes, (name, label) in zip(panels, labels.items(), strict=True):
            points: dict[int, list[tuple[int, float]]] = {}
            for row in rows:
                # A value that is not finite is null.
                if "step" in row and row.get(name) is not None:
                    points.setdefault(row["seed"], []).append((row["step"], row[name]))
            for seed, own in points.items():
                axes.plot(*zip(*own, strict=True), marker=".", label=f"seed {seed}")
            axes.grid(alpha=0.25)
            axes.set(xlabel="step (updates)", ylabel=label)
            if name == metric and baseline is not None and math.isfinite(baseline):
                label = f"majority baseline {baseline:.2f}"
                axes.axhline(baseline, color="0.4", linestyle="--", label=label)
            if 0 < len(axes.get_legend_handles_labels()[0]) <= _MOST_IN_LEGEND:
                axes.legend(fontsize=8)
        with files.replacing(folder / "curves.png") as part:
            figure.savefig(part, dpi=120)
    except Exception as error:
        # A failed plot must not lose a trained model.
        message = " ".join(str(error).split())[:200]
        log(f"warning: a picture is missing: {type(error).__name__} {message}")

"""Reports of fine-tuning: scores, confidence intervals and predictions."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.cli import Log
from electra_tf.folders.finetuning import SUBMISSION
from electra_tf.runs.finetuning_tasks import TaskData
from electra_tf.tasks import glue, metrics

_MOST_CLASSES_SHOWN = 20
Baseline = Mapping[str, Mapping[str, float]]


def summary(
    results: Sequence[Mapping[str, Any]], baseline: Baseline, main: tuple[str, str]
) -> dict[str, Any]:
    """Returns median, mean and standard deviation over seeds, by split and score.

    ``results`` hold "seed", "scores" by split and name, and "failure", "" for none.
    Failed seeds count, or the scores would be too high. ``main`` is (split, metric).
    """

    def over_seeds(split: str, name: str) -> dict[str, float]:
        values = np.array([result["scores"][split][name] for result in results])
        return {
            "median": float(np.median(values)),
            "mean": float(values.mean()),
            "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
            "min": float(values.min()),
            "max": float(values.max()),
            "baseline": baseline[split].get(name, math.nan),
        }

    return {
        "main_split": main[0],
        "main_metric": main[1],
        "summary": {
            split: {name: over_seeds(split, name) for name in names}
            for split, names in results[0]["scores"].items()
        },
        "seeds": [*results],
        "failed_seeds": [each["seed"] for each in results if each["failure"]],
    }


def table(report: Mapping[str, Any]) -> str:
    """Formats the scores of all seeds on the main split as a table."""
    split, seeds = report["main_split"], report["seeds"]
    over_seeds = report["summary"][split]
    scores = {str(each["seed"]): each["scores"][split] for each in seeds}
    statistics = ("median", "mean", "std") if len(seeds) > 1 else ()
    for kind in (*statistics, "baseline"):
        scores[kind] = {name: values[kind] for name, values in over_seeds.items()}
    rows = [["seed", *over_seeds]]
    for first, own in scores.items():
        rows.append([first, *(f"{own[name]:.2f}" for name in over_seeds)])
    lines = [f"{split}, main score {report['main_metric']}:", *aligned(rows)]
    lines += [f"seed {x['seed']} failed: {x['failure']}" for x in seeds if x["failure"]]
    if failed := report["failed_seeds"]:
        lines.append(f"{len(failed)} of {len(seeds)} seeds failed")
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]], separator: str = "  ") -> list[str]:
    """Formats the lines of a table; the first column is left-aligned, others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        separator.join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])])
        for first, *others in rows
    ]


def examine(data: TaskData, answers: Any, log: Log) -> dict[str, Any]:
    """Returns and logs classes, calibration, intervals and gain over the baseline."""
    task, main = data.task, data.eval_splits[0]
    examples, name = data.examples[main], task.main_metric
    report = task.details_of(answers, examples)
    intervals, above = {}, {}
    majority = task.majority(data.train, examples)
    if majority is not None:
        scorers = (task.scorer(each, examples) for each in (answers, majority))
        intervals, above = metrics.intervals(*scorers, len(examples))
    if classes := report.get("classes"):
        log(_class_table(classes))
        error = report["calibration_error"]
        log(f"calibration error of the probabilities {100 * error:.1f} %")
    if task.tunes and hasattr(task, "threshold"):
        log(f"threshold {task.threshold:g}")
    counts = {main: len(examples), "train": len(data.train)}
    report |= {"intervals": intervals, "above_baseline": above, "examples": counts}
    if name in above:
        is_better = above[name][0] > 0 if task.greater_is_better else above[name][1] < 0
        side = "above" if task.greater_is_better else "below"
        not_ = "" if is_better else "not "
        report["verdict"] = f"{not_}{side} the baseline beyond noise"
        low, high = intervals[name]
        log(
            f"{name} has the 95 % interval {low:.2f} to {high:.2f} on {len(examples)} "
            f"examples: {report['verdict']}"
        )
    return report


def _class_table(classes: Mapping[str, Mapping[str, float]]) -> str:
    rows = [["label", "precision", "recall", "F1", "support"]]
    frequent = sorted(classes, key=lambda label: -classes[label]["support"])
    for label in frequent[:_MOST_CLASSES_SHOWN]:
        row = classes[label]
        shares = [f"{100 * row[name]:.2f}" for name in ("precision", "recall", "f1")]
        rows.append([label, *shares, str(row["support"])])
    return "\n".join(aligned(rows))


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

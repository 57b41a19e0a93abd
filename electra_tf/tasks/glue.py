"""GLUE: nine tasks and the AX diagnostic, made from the table in `glue_rows`.

`python -m electra_tf.tasks.glue RUN ... --output=submission.zip` collects the files of
several runs for the benchmark's server.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import zipfile
from collections.abc import Callable, Sequence

from electra_tf.tasks.classification import Classification
from electra_tf.tasks.glue_rows import ROWS, is_unlabeled
from electra_tf.tasks.glue_sources import GlueFiles, TfdsSource
from electra_tf.tasks.regression import Regression
from electra_tf.tasks.text import TextTask

# Rows of the test sets: what the benchmark's server expects of each file.
SUBMISSION_ROWS = {
    "CoLA": 1063,
    "SST-2": 1821,
    "MRPC": 1725,
    "STS-B": 1379,
    "QQP": 390965,
    "MNLI-m": 9796,
    "MNLI-mm": 9847,
    "QNLI": 5463,
    "RTE": 3000,
    "WNLI": 146,
    "AX": 1104,
}


def glue_task(
    name: str, data_dir: str, *, log: Callable[[str], None] = lambda line: None
) -> TextTask:
    """Makes one of the tasks of `ROWS`.

    Args:
        name: Its name.
        data_dir: Folder of the task's TSV files or of all tasks' folders; or
            "tfds:FOLDER" for data prepared by TensorFlow Datasets ("tfds:" for its
            default folder).
        log: Told about lines that are skipped.
    """
    row = ROWS[name]
    source = (
        TfdsSource(name, data_dir.removeprefix("tfds:") or None)
        if data_dir.startswith("tfds:")
        else GlueFiles(name, data_dir, log)
    )
    splits = tuple(row.files)[1:]
    common = {
        "name": name,
        "source": source,
        "pair": len(row.texts) == 2,
        "main_metric": row.scores[0],
        "epochs": row.epochs,
        "eval_splits": tuple(s for s in splits if s.startswith("dev")),
        "test_splits": tuple(s for s in splits if not s.startswith("dev")),
        "double_pairs": row.double_pairs,
        "submission": Submission(name),
    }
    if row.labels is None:
        return Regression(label_range=(0.0, 5.0), **common)
    return Classification(labels=row.labels, score_names=row.scores, **common)


@dataclasses.dataclass(frozen=True)
class Submission:
    """Writes a task's file in the format of the benchmark's server.

    Attributes:
        name: Name of the task.
    """

    name: str

    def __call__(self, answers: Sequence[str], split: str, folder: str) -> str | None:
        """Writes answers of an unlabeled split to `folder`; returns the path."""
        if not is_unlabeled(split):
            return None
        row = ROWS[self.name]
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{row.submissions.get(split, row.folder)}.tsv")
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write("index\tprediction\n")
            file.writelines(f"{i}\t{answer}\n" for i, answer in enumerate(answers))
        return path


def collect(runs: Sequence[str], output: str, *, allow_missing: bool = False):
    """Packs the submission files of several runs into one zip.

    Args:
        runs: Output folders of `run_finetuning.py`.
        output: Path of the zip.
        allow_missing: Whether tasks may be missing.

    Returns:
        Names of the missing files.

    Raises:
        ValueError: A file is there twice, has another number of rows than the test
            set, or is missing.
    """
    found: dict[str, str] = {}
    for run in runs:
        folder = os.path.join(run, "submission")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        if not names:
            raise ValueError(
                f"{run} has no submission files: it must be the --output_dir of a "
                "finished GLUE run whose data folder has the test files."
            )
        for name in names:
            if name in found:
                raise ValueError(f"{name} is in {found[name]} and in {folder}.")
            found[name] = folder
    for name, folder in found.items():
        _check_rows(os.path.join(folder, name), name.removesuffix(".tsv"))
    missing = sorted(set(SUBMISSION_ROWS) - {n.removesuffix(".tsv") for n in found})
    if missing and not allow_missing:
        raise ValueError(
            f"Missing: {', '.join(missing)}. Add the runs of these tasks (AX comes "
            "from MNLI), or pass --allow_missing."
        )
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, folder in sorted(found.items()):
            archive.write(os.path.join(folder, name), name)
    return missing


def _check_rows(path, name):
    with open(path, encoding="utf-8") as file:
        rows = sum(1 for _ in file) - 1
    if rows != SUBMISSION_ROWS.get(name, rows):
        raise ValueError(
            f"{path} has {rows} predictions, but the test set of {name} has "
            f"{SUBMISSION_ROWS[name]}: predict the complete test file."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m electra_tf.tasks.glue",
        description="Collects GLUE predictions of several runs in one zip.",
    )
    parser.add_argument("runs", nargs="+", help="output folders of run_finetuning.py")
    parser.add_argument("--output", default="submission.zip", help="the zip to write")
    parser.add_argument(
        "--allow_missing", action="store_true", help="leave out tasks without a run"
    )
    options = parser.parse_args(arguments)
    try:
        missing = collect(
            options.runs, options.output, allow_missing=options.allow_missing
        )
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    left_out = f" (without {', '.join(missing)})" if missing else ""
    sys.stdout.write(f"wrote {options.output}{left_out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

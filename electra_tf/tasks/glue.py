"""GLUE: nine tasks and the AX diagnostic, defined in ``ROWS``, and submissions."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.tasks.base import Example
from electra_tf.tasks.tables import read_text
from electra_tf.tasks.text import Classification, Regression, TextTask

_NLI = ("entailment", "not_entailment")
_BINARY = ("0", "1")
_ACCURACY_F1 = ("accuracy", "f1")
_FILES = {split: f"{split}.tsv" for split in ("train", "dev", "test")}
_MNLI = ("dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
_MNLI_FILES = {split: f"{split}.tsv" for split in ("train", *_MNLI)}
_MNLI_FILES["ax"] = "diagnostic.tsv"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueRow:
    """Definition of one task.

    Attributes:
        folder: name of the data folder and of the file in a submission.
        texts: text columns of labeled splits; negative numbers count from the right.
        test_texts: text columns of unlabeled splits; None for the same.
        labels: classes in the order of the outputs; None for regression (STS-B).
        scores: names of the scores; the first one selects the model.
        tfds: name in TensorFlow Datasets; None for the same name.
        headerless: splits with a file without a header.
        submissions: file names in a submission by split; ``folder`` by default.
    """

    folder: str
    texts: tuple[int, ...]
    label: int
    test_texts: tuple[int, ...] | None = None
    labels: tuple[str, ...] | None = _BINARY
    scores: tuple[str, ...] = ("accuracy",)
    tfds: str | None = None
    tfds_texts: tuple[str, ...] = ("sentence1", "sentence2")
    headerless: tuple[str, ...] = ()
    double_pairs: bool = False
    epochs: float = 3.0
    files: Mapping[str, str] = dataclasses.field(default_factory=lambda: _FILES)
    submissions: Mapping[str, str] = dataclasses.field(default_factory=dict)


ROWS: dict[str, GlueRow] = {
    "cola": GlueRow(
        folder="CoLA",
        texts=(3,),
        test_texts=(1,),
        label=1,
        scores=("matthews", "accuracy"),
        tfds_texts=("sentence",),
        headerless=("train", "dev"),
    ),
    "sst": GlueRow(
        folder="SST-2",
        texts=(0,),
        test_texts=(1,),
        label=1,
        tfds="sst2",
        tfds_texts=("sentence",),
    ),
    "mrpc": GlueRow(
        folder="MRPC", texts=(3, 4), label=0, scores=_ACCURACY_F1, double_pairs=True
    ),
    "qqp": GlueRow(
        folder="QQP",
        texts=(3, 4),
        test_texts=(1, 2),
        label=5,
        scores=_ACCURACY_F1,
        tfds_texts=("question1", "question2"),
    ),
    "sts": GlueRow(
        folder="STS-B",
        texts=(-3, -2),
        test_texts=(-2, -1),
        label=-1,
        labels=None,
        scores=("spearman", "pearson", "mse"),
        tfds="stsb",
        double_pairs=True,
        epochs=10.0,
    ),
    "mnli": GlueRow(
        folder="MNLI",
        texts=(8, 9),
        label=-1,
        labels=("contradiction", "entailment", "neutral"),
        tfds_texts=("premise", "hypothesis"),
        files=_MNLI_FILES,
        submissions={
            "test_matched": "MNLI-m",
            "test_mismatched": "MNLI-mm",
            "ax": "AX",
        },
    ),
    "qnli": GlueRow(
        folder="QNLI",
        texts=(1, 2),
        label=3,
        labels=_NLI,
        tfds_texts=("question", "sentence"),
    ),
    "rte": GlueRow(folder="RTE", texts=(1, 2), label=3, labels=_NLI, epochs=10.0),
    "wnli": GlueRow(folder="WNLI", texts=(1, 2), label=3),
}


def is_unlabeled(split: str) -> bool:
    """Returns True if a split has no labels."""
    return not split.startswith(("train", "dev"))


def glue_task(
    name: str, data_dir: files.AnyPath, *, log: Log = lambda line: None
) -> TextTask:
    r"""Returns a task of ``ROWS``.

    ``data_dir`` is the folder of the task's TSV files, or its parent. "tfds:FOLDER"
    reads data prepared by TensorFlow Datasets, and "tfds:" uses the default folder.
    ``log`` receives a warning about skipped lines.

    Examples:
        >>> from pathlib import Path
        >>> Path("CoLA").mkdir()
        >>> for split in ("train", "dev"):
        ...     _ = Path(f"CoLA/{split}.tsv").write_text(
        ...         "gj04\t1\t\tThe book was read.\n"
        ...     )
        >>> task = et.tasks.glue_task("cola", "CoLA")
        >>> task.main_metric, task.source("dev")[0].texts
        ('matthews', ('The book was read.',))
    """
    row, data_dir = ROWS[name], os.fspath(data_dir)
    source = GlueFiles(name, data_dir, log)
    if data_dir.startswith("tfds:"):
        source = TfdsSource(name, data_dir.removeprefix("tfds:") or None)
    common = {
        "name": name,
        "source": source,
        "pair": len(row.texts) == 2,
        "main_metric": row.scores[0],
        "epochs": row.epochs,
        "eval_splits": tuple(s for s in row.files if s.startswith("dev")),
        "test_splits": tuple(filter(is_unlabeled, row.files)),
        "double_pairs": row.double_pairs,
    }
    if row.labels is None:
        return Regression(label_range=(0.0, 5.0), **common)
    return Classification(labels=row.labels, score_names=row.scores, **common)


@dataclasses.dataclass(frozen=True)
class GlueFiles:
    """Reads the unquoted TSV files of a task from its folder or the parent."""

    name: str
    data_dir: str
    log: Log = lambda line: None

    def __call__(self, split: str) -> list[Example]:
        """Reads a split; skips malformed lines of train and dev."""
        row = ROWS[self.name]
        path = self._path(row.files[split])
        unlabeled = is_unlabeled(split)
        columns = (row.test_texts or row.texts) if unlabeled else row.texts
        if split == "ax":
            # Columns of the diagnostic: index, premise, hypothesis.
            columns = (1, 2)
        wanted = columns if unlabeled else (*columns, row.label)
        width = max(c + 1 if c >= 0 else -c for c in wanted)
        lines = read_text(path).removesuffix("\n").split("\n")
        start = 0 if split in row.headerless else 1
        examples, skipped = [], []
        for number, line in enumerate(lines[start:], start + 1):
            cells = line.removesuffix("\r").split("\t")
            where = f"{path}, line {number}"
            if unlabeled and len(cells) < width:
                raise UserError(
                    f"{where}: {len(cells)} cells, too few for {self.name}; a "
                    "submission needs an answer for every line. Download the file "
                    "again."
                )
            # MNLI marks examples without a majority label with a hyphen.
            if len(cells) < width or (not unlabeled and cells[row.label] == "-"):
                skipped.append(number)
                continue
            texts = tuple(cells[column] for column in columns)
            label = None if unlabeled else self._label(cells[row.label], where)
            examples.append(Example(str(len(examples)), texts, label))
        if skipped:
            numbers = ", ".join(map(str, skipped[:5]))
            self.log(f"{path}: skipped {len(skipped)} malformed lines ({numbers} ...)")
        if not examples:
            raise UserError(f"{path}: no line has the columns of {self.name}.")
        return examples

    def _label(self, cell: str, where: str) -> str | float:
        labels = ROWS[self.name].labels
        if labels is None:
            with contextlib.suppress(ValueError):
                if math.isfinite(number := float(cell)):
                    return number
        elif cell in labels:
            return cell
        expected = "a number" if labels is None else ", ".join(labels)
        raise UserError(
            f"{where}: the label is {cell!r}, expected {expected}. Is it the file of "
            f"{self.name} in the benchmark's layout?"
        )

    def _path(self, name: str) -> str:
        benchmark_name = ROWS[self.name].folder
        folders = ["", benchmark_name, self.name]
        if name == "diagnostic.tsv":
            folders += ["diagnostic", "AX", "../diagnostic", "../AX"]
        for folder in folders:
            path = os.path.join(self.data_dir, folder, name)
            if os.path.isfile(path):
                return path
        raise FileNotFoundError(
            f"No {name} of {self.name} in {self.data_dir}: set --data_dir to the "
            f"task's folder ({benchmark_name}) in the benchmark's layout, or to "
            "tfds:FOLDER."
        )


@dataclasses.dataclass(frozen=True)
class TfdsSource:
    """Reads GLUE data prepared by TensorFlow Datasets; never downloads."""

    name: str
    data_dir: str | None = None

    def __call__(self, split: str) -> list[Example]:
        # Slow to import, and only this source needs it.
        import tensorflow_datasets as tfds

        name = "ax" if split == "ax" else ROWS[self.name].tfds or self.name
        builder = tfds.builder(f"glue/{name}", data_dir=self.data_dir)
        if not builder.info.splits:
            raise FileNotFoundError(
                f"glue/{name} is not prepared in {builder.data_dir}: run 'tfds build "
                f"glue/{name}' with a network connection, or give the folder of the "
                "TSV files."
            )
        labels = builder.info.features["label"]
        stored = "test" if split == "ax" else split.replace("dev", "validation")
        data = builder.as_dataset(split=stored, shuffle_files=False)
        read = [self._example(x, labels, split) for x in data.as_numpy_iterator()]
        # Prepared files are shuffled; submissions need the original order.
        return sorted(read, key=lambda example: int(example.id))

    def _example(self, example: dict, feature: Any, split: str) -> Example:
        row = ROWS[self.name]
        texts = tuple(example[name].decode("utf-8") for name in row.tfds_texts)
        label = None
        if not is_unlabeled(split):
            value = example["label"]
            label = float(value) if row.labels is None else str(int(value))
            if row.labels not in (None, _BINARY):
                label = feature.int2str(int(value))
        return Example(str(int(example["idx"])), texts, label)


def write_submission(
    name: str, predictions: Sequence[str], split: str, folder: str
) -> None:
    """Writes the predictions of a test split for the benchmark's server.

    A submission is a zip file of these files.
    """
    row = ROWS[name]
    path = os.path.join(folder, f"{row.submissions.get(split, row.folder)}.tsv")
    with files.open_new(path) as file:
        file.write("index\tprediction\n")
        file.writelines(f"{i}\t{answer}\n" for i, answer in enumerate(predictions))

"""GLUE: nine tasks and the AX diagnostic, defined in ``ROWS``, and submissions."""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Mapping, Sequence

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.tasks.base import Example, write_tsv
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

    ``folder`` is also the name of a submission's file, except for ``submissions``.
    Unlabeled splits may have other columns, ``test_texts``, than ``texts``; negative
    numbers count from the right. ``labels`` are in the order of the outputs, None for
    regression. The first of ``scores`` selects the model. ``tfds`` is the name in
    TensorFlow Datasets, if it differs.
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
    ``log`` receives the number of skipped lines.

    Examples:
        >>> from pathlib import Path
        >>> Path("CoLA").mkdir()
        >>> _ = Path("CoLA/dev.tsv").write_text("gj04\t1\t\tThe book was read.\n")
        >>> et.tasks.glue_task("cola", "CoLA").source("dev")[0].texts
        ('The book was read.',)
    """
    row, data_dir = ROWS[name], os.fspath(data_dir)
    source = functools.partial(_read_files, name, data_dir, log)
    if data_dir.startswith("tfds:"):
        source = functools.partial(_read_tfds, name, data_dir.removeprefix("tfds:"))
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


def _read_files(name: str, data_dir: str, log: Log, split: str) -> list[Example]:
    """Reads unquoted TSV files; skips malformed lines of train and dev."""
    row, unlabeled = ROWS[name], is_unlabeled(split)
    path = _path(row, name, data_dir, row.files[split])
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
            # A submission needs an answer for every line.
            raise UserError(f"{where}: {len(cells)} cells, too few for {name}.")
        # MNLI marks examples without a majority label with a hyphen.
        if len(cells) < width or (not unlabeled and cells[row.label] == "-"):
            skipped.append(number)
            continue
        texts = tuple(cells[column] for column in columns)
        label = None if unlabeled else _label(cells[row.label], row.labels, where)
        examples.append(Example(str(len(examples)), texts, label))
    if skipped:
        numbers = ", ".join(map(str, skipped[:5]))
        log(f"{path}: skipped {len(skipped)} malformed lines ({numbers} ...)")
    if not examples:
        raise UserError(f"{path}: no line has the columns of {name}.")
    return examples


def _label(cell: str, labels: Sequence[str] | None, where: str) -> str | float:
    if labels is None:
        with contextlib.suppress(ValueError):
            if math.isfinite(number := float(cell)):
                return number
    elif cell in labels:
        return cell
    expected = "a number" if labels is None else ", ".join(labels)
    raise UserError(f"{where}: the label is {cell!r}, expected {expected}.")


def _path(row: GlueRow, name: str, data_dir: str, file: str) -> str:
    folders = ["", row.folder, name]
    if file == "diagnostic.tsv":
        folders += ["diagnostic", "AX", "../diagnostic", "../AX"]
    for folder in folders:
        path = os.path.join(data_dir, folder, file)
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(
        f"No {file} of {name} in {data_dir}: set --data_dir to {row.folder} of GLUE, "
        "or to tfds:FOLDER."
    )


def _read_tfds(name: str, data_dir: str, split: str) -> list[Example]:
    """Reads data prepared by TensorFlow Datasets; never downloads."""
    # Slow to import, and only this source needs it.
    import tensorflow_datasets as tfds

    row = ROWS[name]
    config = "ax" if split == "ax" else row.tfds or name
    builder = tfds.builder(f"glue/{config}", data_dir=data_dir or None)
    if not builder.info.splits:
        raise FileNotFoundError(
            f"glue/{config} is not prepared in {builder.data_dir}: run tfds build "
            f"glue/{config}."
        )
    names = builder.info.features["label"]
    stored = "test" if split == "ax" else split.replace("dev", "validation")
    examples = []
    data = builder.as_dataset(split=stored, shuffle_files=False)
    for item in data.as_numpy_iterator():
        texts = tuple(item[text].decode("utf-8") for text in row.tfds_texts)
        if is_unlabeled(split):
            label = None
        elif row.labels is None:
            label = float(item["label"])
        elif row.labels == _BINARY:
            label = str(int(item["label"]))
        else:
            label = names.int2str(int(item["label"]))
        examples.append(Example(str(int(item["idx"])), texts, label))
    # Prepared files are shuffled; submissions need the original order.
    return sorted(examples, key=lambda example: int(example.id))


def write_submission(
    name: str, predictions: Sequence[str], split: str, folder: str
) -> None:
    """Writes a test split for the benchmark's server, which takes a zip of files."""
    row = ROWS[name]
    path = os.path.join(folder, f"{row.submissions.get(split, row.folder)}.tsv")
    write_tsv({"index": range(len(predictions)), "prediction": predictions}, path)

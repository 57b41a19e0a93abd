"""GLUE: nine tasks and the AX diagnostic, defined in ``ROWS``, and submissions."""

import dataclasses
import functools
import math
import os
from collections.abc import Sequence

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.tasks.base import Example, write_tsv
from electra_tf.tasks.tables import Table, finite, read_text, require_columns
from electra_tf.tasks.text import Classification, Regression, TextTask

_NLI = ("entailment", "not_entailment")
_BINARY = ("0", "1")
_ACCURACY_F1 = ("accuracy", "f1")
_SUBMISSIONS = {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "ax": "AX"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueRow:
    """Definition of one task; ``texts`` and ``label`` are columns of its files.

    ``folder`` is also the name of a submission's file, except for ``_SUBMISSIONS``.
    ``labels`` are in the order of the outputs, None for regression. The first of
    ``scores`` selects the model. ``header`` names the columns of training and dev files
    without a header. ``tfds`` and ``tfds_texts`` are the names in TensorFlow Datasets,
    if they differ.
    """

    folder: str
    texts: tuple[str, ...] = ("sentence1", "sentence2")
    label: str = "label"
    labels: tuple[str, ...] | None = _BINARY
    scores: tuple[str, ...] = ("accuracy",)
    header: tuple[str, ...] | None = None
    tfds: str | None = None
    tfds_texts: tuple[str, ...] | None = None
    double_pairs: bool = False
    epochs: float = 3.0
    splits: tuple[str, ...] = ("train", "dev", "test")


ROWS: dict[str, GlueRow] = {
    "cola": GlueRow(
        folder="CoLA",
        texts=("sentence",),
        scores=("matthews", "accuracy"),
        header=("source", "label", "mark", "sentence"),
    ),
    "sst": GlueRow(folder="SST-2", texts=("sentence",), tfds="sst2"),
    "mrpc": GlueRow(
        folder="MRPC",
        texts=("#1 String", "#2 String"),
        label="Quality",
        scores=_ACCURACY_F1,
        tfds_texts=("sentence1", "sentence2"),
        double_pairs=True,
    ),
    "qqp": GlueRow(
        folder="QQP",
        texts=("question1", "question2"),
        label="is_duplicate",
        scores=_ACCURACY_F1,
    ),
    "sts": GlueRow(
        folder="STS-B",
        label="score",
        labels=None,
        scores=("spearman", "pearson", "mse"),
        tfds="stsb",
        double_pairs=True,
        epochs=10.0,
    ),
    "mnli": GlueRow(
        folder="MNLI",
        label="gold_label",
        labels=("contradiction", "entailment", "neutral"),
        tfds_texts=("premise", "hypothesis"),
        splits=(
            *("train", "dev_matched", "dev_mismatched"),
            *("test_matched", "test_mismatched", "ax"),
        ),
    ),
    "qnli": GlueRow(folder="QNLI", texts=("question", "sentence"), labels=_NLI),
    "rte": GlueRow(folder="RTE", labels=_NLI, epochs=10.0),
    "wnli": GlueRow(folder="WNLI"),
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
        "eval_splits": tuple(s for s in row.splits if s.startswith("dev")),
        "test_splits": tuple(filter(is_unlabeled, row.splits)),
        "double_pairs": row.double_pairs,
    }
    if row.labels is None:
        return Regression(label_range=(0.0, 5.0), **common)
    return Classification(labels=row.labels, score_names=row.scores, **common)


def _read_files(name: str, data_dir: str, log: Log, split: str) -> list[Example]:
    """Reads unquoted TSV files; skips malformed lines of train and dev."""
    row, unlabeled = ROWS[name], is_unlabeled(split)
    path = _path(row, name, data_dir, split)
    lines = read_text(path).removesuffix("\n").split("\n")
    table = enumerate((line.removesuffix("\r").split("\t") for line in lines), 1)
    header = next(table)[1] if unlabeled or row.header is None else row.header
    wanted = row.texts if unlabeled else (*row.texts, row.label)
    require_columns(Table(path, tuple(header), []), wanted, "data_dir")
    places = [header.index(column) for column in wanted]
    examples, skipped = [], []
    for number, cells in table:
        where = f"{path}, line {number}"
        is_short = len(cells) <= max(places)
        if unlabeled and is_short:
            # A submission needs an answer for every line.
            raise UserError(f"{where}: {len(cells)} cells, too few for {name}.")
        # MNLI marks examples without a majority label with a hyphen.
        if is_short or (not unlabeled and cells[places[-1]] == "-"):
            skipped.append(number)
            continue
        texts = [cells[place] for place in places]
        label = None if unlabeled else _label(texts.pop(), row.labels, where)
        examples.append(Example(str(len(examples)), tuple(texts), label))
    if skipped:
        numbers = ", ".join(map(str, skipped[:5]))
        log(f"{path}: skipped {len(skipped)} malformed lines ({numbers} ...)")
    if not examples:
        raise UserError(f"{path}: no line has the columns of {name}.")
    return examples


def _label(cell: str, labels: Sequence[str] | None, where: str) -> str | float:
    if labels is None:
        if not math.isnan(number := finite(cell)):
            return number
    elif cell in labels:
        return cell
    expected = "a number" if labels is None else ", ".join(labels)
    raise UserError(f"{where}: the label is {cell!r}, expected {expected}.")


def _path(row: GlueRow, name: str, data_dir: str, split: str) -> str:
    file = "diagnostic.tsv" if split == "ax" else f"{split}.tsv"
    for folder in ("", row.folder, name, "diagnostic", "../diagnostic"):
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
    examples, columns = [], row.tfds_texts or row.texts
    data = builder.as_dataset(split=stored, shuffle_files=False)
    for item in data.as_numpy_iterator():
        texts = tuple(item[column].decode("utf-8") for column in columns)
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
    path = os.path.join(folder, f"{_SUBMISSIONS.get(split, ROWS[name].folder)}.tsv")
    write_tsv({"index": range(len(predictions)), "prediction": predictions}, path)

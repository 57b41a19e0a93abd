"""What is special about each task of GLUE: columns, labels, scores, files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

NLI = ("entailment", "not_entailment")
BINARY = ("0", "1")
_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_MNLI_FILES = {
    "train": "train.tsv",
    "dev_matched": "dev_matched.tsv",
    "dev_mismatched": "dev_mismatched.tsv",
    "test_matched": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
    "ax": "diagnostic.tsv",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueRow:
    """What is special about one task.

    Attributes:
        folder: Name of its folder, and of its file in a submission.
        texts: Columns of the texts in labeled splits; negative ones from the right.
        test_texts: Columns of the texts in unlabeled splits.
        label: Column of the label.
        labels: Classes in the order of the outputs; None for STS-B's numbers.
        scores: Names of the scores; the first one decides.
        tfds: Its name in TensorFlow Datasets.
        tfds_texts: Names of its text features there.
        headerless: Splits whose file has no header.
        double_pairs: Whether pairs are trained in both orders.
        epochs: Default number of epochs.
        files: File of each split.
        submissions: File name in a submission of each unlabeled split.
    """

    folder: str
    texts: tuple[int, ...]
    test_texts: tuple[int, ...]
    label: int
    labels: tuple[str, ...] | None
    scores: tuple[str, ...]
    tfds: str
    tfds_texts: tuple[str, ...]
    headerless: tuple[str, ...] = ()
    double_pairs: bool = False
    epochs: float = 3.0
    files: Mapping[str, str] = dataclasses.field(default_factory=lambda: _FILES)
    submissions: Mapping[str, str] = dataclasses.field(default_factory=dict)


_PAIR = ("sentence1", "sentence2")
ROWS: dict[str, GlueRow] = {
    "cola": GlueRow(
        folder="CoLA",
        texts=(3,),
        test_texts=(1,),
        label=1,
        labels=BINARY,
        scores=("matthews", "accuracy"),
        tfds="cola",
        tfds_texts=("sentence",),
        headerless=("train", "dev"),
    ),
    "sst": GlueRow(
        folder="SST-2",
        texts=(0,),
        test_texts=(1,),
        label=1,
        labels=BINARY,
        scores=("accuracy",),
        tfds="sst2",
        tfds_texts=("sentence",),
    ),
    "mrpc": GlueRow(
        folder="MRPC",
        texts=(3, 4),
        test_texts=(3, 4),
        label=0,
        labels=BINARY,
        scores=("accuracy", "f1"),
        tfds="mrpc",
        tfds_texts=_PAIR,
        double_pairs=True,
    ),
    "qqp": GlueRow(
        folder="QQP",
        texts=(3, 4),
        test_texts=(1, 2),
        label=5,
        labels=BINARY,
        scores=("accuracy", "f1"),
        tfds="qqp",
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
        tfds_texts=_PAIR,
        double_pairs=True,
        epochs=10.0,
    ),
    "mnli": GlueRow(
        folder="MNLI",
        texts=(8, 9),
        test_texts=(8, 9),
        label=-1,
        labels=("contradiction", "entailment", "neutral"),
        scores=("accuracy",),
        tfds="mnli",
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
        test_texts=(1, 2),
        label=3,
        labels=NLI,
        scores=("accuracy",),
        tfds="qnli",
        tfds_texts=("question", "sentence"),
    ),
    "rte": GlueRow(
        folder="RTE",
        texts=(1, 2),
        test_texts=(1, 2),
        label=3,
        labels=NLI,
        scores=("accuracy",),
        tfds="rte",
        tfds_texts=_PAIR,
        epochs=10.0,
    ),
    "wnli": GlueRow(
        folder="WNLI",
        texts=(1, 2),
        test_texts=(1, 2),
        label=3,
        labels=BINARY,
        scores=("accuracy",),
        tfds="wnli",
        tfds_texts=_PAIR,
    ),
}


def is_unlabeled(split: str) -> bool:
    """Whether a split has no labels."""
    return not split.startswith(("train", "dev"))

"""Reads the splits of GLUE: from the benchmark's files or from TFDS."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from electra_tf.tasks.base import Example
from electra_tf.tasks.glue_rows import BINARY, ROWS, is_unlabeled
from electra_tf.tasks.tables import read_text


@dataclasses.dataclass(frozen=True)
class GlueFiles:
    """Reads the TSV files of the benchmark, without quoting.

    Attributes:
        name: Name of the task.
        data_dir: Its folder, or the one above.
        log: Told about lines that are skipped.
    """

    name: str
    data_dir: str
    log: Callable[[str], None] = lambda line: None

    def __call__(self, split: str) -> list[Example]:
        """Reads a split; lines of train and dev with too few cells are skipped.

        Raises:
            ValueError: The file is empty or not UTF-8, a label is not the task's, or
                a line of a test file has too few cells.
            FileNotFoundError: There is no such file.
        """
        row = ROWS[self.name]
        path = self._path(row.files[split])
        lines = read_text(path).removesuffix("\n").split("\n")
        start = 0 if split in row.headerless else 1
        found, skipped = [], []
        for number, line in enumerate(lines[start:], start + 1):
            cells = line.removesuffix("\r").split("\t")
            example = self._example(cells, split, len(found), f"{path}, line {number}")
            if example is None:
                skipped.append(number)
            else:
                found.append(example)
        if skipped:
            numbers = ", ".join(map(str, skipped[:5]))
            self.log(f"{path}: skipped {len(skipped)} malformed lines ({numbers} ...)")
        if not found:
            raise ValueError(f"{path}: no line has the columns of {self.name}.")
        return found

    def _example(self, cells, split, number, where):
        row = ROWS[self.name]
        unlabeled = is_unlabeled(split)
        columns = self._text_columns(split)
        wanted = columns if unlabeled else (*columns, row.label)
        if len(cells) < max(c + 1 if c >= 0 else -c for c in wanted):
            if unlabeled:
                raise ValueError(
                    f"{where}: {len(cells)} cells, too few for {self.name}; a "
                    "submission needs an answer for every line. Download it again."
                )
            return None
        texts = tuple(cells[column] for column in columns)
        if unlabeled:
            return Example(str(number), texts)
        # MNLI marks examples without a majority label so.
        if cells[row.label] == "-":
            return None
        return Example(str(number), texts, self._label(cells[row.label], where))

    def _text_columns(self, split):
        # The diagnostic has its own layout: index, premise, hypothesis.
        if split == "ax":
            return (1, 2)
        row = ROWS[self.name]
        return row.test_texts if is_unlabeled(split) else row.texts

    def _label(self, cell, where):
        labels = ROWS[self.name].labels
        if labels is not None:
            if cell in labels:
                return cell
            expected = ", ".join(labels)
        else:
            try:
                return float(cell)
            except ValueError:
                expected = "a number"
        raise ValueError(
            f"{where}: the label is {cell!r}, expected {expected}. Is it the file of "
            f"{self.name} in the benchmark's layout?"
        )

    def _path(self, name: str) -> str:
        row = ROWS[self.name]
        folders = [
            self.data_dir,
            os.path.join(self.data_dir, row.folder),
            os.path.join(self.data_dir, self.name),
        ]
        if name == "diagnostic.tsv":
            folders += [
                os.path.join(self.data_dir, *above, below)
                for above in ((), ("..",))
                for below in ("diagnostic", "AX")
            ]
        for folder in folders:
            if os.path.isfile(os.path.join(folder, name)):
                return os.path.join(folder, name)
        raise FileNotFoundError(
            f"No {name} of {self.name} in {self.data_dir}: set --data_dir to the "
            f"task's folder ({row.folder}) in the benchmark's layout, or to "
            "tfds:FOLDER."
        )


@dataclasses.dataclass(frozen=True)
class TfdsSource:
    """Reads `glue/...` as TensorFlow Datasets has prepared it; never downloads.

    Attributes:
        name: Name of the task.
        data_dir: Folder of prepared data; None for the default one.
    """

    name: str
    data_dir: str | None = None

    def __call__(self, split: str) -> list[Example]:
        """Reads a split, in the order of the benchmark's files.

        Raises:
            ValueError: TensorFlow Datasets is not installed.
            FileNotFoundError: The data is not prepared.
        """
        builder = self._builder(ROWS[self.name].tfds if split != "ax" else "ax")
        examples = builder.as_dataset(
            split=_TFDS_SPLITS.get(split, split), shuffle_files=False
        ).as_numpy_iterator()
        labels = builder.info.features["label"]
        found = [self._example(example, labels, split) for example in examples]
        # The prepared files are shuffled; a submission needs the original order.
        return sorted(found, key=lambda example: int(example.id))

    def _builder(self, name):
        try:
            import tensorflow_datasets as tfds
        except ImportError as error:
            raise ValueError(
                "--data_dir=tfds: needs packages: pip install tensorflow-datasets "
                "importlib_resources; or give the folder of the TSV files."
            ) from error
        builder = tfds.builder(f"glue/{name}", data_dir=self.data_dir)
        if not builder.info.splits:
            raise FileNotFoundError(
                f"glue/{name} is not prepared in {builder.data_dir}: run 'tfds build "
                f"glue/{name}' where there is a network, or give the folder of the TSV "
                "files."
            )
        return builder

    def _example(self, example, feature, split):
        row = ROWS[self.name]
        texts = tuple(example[name].decode("utf-8") for name in row.tfds_texts)
        label = None
        if not is_unlabeled(split):
            value = example["label"]
            label = float(value) if row.labels is None else str(int(value))
            if row.labels not in (None, BINARY):
                label = feature.int2str(int(value))
        return Example(str(int(example["idx"])), texts, label)


_TFDS_SPLITS = {
    "dev": "validation",
    "dev_matched": "validation_matched",
    "dev_mismatched": "validation_mismatched",
    "ax": "test",
}

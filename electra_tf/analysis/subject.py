"""Model, flags and text of an analysis.

Letters: V vocabulary.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import glob
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf.analysis.inspector import Inspector
from electra_tf.analysis.marked import Tagged, read_spans, read_tagged
from electra_tf.cli import Log
from electra_tf.config.commands import AnalyzeConfig
from electra_tf.data import pipeline, records
from electra_tf.data.corpora import open_corpus
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import DATA, PretrainingFolder, named
from electra_tf.layers.encoder import TextEncoder

_COUNTED_RECORDS = 20_000
# Number of default texts, and their length in tokens, so that attention maps fit on a
# screen.
_TEXTS, _FEWEST, _MOST = 3, 5, 32
_COMPARED = "results.jsonl"


@dataclasses.dataclass(frozen=True)
class Text:
    """Rows of ids, including [CLS] and [SEP].

    ``counts`` [V] are the token counts of the training text or, if it is missing, of
    these rows; ``about`` describes the rows.
    """

    rows: Sequence[np.ndarray]
    counts: np.ndarray
    about: str


def short_names(folders: Sequence[Path]) -> list[str]:
    """Returns folder names, with as many parents as needed to be unique."""
    taken = collections.Counter(folder.name for folder in folders)
    alike = [str(folder) for folder in folders if taken[folder.name] > 1]
    above = os.path.commonpath(alike) if len(set(alike)) > 1 else ""
    return [
        folder.name
        if taken[folder.name] == 1
        else os.path.relpath(folder, above)
        if above
        else str(folder)
        for folder in folders
    ]


def encoders_in(folder: Path) -> list[Path]:
    """Returns all subfolders with an encoder, except those of points of a run."""
    inside = sorted(path.parent for path in folder.rglob("encoder.keras"))
    return [each for each in inside if not {*each.parents} & {*inside}]


def kept_runs(folder: Path) -> list[Path]:
    """Returns the runs with an encoder of a comparison; [] for other folders.

    Raises UserError if the comparison has kept no models.
    """
    if not (folder / _COMPARED).is_file():
        return []
    found = encoders_in(folder)
    if not found:
        raise UserError(
            f"{folder} is a comparison whose runs have kept no models: compare with "
            "--keep=models, or --keep=all."
        )
    return found


def longest_row(inspector: Inspector, encoder: TextEncoder) -> int:
    """Returns the trained sequence length, else the size of the position table."""
    most = encoder.embeddings.max_positions
    return min(most, inspector.flags.get("max_seq_length") or most)


def read_text(inspector: Inspector, specs: Sequence[str], limit: int) -> Text:
    """Reads at most ``limit`` rows of text, or the run's held-out records.

    ``specs`` are those of ``--text``; the default is the run's records. A line is one
    row, or several if it is too long. Raises UserError if there is no text.
    """
    vocabulary = inspector.vocabulary
    train, held_out = _records_of(inspector)
    if specs:
        lines: list[str] = []
        for source in open_corpus(specs):
            for document in source.documents():
                lines += document
                if len(lines) >= limit:
                    break
        size = longest_row(inspector, inspector.detector.encoder) - 2
        rows = [
            np.array([vocabulary.cls_id, *ids[at : at + size], vocabulary.sep_id])
            for ids in inspector.tokenizer.encode(lines[:limit])
            for at in range(0, len(ids), size)
        ][:limit]
        about = f"{len(rows):,} rows of {', '.join(specs)}"
        if not rows:
            raise UserError(f"--text={','.join(specs)} has no words.")
    elif held_out:
        rows = _read_records(held_out, limit)
        about = f"{len(rows):,} held-out rows of pretraining"
    else:
        raise UserError(
            f"{inspector.folder} has no held-out records that are still there: name "
            "text with --text, a file or folder, or --text=installed."
        )
    counted = _read_records(train, _COUNTED_RECORDS) if train else rows
    counts = records.token_counts(counted, len(vocabulary))
    counts[[vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id]] = 0
    return Text([row.astype(np.int32) for row in rows], counts, about)


def _records_of(inspector: Inspector) -> tuple[list[str], list[str]]:
    flags = inspector.flags
    places = [*(flags.get("records") or ()), flags.get("data_dir")]
    places = [place for place in places if place] or [inspector.folder / DATA]
    folders = {
        Path(path) if Path(path).is_dir() else Path(path).parent
        for place in places
        for path in glob.glob(str(place))
    }
    found = [
        sorted(str(path) for folder in folders for path in folder.glob(pattern))
        for pattern in (pipeline.TRAINING, pipeline.HELD_OUT)
    ]
    return found[0], found[1]


def _read_records(paths: Sequence[str], limit: int) -> list[np.ndarray]:
    stream = tf.data.TFRecordDataset(list(paths)).take(limit)
    batches = stream.batch(1000).map(pipeline.parse_batch)
    return [row.numpy() for batch in batches for row in batch]


def example_texts(subject: Subject) -> list[str]:
    """Returns the texts of ``--inspect``, else the first short ones of the data."""
    config, inspector = subject.config, subject.inspector
    if config.inspect:
        return list(config.inspect)
    if config.tagged:
        texts = [" ".join(sentence.words) for sentence in subject.tagged]
    else:
        names = (inspector.names(row[1:-1]) for row in subject.text.rows)
        texts = [" ".join(tokens).replace(" ##", "") for tokens in names]
    lengths = map(len, inspector.tokenizer.encode(texts))
    pairs = zip(texts, lengths, strict=True)
    short = [text for text, size in pairs if _FEWEST <= size <= _MOST]
    if not short:
        raise UserError(
            f"the data has no text of {_FEWEST} to {_MOST} tokens: name one with "
            "--inspect."
        )
    return short[:_TEXTS]


class Subject:
    """Model, flags and text of an analysis, each loaded on first use.

    If ``--model`` is a comparison, its first run with a discriminator is the model, and
    all its runs are added to ``--encoders``.

    Raises UserError if no run of the comparison has kept its models, and the errors of
    `Inspector`.
    """

    def __init__(self, config: AnalyzeConfig, log: Log):
        self._compared = kept_runs(folder := named(config.model))
        if self._compared:
            asked = next(filter(_has_discriminator, self._compared), self._compared[0])
            log(f"of the comparison {folder}, {asked.relative_to(folder)} is asked")
            others = (config.model, *config.encoders)
            config = dataclasses.replace(config, model=str(asked), encoders=others)
        self.config = config
        self.log = log
        self.inspector = Inspector(config.model, log, **config.tokenization)

    @functools.cached_property
    def masked_lms(self) -> dict[str, Inspector]:
        """Runs of the comparison with only a masked LM, by short name."""
        names = short_names(self._compared)
        homes = dict(zip(names, map(PretrainingFolder, self._compared), strict=True))
        return {
            f"masked LM {name}": Inspector(home.path, self.log)
            for name, home in homes.items()
            if home.has_model("generator") and not home.has_model("discriminator")
        }

    @functools.cached_property
    def text(self) -> Text:
        """Rows of text; raises UserError if there are none."""
        return read_text(self.inspector, self.config.text, self.config.limit)

    @functools.cached_property
    def tagged(self) -> list[Tagged]:
        """Words and parts of speech; raises UserError without a valid `--tagged`."""
        if not self.config.tagged:
            raise UserError(
                "words with parts of speech are needed: name files with --tagged."
            )
        return [
            sentence
            for path in self.config.tagged
            for sentence in read_tagged(path)[: self.config.sentences]
        ]

    @functools.cached_property
    def spans(self) -> dict[str, list[Tagged]]:
        """Words and span tags by name of ``--spans``; raises as `read_spans` does."""
        return read_spans(self.config.spans, self.config.sentences)

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Token counts [V]; raises UserError if there is no text."""
        return self.text.counts


def _has_discriminator(folder: Path) -> bool:
    return PretrainingFolder(folder).has_model("discriminator")

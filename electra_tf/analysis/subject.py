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
from typing import Literal

import numpy as np
import tensorflow as tf

from electra_tf.analysis.inspector import Inspector
from electra_tf.analysis.marked import read_tagged
from electra_tf.cli import Log
from electra_tf.config.commands import AnalyzeConfig
from electra_tf.data import pipeline, records
from electra_tf.data.corpora import open_corpus
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import DATA
from electra_tf.layers.encoder import TextEncoder
from electra_tf.tasks.sentences import Sentence

_COUNTED_RECORDS = 20_000
# Number of default texts, and their length in tokens, so that attention maps fit on a
# screen.
_TEXTS, _FEWEST, _MOST = 3, 5, 32


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
    """Returns all subfolders with an encoder, except points inside a run."""
    inside = sorted(path.parent for path in folder.rglob("encoder.keras"))
    return [each for each in inside if not {*each.parents} & {*inside}]


def longest_row(inspector: Inspector, encoder: TextEncoder) -> int:
    """Returns the trained sequence length, else the size of the position table."""
    most = encoder.embeddings.max_positions
    return min(most, inspector.flags.get("max_seq_length") or most)


def read_text(inspector: Inspector, specs: Sequence[str], limit: int) -> Text:
    """Reads at most ``limit`` rows of text, or the run's held-out records.

    ``specs`` are the values of ``--text``. The default is the run's records, or a
    sample without records. A line is one row, or several if it is too long. Raises
    UserError if there is no text.
    """
    vocabulary = inspector.vocabulary
    train, held_out = _records_of(inspector)
    if held_out and not specs:
        rows = _read_records(held_out, limit)
        about = f"{len(rows):,} held-out rows of pretraining"
    else:
        lines = [] if specs else [" ".join(x.words) for x in read_tagged(_sample())]
        for source in open_corpus(specs) if specs else ():
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
        about = f"{len(rows):,} rows of {', '.join(specs) or 'a small sample'}"
        if not rows:
            raise UserError(f"--text={','.join(specs)} has no words.")
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


def _sample(name: str = "tagged") -> str:
    return str(Path(__file__).with_name("samples") / f"{name}.txt")


def example_texts(subject: Subject) -> list[str]:
    """Returns the texts of ``--inspect``, else the first short ones of ``--tagged``."""
    if subject.config.inspect:
        return list(subject.config.inspect)
    texts = [" ".join(sentence.words) for sentence in subject.tagged]
    inspector = subject.inspector
    lengths = map(len, inspector.tokenizer.encode(texts))
    most = min(_MOST, longest_row(inspector, inspector.detector.encoder) - 2)
    pairs = zip(texts, lengths, strict=True)
    short = [text for text, size in pairs if _FEWEST <= size <= most]
    if not short:
        raise UserError(
            f"the data has no text of {_FEWEST} to {_MOST} tokens: name one with "
            "--inspect."
        )
    return short[:_TEXTS]


class Subject:
    """Model, flags and text of an analysis, each loaded on first use."""

    def __init__(self, config: AnalyzeConfig, log: Log):
        self.config = config
        self.log = log
        self.inspector = Inspector(config.model, log, **config.tokenization)

    @functools.cached_property
    def text(self) -> Text:
        """Rows of text; raises UserError if there are none."""
        return read_text(self.inspector, self.config.text, self.config.limit)

    @functools.cached_property
    def tagged(self) -> list[Sentence]:
        """Words and parts of speech; raises UserError if a file is invalid."""
        return [
            sentence
            for path in self.files("tagged")
            for sentence in read_tagged(path)[: self.config.sentences]
        ]

    def files(self, name: Literal["errors", "tagged"]) -> tuple[str, ...]:
        """Returns the files of a flag, by default a sample that ships."""
        given = getattr(self.config, name)
        if not given:
            given = (_sample(name),)
            self.log(f"no --{name}: taking the 40 sentences of {given[0]}")
        return given

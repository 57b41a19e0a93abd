"""Model, flags and text of an analysis.

Letters: V vocabulary.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import tensorflow as tf

from electra_tf import cli
from electra_tf.analysis.inspector import Inspector
from electra_tf.cli import Log
from electra_tf.config.commands import AnalyzeConfig
from electra_tf.data import paths, pipeline, records
from electra_tf.data.corpora import open_corpus
from electra_tf.data.tables import READERS
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import DATA
from electra_tf.layers.encoder import TextEncoder
from electra_tf.tasks.sentences import Sentence, SentenceSource
from electra_tf.tasks.tagging import word_rows

_COUNTED_RECORDS = 20_000


@dataclasses.dataclass(frozen=True)
class Text:
    """Rows of text with a description."""

    rows: Sequence[np.ndarray]  # Ids with [CLS] and [SEP].
    counts: np.ndarray  # Token counts [V] of the training text, else of these rows.
    about: str


def longest_row(inspector: Inspector, encoder: TextEncoder) -> int:
    """Returns the trained sequence length, else the size of the position table."""
    most = encoder.embeddings.max_positions
    return min(most, inspector.flags.get("max_seq_length") or most)


def word_pieces(
    inspector: Inspector, sentences: Sequence[Sequence[str]]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns rows of ids, and the word index of each piece in all of them [N].

    Words are numbered over all sentences. Long sentences are split.
    """
    longest = longest_row(inspector, inspector.detector.encoder)
    pieces = word_rows(sentences, inspector.tokenizer, longest)
    starts = np.cumsum([0, *map(len, sentences)])[pieces.example]
    words = zip(pieces.notes["word"], starts, strict=True)
    # Continuing pieces, marked by -1, belong to the word before them.
    numbers = [np.maximum.accumulate(word[1:-1]) + start for word, start in words]
    return list(pieces.inputs["input_ids"]), np.concatenate(numbers)


def read_text(inspector: Inspector, specs: Sequence[str], limit: int) -> Text:
    """Reads at most ``limit`` rows of ``--text``, a row or several per line.

    Without ``specs``, reads the run's held-out records, or else a sample.
    Raises UserError if the text is empty.
    """
    vocabulary = inspector.vocabulary
    train, held_out = _records_of(inspector)
    if held_out and not specs:
        rows = _read_records(held_out, limit)
        about = f"{len(rows):,} held-out rows of pretraining"
    else:
        sources = open_corpus(specs, log=cli.note) if specs else ()
        documents = (document for each in sources for document in each.documents())
        lines = [*itertools.islice(itertools.chain.from_iterable(documents), limit)]
        if not specs:
            lines = [" ".join(each.words) for each in read_tagged(_sample("tagged"))]
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
    """Returns the training and held-out record files of the run that exist."""
    flags = inspector.flags
    places = flags.get("records") or [flags.get("data_dir") or inspector.folder / DATA]
    matches = _existing(places, pipeline.TRAINING)
    train = pipeline.without_held_out(matches)
    folders = [*filter(os.path.isdir, places), *map(os.path.dirname, matches)]
    held_out = _existing(flags.get("eval_records") or folders, pipeline.HELD_OUT)
    for folder in sorted({*map(os.path.dirname, (*train, *held_out))}):
        # A relative path may lead to the records of another run.
        if Path(folder, records.MANIFEST).exists():
            vocabulary = records.read_manifest(folder).vocabulary
            if vocabulary["sha256"] != inspector.vocabulary.sha256:
                cli.note(
                    f"warning: the records in {folder} have another vocabulary than "
                    "the model; not read"
                )
                return [], []
    return train, held_out


def _existing(places: Sequence[str | Path], pattern: str) -> list[str]:
    """Returns the local files of the places; a pattern selects the files of folders."""
    files: set[str] = set()
    for place in places:
        # An analysis does not wait for a remote system.
        if not paths.is_remote(place):
            with contextlib.suppress(UserError):
                files |= {*pipeline.expand_files([place], in_folder=pattern)}
    return sorted(files)


def _read_records(shards: Sequence[str], limit: int) -> list[np.ndarray]:
    stream = tf.data.TFRecordDataset(list(shards)).take(limit)
    batches = stream.batch(1000).map(pipeline.parse_batch)
    return [row.numpy() for batch in batches for row in batch]


def _sample(name: str) -> str:
    return str(Path(__file__).with_name("samples") / f"{name}.txt")


def read_tagged(path: str) -> list[Sentence]:
    """Reads CoNLL-U with UPOS tags, or columns 0 and 1."""
    is_conllu = paths.suffix(path) == ".conllu"
    word, tag = ("FORM", "UPOS") if is_conllu else ("0", "1")
    if paths.suffix(path) in READERS:
        raise UserError(
            f"{path}: --tagged takes CoNLL-U (.conllu), or a word and its tag per line "
            f"in a file that does not end in {', '.join(READERS)}."
        )
    source = SentenceSource(files={"eval": path}, word_column=word, tag_column=tag)
    return source("eval")


class Subject:
    """Model, flags and text of an analysis, each loaded on first use."""

    def __init__(self, config: AnalyzeConfig, log: Log):
        self.config = config
        self.log = log
        self.inspector = Inspector(config.model, log)

    @functools.cached_property
    def text(self) -> Text:
        """Rows of text; raises UserError if the text is empty."""
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
        """Returns the files of a flag, by default a shipped sample."""
        given = getattr(self.config, name)
        if not given:
            given = (_sample(name),)
            self.log(f"no --{name}: taking the 40 sentences of {given[0]}")
        return given

"""Model, flags and text of an analysis; V is the size of the vocabulary."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from electra_tf import cli
from electra_tf.analysis.inspector import Inspector
from electra_tf.cli import Log
from electra_tf.config import fields
from electra_tf.config.commands import AnalyzeConfig
from electra_tf.config.pretraining import DataConfig
from electra_tf.data import paths, pipeline
from electra_tf.data.corpora import open_corpus
from electra_tf.data.prepared import PretrainingData, given_data
from electra_tf.errors import UserError
from electra_tf.folders.pretraining import DATA, VOCABULARY
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs.scores import row_scores
from electra_tf.tasks.sentences import Sentence, SentenceSource
from electra_tf.tasks.tagging import word_rows

_SAMPLES = Path(__file__).with_name("samples")


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
    rows = word_rows(sentences, inspector.tokenizer, longest)
    starts = np.cumsum([0, *map(len, sentences)])[rows.example]
    words = zip(rows.notes["word"], starts, strict=True)
    # Continuing pieces, -1, belong to the word before, maybe of the row before.
    numbers = [np.where(word < 0, -1, word + start)[1:-1] for word, start in words]
    return [*rows.inputs["input_ids"]], np.maximum.accumulate(np.concatenate(numbers))


def read_text(inspector: Inspector, specs: Sequence[str], limit: int) -> Text:
    """Reads at most ``limit`` rows of ``--text``, a row or several per line.

    Without ``specs``, reads the run's held-out records, or else a sample.
    """
    vocabulary = inspector.vocabulary
    data = _records_of(inspector)
    if data and data.eval_files and not specs:
        stream = tf.data.TFRecordDataset(data.eval_files).take(limit)
        batches = stream.batch(1000).map(pipeline.parse_batch)
        rows = [row.numpy() for batch in batches for row in batch]
        about = f"{len(rows):,} held-out rows of pretraining"
    else:
        if specs:
            sources = open_corpus(specs, log=cli.note)
            documents = (each for source in sources for each in source.documents())
            lines = [*itertools.islice(itertools.chain.from_iterable(documents), limit)]
        else:
            sample = read_tagged(str(_SAMPLES / "tagged.txt"))
            lines = [" ".join(sentence.words) for sentence in sample]
        size = longest_row(inspector, inspector.detector.encoder) - 2
        rows = [
            np.array([vocabulary.cls_id, *ids[at : at + size], vocabulary.sep_id])
            for ids in inspector.tokenizer.encode(lines[:limit])
            for at in range(0, len(ids), size)
        ][:limit]
        about = f"{len(rows):,} rows of {', '.join(specs) or 'a small sample'}"
        if not rows:
            raise UserError(f"--text={','.join(specs)} has no words.")
    if data:
        counts = data.token_counts
    else:
        cli.note(f"without the run's records, tokens are counted in {about}")
        own = np.concatenate([row[1:-1] for row in rows])
        counts = np.bincount(own, minlength=len(vocabulary))
    return Text([row.astype(np.int32) for row in rows], counts, about)


def _records_of(inspector: Inspector) -> PretrainingData | None:
    """Returns the records of the run, or None if they are missing or do not fit."""
    flags = inspector.flags
    data = {name: flags[name] for name in fields.hints(DataConfig) if name in flags}
    folder = flags.get("data_dir") or str(inspector.home.path / DATA)
    data["records"] = data.get("records") or [folder]
    for place in (*data["records"], *data.get("eval_records", ())):
        # An analysis does not wait for a remote system.
        if paths.is_remote(place) or not (paths.exists(place) or paths.matching(place)):
            return None
    # A relative path may lead to the records of another run.
    data["vocab_file"] = str(inspector.home.path / VOCABULARY)
    try:
        return given_data(fields.from_flat(data, DataConfig), lambda line: None)
    except (UserError, OSError) as error:
        cli.note(f"warning: the records of the run are not read: {error}")
        return None


def read_tagged(path: str) -> list[Sentence]:
    """Reads CoNLL-U with UPOS tags, or columns 0 and 1."""
    suffix = paths.suffix(path)
    if suffix in (".csv", ".json", ".jsonl"):
        raise UserError(
            f"{path}: --tagged takes CoNLL-U (.conllu), or a word and its tag per line "
            f"in a file that does not end in {suffix}."
        )
    word, tag = ("FORM", "UPOS") if suffix == ".conllu" else ("0", "1")
    return SentenceSource(files={}, word_column=word, tag_column=tag).columns(path)


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

    def scores(
        self, method: str, model: keras.Model, rows: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Computes the scores of all tokens as in ``row_scores``."""
        options = {"batch_size": self.config.batch_size, "log": self.log}
        vocabulary = self.inspector.vocabulary
        return np.concatenate(row_scores(method, model, vocabulary, rows, **options))

    def files(self, name: Literal["errors", "tagged"]) -> tuple[str, ...]:
        """Returns the files of a flag, by default a shipped sample."""
        given = getattr(self.config, name)
        if not given:
            given = (str(next(_SAMPLES.glob(f"{name}.*"))),)
            self.log(f"no --{name}: taking the 40 sentences of {given[0]}")
        return given

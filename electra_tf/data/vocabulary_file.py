"""The vocabulary of a records build: loaded from its file, or trained and kept."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from electra_tf.data import records
from electra_tf.data.corpora import corpus_hash, open_corpus
from electra_tf.data.folder_lock import locked
from electra_tf.data.output_folder import differences
from electra_tf.data.sources import Source
from electra_tf.data.units import document_hash
from electra_tf.data.vocabulary import Vocabulary, train_vocabulary
from electra_tf.data.workers import Log, log_to_stderr

_VOCABULARY_BYTES = 256 << 20
_FULL = 0.75


def prepare_vocabulary(
    corpus: Sequence[str],
    path: str | os.PathLike,
    *,
    size: int,
    lower_case: bool = True,
    strip_accents: bool = True,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
    overwrite: bool = False,
    tfds_data_dir: str | None = None,
    log: Log = log_to_stderr,
) -> Vocabulary:
    """Loads the vocabulary file, or trains it on the corpus if it does not exist.

    What a vocabulary was trained on, and how, is kept beside it (`vocab.txt.json`), so
    that it is not taken for another one. The text is no longer compared once there are
    finished records beside it. Of a corpus of more than 256 MB, a sample of the
    documents of that size is used.

    Args:
        corpus: Source specs, see `open_corpus`.
        path: The vocabulary file.
        size: Number of tokens, if it is trained.
        lower_case: Whether the text is lower-cased.
        strip_accents: Whether accents are removed, if it is lower-cased.
        min_frequency: Occurrences that a merged pair must have.
        limit_alphabet: Characters to keep, see `train_vocabulary`.
        overwrite: Whether to train it anew unless it was trained just so.
        tfds_data_dir: Folder of prepared TensorFlow Datasets.
        log: Called with messages.

    Raises:
        ValueError: The file or the corpus is not usable, the file has more tokens
            than `size`, or was trained with other settings.
        OSError: The file cannot be read or written.
    """
    path = Path(path)
    how = {
        "lower_case": lower_case,
        "strip_accents": strip_accents,
        "min_frequency": min_frequency,
        "limit_alphabet": limit_alphabet,
    }
    settings = {**how, "size": size}
    sources = []
    if overwrite or not (path.parent / records.MANIFEST).exists():
        sources = open_corpus(corpus, tfds_data_dir=tfds_data_dir)
        settings["corpus_sha256"] = corpus_hash(sources)
    with locked(path.parent, log):
        if path.is_file():
            made = _settings_of(path)
            if made == settings or not overwrite:
                vocabulary = _checked(path, made, settings)
                log(f"using {path} ({len(vocabulary)} tokens)")
                return vocabulary
        started = time.monotonic()
        log(f"training a vocabulary of {size} tokens on {', '.join(corpus)}")
        sources = sources or open_corpus(corpus, tfds_data_dir=tfds_data_dir)
        settings["corpus_sha256"] = corpus_hash(sources)
        tokens = train_vocabulary(_SampledLines(sources), size, **how)
        vocabulary = Vocabulary(tuple(tokens))
        made = {"vocabulary_sha256": vocabulary.sha256, "settings": settings}
        records.write_json(_settings_path(path), made)
        vocabulary.save(path)
        log(f"{path}: {len(tokens)} tokens in {time.monotonic() - started:.0f} s")
        if len(tokens) < _FULL * size:
            log(
                f"warning: of {size} tokens asked for, the text gives {len(tokens)}; "
                f"no other pair of pieces occurs {min_frequency} times. Give more "
                "text, or ask for fewer."
            )
    return vocabulary


def _settings_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _settings_of(path: Path) -> dict | None:
    """How the file was trained; None if it was not, or is another one by now."""
    if not _settings_path(path).is_file():
        return None
    made = json.loads(_settings_path(path).read_text(encoding="utf-8"))
    is_it = made.get("vocabulary_sha256") == Vocabulary.load(path).sha256
    return made["settings"] if is_it else None


def _checked(path: Path, made: dict | None, settings: dict) -> Vocabulary:
    vocabulary = Vocabulary.load(path)
    if len(vocabulary) > settings["size"]:
        raise ValueError(
            f"{path} has {len(vocabulary)} tokens, asked for {settings['size']}. "
            "Delete the file to train a new one, or ask for its size."
        )
    # The text counts only where it was read.
    found = {name: made.get(name) for name in settings} if made else settings
    if found != settings:
        raise ValueError(
            f"{path} was trained with other settings: {differences(found, settings)}. "
            "Delete the file to train a new one, or give the same settings."
        )
    return vocabulary


class _SampledLines:
    """Lines of the corpus, as often as asked; documents sampled if it is big."""

    def __init__(self, sources: Sequence[Source]):
        self._sources = sources
        size = max(1, sum(source.size for source in sources))
        self._below = min(1, _VOCABULARY_BYTES / size) * 2**64

    def __iter__(self) -> Iterator[str]:
        for source in self._sources:
            for document in source.documents():
                if document_hash(document) < self._below:
                    yield from document

"""Resumable builds of a vocabulary and TFRecord files from a corpus.

The output folder contains ``train-*.tfrecord``, ``eval-*.tfrecord``, ``vocab.txt``, its
training settings (``vocab.txt.json``) and ``manifest.json``, which is written last.
During the build, ``.build`` contains the settings and the finished units.
"""

import collections
import contextlib
import dataclasses
import importlib.util
import itertools
import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from electra_tf import files
from electra_tf.cli import Log, note
from electra_tf.config.fields import CASING
from electra_tf.config.records import CorpusFlags, RecordsConfig
from electra_tf.data import corpora, records, units
from electra_tf.data.selection import REASONS, characters, text_hash
from electra_tf.data.vocabulary import Vocabulary, train_vocabulary
from electra_tf.errors import UserError

WORK = ".build"
_SETTINGS = "settings.json"
_TEXT_PER_RECORD_BYTE = 2  # A shard has about half the bytes of its text.
_MANY = 0.01  # Share of unknown, capitalized or accented tokens.
_VOCABULARY_BYTES = 256 << 20
_LONG_DOCUMENT = 1 << 20  # Characters.


def main(config: RecordsConfig) -> None:
    """Runs the command ``electra-tf records``."""
    build(config)


def build(
    config: RecordsConfig,
    *,
    vocabulary: Vocabulary | None = None,
    outputs: Sequence[files.AnyPath] = (),
    log: Log = note,
) -> tuple[Vocabulary, records.Manifest]:
    """Builds the records of a config; returns their vocabulary and manifest.

    The records depend on the corpus and the settings only, not on the number of
    processes. Resumes an interrupted build. Reuses a finished build with the same
    settings, even if the text is missing, or is ``installed`` alone and has changed.
    Scripts with more than 4 MB of text need ``if __name__ == "__main__"``.

    Without ``vocabulary`` and ``vocab_file``, uses or trains ``vocab.txt`` of the
    folder. ``outputs`` are folders to leave out of the corpus.
    """
    if not config.output_dir:
        raise UserError("records need a folder: set output_dir.")
    folder = Path(config.output_dir)
    outputs = (*outputs, folder)
    wanted = {"format_version": records.FORMAT_VERSION, **config.settings}
    # Checks without the corpus come first: training a vocabulary can take hours.
    for is_used, flag, name, package in (
        (config.beam, "--beam", "apache_beam", "apache-beam>=2.77,<3"),
        (config.dedup == "near", "--dedup=near", "datasketch", "datasketch>=2,<3"),
    ):
        if is_used and importlib.util.find_spec(name) is None:
            raise UserError(f"{flag} needs the package {name}: pip install '{package}'")
    if config.decontaminate:
        texts = corpora.open_corpus(config.decontaminate, text_column=None, log=log)
        wanted["decontaminate"] = corpora.corpus_hash(texts)
    if config.vocab_file and not vocabulary:
        vocabulary = Vocabulary.load(config.vocab_file)
    vocabulary = vocabulary or prepare_vocabulary(config, outputs=outputs, log=log)
    warn_of_casing(vocabulary, config, log)
    job = units.Job(settings=config, vocabulary=vocabulary, folder=str(folder / WORK))
    wanted["vocabulary_sha256"] = vocabulary.sha256
    sources = []
    try:
        sources = corpora.open_corpus(
            config.corpus,
            blank_lines_separate=config.blank_lines_separate,
            text_column=config.text_column,
            outputs=outputs,
            log=log,
        )
        wanted["corpus_sha256"] = corpora.corpus_hash(sources)
    except (ValueError, OSError) as error:
        # Finished records do not need their text.
        if config.overwrite or not (folder / records.MANIFEST).exists():
            raise
        built = records.read_manifest(folder).corpus.get("sources")
        if built != [*map(str, config.corpus)]:
            raise
        log(f"warning: the text is missing ({error})")
    with files.owned(folder, log):
        if finished := _prepare(config, folder, wanted, log):
            return vocabulary, finished
        path = folder / "vocab.txt"
        if config.overwrite or not path.exists():
            vocabulary.save(path)
        elif Vocabulary.load(path, **vocabulary.names).sha256 != vocabulary.sha256:
            raise UserError(
                f"{path} differs from the given vocabulary: move it, or --overwrite."
            )
        unit_bytes = int(config.shard_megabytes * 2**20 * _TEXT_PER_RECORD_BYTE)
        sources = list(corpora.shareable(sources, folder / WORK, unit_bytes // 16, log))
        planned = units.plan_units(sources, unit_bytes)
        if config.filters:
            units.run(units.READ, job, planned, log)
            planned = units.judge_units(job, planned)
        documents = itertools.chain.from_iterable(u.documents() for u in planned)
        held_out = units.hold_out(documents, config.eval_fraction)
        job = dataclasses.replace(job, held_out=held_out)
        units.run(units.BUILD, job, planned, log)
        results = [files.read_json(job.file(unit, units.BUILD)) for unit in planned]
        manifest = _finish(config, vocabulary, wanted, results)
    if config.eval_fraction and not held_out:
        log(
            "warning: no document is held out: each is too large a part of the corpus. "
            "Separate documents by blank lines, or pass --records and --eval_records."
        )
    counts = manifest.corpus
    dropped = [f"{counts[r]} {r.replace('_', ' ')}" for r in REASONS if r in counts]
    if dropped:
        log(f"left out documents: {', '.join(dropped)}; kept {counts['documents']}")
    unknown = counts["unknown_tokens"] / manifest.num_tokens
    if unknown > _MANY:
        log(
            f"warning: {unknown:.1%} of the tokens are {vocabulary.unk}: check the "
            "vocabulary's language and casing, or use a larger one."
        )
    mean = manifest.num_tokens / manifest.num_records
    if config.blank_lines_separate and mean < config.max_seq_length / 2:
        log(
            f"warning: records hold {mean:.0f} of {config.max_seq_length} tokens: "
            "documents are short. For paragraphs, use --noblank_lines_separate."
        )
    eval_records = sum(shard.records for shard in manifest.eval)
    share = eval_records / (manifest.num_records + eval_records)
    if share > max(3 * config.eval_fraction, 0.1):
        log(
            f"warning: {share:.0%} of the records are held out, because a large "
            "document is: separate its parts by blank lines."
        )
    log(
        f"wrote {manifest.num_records} records of {manifest.num_tokens} tokens in "
        f"{len(manifest.train)} shards, and {eval_records} held out, to {folder}"
    )
    return vocabulary, manifest


def _prepare(
    config: RecordsConfig, folder: Path, settings: dict[str, Any], log: Log
) -> records.Manifest | None:
    """Prepares the locked folder; returns the manifest if the build is complete."""
    work = folder / WORK
    finished = [*work.glob("unit-*.json"), *work.glob("unit-*.npz")]
    unfinished = files.read_json(work / _SETTINGS, {}) if finished else {}
    manifest = folder / records.MANIFEST
    # An unfinished build of the same settings resumes even with ``overwrite``.
    if config.overwrite and (manifest.exists() or unfinished != settings):
        # The manifest first, since a folder with a manifest counts as complete.
        for path in (manifest, *_shards(folder), work):
            files.remove(path)
        unfinished = {}
    if manifest.exists():
        built = records.read_manifest(folder)
        stored = built.settings
        text = stored.get("corpus_sha256")
        is_installed = [*config.corpus] == ["installed"] == built.corpus.get("sources")
        has_changed = is_installed and settings.get("corpus_sha256") != text
        # ``settings`` has no hash if the text is missing.
        same = settings | {"corpus_sha256": text} if has_changed else settings
        _reject_other(folder, stored, {"corpus_sha256": text, **same}, "records")
        if has_changed:
            log(
                "warning: the text of the installed packages has changed since "
                f"{folder} was built; pass --overwrite or another folder to rebuild"
            )
        log(f"{folder} holds these records already; using them")
        # Remains if the build was killed after writing the manifest.
        with contextlib.suppress(OSError):
            files.remove(work)
        return records.verify(folder)
    files.remove_leftovers(folder, is_locked=True)
    if unfinished:
        _reject_other(folder, unfinished, settings, "an unfinished build")
        log(f"resuming the build in {folder}")
        return None
    if foreign := _shards(folder):
        raise UserError(
            f"{folder} holds TFRecord files without a manifest, such as "
            f"{foreign[0].name}. Give another folder, or use `records --overwrite`."
        )
    files.remove(work)
    files.write_json(work / _SETTINGS, settings)
    return None


def _reject_other(
    path: Path, stored: dict[str, Any], settings: dict[str, Any], kind: str
) -> None:
    """Raises ValueError if settings differ, such as "seed is 0 there and 1 here"."""
    differences = [
        "the text has changed (corpus_sha256)"
        if name == "corpus_sha256"
        else f"{name} is {stored.get(name)!r} there and {settings.get(name)!r} here"
        for name in sorted({*stored, *settings})
        if stored.get(name) != settings.get(name)
    ]
    if differences:
        raise UserError(
            f"{path} holds {kind} made with other settings: {'; '.join(differences)}. "
            "Give another folder, the same settings, or use `records --overwrite`."
        )


def _shards(folder: Path) -> list[Path]:
    return sorted([*folder.glob("train-*.tfrecord"), *folder.glob("eval-*.tfrecord")])


def _finish(
    config: RecordsConfig,
    vocabulary: Vocabulary,
    settings: dict[str, Any],
    results: Sequence[dict[str, Any]],
) -> records.Manifest:
    folder = Path(config.output_dir)
    train, held_out = (
        [records.Shard(**result[split]) for result in results if result[split]]
        for split in units.SPLITS
    )
    if not train:
        raise UserError("the corpus is empty: it has no training example")
    for index, shard in enumerate(train):
        name = f"train-{index:05d}-of-{len(train):05d}.tfrecord"
        unit_file = folder / WORK / shard.name
        # An interrupted call may have renamed it already.
        if unit_file.exists():
            os.replace(unit_file, folder / name)
        train[index] = dataclasses.replace(shard, name=name)
    if held_out:
        path = folder / "eval-00000-of-00001.tfrecord"
        held_out = [records.join_shards(path, folder / WORK, held_out)]
    counts = collections.Counter()
    for result in results:
        counts.update(result["counts"])
    manifest = records.Manifest(
        settings=settings,
        vocabulary={
            "size": len(vocabulary),
            "sha256": vocabulary.sha256,
            "special_tokens": list(vocabulary.special_tokens),
            "special_ids": [vocabulary.ids[name] for name in vocabulary.special_tokens],
        },
        corpus={"sources": [*map(str, config.corpus)], **counts},
        train=tuple(train),
        eval=tuple(held_out),
    )
    # The manifest marks the build as complete, so units are removed after it.
    manifest.save(folder)
    files.remove(folder / WORK)
    return manifest


def warn_of_casing(vocabulary: Vocabulary, config: CorpusFlags, log: Log) -> None:
    """Warns if a vocabulary of cased text has the casing of uncased text."""
    words = [token for token in vocabulary.tokens if not token.startswith("[")]
    lost = sum(token != token.lower() for token in words)
    if config.strip_accents:
        lost += sum(not unicodedata.is_normalized("NFD", token) for token in words)
    if config.lower_case and lost > _MANY * len(words):
        log(
            f"warning: {lost:,} tokens of the vocabulary have capitals or accents, "
            "which are removed from the text: was it built with --nolower_case or "
            "--nostrip_accents?"
        )


def prepare_vocabulary(
    config: RecordsConfig, *, outputs: Sequence[files.AnyPath] = (), log: Log = note
) -> Vocabulary:
    """Loads ``vocab.txt`` of the output folder, or trains it on the corpus.

    Compares the training settings and the hash of the text (unless the folder has
    finished records) with ``vocab.txt.json``. Trains on a sample of 256 MB if the files
    are larger. ``config.overwrite`` retrains one trained here with other settings.
    """
    folder, size = Path(config.output_dir), config.vocab_size
    path, about = folder / "vocab.txt", folder / "vocab.txt.json"
    casing = {name: getattr(config, name) for name in CASING}
    settings = {**casing, "size": size}
    sources, is_finished = [], (folder / records.MANIFEST).exists()
    if not path.is_file() or config.overwrite or not is_finished:
        sources = corpora.open_corpus(
            config.corpus,
            text_column=config.text_column,
            outputs=outputs,
            log=None if path.is_file() else log,
        )
        settings["corpus_sha256"] = corpora.corpus_hash(sources)
    with files.owned(folder, log):
        if path.is_file():
            vocabulary = Vocabulary.load(path)
            shape = {"vocabulary_sha256": str, "settings": dict}
            content = files.read_json(about, {}, shape=shape)
            trained = None  # The user supplied the vocabulary.
            if content.get("vocabulary_sha256") == vocabulary.sha256:
                trained = {name: content["settings"].get(name) for name in settings}
            if trained in (None, settings) or not config.overwrite:
                if len(vocabulary) > size:
                    raise UserError(
                        f"{path} has {len(vocabulary)} tokens, more than {size}. "
                        "Delete the file to train a new one, or raise the size."
                    )
                if trained:
                    _reject_other(path, trained, settings, "a vocabulary")
                log(f"using {path} ({len(vocabulary)} tokens)")
                return vocabulary
        specs = ", ".join(map(str, config.corpus))
        log(f"training a vocabulary of {size} tokens on {specs}")
        tokens = train_vocabulary(_SampledLines(sources), size, **casing)
        vocabulary = Vocabulary(tuple(tokens))
        # This file first: without it, a vocabulary counts as the user's own.
        files.remove(path)
        content = {"vocabulary_sha256": vocabulary.sha256, "settings": settings}
        files.write_json(about, content, sort_keys=True)
        vocabulary.save(path)
        log(f"{path}: {len(tokens)} tokens")
    return vocabulary


@dataclasses.dataclass
class _SampledLines:
    """Iterates over the lines of the corpus, sampled by document if it is large."""

    # A class, because training iterates twice and would copy an iterator to memory.

    sources: Sequence[corpora.Source]

    def __iter__(self) -> Iterator[str]:
        size = max(1, sum(source.size for source in self.sources))
        # Sampling by text hash gives the same sample in every iteration.
        limit = min(1, _VOCABULARY_BYTES / size) * 2**64
        for source in self.sources:
            for document in source.documents():
                # Samples long documents by line: one could be the whole corpus.
                is_long = characters(document) > _LONG_DOCUMENT
                for part in [[line] for line in document] if is_long else [document]:
                    if text_hash(part) < limit:
                        yield from part

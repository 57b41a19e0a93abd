"""The folder of a records build: what may be written into it, and its final state."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from electra_tf.data import records
from electra_tf.data.records import Manifest, Shard
from electra_tf.data.units import Recipe, UnitResult
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.data.workers import Log

WORK = ".build"
_SETTINGS = "settings.json"


def prepare_folder(
    folder: Path,
    settings: dict,
    corpus: Sequence[str],
    overwrite: bool,
    log: Log,
    unreadable: Exception | None = None,
) -> Manifest | None:
    """Makes the folder ready to build in; returns the manifest if nothing is to do.

    Args:
        folder: The folder.
        settings: What decides what the records are.
        corpus: Source specs.
        overwrite: Whether to delete other records first. An unfinished build of the
            same settings is gone on with.
        log: Called with messages.
        unreadable: Why the text cannot be read, if so; finished records do without.

    Raises:
        ValueError: The folder holds something else.
    """
    work = folder / WORK
    begun = _begun(work)
    is_finished = (folder / records.MANIFEST).exists()
    if overwrite and (is_finished or begun != settings):
        _remove_records(folder)
        begun, is_finished = None, False
    if is_finished:
        return _finished(folder, settings, list(corpus), log, unreadable)
    if begun:
        _refuse_other(folder, begun, settings, "holds an unfinished build")
        log(f"resuming the build in {folder}")
        return None
    if foreign := _shards(folder):
        raise ValueError(
            f"{folder} holds {len(foreign)} TFRecord files without a manifest, such as "
            f"{foreign[0].name}. Give another folder, or allow overwriting them."
        )
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    records.write_json(work / _SETTINGS, settings)
    return None


def differences(found: dict, wanted: dict) -> str:
    """Names the settings that differ: "seed is 0 there and 1 here; ..."."""
    return "; ".join(
        "the text has changed (corpus_sha256)"
        if name == "corpus_sha256"
        else f"{name} is {found.get(name)!r} there and {wanted.get(name)!r} here"
        for name in sorted({*found, *wanted})
        if found.get(name) != wanted.get(name)
    )


def _begun(work: Path) -> dict | None:
    """Settings of an unfinished build that is worth going on with."""
    if not (work / _SETTINGS).exists() or not any(work.glob("unit-*.json")):
        return None
    return json.loads((work / _SETTINGS).read_text(encoding="utf-8"))


def _finished(
    folder: Path,
    settings: dict,
    corpus: list[str],
    log: Log,
    unreadable: Exception | None,
) -> Manifest:
    """The manifest, if the records there are the wanted ones."""
    manifest = records.read_manifest(folder)
    text = "corpus_sha256"
    is_same_spec = corpus == manifest.corpus["sources"]
    has_changed = settings[text] != manifest.settings[text]
    if unreadable and not is_same_spec:
        raise unreadable
    is_excused = unreadable or (is_same_spec and corpus == ["installed"])
    if is_excused:
        settings = {**settings, text: manifest.settings[text]}
    _refuse_other(folder, manifest.settings, settings, "holds records")
    if unreadable:
        log(f"warning: the text is not there any more ({unreadable})")
    elif is_excused and has_changed:
        log(
            f"warning: the installed packages have changed since {folder} was built; "
            "--overwrite or another folder makes new records of them"
        )
    log(f"{folder} holds these records already; using them")
    shutil.rmtree(folder / WORK, ignore_errors=True)
    return records.verify(folder)


def _refuse_other(folder: Path, found: dict, wanted: dict, what: str):
    if found != wanted:
        raise ValueError(
            f"{folder} {what} made with other settings: {differences(found, wanted)}. "
            "Give another folder, the same settings, or allow overwriting."
        )


def keep_vocabulary(vocabulary: Vocabulary, path: Path, overwrite: bool):
    """Saves the vocabulary beside the records, unless another one is there."""
    if path.exists() and not overwrite:
        if Vocabulary.load(path, **vocabulary.names).sha256 == vocabulary.sha256:
            return
        raise ValueError(
            f"{path} is another vocabulary than the one given. Give another folder, "
            "delete that file, or allow overwriting."
        )
    vocabulary.save(path)


def _shards(folder: Path) -> list[Path]:
    return sorted([*folder.glob("train-*.tfrecord"), *folder.glob("eval-*.tfrecord")])


def _remove_records(folder: Path):
    # The manifest first: what is left by an interruption is not taken for whole.
    (folder / records.MANIFEST).unlink(missing_ok=True)
    for shard in _shards(folder):
        shard.unlink()
    shutil.rmtree(folder / WORK, ignore_errors=True)


def finish(
    folder: Path,
    recipe: Recipe,
    settings: dict,
    corpus: Sequence[str],
    results: Sequence[UnitResult],
) -> Manifest:
    """Gives the units' files their final names and writes the manifest."""
    train = [result.train for result in results if result.train]
    held_out = [result.eval for result in results if result.eval]
    if not train:
        raise ValueError("the corpus is empty: its words gave no example to train on")
    vocabulary = recipe.vocabulary
    manifest = Manifest(
        settings=settings,
        vocabulary={
            "size": len(vocabulary),
            "sha256": vocabulary.sha256,
            "special_tokens": list(vocabulary.special_tokens),
            "special_ids": [vocabulary.ids[name] for name in vocabulary.special_tokens],
        },
        corpus={
            "sources": list(corpus),
            "documents": sum(result.documents for result in results),
            "lines": sum(result.lines for result in results),
            "characters": sum(result.characters for result in results),
            "unknown_tokens": sum(result.unknown for result in results),
        },
        train=tuple(_publish(folder, train)),
        eval=tuple(_join(folder, held_out)),
    )
    manifest.save(folder)
    shutil.rmtree(folder / WORK)
    return manifest


def _publish(folder: Path, shards: Sequence[Shard]) -> Iterator[Shard]:
    for index, shard in enumerate(shards):
        name = f"train-{index:05d}-of-{len(shards):05d}.tfrecord"
        built = folder / WORK / shard.name
        # Renamed already if this very step was interrupted before.
        if built.exists():
            os.replace(built, folder / name)
        yield dataclasses.replace(shard, name=name)


def _join(folder: Path, shards: Sequence[Shard]) -> Iterator[Shard]:
    """One held-out file: a hundredth of the text, spread over all units."""
    if not shards:
        return
    path = folder / "eval-00000-of-00001.tfrecord"
    digest = records.join_shards(path, [folder / WORK / s.name for s in shards])
    yield Shard(
        name=path.name,
        records=sum(shard.records for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        size=sum(shard.size for shard in shards),
        sha256=digest,
    )

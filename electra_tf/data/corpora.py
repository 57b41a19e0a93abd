"""Which sources a corpus has: from what a user names to `electra_tf.data.sources`."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from electra_tf.data.sources import (
    GzipFile,
    InstalledDocumentation,
    Source,
    TextFile,
    TfdsDataset,
)

LONG_DOCUMENT = 64 << 20
SUFFIXES = (".txt", ".txt.gz", ".md", ".rst")


def open_corpus(
    sources: Sequence[str] = ("installed",),
    *,
    blank_lines_separate: bool = True,
    tfds_data_dir: str | None = None,
    tfds_download: bool = False,
) -> list[Source]:
    """Finds the sources that the specs name, in an order that is always the same.

    Args:
        sources: Each one a file (plain UTF-8, or gzip if it ends in `.gz`), a folder
            (searched recursively for *.txt, *.txt.gz, *.md and *.rst, sorted by
            relative path, hidden files left out), a glob pattern (`**` is recursive),
            `tfds:NAME[:SPLIT[:FEATURE]]`, or `installed`, the documentation of the
            installed Python packages.
        blank_lines_separate: Whether a blank line ends a document; else a file is one.
        tfds_data_dir: Folder of prepared TensorFlow Datasets.
        tfds_download: Whether TensorFlow Datasets may download what is missing.

    Returns:
        The sources; a file that two specs name is there once.

    Raises:
        ValueError: A spec names nothing, or an empty file.
    """
    if isinstance(sources, str):
        raise ValueError(f"sources must be a list of specs, got the string {sources!r}")
    opened: dict[str, Source] = {}
    for spec in sources:
        if spec == "installed":
            opened[spec] = InstalledDocumentation()
        elif spec.startswith("tfds:"):
            opened[spec] = _tfds(
                spec,
                data_dir=tfds_data_dir,
                download=tfds_download,
            )
        else:
            for path in _files(spec):
                kind = GzipFile if path.endswith(".gz") else TextFile
                opened.setdefault(
                    os.path.realpath(path),
                    kind.open(path, blank_lines_separate=blank_lines_separate),
                )
    if not opened:
        raise ValueError("the corpus is empty: no sources were given")
    return list(opened.values())


def corpus_hash(sources: Sequence[Source]) -> str:
    """A sha256 that changes when the text of a source changes; reads all files."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{Path(source.name).name} {source.fingerprint()}\n".encode())
    return digest.hexdigest()


def shareable(
    sources: Sequence[Source], work: Path, small: int, log: Callable[[str], None]
) -> Iterator[Source]:
    """The sources, those that processes cannot share as plain files.

    Args:
        sources: The corpus.
        work: Folder of the plain files.
        small: Bytes of text that need not be shared.
        log: Called with messages.
    """
    for number, source in enumerate(sources):
        if not source.needs_spool or 0 < source.size <= small:
            yield source
            continue
        path = work / f"source-{number:05d}.txt"
        if path.exists():
            yield TextFile.open(path, name=source.name)
        else:
            log(f"reading {source.name}")
            yield source.spool(path, log)


def about_long_documents(sources: Sequence[Source]) -> str:
    """A warning of files in which no blank line ends the first document; or ""."""
    long = [
        source.name
        for source in sources
        if isinstance(source, TextFile) and source.begins_with_document(LONG_DOCUMENT)
    ]
    if not long:
        return ""
    more = f" (and in {len(long) - 1} more files)" if len(long) > 1 else ""
    return (
        f"warning: no blank line in the first {LONG_DOCUMENT >> 20} MB of {long[0]}"
        f"{more}: is this one document? Blank lines separate documents; "
        "--noblank_lines_separate makes one of each file. A document is read by one "
        "process, into memory."
    )


def _tfds(spec: str, **options) -> TfdsDataset:
    parts = spec.split(":")[1:]
    # A version, as in `wiki40b/en:1.3.0`, belongs to the name.
    if len(parts) > 1 and parts[1].replace("*", "0").replace(".", "").isdigit():
        parts[:2] = [":".join(parts[:2])]
    if not parts[0] or len(parts) > 3:
        raise ValueError(f"got {spec!r}; it must be tfds:NAME[:SPLIT[:FEATURE]]")
    name, split, feature = (*parts, "", "")[:3]
    return TfdsDataset(
        name=spec,
        size=0,
        dataset=name,
        split=split or "train",
        feature=feature,
        **options,
    )


def _files(spec: str) -> list[str]:
    if os.path.isdir(spec):
        below = [
            path.relative_to(spec)
            for path in Path(spec).rglob("*")
            if path.is_file() and path.name.endswith(SUFFIXES)
        ]
        visible = [
            path for path in below if not any(part[0] == "." for part in path.parts)
        ]
        paths = [
            str(Path(spec, path)) for path in sorted(visible, key=lambda p: p.parts)
        ]
        wanted = f"the folder has no file ending in {', '.join(SUFFIXES)}"
    elif os.path.isfile(spec):
        if os.path.getsize(spec) == 0:
            raise ValueError(f"{spec}: the file is empty. Leave it out.")
        return [spec]
    else:
        paths = sorted(filter(os.path.isfile, glob.glob(spec, recursive=True)))
        wanted = (
            "no such file or folder, and no file matches it as a pattern. Sources are "
            "files, folders, patterns, tfds:NAME, or the word installed"
        )
    paths = [path for path in paths if os.path.getsize(path)]
    if not paths:
        raise ValueError(f"{spec}: {wanted} (empty files do not count)")
    return paths

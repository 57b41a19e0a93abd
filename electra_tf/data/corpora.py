"""Text sources: files, TensorFlow Datasets, and the installed packages.

``open_corpus`` converts specs to sources, which yield documents: iterables of stripped
lines that are not empty. Plain files can be split into byte ranges for several
processes; ``spool`` writes other sources to a plain file first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import gzip
import hashlib
import itertools
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from electra_tf import files
from electra_tf.cli import Log
from electra_tf.data import installed, paths
from electra_tf.errors import UserError

LONG_DOCUMENT = 64 << 20
SUFFIXES = (".txt", ".txt.gz", ".md", ".rst")
_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 16
_LONG_LINE = 1 << 20
_HELD = 1 << 20  # Characters of a document to hold in memory.

# Byte offset of a line, and its stripped text.
Line = tuple[int, str]
# Stripped, non-empty lines; can be iterated repeatedly.
Document = Iterable[str]


def open_corpus(
    sources: Sequence[str] = ("installed",),
    *,
    blank_lines_separate: bool = True,
    tfds_data_dir: str | None = None,
    log: Log | None = None,
) -> list[Source]:
    r"""Returns the unique sources of the specs in a fixed order.

    Args:
        sources: files (UTF-8, or gzip if the name ends in ``.gz``), folders, glob
            patterns (``**`` is recursive), ``tfds:NAME[:SPLIT[:FEATURE]]``, or
            ``installed``, the documentation of the installed Python packages. Folders
            are searched recursively for ``SUFFIXES`` in any case, sorted by relative
            path, without hidden files.
        blank_lines_separate: whether blank lines separate the documents of a file;
            otherwise a file is one document.
        tfds_data_dir: folder of prepared TensorFlow Datasets.
        log: receives a warning about skipped files of folders.

    Raises ``ValueError`` if a spec matches nothing or an empty file.

    Examples:
        >>> _ = Path("corpus.txt").write_text(
        ...     "A line.\nAnother one.\n\nA second document.\n"
        ... )
        >>> (source,) = et.data.open_corpus(["corpus.txt"])
        >>> [list(document) for document in source.documents()]
        [['A line.', 'Another one.'], ['A second document.']]
    """
    if isinstance(sources, str):
        raise UserError(f"sources must be a list of specs, got the string {sources!r}")
    opened: dict[str, Source] = {}
    skipped: list[str] = []
    for spec in sources:
        if spec == "installed":
            opened[spec] = Generated(spec, installed.documents, installed.fingerprint)
        elif spec.startswith("tfds:"):
            opened[spec] = _tfds(spec, tfds_data_dir)
        else:
            for path in _files(spec, skipped):
                text = Text.open(path, blank_lines_separate=blank_lines_separate)
                same = path if paths.is_remote(path) else os.path.realpath(path)
                opened.setdefault(same, text)
    if not opened:
        raise UserError("the corpus is empty: no sources were given")
    if skipped and log:
        rest = f" and {len(skipped) - 3} more files" if len(skipped) > 3 else ""
        log(
            f"warning: not read, since their names do not end in "
            f"{', '.join(SUFFIXES)}: {', '.join(skipped[:3])}{rest}. A pattern such as "
            "'FOLDER/**' reads files of any name as plain text."
        )
    return list(opened.values())


def _files(spec: str, skipped: list[str]) -> list[str]:
    """Lists the non-empty files of a path or pattern in a fixed order.

    Appends files of a folder with other suffixes to ``skipped``.
    """
    if paths.is_file(spec):
        if paths.size(spec) == 0:
            raise UserError(f"{spec}: the file is empty. Leave it out.")
        return [spec]
    if not paths.is_remote(spec) and os.path.isdir(spec):
        below = [path.relative_to(spec) for path in Path(spec).rglob("*")]
        visible = [
            Path(spec, path)
            for path in sorted(below, key=lambda path: path.parts)
            if not any(part.startswith(".") for part in path.parts)
        ]
        matches = [str(p) for p in visible if p.name.lower().endswith(SUFFIXES)]
        others = {str(p) for p in visible if p.is_file()}.difference(matches)
        skipped += sorted(others)
        problem = f"the folder has no file ending in {', '.join(SUFFIXES)}"
    else:
        is_plain = not paths.is_remote(spec)
        matches = glob.glob(spec, recursive=True) if is_plain else paths.matching(spec)
        matches = sorted(matches)
        problem = (
            "not a file or folder, and no file matches it as a pattern. Sources are "
            "files, folders, patterns, tfds:NAME, or the word installed"
        )
    matches = [path for path in matches if paths.is_file(path) and paths.size(path)]
    if not matches:
        raise UserError(f"{spec}: {problem} (empty files do not count)")
    return matches


def corpus_hash(sources: Sequence[Source]) -> str:
    """Computes a SHA-256 of the text of all sources; reads all files."""
    digest = hashlib.sha256()
    for source in sources:
        # Names without folders: moving a corpus must not change its hash.
        digest.update(f"{Path(source.name).name} {source.fingerprint()}\n".encode())
    return digest.hexdigest()


def shareable(
    sources: Sequence[Source], work: Path, small: int, log: Log
) -> Iterator[Text]:
    """Yields the sources as ``Text``; spools all but plain and small gzip files."""
    for number, source in enumerate(sources):
        path = work / f"source-{number:05d}.txt"
        if not source.needs_spool or 0 < source.size <= small:
            yield source
        elif path.exists():
            yield Text.open(path, name=source.name)
        else:
            log(f"reading {source.name}")
            yield spool(source, path, log)


def spool(source: Source, path: files.AnyPath, log: Log) -> Text:
    """Writes the documents to a plain file, which can be split."""
    logged, count = time.monotonic(), 0
    with files.open_new(path) as file:
        for line in source.lines():
            # Files with a zero byte are rejected as binary.
            file.write(line.replace("\0", " ") + "\n")
            count += not line
            if time.monotonic() - logged > 5:
                logged = time.monotonic()
                log(f"reading {source.name}: {count} documents so far")
    return Text.open(path, name=source.name)


def about_long_documents(texts: Sequence[Text]) -> str:
    """Returns a warning about files that start with a very long document, or ""."""
    long = [text.name for text in texts if text.begins_with_document(LONG_DOCUMENT)]
    if not long:
        return ""
    more = f" (and in {len(long) - 1} more files)" if len(long) > 1 else ""
    return (
        f"warning: no blank line in the first {LONG_DOCUMENT >> 20} MB of {long[0]}"
        f"{more}: check that it is one document. Blank lines separate documents; "
        "--noblank_lines_separate makes each file a document. One process builds a "
        "document, into one shard."
    )


@dataclasses.dataclass(frozen=True)
class Generated:
    """A source that is not a file; ``fingerprint`` identifies its text."""

    name: str
    documents: Callable[[], Iterator[Document]]
    fingerprint: Callable[[], str]
    size = 0  # Unknown.
    needs_spool = True

    def lines(self) -> Iterator[str]:
        """Yields the lines of all documents, with "" after each document."""
        for document in self.documents():
            yield from document
            yield ""


class LongDocument:
    """A document that is read from the file on every iteration."""

    def __init__(self, read: Callable[[], Iterator[str]]):
        self._read = read

    def __iter__(self) -> Iterator[str]:
        return self._read()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
    """Bytes [start, end) of a UTF-8 file, plain or gzip.

    A document belongs to the range that contains its first byte, so adjacent ranges
    yield every document exactly once. Only plain files are split.
    """

    name: str
    path: str
    start: int = 0
    end: int
    blank_lines_separate: bool = True

    @classmethod
    def open(
        cls,
        path: files.AnyPath,
        *,
        name: str | None = None,
        blank_lines_separate: bool = True,
    ) -> Text:
        """Returns a whole file; reads the size of a gzip file from its last bytes."""
        size, path = paths.size(path), str(path)
        if path.lower().endswith(".gz"):
            with paths.open_bytes(path) as file:
                file.seek(max(0, size - 4))
                unpacked = int.from_bytes(file.read(4), "little")
            # The field is the size modulo 2**32, and arbitrary in a damaged file.
            size = min(max(size, unpacked), 20 * size)
        return cls(
            name=name or path,
            path=path,
            end=size,
            blank_lines_separate=blank_lines_separate,
        )

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.end - self.start

    @property
    def is_packed(self) -> bool:
        """Whether the file is compressed; its size is then an estimate."""
        return self.path.lower().endswith(".gz")

    @property
    def needs_spool(self) -> bool:
        """Whether the file can be split only after decompression."""
        return self.is_packed and self.blank_lines_separate

    def fingerprint(self) -> str:
        """Computes the SHA-256 of the file."""
        return paths.sha256(self.path)

    def begins_with_document(self, size: int) -> bool:
        """Whether a splittable file has no blank line in the first ``size`` bytes."""
        if self.needs_spool or not self.blank_lines_separate or self.size <= size:
            return False
        with self._open() as file:
            lines = _read_lines(file, 0, self.path)
            first = itertools.takewhile(lambda line: line[0] < size, lines)
            return all(text for _, text in first)

    def split(self, size: int) -> list[Text]:
        """Splits into ranges of about ``size`` bytes, if possible."""
        if self.is_packed or not self.blank_lines_separate:
            return [self]
        parts = max(1, round(self.size / size))
        cuts = [self.start + self.size * part // parts for part in range(parts + 1)]
        return [
            dataclasses.replace(self, start=start, end=end)
            for start, end in itertools.pairwise(cuts)
        ]

    def documents(self) -> Iterator[Document]:
        """Yields the documents that start in the range.

        Raises ``ValueError`` if the file is damaged or not UTF-8.
        """
        limit = math.inf if self.is_packed else self.end
        with self._open() as file:
            # Start one line earlier: a document may start at the range's first line.
            lines = _read_lines(file, _line_start(file, self.start), self.path)
            document: list[str] = []
            size = first = 0
            after_blank = self.start == 0
            for position, text in lines:
                if not document and position >= limit:
                    return
                starts = after_blank and position >= self.start
                if text and not (document or starts):
                    after_blank = False  # The document started in an earlier range.
                elif text:
                    first = first if document else position
                    document.append(text)
                    size += len(text)
                    if size <= _HELD:
                        continue
                    yield LongDocument(functools.partial(self._lines_from, first))
                    is_over = self._is_over
                    next((text for _, text in lines if is_over(text)), None)
                    document, size, after_blank = [], 0, True
                elif self._is_over(text):
                    if document:
                        yield document
                    document, size, after_blank = [], 0, True
            if document:
                yield document

    def lines(self) -> Iterator[str]:
        """Yields the lines of all documents, with "" after each, in one read."""
        with self._open() as file:
            texts = (text for _, text in _read_lines(file, 0, self.path))
            for has_text, lines in itertools.groupby(texts, bool):
                if has_text:
                    yield from lines
                    yield ""

    @contextlib.contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        with paths.open_bytes(self.path) as file:
            if not self.is_packed:
                yield file
                return
            try:
                with gzip.open(file) as unpacked:
                    yield unpacked
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise UserError(
                    f"{self.path}: not a whole gzip file ({error}). Compress it again, "
                    "or give the uncompressed text."
                ) from error

    def _is_over(self, text: str) -> bool:
        return self.blank_lines_separate and not text

    def _lines_from(self, position: int) -> Iterator[str]:
        with self._open() as file:
            for _, text in _read_lines(file, position, self.path):
                if text:
                    yield text
                elif self.blank_lines_separate:
                    return


Source = Text | Generated


def _tfds(spec: str, data_dir: str | None) -> Generated:
    """Returns a split of a TensorFlow Dataset; each example is a document.

    FEATURE defaults to the only text feature, or ``text``.
    """
    parts = spec.split(":")[1:]
    # A version, as in `wiki40b/en:1.3.0`, is part of the name.
    if len(parts) > 1 and parts[1].replace("*", "0").replace(".", "").isdigit():
        parts[:2] = [":".join(parts[:2])]
    if not parts[0] or len(parts) > 3:
        raise UserError(f"got {spec!r}; it must be tfds:NAME[:SPLIT[:FEATURE]]")
    dataset, split, feature = (*parts, "", "")[:3]
    split = split or "train"
    opened = functools.partial(_tfds_builder, spec, dataset, data_dir)

    def documents() -> Iterator[Document]:
        builder = opened()
        texts = [
            name
            for name, kind in builder.info.features.items()
            if kind.shape == () and kind.tf_dtype == "string"
        ]
        wanted = feature or (texts[0] if len(texts) == 1 else "text")
        if wanted not in texts:
            raise UserError(
                f"{spec}: the text features are {texts}, got {wanted!r}. Name "
                f"one of them: tfds:{dataset}:{split}:FEATURE."
            )
        # In file order: every run must give the same records.
        examples = builder.as_dataset(split=split, shuffle_files=False)
        where = f"{spec}, feature {wanted}"
        for example in examples.as_numpy_iterator():
            lines = example[wanted].replace(b"\r", b"\n").split(b"\n")
            if document := [t for line in lines if (t := _decoded(line, 0, where))]:
                yield document

    return Generated(spec, documents, lambda: opened().info.full_name)


def _tfds_builder(spec: str, dataset: str, data_dir: str | None) -> Any:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UserError(
            f"{spec} needs the package tensorflow-datasets (and importlib_resources): "
            "pip install tensorflow-datasets importlib_resources, or give a text file "
            "instead."
        ) from error
    try:
        builder = tfds.builder(dataset, data_dir=data_dir)
    except (tfds.core.registered.DatasetNotFoundError, ValueError) as error:
        raise UserError(
            f"{spec}: TensorFlow Datasets has no dataset {dataset!r} "
            f"(data_dir={data_dir}): {error}"
        ) from error
    if not builder.info.splits:
        raise UserError(
            f"{spec}: not prepared in {builder.data_dir}. Prepare it on a machine with "
            f"network (tfds build {dataset}) and give its folder as tfds_data_dir, or "
            "give a text file instead."
        )
    return builder


def _line_start(file: BinaryIO, offset: int) -> int:
    """Returns the start of the line that contains the byte before ``offset``."""
    end = offset - 1
    while end > 0:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        newline = file.read(end - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _read_lines(file: BinaryIO, position: int, name: str) -> Iterator[Line]:
    """Yields the lines from ``position`` on, without a byte order mark.

    Splits lines of more than 1 MiB at spaces, to bound the memory. Does not yield empty
    parts of a split line, which would count as blank lines.
    """
    file.seek(position)
    rest, is_part = b"", False
    while raw := rest + file.readline(_LONG_LINE - len(rest)):
        rest, is_cut = b"", len(raw) == _LONG_LINE and not raw.endswith(b"\n")
        if is_cut:
            # Without spaces, split before the first byte of a character.
            last = next((n for n in range(1, 5) if raw[-n] & 0xC0 != 0x80), 1)
            end = raw.rfind(b" ") + 1 or len(raw) - last
            raw, rest = raw[:end], raw[end:]
        end = position + len(raw)
        text = raw.removeprefix(_BOM) if position == 0 else raw
        text = _decoded(text, end - len(text), name)
        if text or not (is_cut or is_part):
            yield position, text
        position, is_part = end, is_cut


def _decoded(raw: bytes, position: int, name: str) -> str:
    """Decodes and strips the line at byte ``position`` of ``name``."""
    if b"\0" in raw:
        raise UserError(
            f"{name}: looks binary (a zero byte at byte {position + raw.index(0)}). "
            "Give plain UTF-8 text."
        )
    try:
        return raw.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}: not UTF-8 at byte {position + error.start} ({error.reason}). "
            "Convert it, for example with: iconv -f latin1 -t utf-8"
        ) from error

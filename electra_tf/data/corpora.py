"""Text sources: files, tables, TensorFlow Datasets, and the installed packages."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from electra_tf import files
from electra_tf.cli import Log, reason
from electra_tf.data import installed, paths, tables
from electra_tf.errors import UserError, explained

SUFFIXES = (".txt", ".md", ".rst")
# Tables have a document per row.
TABLES = (*tables.READERS, ".parquet")
_NESTED = (".json", ".jsonl", ".ndjson", ".parquet")
_BLOCK = 1 << 16
_COMPRESSION = 4  # Typical of text.
LONG_LINE = 1 << 20  # Characters.

Document = Sequence[str]  # Stripped, non-empty lines.


def open_corpus(
    sources: Sequence[str] = ("installed",),
    *,
    blank_lines_separate: bool = True,
    text_column: str | None = "text",
    outputs: Sequence[files.AnyPath] = (),
    log: Log | None = None,
) -> list[Source]:
    r"""Returns the unique sources of the specs in a fixed order.

    Args:
        sources: files, folders, glob patterns (``**`` is recursive),
            ``tfds:NAME[:SPLIT[:FEATURE]]``, or ``installed``, the documentation of the
            installed Python packages. Files are plain UTF-8, or tables if the suffix is
            in ``TABLES``; a last suffix in ``paths.PACKED`` marks a compressed file.
            Folders are searched recursively, also through links, for files with
            ``SUFFIXES``, else for ``TABLES``, but not hidden files or ``vocab.txt``.
        blank_lines_separate: whether blank lines separate the documents of a file;
            otherwise a file is one document.
        text_column: column of tables. None reads all strings of JSON Lines and
            Parquet, and other tables as plain text.
        outputs: folders to leave out of folders and patterns.
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
    for spec in map(str, sources):
        if spec == "installed":
            opened[spec] = Generated(spec, installed.documents, installed.fingerprint)
        elif spec.startswith("tfds:"):
            opened[spec] = _tfds(spec)
        else:
            for path in _files(spec, outputs, skipped):
                if paths.suffix(path) in (_NESTED if text_column is None else TABLES):
                    source = _table(path, text_column)
                else:
                    source = Text(
                        name=path,
                        end=_text_size(path),
                        blank_lines_separate=blank_lines_separate,
                    )
                opened.setdefault(paths.identity(path), source)
    if not opened:
        raise UserError("the corpus is empty: no sources were given")
    if skipped and log:
        rest = f" and {len(skipped) - 3} more files" if len(skipped) > 3 else ""
        log(
            f"warning: not read: {', '.join(skipped[:3])}{rest}. A pattern such as "
            "'FOLDER/**' reads files of any name."
        )
    return list(opened.values())


def _files(
    spec: str, outputs: Sequence[files.AnyPath], skipped: list[str]
) -> list[str]:
    """Lists the files of a spec; appends paths that it skips to ``skipped``."""
    if paths.is_file(spec):
        if paths.size(spec) == 0:
            raise UserError(f"{spec}: the file is empty, or a pipe. Leave it out.")
        return [spec]
    is_remote = paths.is_remote(spec)
    is_folder = not is_remote and os.path.isdir(spec)
    ours = [] if is_remote else [Path(folder).resolve() for folder in outputs]
    matches = []
    for path in _below(spec, skipped) if is_folder else paths.matching(spec):
        if os.path.islink(path) and not paths.exists(path):
            skipped.append(f"{path} (broken link)")
        elif (
            paths.is_file(path)
            and paths.size(path)
            and Path(path).name != "vocab.txt"
            and not any(map(Path(path).resolve().is_relative_to, ours))
        ):
            matches.append(path)
        elif "**" not in spec and paths.is_folder(path):
            skipped.append(f"{path} (folder)")
    problem = "not a file or folder, and no file matches it as a pattern"
    if is_folder:
        texts, tabular = (
            [path for path in matches if paths.suffix(path) in suffixes]
            for suffixes in (SUFFIXES, TABLES)
        )
        skipped += sorted({*matches}.difference(texts or tabular))
        matches = texts or tabular
        problem = f"the folder has no file ending in {', '.join((*SUFFIXES, *TABLES))}"
    elif is_remote and paths.is_folder(spec):
        pattern = f"{spec.rstrip('/')}/**"
        problem = f"it is a remote folder: give a pattern, such as {pattern}"
    if not matches:
        raise UserError(
            f"{spec}: {problem} (empty files, vocab.txt and files of the output folder "
            "do not count)"
        )
    return matches


def _below(root: str, skipped: list[str]) -> list[str]:
    """Lists the files below a folder by relative path, without hidden ones."""
    below, seen = [], set()

    def skip(error: OSError) -> None:
        skipped.append(f"{error.filename} ({error.strerror})")

    for folder, inside, names in os.walk(root, onerror=skip, followlinks=True):
        # Links can form cycles.
        seen.add(os.path.realpath(folder))
        inside[:] = [
            name
            for name in sorted(inside)
            if os.path.realpath(os.path.join(folder, name)) not in seen
            and not name.startswith(".")
        ]
        below += [Path(folder, name) for name in names if not name.startswith(".")]
    return [str(path) for path in sorted(below, key=lambda path: path.parts)]


def corpus_hash(sources: Sequence[Source]) -> str:
    """Computes a SHA-256 of the text of all sources; reads all files."""
    digest = hashlib.sha256()
    for source in sources:
        # Names without folders: moving a corpus must not change its hash.
        line = f"{Path(source.name).name} {source.fingerprint()}\n"
        # Names may be in other encodings.
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def shareable(
    sources: Sequence[Source], work: Path, small: int, log: Log
) -> Iterator[Text]:
    """Yields the sources as ``Text``; spools tables and large compressed files."""
    for number, source in enumerate(sources):
        path = work / f"source-{number:05d}.txt"
        # Compressed files cannot be split.
        is_large = paths.is_packed(source.name) and source.size > small
        if isinstance(source, Text) and not (is_large and source.blank_lines_separate):
            yield source
            continue
        if not path.exists():
            log(f"reading {source.name}")
            with files.open_new(path) as file:
                for document in source.documents():
                    file.writelines(f"{line}\n" for line in (*document, ""))
        yield Text(name=str(path), end=path.stat().st_size)


@dataclasses.dataclass(frozen=True)
class Generated:
    """A source that is not a text file; ``fingerprint`` identifies its text."""

    name: str
    documents: Callable[[], Iterable[Document]]
    fingerprint: Callable[[], str]
    size: int = 0  # 0 if it is unknown.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
    """Bytes [start, end) of the UTF-8 file ``name``, plain or compressed.

    A document belongs to the range that contains its first byte.
    """

    name: str
    start: int = 0
    end: int
    blank_lines_separate: bool = True

    @property
    def size(self) -> int:
        """Size in bytes; an estimate if the file is compressed."""
        return self.end - self.start

    def fingerprint(self) -> str:
        """Computes the SHA-256 of the file."""
        return paths.sha256(self.name)

    def split(self, size: int) -> list[Text]:
        """Splits into ranges of about ``size`` bytes, if possible."""
        if paths.is_packed(self.name) or not self.blank_lines_separate:
            return [self]
        parts = max(1, round(self.size / size))
        cuts = [self.start + self.size * part // parts for part in range(parts + 1)]
        return [
            dataclasses.replace(self, start=start, end=end)
            for start, end in itertools.pairwise(cuts)
        ]

    def documents(self) -> Iterator[Document]:
        """Yields the documents that start in the range."""
        limit = math.inf if paths.is_packed(self.name) else self.end
        with paths.open_unpacked(self.name) as file:
            # Start one line earlier: a document may start at the range's first line.
            lines = _read_lines(file, _line_start(file, self.start), self.name)
            document: list[str] = []
            after_blank = self.start == 0
            for position, line in lines:
                texts = _parts(line)
                if not document and position >= limit:
                    return
                starts = after_blank and position >= self.start
                if texts and (document or starts):
                    document += texts
                elif texts:
                    after_blank = False  # The document started in an earlier range.
                elif self.blank_lines_separate:
                    if document:
                        yield document
                    document, after_blank = [], True
            if document:
                yield document


Source = Text | Generated


def _text_size(path: str) -> int:
    """Returns the size of a file; estimates the text of a compressed one."""
    size = paths.size(path)
    if path.lower().endswith(".gz"):
        with paths.open_bytes(path) as file:
            file.seek(max(0, size - 4))
            unpacked = int.from_bytes(file.read(4), "little")
        # Modulo 2**32, and arbitrary in a damaged file.
        return min(max(size, unpacked), 20 * size)
    return _COMPRESSION * size if paths.is_packed(path) else size


def _table(path: str, column: str | None) -> Generated:
    suffix = paths.suffix(path)

    def documents() -> Iterator[Document]:
        with paths.open_unpacked(path) as file:
            if suffix == ".parquet":
                kind, rows = "row", tables.parquet_rows(file, path, column)
            else:
                lines = (line for _, line in _read_lines(file, 0, path))
                kind, rows = "line", tables.READERS[suffix](lines, path)
            for number, row in rows:
                text = _cell(row, column, f"{path}, {kind} {number}")
                if document := _document(text):
                    yield document

    return Generated(
        path, documents, lambda: f"{paths.sha256(path)} {column}", _text_size(path)
    )


def _cell(row: dict[str, Any], column: str | None, where: str) -> str:
    if column is None:
        return "\n".join(_strings(row))
    if column not in row:
        raise UserError(
            f"{where}: no column {column!r}. The columns are {tables.listed(row)}: "
            "choose one with --text_column."
        )
    if not isinstance(text := row[column], str):
        raise UserError(f"{where}: column {column!r} must hold text, got {text!r:.60}")
    return text


def _strings(value: Any) -> Iterator[str]:
    """Yields the strings of nested dicts, lists and the pairs of a Parquet map."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _document(text: str) -> list[str]:
    # JSON can escape lone surrogates and zero bytes, which text files cannot hold.
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\0", " ")
    lines = text.replace("\r", "\n").split("\n")
    return [stripped for line in lines if (stripped := line.strip())]


def _tfds(spec: str) -> Generated:
    """Returns a TensorFlow Dataset; FEATURE defaults to the only text, or ``text``."""
    # A slice, as in `train[:10%]`, is part of the split.
    parts = re.split(r":(?![^\[]*\])", spec)[1:]
    # A version, as in `wiki40b/en:1.3.0`, is part of the name.
    if len(parts) > 1 and parts[1].replace("*", "0").replace(".", "").isdigit():
        parts[:2] = [":".join(parts[:2])]
    if not parts[0] or len(parts) > 3:
        raise UserError(f"got {spec!r}; it must be tfds:NAME[:SPLIT[:FEATURE]]")
    dataset, split, feature = (*parts, "", "")[:3]

    def documents() -> Iterator[Document]:
        builder = _tfds_builder(spec, dataset)
        features = builder.info.features.items()
        texts = [n for n, f in features if f.shape == () and f.tf_dtype == "string"]
        wanted = feature or (texts[0] if len(texts) == 1 else "text")
        if wanted not in texts:
            raise UserError(f"{spec}: the text features are {texts}, got {wanted!r}.")
        with explained(spec):
            # In file order: every run must give the same records.
            examples = builder.as_dataset(split=split or "train", shuffle_files=False)
        for example in examples.as_numpy_iterator():
            text = _decoded(example[wanted], 0, f"{spec}, feature {wanted}")
            if document := _document(text):
                yield document

    return Generated(
        spec, documents, lambda: _tfds_builder(spec, dataset).info.full_name
    )


def _tfds_builder(spec: str, dataset: str) -> Any:
    try:
        import tensorflow_datasets as tfds

        # TensorFlow Datasets reads the variable at import only.
        builder = tfds.builder(dataset, data_dir=os.environ.get("TFDS_DATA_DIR"))
    except (ImportError, ValueError, AssertionError) as error:
        # The other lines list all datasets.
        raise UserError(f"{spec}: {reason(error)}") from error
    if not builder.info.splits:
        raise UserError(
            f"{spec}: not prepared in {builder.data_dir}. Run tfds build {dataset} and "
            "set TFDS_DATA_DIR to its folder, or give a text file instead."
        )
    return builder


def _parts(line: str) -> list[str]:
    """Strips a line; cuts a long one at spaces: tokenizing takes 12 times its bytes."""
    parts, start = [], 0
    while start < len(line):
        end = start + LONG_LINE
        if end < len(line):
            end = line.rfind(" ", start, end) + 1 or end
        if part := line[start:end].strip():
            parts.append(part)
        start = end
    return parts


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


def _read_lines(file: BinaryIO, position: int, name: str) -> Iterator[tuple[int, str]]:
    """Yields byte offset and text of the lines from ``position`` on."""
    if file.seekable():
        file.seek(position)
    for raw in file:
        if position == 0 and raw.count(b"\r") > 1 and not raw.endswith(b"\n"):
            raise UserError(
                f"{name}: its lines end in CR alone. Convert it: tr '\\r' '\\n'"
            )
        text = _decoded(raw, position, name)
        yield position, text if position else text.removeprefix("\ufeff")
        position += len(raw)


def _decoded(raw: bytes, position: int, name: str) -> str:
    if b"\0" in raw:
        raise UserError(
            f"{name}: looks binary (a zero byte at byte {position + raw.index(0)}): "
            "give plain UTF-8 text"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}: not UTF-8 at byte {position + error.start} ({error.reason}). "
            "Convert it, for example: iconv -f cp1252 -t utf-8"
        ) from error

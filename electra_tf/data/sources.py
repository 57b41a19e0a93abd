"""Where text comes from: files, TensorFlow Datasets, the installed packages.

A `Source` yields documents; a document is a list of non-empty stripped lines. Plain
files can be cut into byte ranges, so that several processes share one big file; every
other kind can be written to a plain file first (`Source.spool`).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import gzip
import hashlib
import itertools
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from electra_tf.data import installed
from electra_tf.data.lines import (
    decode,
    line_start,
    owned,
    read_lines,
    separated,
    whole,
)


def _file_hash(path: str) -> str:
    found = os.stat(path)
    return _hash_of(path, found.st_size, found.st_mtime_ns)


@functools.cache
def _hash_of(path: str, size: int, mtime: int) -> str:
    """Vocabulary and records both ask for it, and a corpus may take minutes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source(abc.ABC):
    """A part of a corpus that can be read on its own, in any process.

    Attributes:
        name: What to call it in messages.
        size: Bytes of text in it; an estimate for compressed files, 0 if unknown.
    """

    name: str
    size: int

    @abc.abstractmethod
    def documents(self) -> Iterator[list[str]]:
        """Yields the documents: lists of stripped lines, none of them empty."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Changes when the text changes: of a file, the hash of all of it."""

    def split(self, size: int) -> list[Source]:
        """Cuts into consecutive sources of about `size` bytes, where possible."""
        return [self]

    @property
    def needs_spool(self) -> bool:
        """Whether a plain file of it could be split but it itself cannot."""
        return True

    def spool(self, path: str | os.PathLike, log: Callable[[str], None]) -> TextFile:
        """Writes the documents to a plain file, which several processes can share."""
        temporary = Path(f"{path}.tmp")
        told = time.monotonic()
        try:
            with open(temporary, "w", encoding="utf-8", newline="\n") as file:
                for count, document in enumerate(self.documents(), 1):
                    # A zero byte would make the file look binary when it is read.
                    file.write("\n".join(document).replace("\0", " ") + "\n\n")
                    if time.monotonic() - told > 5:
                        told = time.monotonic()
                        log(f"reading {self.name}: {count} documents so far")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            # A full disk is reported without the file that did not fit.
            error.filename = error.filename or str(path)
            raise
        finally:
            temporary.unlink(missing_ok=True)
        return TextFile.open(path, name=self.name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFile(Source):
    """Bytes [start, end) of a plain UTF-8 file.

    A document belongs to the range in which its first line starts, so ranges that
    touch hold every document exactly once, wherever they were cut.

    Attributes:
        path: The file.
        start: First byte.
        end: One past the last byte.
        blank_lines_separate: Whether a blank line ends a document; else a file is one.
    """

    path: str
    start: int
    end: int
    blank_lines_separate: bool = True

    @classmethod
    def open(
        cls,
        path: str | os.PathLike,
        *,
        name: str | None = None,
        blank_lines_separate: bool = True,
    ) -> TextFile:
        """The whole of a file."""
        size = os.path.getsize(path)
        return cls(
            name=name or str(path),
            size=size,
            path=str(path),
            start=0,
            end=size,
            blank_lines_separate=blank_lines_separate,
        )

    @property
    def needs_spool(self) -> bool:
        """Whether a plain file of it could be split but it itself cannot."""
        return False

    def fingerprint(self) -> str:
        """Changes when the text changes."""
        return _file_hash(self.path)

    def begins_with_document(self, size: int) -> bool:
        """Whether blank lines separate documents, but none is in the first bytes."""
        if not self.blank_lines_separate or self.size <= size:
            return False
        with open(self.path, "rb") as file:
            return not re.search(rb"\n\s*\n", file.read(size))

    def split(self, size: int) -> list[Source]:
        """Cuts into ranges of about `size` bytes."""
        if not self.blank_lines_separate:
            return [self]
        parts = max(1, round(self.size / size))
        cuts = [self.start + self.size * part // parts for part in range(parts + 1)]
        return [
            dataclasses.replace(self, start=start, end=end, size=end - start)
            for start, end in itertools.pairwise(cuts)
        ]

    def documents(self) -> Iterator[list[str]]:
        """Yields the documents: lists of stripped lines, none of them empty."""
        with open(self.path, "rb") as file:
            if not self.blank_lines_separate:
                yield from whole(read_lines(file, 0, self.path))
                return
            # Only the line before the range tells whether a document starts in it.
            position = line_start(file, self.start)
            yield from owned(
                read_lines(file, position, self.path), self.start, self.end
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GzipFile(Source):
    """A gzip-compressed UTF-8 file, read from its beginning.

    Attributes:
        path: The file.
        blank_lines_separate: Whether a blank line ends a document; else a file is one.
    """

    path: str
    blank_lines_separate: bool = True

    @classmethod
    def open(cls, path: str, *, blank_lines_separate: bool = True) -> GzipFile:
        """A compressed file; its size is read from the last four bytes."""
        compressed = os.path.getsize(path)
        with open(path, "rb") as file:
            file.seek(max(0, compressed - 4))
            size = max(compressed, int.from_bytes(file.read(4), "little"))
        # The field holds the size modulo 2^32 and anything in a damaged file.
        size = min(size, 20 * compressed)
        return cls(
            name=path, size=size, path=path, blank_lines_separate=blank_lines_separate
        )

    @property
    def needs_spool(self) -> bool:
        """Whether a plain file of it could be split but it itself cannot."""
        return self.blank_lines_separate

    def fingerprint(self) -> str:
        """Changes when the text changes."""
        return _file_hash(self.path)

    def documents(self) -> Iterator[list[str]]:
        """Yields the documents: lists of stripped lines, none of them empty."""
        group = separated if self.blank_lines_separate else whole
        try:
            with gzip.open(self.path, "rb") as file:
                yield from group(read_lines(file, 0, self.path))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(
                f"{self.path}: not a whole gzip file ({error}). Compress it again, or "
                "give the uncompressed text."
            ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstalledDocumentation(Source):
    """The docstrings of the installed Python packages (see `installed`)."""

    name: str = "installed"
    size: int = 0

    def fingerprint(self) -> str:
        """Changes when the text changes."""
        return installed.fingerprint()

    def documents(self) -> Iterator[list[str]]:
        """Yields the documents: lists of stripped lines, none of them empty."""
        return installed.documents()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfdsDataset(Source):
    """One split of a prepared TensorFlow Dataset; an example is a document.

    Attributes:
        dataset: Name, with `/config` and `:version` as TensorFlow Datasets writes it.
        split: Split, slices allowed.
        feature: Text feature; empty for the only one, or the one called `text`.
        data_dir: Where the prepared data is; None for the default folder.
        download: Whether missing data may be downloaded.
    """

    dataset: str
    split: str = "train"
    feature: str = ""
    data_dir: str | None = None
    download: bool = False

    def fingerprint(self) -> str:
        """Changes when the text changes."""
        return self._builder().info.full_name

    def documents(self) -> Iterator[list[str]]:
        """Yields the documents: lists of stripped lines, none of them empty."""
        builder = self._builder()
        feature = self._text_feature(builder.info.features)
        examples = builder.as_dataset(split=self.split, shuffle_files=False)
        where = f"{self.name}, feature {feature}"
        for example in examples.as_numpy_iterator():
            lines = example[feature].replace(b"\r", b"\n").split(b"\n")
            yield from whole((0, 0, decode(line, 0, where)) for line in lines)

    def _builder(self):
        try:
            import tensorflow_datasets as tfds
        except ImportError as error:
            raise ValueError(
                f"{self.name} needs the package tensorflow-datasets (and "
                "importlib_resources): pip install tensorflow-datasets "
                "importlib_resources, or give a text file instead."
            ) from error
        try:
            builder = tfds.builder(self.dataset, data_dir=self.data_dir)
            if self.download:
                builder.download_and_prepare()
        except (tfds.core.registered.DatasetNotFoundError, ValueError) as error:
            raise ValueError(
                f"{self.name}: TensorFlow Datasets does not know {self.dataset!r} "
                f"(data_dir={self.data_dir}): {error}"
            ) from error
        if not builder.info.splits:
            raise ValueError(
                f"{self.name}: not prepared in {builder.data_dir}. Prepare it on a "
                f"machine with network (tfds build {self.dataset}) and give its folder "
                "as tfds_data_dir, allow the download, or give a text file instead."
            )
        return builder

    def _text_feature(self, features) -> str:
        texts = [
            name
            for name, feature in features.items()
            if feature.shape == () and feature.tf_dtype == "string"
        ]
        default = "text" if "text" in texts or len(texts) != 1 else texts[0]
        wanted = self.feature or default
        if wanted not in texts:
            raise ValueError(
                f"{self.name}: the text features are {texts}, got {wanted!r}. Name "
                f"one of them: tfds:{self.dataset}:{self.split}:FEATURE."
            )
        return wanted

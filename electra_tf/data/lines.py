"""Lines and documents of UTF-8 text, read from any byte of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

# First byte, one past the last byte, stripped text.
Line = tuple[int, int, str]

_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 16


def line_start(file: BinaryIO, offset: int) -> int:
    """Where the line that holds the byte before `offset` starts."""
    end = offset - 1
    while end > 0:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        newline = file.read(end - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def read_lines(file: BinaryIO, position: int, name: str) -> Iterator[Line]:
    """Yields the lines from `position` on; a byte order mark is left out."""
    file.seek(position)
    for raw in file:
        end = position + len(raw)
        text = raw[len(_BOM) :] if position == 0 and raw.startswith(_BOM) else raw
        yield position, end, decode(text, end - len(text), name)
        position = end


def decode(raw: bytes, position: int, name: str) -> str:
    """The stripped text of a line.

    Raises:
        ValueError: Not UTF-8, or a zero byte; `name` and the byte are told, counted
            from `position`.
    """
    if b"\0" in raw:
        raise ValueError(
            f"{name}: looks binary (a zero byte at byte {position + raw.index(0)}). "
            "Give plain UTF-8 text."
        )
    try:
        return raw.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}: not UTF-8 at byte {position + error.start} ({error.reason}). "
            "Convert it, for example with: iconv -f latin1 -t utf-8"
        ) from error


def whole(lines: Iterable[Line]) -> Iterator[list[str]]:
    """All lines as one document, if there are any."""
    document = [text for _, _, text in lines if text]
    if document:
        yield document


def separated(lines: Iterable[Line]) -> Iterator[list[str]]:
    """Documents between blank lines."""
    return owned(lines, 0, None)


def owned(lines: Iterable[Line], start: int, end: int | None) -> Iterator[list[str]]:
    """Documents whose first line starts in [start, end)."""
    document: list[str] = []
    after_blank = start == 0
    for position, _, text in lines:
        if not text:
            if document:
                yield document
                document = []
            after_blank = True
        elif document:
            document.append(text)
        elif after_blank and position >= start:
            if end is not None and position >= end:
                return
            document.append(text)
        else:
            after_blank = False  # The rest of a document of an earlier range.
        if not document and end is not None and position >= end:
            return
    if document:
        yield document

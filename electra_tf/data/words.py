"""WordPiece tokenizer for whole corpora without TensorFlow, equal to `WordPiece`.

Importing TensorFlow takes as long as tokenizing 40 MB. Most words of a text are
repeated, so a dict caches the ids of every string between two spaces.
"""

import array
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from electra_tf.data.vocabulary import MAX_WORD_LENGTH, Vocabulary

_MAX_ENTRIES = 1 << 19
_MAX_CHARACTERS = 50  # Longest cached string: Chinese lines have no spaces.
_CHARACTERS_AT_ONCE = 1 << 19  # Bounds the text in memory.
_DELETED = ("Cc", "Cf", "Co")
# Control characters that BERT deletes and ``str.split`` treats as spaces.
_NO_SPACES = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
_ASCII_WORDS = re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z\s]")
# Code points that BERT treats as separate words.
_IDEOGRAPHS = (
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)),
    *((0x20000, 0x2A6DF), (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F)),
)
# Blocks completed after Unicode 3.2, without unassigned code points.
_COMPLETE = re.compile(
    "[\u0370-\u0377\u1000-\u109f\u1e00-\u1eff\u2c00-\u2c2e\u2c80-\u2cf3\ua640-\ua69f"
    "\ua722-\ua7bf]"
)


class WordTable(dict[str, bytes]):
    """Tokenizes lines like `WordPiece`; caches the int32 ids of strings.

    Unicode tables of Python and TensorFlow differ for recent characters. `WordPiece`
    tokenizes strings with such characters, which imports TensorFlow.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        lower_case: bool = True,
        strip_accents: bool = True,
    ):
        super().__init__()
        self._vocabulary = vocabulary
        self._lower_case = lower_case
        self._casing = {"lower_case": lower_case, "strip_accents": strip_accents}
        self._clean = _Cleaning(lower_case and strip_accents)
        self._first, self._inside = {}, {}
        for token, index in vocabulary.ids.items():
            part = token.removeprefix("##")
            (self._first if part == token else self._inside)[part] = index
        self._longest = max(map(len, vocabulary.tokens))
        self._unfamiliar: set[str] = set()

    def encode(self, lines: Iterable[str]) -> Iterator[np.ndarray]:
        """Tokenizes lines lazily; yields the int32 ids of each line."""
        block, size = [], 0
        for line in lines:
            block.append(line if line.isprintable() else _NO_SPACES.sub("", line))
            size += 1 + len(line)
            if size >= _CHARACTERS_AT_ONCE:
                yield from self._encoded(block)
                block, size = [], 0
        yield from self._encoded(block)

    def _encoded(self, lines: Sequence[str]) -> list[np.ndarray]:
        def joined() -> list[bytes]:
            return [b"".join(map(self.__getitem__, line.split())) for line in lines]

        rows = joined()
        if chunks := sorted(self._unfamiliar):
            self._unfamiliar.clear()
            # A call of TensorFlow per chunk would be several times slower.
            exact = (ids.tobytes() for ids in self._exact.encode(chunks))
            self.update(zip(chunks, exact, strict=True))
            rows = joined()
            for chunk in chunks:
                if len(chunk) > _MAX_CHARACTERS:
                    del self[chunk]
        if len(self) > _MAX_ENTRIES:
            self.clear()
        return [np.frombuffer(row, np.int32) for row in rows]

    def __missing__(self, chunk: str) -> bytes:
        try:
            ids = array.array("i", self._tokenized(chunk)).tobytes()
        except _UnfamiliarError:
            self._unfamiliar.add(chunk)
            return b""
        if len(chunk) <= _MAX_CHARACTERS:
            self[chunk] = ids
        return ids

    def _tokenized(self, text: str) -> Iterator[int]:
        if not (text.isascii() and text.isprintable()):
            text = text.translate(self._clean)
        if self._lower_case:
            text = text.lower()
        if text.isascii():
            words = _ASCII_WORDS.findall(text)
        else:
            words = text.translate(_SEPARATE).split()
        return itertools.chain.from_iterable(map(self._longest_match, words))

    @functools.cached_property
    def _exact(self) -> Any:
        from electra_tf.data.tokenizer import WordPiece

        return WordPiece(self._vocabulary, **self._casing)

    def _longest_match(self, word: str) -> list[int]:
        unknown = [self._vocabulary.unk_id]
        if len(word) > MAX_WORD_LENGTH:
            return unknown
        ids, start, table = [], 0, self._first
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                if (index := table.get(word[start:end])) is not None:
                    break
            else:
                return unknown
            ids.append(index)
            start, table = end, self._inside
        return ids


class _UnfamiliarError(Exception):
    """Raised for characters that are newer than some Unicode tables."""


class _Cleaning(dict):
    """A table for `str.translate`: normalizes characters before lower-casing."""

    def __init__(self, strip_accents: bool):
        super().__init__()
        self._strip_accents = strip_accents

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = unicodedata.category(char)
        parts = unicodedata.normalize("NFD", char)
        # All tables agree on Unicode 3.2 and on later characters without normalization.
        is_special = kind in (*_DELETED, "Cn", "Mn") or kind[0] in "PZ"
        is_treated = is_special or not parts == char == char.lower()
        is_old = unicodedata.ucd_3_2_0.category(char) != "Cn" or _COMPLETE.match(char)
        # NFD can reorder such marks, depending on adjacent characters.
        is_mobile = kind != "Mn" and unicodedata.combining(char)
        if (is_treated and not is_old) or is_mobile:
            raise _UnfamiliarError
        if kind in _DELETED or code == 0xFFFD:
            parts = ""
        elif self._strip_accents:
            parts = "".join(c for c in parts if unicodedata.category(c) != "Mn")
        else:
            parts = char
        self[code] = parts
        return parts


class _Separation(dict):
    """A table for `str.translate`: puts spaces around punctuation and ideographs."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        is_alone = (
            (char.isascii() and char.isprintable() and not char.isalnum())
            or unicodedata.category(char)[0] == "P"
            or any(low <= code <= high for low, high in _IDEOGRAPHS)
        )
        self[code] = f" {char} " if is_alone and char != " " else char
        return self[code]


_SEPARATE = _Separation()

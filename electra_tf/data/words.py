"""WordPiece of whole corpora without TensorFlow: the ids that `WordPiece` gives.

Loading TensorFlow takes as long as tokenizing 40 MB, and most words of a text have been
there before. So a block of text is cut into words by array operations, each word's hash
is looked up in a table, and only words that are not in it are split into pieces.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from electra_tf.data.vocabulary import MAX_WORD_LENGTH, Vocabulary

_BLOCK = 1 << 17  # Characters at once: their arrays stay in the processor's cache.
_SLOTS = 1 << 20  # Of the table, at most half of them taken.
_CODES = 0x110000
_NOT_SEEN, _SPACE, _ALONE, _INSIDE = range(4)
_DELETED = ("Cc", "Cf", "Co")
# Words of their own, by BERT's rule.
_IDEOGRAPHS = (
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)),
    *((0x20000, 0x2A6DF), (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F)),
)
# Later than Unicode 3.2, but without a free place for anything later still.
_COMPLETE = re.compile(
    "[\u0370-\u0377\u1000-\u109f\u1e00-\u1eff\u2c00-\u2c2e\u2c80-\u2cf3\ua640-\ua69f"
    "\ua722-\ua7bf]"
)
_SPACES = " \t\n\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CHUNK = re.compile(f"[^{_SPACES}]+")


class WordTable:
    """Tokenizes lines like `WordPiece`, remembering the pieces of words.

    Words with a character that Python's Unicode tables and TensorFlow's may treat
    differently, since it is newer than one of them, go to a ``WordPiece``; the first
    one loads TensorFlow.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        lower_case: bool = True,
        strip_accents: bool = True,
    ):
        self._vocabulary = vocabulary
        self._casing = {"lower_case": lower_case, "strip_accents": strip_accents}
        self._lower_case = lower_case
        self._clean = _Cleaning(lower_case and strip_accents)
        self._first, self._inside = {}, {}
        for token, index in vocabulary.ids.items():
            part = token.removeprefix("##")
            (self._first if part == token else self._inside)[part] = index
        self._longest = max(map(len, vocabulary.tokens))
        self._exact = None
        self._kinds = np.zeros(_CODES, np.uint8)
        # A word's hash is a polynomial, mod 2^64, of random numbers for its characters:
        # that any two of a million words share one has a probability of 1e-7.
        self._random = np.random.default_rng(0).integers(0, 2**64, _CODES, np.uint64)
        self._base = 0x9E3779B97F4A7C15
        self._powers = self._powers_of(self._base, _BLOCK)
        self._inverses = self._powers_of(pow(self._base, -1, 2**64), _BLOCK)
        self._forget(_SLOTS)

    @staticmethod
    def _powers_of(base: int, count: int) -> np.ndarray:
        return np.cumprod(np.full(count, base, np.uint64))

    def _forget(self, slots: int) -> None:
        self._keys = np.zeros(slots, np.uint64)  # Hash of the word in the slot, or 0.
        self._numbers = np.zeros(slots, np.int32)
        # Word n has the pieces bounds[n] to bounds[n + 1].
        self._bounds = np.zeros(1, np.int64)
        self._pieces = np.zeros(0, np.int32)

    def encode(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Ids of each line, int32; a line has no line break inside."""
        rows, some, size = [], [], 0
        for line in lines:
            some.append(line)
            size += len(line) + 1
            if size >= _BLOCK // 2:
                rows += self._encoded(some)
                some, size = [], 0
        return [*rows, *self._encoded(some)] if some else rows

    def _encoded(self, lines: list[str]) -> Iterator[np.ndarray]:
        text = "\n".join([*lines, ""])
        if self._lower_case and "\u03a3" in text:
            text = _CHUNK.sub(_lower_sigmas, text)
        codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
        kinds = self._kinds[codes]
        if not kinds.all():
            for code in np.unique(codes[kinds == _NOT_SEEN]).tolist():
                self._kinds[code] = self._kind(code)
            kinds = self._kinds[codes]
        alone, inside = kinds == _ALONE, kinds == _INSIDE
        # The text ends in a space, so every word has an end.
        first, last = alone.copy(), alone
        first[0] |= inside[0]
        first[1:] |= inside[1:] & ~inside[:-1]
        last[:-1] |= inside[:-1] & ~inside[1:]
        starts, ends = np.flatnonzero(first), np.flatnonzero(last) + 1
        numbers = self._numbers_of(
            self._hashes(codes, starts, ends), text, starts, ends
        )
        from_piece = self._bounds[numbers]
        sizes = self._bounds[numbers + 1] - from_piece
        after = np.cumsum(sizes)
        shifts = np.repeat(from_piece - after + sizes, sizes)
        ids = self._pieces[shifts + np.arange(len(shifts))]
        words = np.searchsorted(starts, np.flatnonzero(codes == ord("\n")))
        bounds = np.concatenate([[0], after])[words].tolist()
        return (ids[a:b] for a, b in itertools.pairwise([0, *bounds]))

    def _kind(self, code: int) -> int:
        char = chr(code)
        try:
            self._clean[code]
        except _UnfamiliarError:
            return _INSIDE  # The whole word is for `WordPiece`.
        if char in "\t\n\r" or unicodedata.category(char)[0] == "Z":
            return _SPACE
        return _INSIDE if _SEPARATE[code] == char else _ALONE

    def _hashes(
        self, codes: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> np.ndarray:
        """Hashes of words, [W] uint64, never 0."""
        if len(codes) > len(self._powers):  # A very long line.
            self._powers = self._powers_of(self._base, len(codes))
            inverse = pow(self._base, -1, 2**64)
            self._inverses = self._powers_of(inverse, len(codes))
        sums = np.zeros(len(codes) + 1, np.uint64)
        np.cumsum(self._random[codes] * self._powers[: len(codes)], out=sums[1:])
        return (sums[ends] - sums[starts]) * self._inverses[starts] | np.uint64(1)

    def _numbers_of(
        self, keys: np.ndarray, text: str, starts: np.ndarray, ends: np.ndarray
    ) -> np.ndarray:
        """Numbers of words, [W] int32, after learning those that are new."""
        if 2 * (len(self._bounds) + len(keys)) > len(self._keys):
            self._forget(max(_SLOTS, 1 << (4 * len(keys)).bit_length()))
        slots = self._slots(keys)
        missing = np.flatnonzero(self._keys[slots] == 0)
        if len(missing):
            new, where = np.unique(keys[missing], return_index=True)
            where = missing[where]
            bounds = zip(starts[where].tolist(), ends[where].tolist(), strict=True)
            number = len(self._bounds) - 1
            self._learn([text[a:b] for a, b in bounds])
            wrap = len(self._keys) - 1
            home = self._home(new).tolist()
            for key, slot in zip(new, home, strict=True):
                while self._keys[slot]:
                    slot = slot + 1 & wrap
                self._keys[slot] = key
                self._numbers[slot] = number
                number += 1
            slots[missing] = self._slots(keys[missing])
        return self._numbers[slots]

    def _home(self, keys: np.ndarray) -> np.ndarray:
        return (keys >> np.uint64(65 - len(self._keys).bit_length())).astype(np.intp)

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        """Where the keys are in the table, or the free places they would take."""
        slots = self._home(keys)
        left = np.arange(len(keys))
        while len(left):
            there = self._keys[slots[left]]
            left = left[(there != keys[left]) & (there != 0)]
            slots[left] = slots[left] + 1 & len(self._keys) - 1
        return slots

    def _learn(self, words: Sequence[str]) -> None:
        pieces, unfamiliar = [], []
        for number, word in enumerate(words):
            try:
                pieces.append(self._split(word))
            except _UnfamiliarError:
                pieces.append(())
                unfamiliar.append(number)
        if unfamiliar:
            if self._exact is None:
                from electra_tf.data.tokenizer import WordPiece

                self._exact = WordPiece(self._vocabulary, **self._casing)
            exact = self._exact.encode([words[number] for number in unfamiliar])
            for number, ids in zip(unfamiliar, exact, strict=True):
                pieces[number] = ids.tolist()
        sizes = np.fromiter(map(len, pieces), np.int64)
        bounds = self._bounds[-1] + np.cumsum(sizes)
        self._bounds = np.concatenate([self._bounds, bounds])
        flat = np.fromiter(itertools.chain.from_iterable(pieces), np.int32)
        self._pieces = np.concatenate([self._pieces, flat])

    def _split(self, text: str) -> Sequence[int]:
        """The ids of a text, step by step as `WordPiece` does it."""
        if not (text.isascii() and text.isprintable()):
            text = text.translate(self._clean)
        if self._lower_case:
            text = text.lower()
        words = text.translate(_SEPARATE).split()
        return [*itertools.chain.from_iterable(map(self._longest_match, words))]

    def _longest_match(self, word: str) -> list[int]:
        unknown = [self._vocabulary.unk_id]
        if len(word) > MAX_WORD_LENGTH:
            return unknown
        ids, start, table = [], 0, self._first
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                if (found := table.get(word[start:end])) is not None:
                    break
            else:
                return unknown
            ids.append(found)
            start, table = end, self._inside
        return ids


def _lower_sigmas(match: re.Match) -> str:
    """Lower-cases capital sigmas, which look beyond the punctuation around a word."""
    if "\u03a3" not in match[0]:
        return match[0]
    chunk = "".join(c for c in match[0] if unicodedata.category(c) not in _DELETED)
    lower, after, kept = chunk.lower(), 0, []
    for char in chunk:
        kept.append(lower[after] if char == "\u03a3" else char)
        after += len(char.lower())
    return "".join(kept)


class _UnfamiliarError(Exception):
    """A character that is newer than some Unicode tables."""


class _Cleaning(dict):
    """For `str.translate`: what is left of a character before lower-casing."""

    def __init__(self, strip_accents: bool):
        super().__init__()
        self._strip_accents = strip_accents

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = unicodedata.category(char)
        parts = unicodedata.normalize("NFD", char)
        # All tables agree on the characters of Unicode 3.2. Whatever needs no treatment
        # is left alone by a table that knows it and by one that does not.
        is_treated = (
            kind in (*_DELETED, "Cn", "Mn")
            or kind[0] in "PZ"
            or not parts == char == char.lower()
        )
        is_old = unicodedata.ucd_3_2_0.category(char) != "Cn" or _COMPLETE.match(char)
        # The order of such marks may change, which a character alone does not show.
        is_mobile = kind != "Mn" and unicodedata.combining(char)
        if (is_treated and not is_old) or is_mobile:
            raise _UnfamiliarError
        if kind in _DELETED or code == 0xFFFD:
            parts = ""
        elif self._strip_accents:
            parts = "".join(c for c in parts if unicodedata.category(c) != "Mn")
        else:
            parts = char
        # Tabs and line breaks are control characters to Unicode.
        self[code] = " " if char in "\t\n\r" else parts
        return self[code]


class _Separation(dict):
    """For `str.translate`: spaces around characters that are words of their own."""

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

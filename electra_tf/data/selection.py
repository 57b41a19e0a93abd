"""Which documents of a corpus are kept: quality filters, exact and near duplicates.

Every document is judged by its own text first. Then, over all of the corpus and in its
order, later copies go, and later documents that are nearly the same by their words
(MinHash with banding: Broder 1997; Leskovec et al., Mining of Massive Datasets, 3.4).
What is left depends on the text and the settings alone, not on who has read it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from electra_tf.data.corpora import Document
from electra_tf.errors import UserError

# Why a document is left out; the place in this list is its verdict.
REASONS = (
    "kept",
    "too_short",
    "too_long",
    "few_letters",
    "repeated_lines",
    "duplicate",
    "near_duplicate",
)
KEPT = 0
_WORDS_IN_A_SHINGLE = 5
_WORDS_AT_ONCE = _LINES_AT_ONCE = 4096
HASHES = 128
_LINES_REMEMBERED = 100_000
_RECALL = 0.99
# Scripts without spaces: each character is a word.
_ALONE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
)
_WORD = re.compile(f"[{_ALONE}]|[^\\W{_ALONE}]+")


class Facts(NamedTuple):
    """What one reading tells about a document.

    ``hash`` is 64 bits of the text: equal documents are on the same side of the
    hold-out. ``characters`` are those of the lines.
    """

    hash: int
    lines: int
    characters: int


def facts(document: Document) -> Facts:
    """Reads a document once."""
    digest = hashlib.blake2b(digest_size=8)
    lines = characters = 0
    waiting = iter(document)
    while some := list(itertools.islice(waiting, _LINES_AT_ONCE)):
        text = "\n".join(some)
        digest.update((f"\n{text}" if lines else text).encode("utf-8"))
        lines += len(some)
        characters += len(text) - len(some) + 1
    return Facts(int.from_bytes(digest.digest(), "big"), lines, characters)


class _Letters(dict):
    """For ``str.translate``: leaves letters and the marks on them."""

    def __missing__(self, code: int) -> int | None:
        self[code] = code if unicodedata.category(chr(code))[0] in "LM" else None
        return self[code]


_LETTERS = _Letters()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """What a document must be to be kept; see ``RecordsConfig`` for the meaning."""

    dedup: str = "none"
    near_similarity: float = 0.8
    min_characters: int = 0
    max_characters: int | None = None
    min_letters: float = 0.0
    max_repeated_lines: float = 1.0

    def settings(self) -> dict[str, Any]:
        """What differs from the default; records of older versions know none of it."""
        return {
            leaf.name: value
            for leaf in dataclasses.fields(self)
            if (value := getattr(self, leaf.name)) != leaf.default
        }

    @functools.cached_property
    def rows_in_a_band(self) -> int:
        """Of the signature: most for which few similar documents share no band."""
        t = self.near_similarity
        return max(
            rows
            for rows in range(1, HASHES + 1)
            if rows == 1 or 1 - (1 - t**rows) ** (HASHES // rows) >= _RECALL
        )

    def reader(self) -> Callable[[Document], tuple[int, int, np.ndarray]]:
        """A function that gives a document's hash, verdict and signature.

        The verdict is that of the document's own text. The signature, [128] uint32, is
        [0] where near duplicates are not looked for.
        """
        sign = _signatures() if self.dedup == "near" else None
        unsigned = np.zeros(HASHES if sign else 0, np.uint32)

        def read(document: Document) -> tuple[int, int, np.ndarray]:
            about = facts(document)
            verdict = REASONS.index(self._judged(document, about))
            is_signed = sign and verdict == KEPT
            return about.hash, verdict, sign(document) if is_signed else unsigned

        return read

    def _judged(self, document: Document, about: Facts) -> str:
        """The reason that the document's own text gives."""
        if about.characters < self.min_characters:
            return "too_short"
        if self.max_characters is not None and about.characters > self.max_characters:
            return "too_long"
        if self.min_letters > 0 and _share_of_letters(document) < self.min_letters:
            return "few_letters"
        most = self.max_repeated_lines
        if most < 1 and _share_of_repeated_lines(document) > most:
            return "repeated_lines"
        return "kept"


def _share_of_letters(document: Document) -> float:
    """Letters among the characters that are no spaces."""
    letters = others = 0
    for line in document:
        letters += len(line.translate(_LETTERS))
        others += sum(map(len, line.split()))
    return letters / others


def _share_of_repeated_lines(document: Document) -> float:
    """Characters of lines that were there before, among all characters."""
    seen: set[int] = set()
    repeated = total = 0
    for line in document:
        total += len(line)
        number = facts([line]).hash
        if number in seen:
            repeated += len(line)
        elif len(seen) < _LINES_REMEMBERED:
            seen.add(number)
    return repeated / total


def shingles(document: Document) -> Iterator[bytes]:
    """Every five words in a row, lower-cased; all words of a shorter document."""
    size = _WORDS_IN_A_SHINGLE
    words: list[str] = []
    is_short = True
    for line in document:
        words += _WORD.findall(line.lower())
        if len(words) >= size:
            is_short = False
            for start in range(len(words) - size + 1):
                yield " ".join(words[start : start + size]).encode()
            words = words[1 - size :]
    if is_short:
        yield " ".join(words).encode()


def _signatures() -> Callable[[Document], np.ndarray]:
    """A function that gives the MinHash signature of a document, [128] uint32."""
    try:
        from datasketch import MinHash
    except ImportError as error:
        raise UserError(
            "--dedup=near needs the package datasketch: pip install 'datasketch>=2,<3'."
        ) from error
    # Permutations are drawn once; a copy is cheap.
    fresh = MinHash(HASHES, seed=1, hashfunc=zlib.crc32)

    def signature(document: Document) -> np.ndarray:
        found, waiting = fresh.copy(), []
        for shingle in shingles(document):
            waiting.append(shingle)
            if len(waiting) == _WORDS_AT_ONCE:
                found.update_batch(waiting)
                waiting = []
        found.update_batch(waiting)
        return found.hashvalues

    return signature


def judge(
    selection: Selection,
    hashes: np.ndarray,
    verdicts: np.ndarray,
    signatures: np.ndarray | None = None,
) -> np.ndarray:
    """The verdicts, [D] uint8, once all D documents have been read.

    A document is a near duplicate if its signature agrees with that of the first
    document of one of its buckets: of those kept so far that have a whole band of the
    signature in common with it.

    Args:
        selection: its ``dedup`` decides what is looked for.
        hashes: [D] uint64.
        verdicts: [D] uint8, by the documents' own text.
        signatures: [D, 128] uint32, maybe on the disk; for near duplicates.
    """
    verdicts = verdicts.copy()
    if selection.dedup in ("exact", "near"):
        kept = np.flatnonzero(verdicts == KEPT)
        _, firsts = np.unique(hashes[kept], return_index=True)
        copies = np.delete(kept, firsts)
        verdicts[copies] = REASONS.index("duplicate")
    if selection.dedup == "near" and signatures is not None:
        kept = np.flatnonzero(verdicts == KEPT)
        rows = selection.rows_in_a_band
        mixed = np.random.default_rng(0).integers(0, 2**64, rows, np.uint64)
        for start in range(0, HASHES - rows + 1, rows):
            band = np.asarray(signatures[:, start : start + rows])[kept]
            # Two bands with one sum are told apart by the signatures.
            sums = (band * mixed).sum(axis=1, dtype=np.uint64)
            _, firsts, bucket = np.unique(sums, return_index=True, return_inverse=True)
            first = firsts[bucket]
            later = np.flatnonzero(first != np.arange(len(kept)))
            for some in np.array_split(later, 1 + len(later) // _WORDS_AT_ONCE):
                ours, theirs = signatures[kept[some]], signatures[kept[first[some]]]
                similar = (ours == theirs).mean(axis=1) >= selection.near_similarity
                verdicts[kept[some[similar]]] = REASONS.index("near_duplicate")
    return verdicts


def counted(verdicts: np.ndarray) -> dict[str, int]:
    """How many documents are left out, for every reason that there is."""
    counts = np.bincount(verdicts, minlength=len(REASONS)).tolist()
    return {
        reason: count
        for reason, count in zip(REASONS, counts, strict=True)
        if count and reason != REASONS[KEPT]
    }


def described(dropped: dict[str, int], documents: int) -> str:
    """For people: "left out 12 of 90 documents: 10 duplicate, 2 too short"."""
    parts = [f"{count} {name.replace('_', ' ')}" for name, count in dropped.items()]
    left_out = sum(dropped.values())
    return f"left out {left_out} of {left_out + documents} documents: " + (
        ", ".join(parts) or "none"
    )
